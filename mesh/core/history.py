"""What a node and its model said in a turn, read from the steps. Pure."""

from collections.abc import Sequence

from mesh.core.events import AnyEvent, LlmCall, ToolCall, ToolIntent, ToolResult
from mesh.core.messages import Assistant, Message, Result, Results
from mesh.core.places import Place, StepKey

NOT_RUN = "This tool call was not run: the operation was cancelled by the user."
NOT_KNOWN = (
    "This tool call was begun; it is not known whether it ran, because the turn ended before its result."
)


def exchange(steps: Sequence[AnyEvent], place: Place) -> list[Message]:
    """What one node and its model said in a turn, in the form the next model call takes.

    Every call gets a result, as the providers require: one that never ran says so.
    """
    results = {e.step: e for e in steps if isinstance(e, ToolResult)}
    begun = {e.step for e in steps if isinstance(e, ToolIntent)}
    messages: list[Message] = []
    for event in steps:
        if not isinstance(event, LlmCall) or event.place != place:
            continue
        messages.append(Assistant(event.text, event.tool_calls))
        if event.tool_calls:
            steps_of = [StepKey(event.step).tool_call(j).text for j in range(len(event.tool_calls))]
            told = [
                _result(call, results.get(step), step in begun)
                for call, step in zip(event.tool_calls, steps_of, strict=True)
            ]
            messages.append(Results(tuple(told)))
    return messages


def _result(call: ToolCall, outcome: ToolResult | None, begun: bool) -> Result:
    if outcome is None:
        return Result(call.id, call.name, NOT_KNOWN if begun else NOT_RUN, is_error=True)
    return Result(call.id, call.name, outcome.content, outcome.is_error)


def asked_for(steps: Sequence[AnyEvent], outcome: ToolResult | ToolIntent) -> ToolCall | None:
    """The model's call that led to this claim or result."""
    return next(
        (
            call
            for event in reversed(steps)
            if isinstance(event, LlmCall) and event.place == outcome.place
            for index, call in enumerate(event.tool_calls)
            if StepKey(event.step).tool_call(index).text == outcome.step
        ),
        None,
    )
