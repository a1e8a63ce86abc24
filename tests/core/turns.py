"""Turns with very many agents."""

from collections.abc import Iterator
from typing import Literal

from msgspec.structs import replace

from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    ConversationCreated,
    LlmCall,
    LlmReserved,
    NodeCompleted,
    ToolCall,
    ToolIntent,
    ToolResult,
    Usage,
    UserMessage,
)
from mesh.core.ids import approval_id
from mesh.core.places import ROOT, Place

Beginning = Literal["child", "called", "started"]
CONVERSATION = "0b9a35c0-0000-4000-8000-0000000000aa"
AT = "2026-01-01T00:00:00.000Z"


def agents_side_by_side(count: int, how: Beginning, *, asks: bool = False) -> list[AnyEvent]:
    """The events of a turn in which so many agents work side by side, each of them a step behind the one
    before it, until there are as many of them at each step. The agents are children of a parallel node,
    called agents, or started ones. ``asks``: each of them waits for a person first."""
    agents = [list(_agent(n, how, asks)) for n in range(count)]
    steps = len(agents[0])
    ordered = sorted((n % steps + at, n, at) for n in range(count) for at in range(steps))
    found: list[AnyEvent] = [*opening(count, how), *(agents[n][at] for _, n, at in ordered)]
    return [replace(e, seq=n, turn=min(1, n - 1), time=AT) for n, e in enumerate(found, 1)]


def opening(count: int, how: Beginning) -> list[AnyEvent]:
    """What there is before the first agent begins."""
    answer = LlmCall(step="0/llm/0", model="m", tool_calls=tuple(_calls(count, how)))
    created = ConversationCreated(conversation_id=CONVERSATION, session_id="s", agent="a", digest="d")
    return [created, UserMessage(turn=1, text="go"), *([] if how == "child" else [answer])]


def in_the_middle(events: list[AnyEvent], count: int, how: Beginning) -> slice:
    """Where every agent has begun and none has ended: three events for each step of an agent, in turns."""
    begun = len(opening(count, how))
    steps = (len(events) - begun) // count
    before = sum(count // steps + (n < count % steps) for r in range(steps - 1) for n in range(r + 1))
    return slice(begun + before + count // 2, begun + before + count // 2 + 3 * steps)


def place_of(number: int, how: Beginning) -> Place:
    """Where an agent works."""
    match how:
        case "child":
            return ROOT.child(number)
        case "called":
            return ROOT.model_call(0).tool_call(number).called_agent("worker")
        case "started":
            return ROOT.model_call(0).tool_call(0).started_agent("worker", number)


def _calls(count: int, how: Beginning) -> Iterator[ToolCall]:
    for n in range(count if how == "called" else 1):
        yield ToolCall(id=f"c{n}", name="worker" if how == "called" else "spawn", arguments={"task": "x"})


def _agent(number: int, how: Beginning, asks: bool) -> Iterator[AnyEvent]:
    place = place_of(number, how)
    if how != "child":
        by: Literal["spawn", ""] = "spawn" if how == "started" else ""
        yield AgentStarted(step=place.text, name="worker", kind="llm", title=f"part {number}", by=by)
    first, second, tool = place.model_call(0), place.model_call(1), place.model_call(0).tool_call(0)
    yield LlmReserved(step=first.text, run=1, tokens=100, max_output=50, input_bytes=100)
    call = ToolCall(id="c", name="look", arguments={"at": number})
    yield LlmCall(step=first.text, model="m", tool_calls=(call,), usage=Usage(20, 10))
    if asks:
        asked = ApprovalRequired(
            step=tool.text,
            uuid=approval_id(CONVERSATION),
            call_id="c",
            tool_name="look",
            tool_args={"at": number},
            description="Look?",
            expires_at=f"2026-01-02T00:00:{number % 60:02}.000Z",
            remember="always",
        )
        yield asked
        yield ApprovalResolved(step=tool.text, uuid=asked.uuid, choice="approve")
    yield ToolIntent(step=tool.text, run=1, tool="look", arguments={"at": number}, session="s")
    yield ToolResult(step=tool.text, call_id="c", tool="look", content="seen")
    yield LlmReserved(step=second.text, run=1, tokens=100, max_output=50, input_bytes=200)
    yield LlmCall(step=second.text, model="m", text="done", usage=Usage(30, 10))
    if how == "called":
        step = ROOT.model_call(0).tool_call(number).text
        yield ToolResult(step=step, call_id=f"c{number}", tool="worker", content="done")
    else:
        yield NodeCompleted(step=place.text, name="worker", text="done")
