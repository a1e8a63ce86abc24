"""Another agent, as a tool of this one."""

from typing import Any

import msgspec

from mesh.a2a.client.port import RemoteAgent
from mesh.llm.port import ToolSpec

PREFIX = "a2a_"
"""Begins the names of the tools that are other agents."""
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "What to say to the agent, in full."}},
    "required": ["message"],
    "additionalProperties": False,
}


class Peer(msgspec.Struct, frozen=True):
    """Another agent, as the config names it."""

    name: str
    agent: RemoteAgent
    description: str = ""
    destructive: bool = False

    @property
    def tool(self) -> str:
        """The name of the tool that it is."""
        return f"{PREFIX}{self.name}"

    @property
    def spec(self) -> ToolSpec:
        """The tool as models see it."""
        return spec_of(self.name, self.description)


def spec_of(name: str, description: str) -> ToolSpec:
    """An agent as models see it: a tool that takes a message."""
    return ToolSpec(f"{PREFIX}{name}", description or f"Asks the agent {name}.", _SCHEMA)
