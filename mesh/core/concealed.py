"""What clients see of drafts, and of events that are about one: that they happened, and no text or argument.

A draft may be the text of a model call, the result that it gives to a tool that ends its work, or whatever it
writes to a tool that takes nothing. Clients are shown the arguments of the other calls, which have an effect.

An agent that checks an answer is told the answer, which its tools, and the agents that it calls, may be told
in turn. Clients are not shown a draft, so they are not shown these either. Only the journal has all of it,
and what a person is asked: who decides has to know about what. Pure.
"""

from collections.abc import Container
from typing import Any

import msgspec
from msgspec import UNSET

from mesh.core.events import (
    AgentsReported,
    AgentStarted,
    AgentTold,
    AnyEvent,
    CodeStep,
    LlmCall,
    NodeCompleted,
    ToolCall,
    ToolIntent,
    ToolResult,
    Validation,
)
from mesh.core.messages import ANSWERING_TOOLS

_ENDING_TOOLS = (*ANSWERING_TOOLS, "exit_loop")


def as_clients_see(event: AnyEvent) -> AnyEvent:
    """The event, without what is said in it if it is concealed or a draft."""
    if event.concealed:
        return msgspec.structs.replace(event, **_emptied(event))
    if isinstance(event, LlmCall) and event.draft:
        return msgspec.structs.replace(event, text="", tool_calls=calls_shown(event), not_offered=())
    return event


def as_agents_see(event: AnyEvent) -> AnyEvent:
    """The event as `as_clients_see` has it, for views of what a model reads: without what quotes a draft."""
    seen = as_clients_see(event)
    match seen:
        case Validation(shown=shown) if shown:
            return msgspec.structs.replace(seen, feedback=shown)
        case ToolResult(shown=shown) if shown:
            return msgspec.structs.replace(seen, content=shown)
        case _:
            return seen


def calls_shown(answer: LlmCall) -> tuple[ToolCall, ...]:
    """The calls of a model's answer as clients see them."""
    return tuple(_bare(c) if hides_arguments(answer, c.name) else c for c in answer.tool_calls)


def hides_arguments(answer: LlmCall, tool: str) -> bool:
    """Whether clients are not shown what a model's answer says to a tool."""
    return answer.draft and (tool in _ENDING_TOOLS or tool in answer.not_offered)


def may_have_draft(tool: str, offered: Container[str]) -> bool:
    """Whether a draft may be in the arguments of a tool, where answers are checked: it ends the work, or is
    none of those that are ``offered``."""
    return tool in _ENDING_TOOLS or tool not in offered


def _emptied(event: AnyEvent) -> dict[str, Any]:
    """The fields that say something, with what takes their place."""
    match event:
        case LlmCall():
            return {"text": "", "tool_calls": tuple(map(_bare, event.tool_calls)), "not_offered": ()}
        case AgentStarted():
            return {"title": "", "task": "", "metadata": {}}
        case AgentsReported():
            return {"text": ""}
        case AgentTold():
            return {"text": "", "changes": {}, "before": {}}
        case CodeStep():
            return {"asked": "", "answer": ""}
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


def _bare(call: ToolCall) -> ToolCall:
    return ToolCall(call.id, call.name)
