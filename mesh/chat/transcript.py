"""Turns the events of a conversation into parts to print, one event after the other. Pure: no terminal.

The text of a model arrives in deltas. After a lost connection deltas may repeat or be missing, and after a
model call is retried the text begins again. Each delta carries its offset, and the `LlmCall` at the end has
the whole text, so each text is printed once and completely. If several nodes produce text at the same time,
the text of one is printed to its end before that of the next.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
from msgspec import UNSET

from mesh.core.approvals import kind_of
from mesh.core.concealed import calls_shown
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Choice,
    Completed,
    CutOff,
    Error,
    LimitReached,
    LlmCall,
    LlmLost,
    NodeCompleted,
    NodeStarted,
    NodeStatus,
    Paused,
    Spend,
    StoreWentBack,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolIntent,
    ToolProgress,
    ToolResult,
    Trace,
    UserMessage,
    Validation,
)
from mesh.core.messages import ANSWERING_TOOLS, accepted_mark
from mesh.core.places import ROOT, Place, StepKey
from mesh.display import intervention_words, spending_limits
from mesh.display.approvals import asker_of, callers_of, subject_of
from mesh.display.outcomes import ProgressTold, denied, found_by, stopped
from mesh.display.policies import remembered
from mesh.display.started_agents import StartedAgents, about, handle_of
from mesh.display.text import as_json, call, clean, duration, one_line
from mesh.display.validations import Validations, in_spite_of, objection

Tone = Literal["plain", "dim", "good", "bad", "ask", "node", "added", "removed", "hidden"]
Piece = tuple[Tone, str]
_DECIDED: dict[Choice, str] = {
    "approve": "approved",
    "reject": "rejected",
    "retry": "to be run again",
    "skip": "skipped",
    "answer": "answered",
}
_WITH_TOKEN: dict[Choice, str] = {**_DECIDED, "approve": "sent", "reject": "not sent"}
_AGENT_ENDS: dict[NodeStatus, tuple[str, str, Tone]] = {
    "completed": ("✓", "is done", "good"),
    "failed": ("✗", "failed", "bad"),
    "deleted": ("⊘", "is deleted", "dim"),
}
_MAX_RESULT = 80
_MAX_NOTE = 300


class TextChunk(msgspec.Struct, frozen=True):
    """Some of the text of a model, in one step of a node."""

    node: str
    step: str
    text: str


class CallBegun(msgspec.Struct, frozen=True):
    """A tool call that has begun, or is about to."""

    node: str
    step: str
    text: str


class CallStatus(msgspec.Struct, frozen=True):
    """The status of a tool call: ``mark`` as a character, ``note`` in words."""

    node: str
    step: str
    text: str
    mark: str
    note: str
    tone: Tone


class Notice(msgspec.Struct, frozen=True):
    """A line about the conversation."""

    text: str
    tone: Tone = "dim"


class CardRow(msgspec.Struct, frozen=True):
    """A row of what a person is asked."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)


class AnswerText(msgspec.Struct, frozen=True):
    """The answer of the turn. ``is_printed`` says that it was printed before, as the text of the last
    node."""

    text: str
    is_printed: bool


TranscriptPart = TextChunk | CallBegun | CallStatus | Notice | CardRow | AnswerText


class _StepText:
    """The text of one step: how much of it is known, and how much is printed."""

    def __init__(self) -> None:
        self.have = ""
        self.printed = ""
        self.done = False

    def add(self, delta: TextDelta) -> None:
        # A delta behind a gap does not fit. The LlmCall brings the whole text.
        if delta.offset <= len(self.have):
            self.have = self.have[: delta.offset] + delta.text

    def close(self, text: str) -> None:
        self.have, self.done = text, True

    def take(self) -> str:
        """Returns what is to be printed now."""
        if self.printed.startswith(self.have):
            return ""  # the deltas repeat what was printed
        before, self.printed = self.printed, self.have
        if self.have.startswith(before):
            return self.have[len(before) :]
        return f"\n{self.have}"  # the call was retried, and has another text


