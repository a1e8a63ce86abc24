"""The messages between a node and its model in one turn, read from the step events. Pure."""

from collections.abc import Sequence

from mesh.core.events import (
    AgentsReported,
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalResolved,
    LlmCall,
    ToolCall,
    ToolIntent,
    ToolResult,
    Validation,
)
from mesh.core.messages import Assistant, Message, Result, Results, User
from mesh.core.places import Place, StepKey

NOT_RUN = "This tool call was not run: the operation was cancelled by the user."
NOT_KNOWN = (
    "This tool call was begun; it is not known whether it ran, because the turn ended before its result."
)
NOT_ANSWERED = "This agent was called; the turn ended before it answered."
NOT_REACHED = "This tool call was not run: the turn ended before it."
_CHANGED = {"prompt": "your instructions", "tools": "your tools", "model": "the model that you are"}
_REPLACED = "A person has replaced this answer by the next one."


def messages_of(steps: Sequence[AnyEvent], place: Place, *, not_run: str = NOT_RUN) -> list[Message]:
    """The messages between the node at a place and its model, as the next model call takes them.

    Every tool call gets a result, as providers require; the result of a call that was not run is ``not_run``.
    An answer that a validator objected to is followed by the objection, one that came before the node's
    agents had ended by what they brought. What the node was told comes before the call that heard it.
    """
    told = {e.id: e for e in steps if isinstance(e, AgentTold) and e.place == place}
    results = {e.step: e for e in steps if isinstance(e, ToolResult)}
    without = {e.step: NOT_KNOWN for e in steps if isinstance(e, ToolIntent)}
    without |= {
        e.place.call.text: NOT_ANSWERED for e in steps if isinstance(e, AgentStarted) and e.place.call
    }
    objections = _objections(steps)
    messages: list[Message] = []
    for event in steps:
        if not isinstance(event, LlmCall) or event.place != place:
            continue
        messages += [news_message(told[id]) for id in event.heard if id in told]
        messages.append(Assistant(event.text, event.tool_calls))
        if not event.tool_calls and (objection := objections.get(event.step)):
            messages.append(User(objection))
        if event.tool_calls:
            steps_of = [StepKey(event.step).tool_call(j).text for j in range(len(event.tool_calls))]
            answered = [
                _result(call, results.get(step), without.get(step, not_run))
                for call, step in zip(event.tool_calls, steps_of, strict=True)
            ]
            messages.append(Results(tuple(answered)))
    return messages


def news_message(told: AgentTold) -> User:
    """What an agent was told while it works, as its model reads it."""
    unnamed = "A person" if told.from_person else "The agent that started you"
    by = told.by or unnamed
    if told.action == "modify":
        return User(_modified(by, told))
    if told.adds is not None:
        return User(
            f"[{by} has started an agent beside you, {told.adds.handle}, with this task:]\n{told.text}"
        )
    return User(f"[{by} tells you, while you work:]\n{told.text}")


def _modified(by: str, told: AgentTold) -> str:
    """What a model reads of changes of its agent. It sees the others in what it is sent."""
    others = [_CHANGED[name] for name in ("prompt", "tools", "model") if name in told.changes]
    task = told.changes.get("task")
    what = "gives you another task" if task is not None else f"changes {' and '.join(others)}"
    why = f" ({told.text})" if told.text else ""
    follows = f"\n{task}" if task is not None else "\nTake this into account, and give your answer in full."
    return f"[{by} {what}, while you work{why}:]{follows}"


def _objections(steps: Sequence[AnyEvent]) -> dict[str, str]:
    """What came after answers that were not taken as they were, by the steps of their model calls."""
    found: dict[str, str] = {}
    for event in steps:
        answer = StepKey(event.step).validated
        match event:
            case Validation(valid=False, feedback=feedback) if answer:
                found.setdefault(answer.text, feedback)
            case AgentsReported():
                found[event.step] = event.text
            case ApprovalResolved(edited_args=dict()) if answer:
                found[answer.text] = _REPLACED
            case _:
                pass
    return found


def _result(call: ToolCall, outcome: ToolResult | None, without: str) -> Result:
    if outcome is None:
        return Result(call.id, call.name, without, is_error=True)
    return Result(call.id, call.name, outcome.content, outcome.is_error)
