"""What checks an answer: its schema, a check (a function or read-only tool), an agent, a person.

A validator gives a verdict, or pauses for a person, or raises `ValidatorError`, after which the answer does
not count. It journals nothing itself; `mesh.tree.validation` does.
"""

import builtins
import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from mesh.core.durable_call import History, State
from mesh.core.errors import ToolSessionError, ValidatorError
from mesh.core.events import ApprovalRequired, ApprovalResolved, ValidatorKind
from mesh.core.places import StepKey
from mesh.core.strict_json import parsed
from mesh.llm.answer_check import Checked, checked
from mesh.llm.outputs import problem_of_edit, text_of
from mesh.mcp.port import Tool, ToolOutcome
from mesh.mcp.schema import Misfit, found_problems, problems
from mesh.mcp.toolbox import Toolbox
from mesh.runtime.logs import fields
from mesh.tree.agent_call import CallableAgent, run_agent
from mesh.tree.calls import (
    MOST_SHOWN,
    CallSettings,
    bounded,
    completed_question,
    listed,
    too_deep,
)
from mesh.tree.calls_for_policies import agent_call, tool_call
from mesh.tree.children import not_ended
from mesh.tree.node import PAUSED, REJECTED, PassEnd
from mesh.tree.steps import Steps
from mesh.tree.turn import PassOutput

VERDICT: dict[str, Any] = {
    "type": "object",
    "properties": {"valid": {"type": "boolean"}, "feedback": {"type": "string"}},
    "required": ["valid", "feedback"],
    "additionalProperties": False,
}
"""The ``output_schema`` of agents that validate and have none of their own."""
_log = logging.getLogger("mesh.validators")
_TASK = "Check this answer.\n\nThe message:\n{}\n\nThe answer:\n{}"
_TIMED_OUT = re.compile(r"[^\s:]+ took longer than \S+ s \(timeout_s\)")
"""A failure of a node that quotes nothing: all others begin with its name and a colon."""
_LAST_WORDS = "; its last words: "
"""What follows is the output of a server: see `mesh.mcp.stdio`."""
_MOST_FEEDBACK = 8_000
_REPEATED_WITHIN_S = 5.0
"""A check whose server died in this time is made once more: that is harmless, and the server starts again."""


class Candidate(msgspec.Struct, frozen=True):
    """An answer that is checked. ``output`` is its JSON value, once it has been found to fit the schema."""

    text: str
    output: Any = UNSET

    @property
    def value(self) -> Any:
        """What functions and agents are given."""
        return self.text if self.output is UNSET else self.output


class AnswerVerdict(msgspec.Struct, frozen=True):
    """``feedback`` is what a model is told if the answer is not ``valid``, ``shown`` what clients are told if
    that quotes what they are not to see."""

    valid: bool
    feedback: str = ""
    shown: str = ""


class AnswerValidator(Protocol):
    """One validator of a node."""

    name: str
    kind: ValidatorKind

    async def verdict(self, steps: Steps, step: StepKey, answer: Candidate) -> AnswerVerdict | PassEnd:
        """Its verdict, or how the pass ends if there is none yet. Raises `ValidatorError`, `Superseded`,
        `Unavailable`."""
        ...

    def taken(self, steps: Steps, step: StepKey, answer: Candidate) -> Candidate:
        """The answer as it is after a valid verdict."""
        ...


class SchemaValidator:
    """The schema of the answer. ``is_draft``: clients do not see an answer that does not fit."""

    name = "schema"
    kind: ValidatorKind = "schema"

    def __init__(self, schema: dict[str, Any], *, is_draft: bool = False) -> None:
        self._schema = schema
        self._is_draft = is_draft
        self._last = ("", checked(schema, ""))

    async def verdict(self, steps: Steps, step: StepKey, answer: Candidate) -> AnswerVerdict | PassEnd:
        found = self._checked(answer.text)
        return AnswerVerdict(not found.problem, found.problem, found.rules if self._is_draft else "")

    def taken(self, steps: Steps, step: StepKey, answer: Candidate) -> Candidate:
        return Candidate(answer.text, self._checked(answer.text).value)

    def _checked(self, text: str) -> Checked:
        """What the check of an answer found. It is made once for a verdict and the value that follows it."""
        if text is not self._last[0]:
            self._last = (text, checked(self._schema, text))
        return self._last[1]