class Transcript:
    """What was seen of a conversation. ``names`` are the names of the tree's nodes by node path."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.seq = 0
        self.turn = 0
        self.pending: dict[str, ApprovalRequired] = {}
        self.outcome: Completed | Error | Paused | None = None
        self._names = dict(names or {})
        self._expected: str | None = None
        self._begun = False
        self._begin_turn()

    def _begin_turn(self) -> None:
        self.pending.clear()
        self.outcome = None
        self._streams: dict[str, _StepText] = {}
        self._finished: set[str] = set()
        self._calls: dict[str, str] = {}
        self._ready: dict[str, dict[str, str]] = {}
        self._texts: set[str] = set()
        self._labels: dict[Place, str] = {}
        self._calls_of: Counter[str] = Counter()  # of called agents, by path
        self._agents = StartedAgents()
        self._starts: list[AgentStarted] = []  # told when it is known how many are started together
        self._spend: dict[Place, Spend] = {}
        self._traces: set[str] = set()
        self._validations = Validations()
        self._progress = ProgressTold()
        self._drafts: set[Place] = set()  # nodes whose last answer is not shown before it has passed

    def expect(self, message: str) -> None:
        """Announces the message that is about to be sent. Until its turn appears, nothing is settled."""
        self._expected = message

    @property
    def is_settled(self) -> bool:
        """Whether the turn has ended or is paused."""
        return self._expected is None and self.outcome is not None

    @property
    def is_open(self) -> bool:
        """Whether a turn has begun and has not ended."""
        return self._begun and not isinstance(self.outcome, Completed | Error)

    @property
    def is_answered(self) -> bool:
        return isinstance(self.outcome, Completed) and not self.outcome.stopped_by_person

    def see(self, event: AnyEvent) -> list[TranscriptPart]:
        """Takes the next event and returns what is to be printed."""
        self.seq, self.turn = event.seq or self.seq, event.turn or self.turn
        if isinstance(event, AgentStarted) and event.by:
            self._agents.learn(event)
            self._note_name(event)
            self._starts.append(event)
            return []
        starts, self._starts = self._starts, []
        begun = [part for start in starts for part in self._agent_begun(start)]
        if self._agents.folds(event):
            return [*begun, *self._happened_in_folded(event)]
        return [*begun, *self._parts_of(event)]

    def _agent_begun(self, start: AgentStarted) -> Iterator[TranscriptPart]:
        if not self._agents.folds(start):
            yield CallStatus(self._node(start.step), start.step, about(start), "▸", "", "dim")
        elif words := self._agents.told(start):
            yield Notice(f"· {words}")

    def _happened_in_folded(self, event: AnyEvent) -> Iterator[TranscriptPart]:
        match event:
            case ToolIntent() | ToolResult() | Validation():
                self.outcome = None
                if not isinstance(event, ToolIntent):
                    self._drop_pending(event.step)
            case NodeCompleted():
                self._drop_pending_below(event.place)
                if words := self._agents.told(event):
                    yield Notice(f"· {words}")
            case _:
                pass

    def _parts_of(self, event: AnyEvent) -> Iterator[TranscriptPart]:
        match event:
            case UserMessage():
                yield from self._turn_began(event)
            case TextDelta() if event.step not in self._finished:
                self._stream(event.step).add(event)
                yield from self._print_texts()
            case ToolCallDelta(phase="ready", call=ToolCall() as asked) if event.step not in self._finished:
                yield from self._call_announced(event.step, asked)
            case LlmCall():
                yield from self._model_answered(event)
            case Validation():
                yield from self._validated(event)
            case ToolIntent() | ToolResult() | ApprovalRequired() | ApprovalResolved():
                yield from self._call_changed(event)
            case AgentStarted() | NodeStarted():
                self._note_name(event)
            case NodeCompleted():
                yield from self._node_completed(event)
            case Paused():
                yield from self._print_all_texts()
                self.outcome = event
            case Completed() | Error() | StoreWentBack():
                yield from self._turn_ended(event)
            case AgentTold() | LimitReached() | LlmLost() | Spend() | ToolProgress() | Trace() | CutOff():
                yield from self._noted(event)
            case _:
                pass

    def _note_name(self, event: AgentStarted | NodeStarted) -> None:
        if not event.place.is_fork:  # its path is that of its node
            self._names[event.place.path] = event.name

    def _noted(
        self, event: AgentTold | LimitReached | LlmLost | Spend | ToolProgress | Trace | CutOff
    ) -> Iterator[TranscriptPart]:
        match event:
            case AgentTold():
                note = intervention_words.in_words(event, one_line(event.by, 40))
                yield CallStatus(self._node(event.step), event.step, note, "▸", "", "dim")
            case LimitReached():
                whose = "this turn" if event.scope == ROOT.text else self._label(Place(event.scope))
                yield Notice(f"⚠ {spending_limits.limit_reached(event, whose)}", "ask")
            case LlmLost():
                yield Notice(f"· {spending_limits.CALL_LOST}")
            case Spend():
                self._spend[event.place] = event
                if isinstance(self.outcome, Completed | Error):  # the turn has ended: nothing else shows it
                    yield from self._spent()
            case ToolProgress() if told := self._progress.tell(event):
                text = self._calls.get(event.step) or one_line(event.tool, 60)
                yield CallStatus(self._node(event.step), event.step, text, "…", told, "dim")
            case Trace() if event.message not in self._traces:
                self._traces.add(event.message)
                yield Notice(f"· {one_line(event.message, _MAX_NOTE)}")
            case CutOff():
                yield Notice(one_line(event.message, _MAX_NOTE))

    def _turn_began(self, event: UserMessage) -> Iterator[TranscriptPart]:
        self._begin_turn()
        self._begun = True
        if event.text == self._expected:
            self._expected = None
        else:
            yield Notice(f"› {clean(event.text)}", "plain")

    def _model_answered(self, event: LlmCall) -> Iterator[TranscriptPart]:
        place = event.place
        self._validations.answered(place)
        self._drafts.discard(place)
        if event.draft:  # shown when it has passed
            self._drafts.add(place)
            self._stream(event.step).close("")
        else:
            self._stream(event.step).close(event.text)
            self._note_text(place, event.text)
        yield from self._print_texts()
        self._finished.add(event.step)
        self._ready.pop(event.step, None)
        for index, asked in enumerate(calls_shown(event)):
            yield from self._call_begun(StepKey(event.step).tool_call(index).text, asked)

    def _note_text(self, place: Place, text: str) -> None:
        if place.agent == ROOT:  # the text of a called agent is no answer to the user
            self._texts.add(text)

    def _validated(self, event: Validation) -> Iterator[TranscriptPart]:
        self.outcome = None
        self._drop_pending(event.step)
        why = objection(event)
        said = f"{self._validations.verdict(event)}, {self._validations.run(event)}{why and ':'}"
        mark = "✓" if event.valid else "✗"
        yield CallStatus(
            self._node(event.step), event.step, said, mark, why, "good" if event.valid else "bad"
        )

    def _passed(self, place: Place, text: str) -> Iterator[TranscriptPart]:
        """The answer of a node that was checked: none of its texts was shown before."""
        if place in self._drafts:
            self._drafts.discard(place)
            self._note_text(place, text)
            yield TextChunk(self._node(place.text), place.text, f"{clean(text)}\n")

    def _call_announced(self, llm_step: str, asked: ToolCall) -> Iterator[TranscriptPart]:
        """A call in an answer that is not complete yet."""
        ready = self._ready.setdefault(llm_step, {})
        step = ready.setdefault(asked.id, StepKey(llm_step).tool_call(len(ready)).text)
        yield from self._call_begun(step, asked)

    def _call_begun(self, step: str, asked: ToolCall) -> Iterator[TranscriptPart]:
        text = _call(asked)
        if self._calls.get(step) != text:
            self._calls[step] = text
            yield CallBegun(self._node(step), step, text)

    def _call_changed(
        self, event: ToolIntent | ToolResult | ApprovalRequired | ApprovalResolved
    ) -> Iterator[TranscriptPart]:
        node = self._node(event.step)
        self.outcome = None
        match event:
            case ToolIntent():
                self._calls[event.step] = call(event.tool, event.arguments)
            case ToolResult():
                self._drop_pending(event.step)
                text = self._calls.get(event.step) or _call_of(event)
                for place in [place for place in self._drafts if place.call == StepKey(event.step)]:
                    yield from self._passed(place, _answer_in(event))
                yield CallStatus(node, event.step, text, *_result_status(event))
                if event.tool not in ANSWERING_TOOLS:  # else the end of the node or the turn says it
                    yield from _in_spite_of(event.invalid)
            case ApprovalRequired():
                self.pending[event.uuid] = event
                text = self._calls.get(event.step) or _asked(event)
                yield CallStatus(node, event.step, text, "⏸", _waiting_note(event), "ask")
            case ApprovalResolved():
                asked = self.pending.pop(event.uuid, None)
                yield Notice(_resolution(event, asked))

    def _node_completed(self, event: NodeCompleted) -> Iterator[TranscriptPart]:
        for step, stream in self._streams.items():
            stream.done |= event.place.contains(StepKey(step).place)
        self._drop_pending_below(event.place)
        yield from self._print_texts()
        if event.status == "completed":
            yield from self._passed(event.place, event.text)
        if event.place.is_started:
            yield self._agent_ended(event)
        elif event.status == "failed":
            yield Notice(f"✗ {self._node(event.step)}: {one_line(event.text, _MAX_NOTE)}", "bad")
        yield from _in_spite_of(event.invalid)

    def _agent_ended(self, event: NodeCompleted) -> CallStatus:
        took, why = duration(event.duration_ms), one_line(event.text, _MAX_RESULT)
        mark, note, tone = _AGENT_ENDS[event.status]
        said = took if event.status == "completed" else f"{took}  {why}"
        return CallStatus(self._node(event.step), event.step, note, mark, said, tone)

    def _turn_ended(self, event: Completed | Error | StoreWentBack) -> Iterator[TranscriptPart]:
        yield from self._print_all_texts()
        if isinstance(event, StoreWentBack):  # an error follows if the turn was open
            yield Notice(f"✗ {clean(event.message)}", "bad")
            return
        self.pending.clear()
        self.outcome = event
        match event:
            case Error():
                yield Notice(f"✗ {clean(event.message)}", "bad")
            case Completed(stopped_by_person=True):
                yield Notice(f"⊘ {clean(event.response)}", "bad")
            case Completed():
                yield AnswerText(clean(event.response), is_printed=event.response in self._texts)
                yield from _in_spite_of(event.invalid)
        yield from self._spent()

    def _spent(self) -> Iterator[TranscriptPart]:
        """What the turn has used of its limits."""
        if (spend := self._spend.get(ROOT)) is not None and spend.limits:
            yield Notice(f"· {spending_limits.spent(spend)}")

    def _drop_pending(self, step: str) -> None:
        self.pending = {uuid: asked for uuid, asked in self.pending.items() if asked.step != step}

    def _drop_pending_below(self, place: Place) -> None:
        """What has ended waits for nobody."""
        if self.pending:
            kept = {uuid: asked for uuid, asked in self.pending.items() if not place.contains(asked.place)}
            self.pending = kept

    def _stream(self, step: str) -> _StepText:
        return self._streams.setdefault(step, _StepText())

    def _print_texts(self) -> Iterator[TranscriptPart]:
        """Prints the first text that is not complete, and the next ones as soon as those before are
        complete."""
        while self._streams:
            step, stream = next(iter(self._streams.items()))
            if text := stream.take():
                yield TextChunk(self._node(step), step, clean(text))
            if not stream.done:
                return
            del self._streams[step]
            self._finished.add(step)

    def _print_all_texts(self) -> Iterator[TranscriptPart]:
        for stream in self._streams.values():
            stream.done = True
        yield from self._print_texts()

    def _node(self, step: str) -> str:
        """Returns the name of a step's node, with the iteration of a loop. It is empty in a tree of one
        node."""
        return self._label(StepKey(step).place) if len(self._names) > 1 else ""

    def _label(self, place: Place) -> str:
        if place == place.agent and place != ROOT:
            return self._label_of_call(place)
        name = one_line(self._names.get(place.path, place.path), 40)
        iterations = Place(place.text.removeprefix(place.agent.text)).iterations
        label = f"{name} #{iterations[-1]}" if iterations else name
        return label if place.agent == ROOT else f"{label} in {self._label(place.agent)}"

    def _label_of_call(self, place: Place) -> str:
        """Returns the name of a called agent, numbered if it was called before in this turn, or the handle of
        a started one."""
        if place.is_started:
            return handle_of(place)
        if place not in self._labels:
            self._calls_of[place.path] += 1
            calls = self._calls_of[place.path]
            name = one_line(self._names.get(place.path, place.path), 40)
            self._labels[place] = f"{name} ({calls})" if calls > 1 else name
        return self._labels[place]


def _call(asked: ToolCall) -> str:
    if asked.malformed:
        return f"{one_line(asked.name, 60)}(?) {one_line(asked.malformed, 40)}"
    return call(asked.name, asked.arguments)


def _call_of(event: ToolResult) -> str:
    """The call of a result, as far as the result tells it."""
    return one_line(event.tool, 60) if event.arguments is None else call(event.tool, event.arguments)


def _answer_in(event: ToolResult) -> str:
    """The answer of a called agent. The text for its caller says also what was objected to."""
    said = event.content.removesuffix(accepted_mark(event.invalid))
    return said if event.output is UNSET else as_json(event.output)


def _asked(event: ApprovalRequired) -> str:
    """What waits for a person: a call, or an answer."""
    if kind_of(event).edits_output:
        return f"the answer of {asker_of(event) or one_line(event.tool_name, 60)}"
    return call(event.tool_name, event.tool_args)


def _in_spite_of(objection: str) -> Iterator[TranscriptPart]:
    if objection:
        yield Notice(f"⚠ {in_spite_of(objection)}", "ask")


def _result_status(event: ToolResult) -> tuple[str, str, Tone]:
    took = duration(event.duration_ms)
    found = f", {found_by(event.found)}" if event.found else ""
    if event.skipped:
        return "⊘", f"not run{found}", "dim"
    if why := stopped(event):
        after = f" after {took}" if event.duration_ms else ""
        return "⊘", f"stopped{after}: {why}", "dim"
    if by_rule := denied(event):
        return "⊘", f"denied {by_rule}", "bad"
    if event.is_error:
        return "✗", f"{took}  {one_line(event.content, _MAX_RESULT)}", "bad"
    return "✓", f"{took}{found}", "good"


def _waiting_note(asked: ApprovalRequired) -> str:
    who = f"agent {one_line(asked.remote_agent_name, 60)} asks, " if asked.remote_agent_name else ""
    callers = callers_of(asked)
    return f"{who}{kind_of(asked).waits}{callers and f' ({callers})'}"


def _resolution(event: ApprovalResolved, asked: ApprovalRequired | None) -> str:
    by = f" by {one_line(event.by, 60)}" if event.by else ""
    is_answer = asked is not None and kind_of(asked).edits_output
    edited = (
        "" if event.edited_args is None else f" with {'another answer' if is_answer else 'edited arguments'}"
    )
    said = event.answer or event.reason
    why = f": {one_line(said, _MAX_NOTE)}" if said else ""
    words = _WITH_TOKEN if asked is not None and kind_of(asked).needs_token else _DECIDED
    left = remembered(event)
    return f"→ {subject_of(asked)} {words[event.choice]}{edited}{by}{why}{left and f', {left}'}"
