"""What the mesh answers, as far as its client reads it.

What is pure it shares with the server (`mesh.core.view`). The rest it declares itself, with the keys that it
reads: it imports nothing of a server, and ignores keys that it does not know.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from mesh.core.agents_of_turn import AgentView
from mesh.core.events import ToolCall
from mesh.core.view import ConversationSummary, PendingApproval


class ConversationPage(msgspec.Struct, frozen=True):
    """Some of the conversations, newest first. ``next_cursor`` asks for those that follow; it is empty on the
    last page. ``incomplete`` if those of a keeper that is away are missing."""

    conversations: list[ConversationSummary]
    next_cursor: str = ""
    incomplete: bool = False


class ToolInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A tool the agent may use. ``destructive_hint`` None: its server does not say. ``source``: "mcp", "a2a"
    (``server`` is then the other agent), "agent" (of the same config) or "built_in"."""

    name: str
    description: str = ""
    server: str = ""
    destructive_hint: bool | None = None
    input_schema: dict[str, Any] = {}
    source: str = "mcp"


class AgentInfo(msgspec.Struct, frozen=True):
    """The root agent, whose ``path`` is "0", or an agent that the nodes named ``callers`` may call with what
    its ``input_schema`` asks for."""

    name: str
    type: str
    path: str
    description: str = ""
    model: str = ""
    input_schema: dict[str, Any] = {}
    callers: tuple[str, ...] = ()
    budget: dict[str, float] = {}


class ShownMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message between an agent and its model. Of a tool call it is the result, with the name of the
    tool."""

    role: str
    content: str
    name: str = ""
    is_error: bool = False
    tool_calls: tuple[ToolCall, ...] = ()


class ShownAgent(msgspec.Struct, frozen=True):
    """An agent of a turn, and the messages between it and its model."""

    agent: AgentView
    messages: tuple[ShownMessage, ...] = ()


class AgentAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """How an agent has answered, for good or for now. ``finish_reason``: ``stop``, ``error``, ``cancelled``,
    ``awaiting_user`` or ``paused``. ``response`` is the answer, or what went wrong; ``approvals`` are what
    people are asked. ``agent_id`` is what the next message of the conversation is sent to."""

    finish_reason: str
    agent_id: str
    conversation_id: str
    response: str = ""
    approvals: list[PendingApproval] = []

    @property
    def is_last(self) -> bool:
        """Whether nothing follows, whatever anybody does."""
        return self.finish_reason in ("stop", "error", "cancelled")


class AgentsSnapshot(msgspec.Struct, frozen=True):
    """All agents at work at one moment, by id."""

    agents: dict[str, AgentView] = {}


class TreeNode(msgspec.Struct, frozen=True):
    """A node of the agent's tree, or of that of an agent that is called. ``path``: "0" the root, "0.1" its
    second child, "search" the agent search. ``calls`` are the names of the agents that it may call."""

    name: str
    type: str
    path: str
    model: str | None = None
    description: str | None = None
    agents: tuple["TreeNode", ...] = ()
    calls: tuple[str, ...] = ()

    def walk(self) -> Iterator["TreeNode"]:
        """Yields the node and all nodes below it, depth first."""
        yield self
        for agent in self.agents:
            yield from agent.walk()