class _Failures(msgspec.Struct, frozen=True):
    """The errors of one validator, which clients are told. ``is_draft``: they do not see the answer that is
    checked, so what may quote it goes to the log."""

    validator: str
    is_draft: bool

    def misfit(self, found: Misfit) -> ValidatorError:
        """The answer is nothing that the validator takes."""
        what = f"the {self.validator} does not take this answer"
        return ValidatorError(f"{what}: {found.rule if self.is_draft else found.text}")

    def error(self, what: str, quotes: str, steps: Steps, *, told: str = "") -> ValidatorError:
        """Why there is no verdict. ``told`` takes the place of what ``quotes`` the answer, for those who do
        not see it."""
        if not self.is_draft or told == quotes:
            return ValidatorError(f"the {self.validator} {what}: {quotes}")
        turn = steps.turn
        at = fields(conversation=turn.conversation_id, turn=turn.turn, node=turn.at)
        _log.warning("event=no_verdict %s %s", at, fields(message=f"the {self.validator} {what}: {quotes}"))
        return ValidatorError(f"the {self.validator} {what}{told and ': '}{told} (the log has more)")


class CheckValidator:
    """A function or tool that is given the answer as ``output``, and returns ``true`` or its objection. It
    only reads, so that a call which was lost can be made again. ``is_draft`` as in `SchemaValidator`."""

    kind: ValidatorKind = "check"

    def __init__(
        self, name: str, toolbox: Toolbox, settings: CallSettings, *, is_draft: bool = False
    ) -> None:
        self.name = name
        self._toolbox = toolbox
        self._settings = settings
        self._failures = _Failures(f"check {name}", is_draft)

    async def verdict(self, steps: Steps, step: StepKey, answer: Candidate) -> AnswerVerdict | PassEnd:
        tool = self._toolbox.checks.get(self.name)
        if tool is None:
            raise ValidatorError(f"there is no check {self.name} any more; the answer was not checked")
        given = fitting(tool.input_schema, answer, steps.turn.user_message)
        if (found := found_problems(tool.input_schema, given)).text:
            raise self._failures.misfit(found)
        settings = self._settings
        call = tool_call(settings.agent, settings.name, tool, given, inline=True)
        if denial := await settings.denial(call, steps):
            raise ValidatorError(f"the check {self.name} is not made: {denial}")
        return self._verdict_of(steps, tool, await self._called(steps, step, tool, given))

    def taken(self, steps: Steps, step: StepKey, answer: Candidate) -> Candidate:
        return answer

    async def _called(self, steps: Steps, step: StepKey, tool: Tool, given: dict[str, Any]) -> ToolOutcome:
        remaining = await steps.remaining(self._settings.on_limit)
        context = steps.turn.context(step, steps.turn.nonce, self._settings.root, remaining)
        began, attempts = time.monotonic(), 0
        while True:
            attempts += 1
            try:
                return await self._toolbox.call(tool, given, context=context)
            except ToolSessionError as problem:
                if attempts > 1 or time.monotonic() - began > _REPEATED_WITHIN_S:
                    why = str(problem)
                    told = why.partition(_LAST_WORDS)[0]
                    raise self._failures.error("could not be made", why, steps, told=told) from None

    def _verdict_of(self, steps: Steps, tool: Tool, outcome: ToolOutcome) -> AnswerVerdict:
        if outcome.is_error:
            why = bounded(outcome.content, MOST_SHOWN)
            raise self._failures.error("failed", why, steps, told=_exception_in(why))
        said = _said(tool, outcome)
        if said is True:
            return AnswerVerdict(True)
        if said is False:
            return AnswerVerdict(False, f"The check {self.name} does not accept this answer.")
        if not isinstance(said, str) or not said.strip():
            wanted = "expected True, or a text that says what is wrong"
            raise ValidatorError(f"the check {self.name} answered neither true nor why not; {wanted}")
        return AnswerVerdict(False, bounded(said, _MOST_FEEDBACK))


