"""What there is to print of a conversation = the events, seen one after the other. Pure: no terminal.

Text of the models comes in pieces that may repeat, be missing (after a connection was lost) or begin again
(a model call that is tried again). A piece carries its place, and the `LlmCall` at the end has the whole: so
each text is printed once and whole. Where several nodes speak at once, one is let finish before the next.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from mesh.core.approvals import kind_of
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Choice,
    Completed,
    CutOff,
    Error,
    LlmCall,
    NodeCompleted,
    NodeStarted,
    Paused,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolIntent,
    ToolResult,
    Trace,
    UserMessage,
)
from mesh.core.places import StepKey
from mesh.display.approvals import subject_of
from mesh.display.text import call, clean, duration, one_line

Tone = Literal["plain", "dim", "good", "bad", "ask", "node"]
_DECIDED: dict[Choice, str] = {
    "approve": "approved",
    "reject": "rejected",
    "retry": "to be run again",
    "skip": "skipped",
    "answer": "answered",
}
_WITH_TOKEN: dict[Choice, str] = {**_DECIDED, "approve": "sent", "reject": "not sent"}
_SHORT_RESULT = 80
_SHORT_NOTE = 300


class Said(msgspec.Struct, frozen=True):
    """A piece of what a node's model says in a step."""

    node: str
    step: str
    text: str


class Called(msgspec.Struct, frozen=True):
    """A tool is called, or will be."""

    node: str
    step: str
    text: str


class Ended(msgspec.Struct, frozen=True):
    """How it stands with a call: ``mark`` in a character, ``note`` in words."""

    node: str
    step: str
    text: str
    mark: str
    note: str
    tone: Tone


class Note(msgspec.Struct, frozen=True):
    """A line about the conversation."""

    text: str
    tone: Tone = "dim"


class Answer(msgspec.Struct, frozen=True):
    """The turn's answer. ``said``: it was printed already, as what the last node said."""

    text: str
    said: bool


Part = Said | Called | Ended | Note | Answer


class _Stream:
    """The text of one step, as far as it is known and as far as it was printed."""

    def __init__(self) -> None:
        self.have = ""
        self.printed = ""
        self.done = False

    def add(self, delta: TextDelta) -> None:
        # After a gap nothing fits any more: the LlmCall will bring the whole.
        if delta.offset <= len(self.have):
            self.have = self.have[: delta.offset] + delta.text

    def close(self, text: str) -> None:
        self.have, self.done = text, True

    def take(self) -> str:
        """What is to be printed now."""
        if self.printed.startswith(self.have):
            return ""  # a repetition has not caught up yet
        before, self.printed = self.printed, self.have
        if self.have.startswith(before):
            return self.have[len(before) :]
        return f"\n{self.have}"  # it was tried again, and says something else


