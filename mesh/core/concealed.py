"""What clients see of events that are about a draft: that they happened, and no text or argument.

An agent that checks an answer is told the answer, which its tools, and the agents that it calls, may be told
in turn. Clients are not shown a draft, so they are not shown these either. Only the journal has all of it,
and what a person is asked: who decides has to know about what. Pure.
"""

from typing import Any

import msgspec
from msgspec import UNSET

from mesh.core.events import AnyEvent, LlmCall, NodeCompleted, ToolCall, ToolIntent, ToolResult, Validation


def as_clients_see(event: AnyEvent) -> AnyEvent:
    """The event, without what is said in it if it is concealed."""
    return msgspec.structs.replace(event, **_emptied(event)) if event.concealed else event


def _emptied(event: AnyEvent) -> dict[str, Any]:
    """The fields that say something, with what takes their place."""
    match event:
        case LlmCall():
            return {"text": "", "tool_calls": tuple(ToolCall(c.id, c.name) for c in event.tool_calls)}
        case ToolIntent():
            return {"arguments": {}, "found": None}
        case ToolResult():
            nothing = {"content": "", "shown": "", "arguments": None, "artifacts": ()}
            return {**nothing, "output": UNSET, "invalid": "", "found": None}
        case Validation():
            return {"feedback": "", "shown": ""}
        case NodeCompleted():
            return {"text": "", "state": {}, "output": UNSET, "invalid": ""}
        case _:
            return {}
