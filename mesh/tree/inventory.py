"""All that an agent may call, as ``GET /tools`` and ``mesh tools`` list it. Pure.

The tools of MCP servers, other agents, and what the mesh itself gives to nodes. Each entry says where it
comes from (``source`` and ``server``) and which nodes may call it (``nodes``, by their names).
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

from mesh.config.model import A2aAgent, Config
from mesh.llm.port import ToolSpec
from mesh.tree.ask_user import ASK_USER
from mesh.tree.build import agents_of, offered
from mesh.tree.llm import EXIT_LOOP
from mesh.tree.plan import Spot, tree_of
from mesh.tree.remote_call import spec_of

Entry = dict[str, Any]


def inventory(config: Config, tools: Sequence[Entry]) -> list[Entry]:
    """``tools`` are those of the servers, as `mesh.mcp.port.Tool.shown` gives them."""
    spots = list(tree_of(config).walk())
    models = [spot for spot in spots if spot.node.type == "llm"]
    return [
        *({**tool, "source": "mcp", "nodes": _users(models, str(tool["name"]))} for tool in tools),
        *_agents(config, spots),
        *_built_in(ASK_USER, [spot for spot in models if spot.node.can_ask_user]),
        *_built_in(EXIT_LOOP, [spot for spot in models if spot.node.can_exit_loop]),
    ]


def _users(models: Sequence[Spot], tool: str) -> list[str]:
    return [
        spot.node.name
        for spot in models
        if (names := offered(spot)) is None or any(fnmatch(tool, name) for name in names)
    ]


def _agents(config: Config, spots: Sequence[Spot]) -> Iterator[Entry]:
    """One entry for an agent that several nodes may ask. Nodes may call different agents by one name."""
    users: dict[tuple[str, str], tuple[A2aAgent, list[str]]] = {}
    for spot in spots:
        for agent in _asked_by(config, spot):
            users.setdefault((agent.name, agent.url), (agent, []))[1].append(spot.node.name)
    for agent, nodes in users.values():
        spec = spec_of(agent.name, agent.description)
        yield _entry(spec, destructive=agent.destructive, server=agent.name, source="a2a", nodes=nodes)


def _asked_by(config: Config, spot: Spot) -> list[A2aAgent]:
    match spot.node.type:
        case "llm":
            return agents_of(config, spot)
        case "a2a":
            return [spot.node.as_agent()]
    return []


def _built_in(spec: ToolSpec, users: Sequence[Spot]) -> Iterator[Entry]:
    if users:
        nodes = [spot.node.name for spot in users]
        yield _entry(spec, destructive=False, server="", source="built_in", nodes=nodes)


def _entry(spec: ToolSpec, *, destructive: bool, **where: Any) -> Entry:
    return {
        "name": spec.name,
        "description": spec.description,
        "inputSchema": spec.input_schema,
        "destructiveHint": destructive,
        **where,
    }
