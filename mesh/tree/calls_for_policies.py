"""Calls as policies see them: of tools, of other agents, of agents of the config. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from mesh.config.model import Config
from mesh.core.hints import Hints
from mesh.mcp.port import Tool
from mesh.policy.policy_call import CallKind, PolicyCall
from mesh.tree.plan import PlannedNode, callable_agents, tree_of


def callers_of(config: Config) -> Iterator[tuple[str, PlannedNode]]:
    """Yields every node that can make calls, with the name of its agent."""
    for root in (tree_of(config), *callable_agents(config)):
        yield from ((root.node.name, planned) for planned in root.walk())


def tool_call(agent: str, node: str, tool: Tool, arguments: Mapping[str, Any], *, inline: bool) -> PolicyCall:
    """The call of a tool of a server."""
    about = tool.about
    return PolicyCall(
        agent=agent,
        node=node,
        kind="python" if tool.tells_truth else "mcp",
        server=tool.server,
        tool=tool.name,
        hints=Hints(tool.destructive, tool.repeatable, tool.read_only),
        risk=about.risk,
        arguments=arguments,
        paths=about.paths,
        root_arguments=about.root_arguments,
        command=about.command,
        exe=about.exe,
        must_ask=about.must_ask,
        inline=inline,
    )


def agent_call(
    kind: CallKind,
    agent: str,
    node: str,
    tool: str,
    arguments: Mapping[str, Any],
    *,
    destructive: bool,
    inline: bool,
) -> PolicyCall:
    """The message to another agent, or the call of an agent of the config: ``tool`` is its name as a tool."""
    hints = Hints(destructive, repeatable=False)
    return PolicyCall(
        agent=agent, node=node, kind=kind, tool=tool, hints=hints, arguments=arguments, inline=inline
    )