class AgentValidator:
    """An agent that ends with ``{valid, feedback}``. No person approves its call, so that a destructive one
    is never called. ``is_draft``: clients do not see an answer that did not pass, so they are not shown what
    the agent does with it either."""

    kind: ValidatorKind = "agent"

    def __init__(
        self, agent: CallableAgent, settings: CallSettings, max_depth: int, *, is_draft: bool = False
    ) -> None:
        self.name = agent.name
        self._agent = agent
        self._settings = settings
        self._max_depth = max_depth
        self._is_draft = is_draft
        self._failures = _Failures(f"agent {self.name}", is_draft)

    async def verdict(self, steps: Steps, step: StepKey, answer: Candidate) -> AnswerVerdict | PassEnd:
        if self._agent.destructive:  # `mesh check` refuses it; a config of an older mesh may have it
            raise ValidatorError(f"the agent {self.name} is destructive, and a validator only reads")
        if is_too_deep := too_deep(self.name, steps.turn.depth, self._max_depth):
            raise ValidatorError(is_too_deep)
        given, message, settings = self._given(steps, answer), "", self._settings
        call = agent_call(
            "agent", settings.agent, settings.name, self.name, given, destructive=False, inline=True
        )
        if denial := await settings.denial(call, steps):
            raise ValidatorError(f"the agent {self.name} is not asked: {denial}")
        if self._agent.input_schema is None:
            message = _TASK.format(given["request"], given["output"])
        output = await run_agent(
            self._agent,
            steps,
            step,
            given,
            self._settings,
            message,
            may_end_turn=False,
            validates=True,
            conceals=self._is_draft,
        )
        if output.status not in ("completed", "failed"):
            return not_ended(output)
        return self._verdict_of(steps, output)

    def taken(self, steps: Steps, step: StepKey, answer: Candidate) -> Candidate:
        return answer

    def _given(self, steps: Steps, answer: Candidate) -> dict[str, Any]:
        asked = steps.turn.user_message
        schema = self._agent.input_schema
        if schema is None:
            return {"output": answer.text, "request": asked}
        given = fitting(schema, answer, asked)
        if (found := found_problems(schema, given)).text:
            raise self._failures.misfit(found)
        return given

    def _verdict_of(self, steps: Steps, output: PassOutput) -> AnswerVerdict:
        if output.status == "failed":
            why = bounded(output.text, MOST_SHOWN)
            raise self._failures.error("failed", why, steps, told=why if _TIMED_OUT.fullmatch(why) else "")
        if output.invalid:  # that it was accepted in spite of an objection does not make it right
            raise ValidatorError(f"the verdict of the agent {self.name} did not pass its own checks")
        said = output.output if output.output is not UNSET else _json(output.text)
        match said:
            case {"valid": True}:
                return AnswerVerdict(True)
            case {"valid": False, "feedback": str(feedback)} if feedback.strip():
                return AnswerVerdict(False, bounded(feedback, _MOST_FEEDBACK))
            case {"valid": False}:
                return AnswerVerdict(False, f"The agent {self.name} does not accept this answer.")
            case _:
                nonsense = "answered nonsense; expected {valid, feedback}"
                raise self._failures.error(nonsense, bounded(output.text, 200), steps)


