"""What events say to an operator: each counts once, when it is journaled."""

from collections.abc import Iterable
from datetime import datetime

from mesh.core.conversation import Conversation
from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    ConversationCreated,
    Error,
    LimitReached,
    LlmCall,
    LlmLost,
    StoreWentBack,
    ToolResult,
)
from mesh.metrics import table
from mesh.metrics.meters import Meters, Series


def note_events(meters: Meters, conversation: Conversation, events: Iterable[AnyEvent]) -> None:
    """Notes new events of a conversation, which has them already."""
    for event in events:
        match event:
            case Completed() | Error():
                outcome = _outcome(event)
                meters.add(table.TURNS, outcome)
                meters.observe(
                    table.TURN_SECONDS, seconds_between(conversation.turn_started_at, event.time), outcome
                )
            case LlmCall():
                _note_call(meters, event)
            case ToolResult():
                meters.add(table.TOOL_CALLS, event.tool, _result(event))
                if event.duration_ms:
                    meters.observe(table.TOOL_SECONDS, event.duration_ms / 1000, event.tool)
            case _:
                _note_other(meters, event)


def seconds_between(earlier: str, later: str) -> float:
    """The time between two times of events, 0 where one of them has none."""
    begun, ended = _moment(earlier), _moment(later)
    return max(0.0, (ended - begun).total_seconds()) if begun and ended else 0.0


def waiting_since(times: Iterable[str]) -> list[Series]:
    """The gauge of the earliest of these times, each of which may be empty; none if all are."""
    known = [moment for time in times if (moment := _moment(time)) is not None]
    return [Series(table.WAITING_SINCE.name, (), min(known).timestamp())] if known else []


def _moment(time: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(time)
    except ValueError:  # a time of an import may have any form
        return None
    return found if found.tzinfo else None


def _note_call(meters: Meters, call: LlmCall) -> None:
    meters.observe(table.LLM_SECONDS, call.latency_ms / 1000, call.model)
    meters.observe(table.LLM_TOKENS, call.usage.input, call.model, "input")
    meters.observe(table.LLM_TOKENS, call.usage.output, call.model, "output")
    if call.cost_nusd:
        meters.add(table.LLM_COST, call.model, by=call.cost_nusd / 1e9)


def _note_other(meters: Meters, event: AnyEvent) -> None:
    match event:
        case ConversationCreated():
            meters.add(table.CONVERSATIONS)
        case AgentStarted():
            meters.add(table.AGENTS_STARTED, event.by or "call")
        case ApprovalRequired():
            meters.add(table.APPROVALS_REQUIRED, event.kind)
        case ApprovalResolved():
            meters.add(table.APPROVALS_RESOLVED, event.choice)
        case LimitReached():
            meters.add(table.LIMITS_REACHED, event.limit)
        case LlmLost():
            meters.add(table.LLM_LOST)
        case StoreWentBack():
            meters.add(table.STORE_LOSSES)


def _outcome(end: Completed | Error) -> str:
    if isinstance(end, Error):
        return "failed"
    if end.cancelled_on_request:
        return "cancelled"
    if end.stopped_by_person:
        return "stopped"
    return "limited" if end.forced else "completed"


def _result(result: ToolResult) -> str:
    if result.denied:
        return "denied"
    if result.skipped:
        return "skipped"
    return "error" if result.is_error else "ok"
