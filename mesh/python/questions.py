"""What the code of a call asks its host, and what is known of that from an earlier run. Pure.

A question and its answer are journaled as JSON in one spelling, so that two of them can be compared as texts.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from mesh.core.execution import RecordedQuestion

MOST_HANDLES = 10_000
MOST_QUESTIONS = 10_000
MOST_TIMEOUT_S = 1e9
"""Of one call."""
_MOST_SHOWN = 500


class BrokenProtocol(Exception):
    """What came from the process is no question: the code has written to where its questions go. Or it is one
    that nobody answers, and the message says why."""


class AskedSomethingElse(Exception):
    """The code ran again and asked something else than before."""

    def __init__(self, number: int, before: str, now: str) -> None:
        super().__init__(
            f"the code asked something else than when it ran before, so it cannot go on.\n"
            f"  Question {number + 1} before: {_shown(before)}\n  Question {number + 1} now: {_shown(now)}"
        )


class ForkQuestion(msgspec.Struct, frozen=True):
    """Starts a fork that is told ``prompt``."""

    prompt: str
    title: str = ""


class SpawnQuestion(msgspec.Struct, frozen=True):
    """Starts an agent of the config. Only a tool asks this."""

    agent: str
    task: str
    title: str = ""


class WaitQuestion(msgspec.Struct, frozen=True):
    """Waits for forks, by their handles. ``any``: for the first of them. ``timeout_s`` None: for ever."""

    handles: tuple[int, ...]
    any: bool = False
    timeout_s: float | None = None


StartQuestion = ForkQuestion | SpawnQuestion
Question = StartQuestion | WaitQuestion


class ForkAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """``handle`` is that of the new fork; 0 if it was ``refused``, and why. ``at`` is when it was answered,
    in nanoseconds since 1970."""

    at: int
    handle: int = 0
    refused: str = ""


class ForkEnd(msgspec.Struct, frozen=True):
    """How a fork has ended: ``status`` is ``completed``, ``failed`` or ``deleted``, ``text`` its answer, or
    what went wrong."""

    status: str
    text: str


class WaitAnswer(msgspec.Struct, frozen=True):
    """How each fork that was asked about has ended, None where it has not."""

    at: int
    ended: tuple[ForkEnd | None, ...]


Answer = ForkAnswer | WaitAnswer


def question_of(message: dict[str, Any]) -> Question:
    """The question in a message of the process. Raises `BrokenProtocol`."""
    if set(message) == {"fork"} and isinstance(prompt := message["fork"], str):
        return ForkQuestion(prompt.encode("utf-8", "replace").decode())
    if set(message) == {"wait", "any", "timeout"}:
        try:
            asked = {"handles": message["wait"], "any": message["any"], "timeout_s": message["timeout"]}
            question = msgspec.convert(asked, WaitQuestion)
        except msgspec.ValidationError:
            raise BrokenProtocol from None
        return _bounded(question)
    raise BrokenProtocol


def question_in(asked: str) -> Question:
    """The question that a text says: the inverse of `asked_text`. Raises `BrokenProtocol`."""
    try:
        return _question(msgspec.json.decode(asked, type=_Asked))
    except msgspec.DecodeError:
        raise BrokenProtocol from None


def _question(asked: "_Asked") -> Question:
    if asked.fork is not None:
        return ForkQuestion(asked.fork, asked.title)
    if asked.spawn is not None and asked.task is not None:
        return SpawnQuestion(asked.spawn, asked.task, asked.title)
    if asked.wait is not None:
        return _bounded(WaitQuestion(asked.wait, asked.any, asked.timeout))
    raise BrokenProtocol


def _bounded(question: WaitQuestion) -> WaitQuestion:
    """A question that is one. The code may have got round what checks it in the sandbox, and no timer must
    be set to a time that is no number. Raises `BrokenProtocol`."""
    timeout_s = question.timeout_s
    is_bounded = timeout_s is None or 0 <= timeout_s <= MOST_TIMEOUT_S  # not so for NaN
    if not is_bounded or not 0 < len(question.handles) <= MOST_HANDLES:
        raise BrokenProtocol
    return question


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Any question, as it is written."""

    fork: str | None = None
    spawn: str | None = None
    task: str | None = None
    title: str = ""
    wait: tuple[int, ...] | None = None
    any: bool = False
    timeout: float | None = None


def asked_text(question: Question) -> str:
    """A question as it is journaled."""
    match question:
        case ForkQuestion():
            return _json({"fork": question.prompt, **_titled(question)})
        case SpawnQuestion():
            return _json({"spawn": question.agent, "task": question.task, **_titled(question)})
        case WaitQuestion():
            pass
    more: dict[str, Any] = {"any": True} if question.any else {}
    if question.timeout_s is not None:
        more["timeout"] = question.timeout_s
    return _json({"wait": question.handles, **more})


def _titled(question: StartQuestion) -> dict[str, str]:
    return {"title": question.title} if question.title else {}


def answer_text(answer: Answer) -> str:
    """An answer as it is journaled, and as the process gets it."""
    if isinstance(answer, WaitAnswer):
        return _json(msgspec.to_builtins(answer))
    told: dict[str, Any] = {"refused": answer.refused} if answer.refused else {"handle": answer.handle}
    return _json({"at": answer.at, **told})


def is_refusal(answer: str) -> bool:
    """Whether an answer, as it is journaled, says that an agent was not started."""
    return "refused" in msgspec.json.decode(answer)


class Replay:
    """One run of the code, as far as it is known from earlier ones."""

    def __init__(self, recorded: Sequence[RecordedQuestion]) -> None:
        self._recorded = recorded
        self.number = 0
        """Of the next question."""

    def answer(self, asked: str) -> str | None:
        """The recorded answer to the next question, which is counted then; None if it was never asked. Raises
        `AskedSomethingElse`."""
        if self.number >= len(self._recorded):
            return None
        before = self._recorded[self.number]
        if before.asked != asked:
            raise AskedSomethingElse(self.number, before.asked, asked)
        self.number += 1
        return before.answer


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _shown(asked: str) -> str:
    """A question as the code asks it, in one line.

    >>> _shown('{"fork":"look"}'), _shown('{"any":true,"wait":[1,2]}')
    ('fork("look")', 'wait([1,2], any=True)')
    """
    question = msgspec.json.decode(asked)
    if "fork" in question:
        text = f"fork({_json(question['fork'])})"
    elif "spawn" in question:
        text = f"spawn({_json(question['spawn'])}, {_json(question['task'])})"
    else:
        more = [f"{name}={question[name]}" for name in ("any", "timeout") if name in question]
        text = f"wait({', '.join([_json(question['wait']), *more])})"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
