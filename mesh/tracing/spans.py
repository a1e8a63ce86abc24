"""The spans of a conversation, each made of one event when that is journaled, or of an append. Pure.

    turn ─► node ─► model call, tool call, approval
     │                tool call ─► the agent that it called or started ─► …
     └────► append: what the store took to make events durable

The ids of a trace and of its spans are hashes of what they are of, so that every process, also after a crash,
gives the same to the same step: nobody has to remember a parent, and a span that is sent twice is one. The
names and attributes are those of OpenTelemetry's conventions for generative AI, where these have any.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from mesh.core.concealed import as_clients_see
from mesh.core.conversation import Conversation
from mesh.core.events import (
    AnyEvent,
    ApprovalResolved,
    Completed,
    Error,
    Event,
    LlmCall,
    NodeCompleted,
    ToolResult,
)
from mesh.core.execution import step_id, trace_id_of
from mesh.core.places import ROOT, Place

_TURN = "turn"
_NS_IN_MS = 10**6
_NS_IN_S = 10**9
_SAMPLED = 1


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Something that took a while. ``trace_id`` are 32 hex digits, the others 16; ``parent_id`` is empty
    where there is none. Times are in ns since 1970. ``error``: what kind of thing went wrong."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    error: str = ""


class TurnOfTrace(msgspec.Struct, frozen=True):
    """Which turn spans are of. ``traceparent`` is what came with its request."""

    conversation_id: str
    turn: int
    nonce: str
    traceparent: str

    @property
    def trace_id(self) -> str:
        """See `trace_id_of`."""
        return trace_id_of(self.traceparent, self.conversation_id, self.turn)

    def span_id(self, step: str) -> str:
        """The id of the span of a step, or of the place of a node."""
        return sha256(step_id(self.conversation_id, self.turn, self.nonce, step).encode()).hexdigest()[:16]

    def is_sampled(self, share: float) -> bool:
        """Whether it is one of those that are sent: as the request says, or else by its trace id, so that all
        processes agree."""
        if self.traceparent:
            return bool(int(self.traceparent[-2:], 16) & _SAMPLED)
        return int(self.trace_id[-14:], 16) < share * 16**14

    def forwarded(self, share: float) -> str:
        """The trace context with which it calls others: they continue its trace."""
        flags = "01" if self.is_sampled(share) else "00"
        return f"00-{self.trace_id}-{self.span_id(_TURN)}-{flags}"

    def of_place(self, place: Place) -> str:
        """The id of the span of what happens at a place: of the turn, of the call that an agent works for, or
        of a node."""
        if place == ROOT:
            return self.span_id(_TURN)
        return self.span_id(place.call.text if place.call is not None else place.text)

    def parent_of(self, event: Event) -> str:
        """The id of the span in which an event's lies."""
        if isinstance(event, NodeCompleted):
            place = event.place
            if place.begun_in is not None:
                return self.span_id(place.begun_in.text)
            return self.of_place(next(place.enclosing, ROOT))
        return self.of_place(event.place)


def in_step(turn: TurnOfTrace, step: str) -> str:
    """The trace context of what a step of a turn calls. It is the turn's own, unless the turn is traced here:
    then what is called lies in the step."""
    if not turn.traceparent:
        return ""
    version, _, parent, flags = turn.traceparent.split("-")
    if parent != turn.span_id(_TURN):
        return turn.traceparent
    return f"{version}-{turn.trace_id}-{turn.span_id(step)}-{flags}"


def turn_of(conversation: Conversation) -> TurnOfTrace:
    """The newest turn of a conversation."""
    return TurnOfTrace(conversation.id, conversation.turn, conversation.turn_nonce, conversation.traceparent)


def spans_of(
    conversation: Conversation, events: Sequence[AnyEvent], *, with_contents: bool
) -> Iterator[Span]:
    """The spans that end with new events of the newest turn, which the conversation has already. With what
    people, models and tools said only if that is wanted."""
    turn = turn_of(conversation)
    for event in map(as_clients_see, events):
        match event:
            case LlmCall():
                yield _model_call(turn, event, with_contents)
            case ToolResult():
                yield _tool_call(turn, event, with_contents)
            case NodeCompleted():
                yield _node(turn, event)
            case ApprovalResolved():
                yield from _approval(turn, conversation, event)
            case Completed() | Error():
                yield _whole_turn(turn, conversation, event)
            case _:
                pass


def append_span(conversation: Conversation, events: Sequence[AnyEvent], took_s: float) -> Span:
    """The span of an append of events of the newest turn. It began when the last of them was made."""
    turn = turn_of(conversation)
    begun = max(_ns(event.time) for event in events)
    ids = turn.span_id(f"append/{events[0].seq}"), turn.span_id(_TURN)
    times = begun, begun + round(took_s * _NS_IN_S)
    return _made(turn, ids, "append", times, {"mesh.events": len(events)})