class Transcript:
    """What was seen of a conversation. ``names``: the names of the tree's nodes by path."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.seq = 0
        self.pending: dict[str, ApprovalRequired] = {}
        self.outcome: Completed | Error | Paused | None = None
        self._names = dict(names or {})
        self._mine: str | None = None
        self._begun = False
        self._begin_turn()

    def _begin_turn(self) -> None:
        self.pending.clear()
        self.outcome = None
        self._streams: dict[str, _Stream] = {}
        self._finished: set[str] = set()
        self._calls: dict[str, str] = {}
        self._ready: dict[str, dict[str, str]] = {}
        self._texts: set[str] = set()
        self._traces: set[str] = set()

    def expect(self, message: str) -> None:
        """The next turn that is looked at is the one of this message, about to be said."""
        self._mine = message

    @property
    def is_settled(self) -> bool:
        """Whether the turn has ended, or waits for a person."""
        return self._mine is None and self.outcome is not None

    @property
    def is_open(self) -> bool:
        """Whether a turn was begun and has not ended."""
        return self._begun and not isinstance(self.outcome, Completed | Error)

    @property
    def is_answered(self) -> bool:
        return isinstance(self.outcome, Completed) and not self.outcome.cancelled

    def see(self, event: AnyEvent) -> list[Part]:
        """Takes the next event; what is to be printed now."""
        self.seq = event.seq or self.seq
        return [*self._seen(event)]

    def _seen(self, event: AnyEvent) -> Iterator[Part]:
        match event:
            case UserMessage():
                yield from self._opened(event)
            case TextDelta() if event.step not in self._finished:
                self._stream(event.step).add(event)
                yield from self._flow()
            case ToolCallDelta(phase="ready", call=ToolCall() as asked) if event.step not in self._finished:
                yield from self._wanted(event.step, asked)
            case LlmCall():
                yield from self._answered(event)
            case ToolIntent() | ToolResult() | ApprovalRequired() | ApprovalResolved():
                yield from self._stepped(event)
            case NodeStarted():
                self._names[event.place.path] = event.name
            case NodeCompleted():
                yield from self._left(event)
            case Paused():
                yield from self._flush()
                self.outcome = event
            case Completed() | Error():
                yield from self._closed(event)
            case Trace() if event.message not in self._traces:
                self._traces.add(event.message)
                yield Note(f"· {one_line(event.message, _SHORT_NOTE)}")
            case CutOff():
                yield Note(one_line(event.message, _SHORT_NOTE))
            case _:
                pass

    def _opened(self, event: UserMessage) -> Iterator[Part]:
        self._begin_turn()
        self._begun = True
        if event.text == self._mine:
            self._mine = None
        else:
            yield Note(f"› {clean(event.text)}", "plain")

    def _answered(self, event: LlmCall) -> Iterator[Part]:
        self._stream(event.step).close(event.text)
        self._texts.add(event.text)
        yield from self._flow()
        self._finished.add(event.step)
        self._ready.pop(event.step, None)
        for index, asked in enumerate(event.tool_calls):
            yield from self._called(StepKey(event.step).tool_call(index).text, asked)

    def _wanted(self, llm_step: str, asked: ToolCall) -> Iterator[Part]:
        """A call of an answer that is not complete yet."""
        ready = self._ready.setdefault(llm_step, {})
        step = ready.setdefault(asked.id, StepKey(llm_step).tool_call(len(ready)).text)
        yield from self._called(step, asked)

    def _called(self, step: str, asked: ToolCall) -> Iterator[Part]:
        text = _call(asked)
        if self._calls.get(step) != text:
            self._calls[step] = text
            yield Called(self._node(step), step, text)

    def _stepped(
        self, event: ToolIntent | ToolResult | ApprovalRequired | ApprovalResolved
    ) -> Iterator[Part]:
        node = self._node(event.step)
        self.outcome = None
        match event:
            case ToolIntent():
                self._calls[event.step] = call(event.tool, event.arguments)
            case ToolResult():
                self._drop_pending(event.step)
                text = self._calls.get(event.step) or one_line(event.tool, 60)
                yield Ended(node, event.step, text, *_verdict(event))
            case ApprovalRequired():
                self.pending[event.uuid] = event
                text = self._calls.get(event.step) or call(event.tool_name, event.tool_args)
                yield Ended(node, event.step, text, "⏸", _waits(event), "ask")
            case ApprovalResolved():
                asked = self.pending.pop(event.uuid, None)
                yield Note(_resolution(event, asked))

    def _left(self, event: NodeCompleted) -> Iterator[Part]:
        for step, stream in self._streams.items():
            stream.done |= StepKey(step).place == event.place
        yield from self._flow()
        if event.status == "failed":
            yield Note(f"✗ {self._node(event.step)}: {one_line(event.text, _SHORT_NOTE)}", "bad")

    def _closed(self, event: Completed | Error) -> Iterator[Part]:
        yield from self._flush()
        self.pending.clear()
        self.outcome = event
        match event:
            case Error():
                yield Note(f"✗ {clean(event.message)}", "bad")
            case Completed(cancelled=True):
                yield Note(f"⊘ {clean(event.response)}", "bad")
            case Completed():
                yield Answer(clean(event.response), said=event.response in self._texts)

    def _drop_pending(self, step: str) -> None:
        self.pending = {uuid: asked for uuid, asked in self.pending.items() if asked.step != step}

    def _stream(self, step: str) -> _Stream:
        return self._streams.setdefault(step, _Stream())

    def _flow(self) -> Iterator[Part]:
        """What the first of the open streams has to say, and the next ones as they come to the front."""
        while self._streams:
            step, stream = next(iter(self._streams.items()))
            if text := stream.take():
                yield Said(self._node(step), step, clean(text))
            if not stream.done:
                return
            del self._streams[step]
            self._finished.add(step)

    def _flush(self) -> Iterator[Part]:
        for stream in self._streams.values():
            stream.done = True
        yield from self._flow()

    def _node(self, step: str) -> str:
        """The name of a step's node, with the round of a loop; empty where there is one node only."""
        place = StepKey(step).place
        if len(self._names) < 2:
            return ""
        name = one_line(self._names.get(place.path, place.text), 40)
        return f"{name} #{place.iterations[-1]}" if place.iterations else name


def _call(asked: ToolCall) -> str:
    if asked.malformed:
        return f"{one_line(asked.name, 60)}(?) {one_line(asked.malformed, 40)}"
    return call(asked.name, asked.arguments)


def _verdict(event: ToolResult) -> tuple[str, str, Tone]:
    took = duration(event.duration_ms)
    if event.skipped:
        return "⊘", "not run", "dim"
    if event.is_error:
        return "✗", f"{took}  {one_line(event.content, _SHORT_RESULT)}", "bad"
    return "✓", took, "good"


def _waits(asked: ApprovalRequired) -> str:
    who = f"agent {one_line(asked.remote_agent_name, 60)} asks, " if asked.remote_agent_name else ""
    return f"{who}{kind_of(asked).waits}"


def _resolution(event: ApprovalResolved, asked: ApprovalRequired | None) -> str:
    by = f" by {one_line(event.by, 60)}" if event.by else ""
    edited = " with edited arguments" if event.edited_args is not None else ""
    said = event.answer or event.reason
    why = f": {one_line(said, _SHORT_NOTE)}" if said else ""
    words = _WITH_TOKEN if asked is not None and kind_of(asked).needs_token else _DECIDED
    return f"→ {subject_of(asked)} {words[event.decision]}{edited}{by}{why}"