class PersonValidator:
    """A person, who approves the answer, puts another one in its place, or rejects it. ``about`` is what
    else the person is told."""

    name = "person"
    kind: ValidatorKind = "person"

    def __init__(self, settings: CallSettings, schema: dict[str, Any] | None, about: str = "") -> None:
        self._settings = settings
        self._schema = schema
        self._about = about

    async def verdict(self, steps: Steps, step: StepKey, answer: Candidate) -> AnswerVerdict | PassEnd:
        history = History(steps.of(step))
        match history.state:
            case State.NEW:
                steps.record(step, self._question(steps, answer))
                return PAUSED
            case State.DECIDED:
                decision = history.decision_on(history.asked)
                assert decision is not None  # that is what DECIDED means
                return self._decided(history.asked, decision)
            case _:
                return PAUSED

    def taken(self, steps: Steps, step: StepKey, answer: Candidate) -> Candidate:
        decision = steps.known(step, ApprovalResolved)
        if decision is None or decision.edited_args is None:
            return answer
        # The keeper has checked it; an imported journal may say anything.
        if found := problem_of_edit(self._schema, decision.edited_args):
            raise ValidatorError(f"the answer of a person does not fit: {found}")
        output = decision.edited_args["output"]
        return Candidate(text_of(self._schema, output), UNSET if self._schema is None else output)

    def _decided(self, asked: ApprovalRequired, decision: ApprovalResolved) -> AnswerVerdict | PassEnd:
        if decision.choice == "approve":
            return AnswerVerdict(True)
        if not decision.reason:
            return REJECTED
        if asked.expires_at and decision.time >= asked.expires_at and decision.by == "mesh":
            raise ValidatorError(f"no person checked the answer: {decision.reason}")
        return AnswerVerdict(False, decision.reason)

    def _question(self, steps: Steps, answer: Candidate) -> ApprovalRequired:
        given = {"output": answer.value}
        about = f"{bounded(self._about, MOST_SHOWN)}\n" if self._about else ""
        question = ApprovalRequired(
            uuid="",
            call_id="",
            tool_name=self._settings.name,
            tool_args=given,
            description=f"{about}Is this answer of {self._settings.name} right?\n{listed(given)}",
            kind="validation",
            output_schema=self._schema,
        )
        return completed_question(question, steps.turn, self._settings, 0)


def fitting(schema: Mapping[str, Any], answer: Candidate, request: str) -> dict[str, Any]:
    """What a function or agent with this input schema is given: the answer as ``output``, as a value or as
    text, whichever it takes; and the message that is answered as ``request``, if it asks for it."""
    known = schema.get("properties")
    asks = isinstance(known, dict) and "request" in known
    more = {"request": request} if asks else {}
    given = {"output": answer.value, **more}
    if answer.output is not UNSET and problems(dict(schema), given):
        return {"output": answer.text, **more}
    return given


def _exception_in(failure: str) -> str:
    """The type of the exception that a failure begins with, if Python has it: a name of another kind might
    be a part of the answer."""
    name = failure.partition(":")[0]
    found = getattr(builtins, name, None)
    return name if isinstance(found, type) and issubclass(found, BaseException) else ""


def _said(tool: Tool, outcome: ToolOutcome) -> Any:
    """A truth value, or what the tool says instead. Only a server that sends nothing but text may say in
    words that an answer is valid."""
    if outcome.truth is not None:
        is_why = not outcome.truth and _word(outcome.content) is None
        return outcome.content if is_why else outcome.truth
    if outcome.is_structured:
        return outcome.content
    if tool.is_check:
        return _json(outcome.content)
    return outcome.content if tool.tells_truth else _unwrapped(outcome.content)


def _unwrapped(content: str) -> Any:
    """What a server says that sends text only: a truth value in words, or a value in JSON."""
    if (word := _word(content)) is not None:
        return word
    said = _json(content)
    if isinstance(said, dict) and said.keys() == {"result"}:
        said = said["result"]
    return said if isinstance(said, bool | str) else content


def _word(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.strip().lower())


def _json(text: str) -> Any:
    """The value of a JSON text; a text that is none, or has two members of one name, as it is."""
    try:
        return parsed(text, unique_names=True)
    except ValueError:
        return text