def _model_call(turn: TurnOfTrace, call: LlmCall, with_contents: bool) -> Span:
    contents = {"gen_ai.output.messages": call.text} if with_contents else {}
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": call.model,
        "gen_ai.response.finish_reasons": (call.finish_reason,),
        "gen_ai.usage.input_tokens": call.usage.input,
        "gen_ai.usage.output_tokens": call.usage.output,
        **({} if call.cost_nusd is None else {"mesh.cost_usd": call.cost_nusd / 1e9}),
        **contents,
    }
    return _span(turn, call, f"chat {call.model}", call.latency_ms, attributes)


def _tool_call(turn: TurnOfTrace, result: ToolResult, with_contents: bool) -> Span:
    contents = {"gen_ai.tool.call.result": result.content} if with_contents else {}
    outcome = "denied" if result.denied else "skipped" if result.skipped else ""
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": result.tool,
        "gen_ai.tool.call.id": result.call_id,
        **({"mesh.outcome": outcome} if outcome else {}),
        **contents,
    }
    error = "tool_error" if result.is_error else ""
    return _span(turn, result, f"execute_tool {result.tool}", result.duration_ms, attributes, error)


def _node(turn: TurnOfTrace, node: NodeCompleted) -> Span:
    is_agent = node.place.is_started
    attributes = {
        **({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": node.name} if is_agent else {}),
        "mesh.node": node.place.text,
    }
    name = f"invoke_agent {node.name}" if is_agent else f"node {node.name}"
    error = "" if node.status == "completed" else node.status
    return _span(turn, node, name, node.duration_ms, attributes, error)


def _approval(turn: TurnOfTrace, conversation: Conversation, resolved: ApprovalResolved) -> Iterator[Span]:
    for asked in conversation.questions(resolved.uuid):
        span_id = turn.span_id(f"{asked.step}/approval/{asked.attempt}")
        times = _ns(asked.time), _ns(resolved.time)
        attributes = {"mesh.approval.kind": asked.kind, "mesh.approval.decision": resolved.choice}
        name = f"approval {asked.tool_name}".rstrip()
        yield _made(turn, (span_id, turn.parent_of(asked)), name, times, attributes)


def _whole_turn(turn: TurnOfTrace, conversation: Conversation, end: Completed | Error) -> Span:
    caller = turn.traceparent.split("-")[2] if turn.traceparent else ""
    times = _ns(conversation.turn_started_at), _ns(end.time)
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": conversation.agent}
    error = "turn_failed" if isinstance(end, Error) else ""
    ids = turn.span_id(_TURN), caller
    return _made(turn, ids, f"invoke_agent {conversation.agent}", times, attributes, error)


def _span(
    turn: TurnOfTrace,
    event: Event,
    name: str,
    duration_ms: int,
    attributes: Mapping[str, Any],
    error: str = "",
) -> Span:
    """The span of a step, which ended when its event was made."""
    end = _ns(event.time)
    ids = turn.span_id(event.step), turn.parent_of(event)
    return _made(turn, ids, name, (end - duration_ms * _NS_IN_MS, end), attributes, error)


def _made(
    turn: TurnOfTrace,
    ids: tuple[str, str],
    name: str,
    times: tuple[int, int],
    attributes: Mapping[str, Any],
    error: str = "",
) -> Span:
    """A span with its own id and that of its parent, and when it began and ended: the clocks of machines
    differ."""
    return Span(
        trace_id=turn.trace_id,
        span_id=ids[0],
        parent_id=ids[1],
        name=name,
        start_ns=times[0],
        end_ns=max(times),
        attributes={"gen_ai.conversation.id": turn.conversation_id, "mesh.turn": turn.turn, **attributes},
        error=error,
    )


def _ns(time: str) -> int:
    """The ns since 1970 of the time of an event."""
    return round(datetime.fromisoformat(time).timestamp() * 1e6) * 1000


class Tracer:
    """Makes spans of what is journaled, and has them sent. ``share`` of the turns are traced, unless the
    caller has decided. ``with_contents``: see `spans_of`."""

    def __init__(self, send: Callable[[Span], None], share: float, *, with_contents: bool) -> None:
        self._send = send
        self._share = share
        self._with_contents = with_contents

    def note(self, conversation: Conversation, events: Sequence[AnyEvent], took_s: float) -> None:
        """Takes events of the newest turn that were appended at once, in so many seconds, and that the
        conversation has already. Before its first turn there is nothing to trace."""
        if conversation.turn and turn_of(conversation).is_sampled(self._share):
            for span in spans_of(conversation, events, with_contents=self._with_contents):
                self._send(span)
            self._send(append_span(conversation, events, took_s))

    def forwarded(self, turn: TurnOfTrace) -> str:
        """The trace context with which a turn calls others."""
        return turn.forwarded(self._share)
