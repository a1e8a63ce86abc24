"""What a model is given: the messages of the person, of the model itself and of tools, and its tools."""

from typing import Any

import msgspec

from mesh.core.events import ToolCall


class User(msgspec.Struct, frozen=True, tag="user"):
    """What the person said."""

    text: str


class Assistant(msgspec.Struct, frozen=True, tag="assistant", omit_defaults=True):
    """What the model said: text, tool calls, or both."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one tool call, as text."""

    call_id: str
    name: str
    content: str
    is_error: bool = False


class Results(msgspec.Struct, frozen=True, tag="results"):
    """The results of every call of the assistant message before it, in its order."""

    results: tuple[Result, ...]


Message = User | Assistant | Results
"""Invariant: an `Assistant` with n tool calls is followed by `Results` with n results."""


ANSWERING_TOOLS = ("complete_task", "return_to_user")
"""The built-in tools whose ``result`` is an answer."""
AGENT_TOOL_PREFIX = "a2a_"
"""Begins the names of tools that are other agents."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model sees it. ``input_schema`` is a JSON Schema of type object."""

    name: str
    description: str
    input_schema: dict[str, Any]


def accepted_mark(objection: str) -> str:
    """Returns what a model reads below the answer of an agent that was accepted in spite of an objection;
    an empty text without one."""
    return f"\n[This answer was accepted in spite of an objection: {objection}]" if objection else ""
