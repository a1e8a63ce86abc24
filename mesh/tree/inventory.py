"""Everything that an agent may call, as ``GET /tools`` and ``mesh tools`` list it. Pure.

The tools of MCP servers, other agents, the agents of the config, and built-in tools. Each entry says where
the tool comes from (``source`` and ``server``) and which nodes may call it (``nodes``, by their names).
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

from mesh.config.model import A2aAgent, Config
from mesh.core.messages import ToolSpec
from mesh.tree.agent_call import agent_spec
from mesh.tree.ask_user import ASK_USER
from mesh.tree.build import agents_of, offered
from mesh.tree.llm import COMPLETE_TASK, EXIT_LOOP, RETURN_TO_USER
from mesh.tree.plan import PlannedNode, all_nodes
from mesh.tree.remote_call import spec_of

Entry = dict[str, Any]


def inventory(config: Config, tools: Sequence[Entry]) -> list[Entry]:
    """``tools`` are those of the servers, as `mesh.mcp.port.Tool.shown` gives them."""
    planned_nodes = list(all_nodes(config))
    models = [planned for planned in planned_nodes if planned.node.type == "llm"]
    callers = [planned for planned in planned_nodes if planned.node.type in ("llm", "tool")]
    return [
        *({**tool, "source": "mcp", "nodes": _users(callers, str(tool["name"]))} for tool in tools),
        *_agents(config, planned_nodes),
        *_called_agents(config, models),
        *_built_in(ASK_USER, [planned for planned in models if planned.node.can_ask_user]),
        *_built_in(EXIT_LOOP, [planned for planned in models if planned.node.can_exit_loop]),
        *_built_in(COMPLETE_TASK, [planned for planned in models if planned.node.can_complete_task]),
        *_built_in(RETURN_TO_USER, [planned for planned in models if planned.node.can_return_to_user]),
    ]


def _users(callers: Sequence[PlannedNode], tool: str) -> list[str]:
    return [
        planned.node.name
        for planned in callers
        if (names := offered(planned)) is None or any(fnmatch(tool, name) for name in names)
    ]


def _agents(config: Config, planned_nodes: Sequence[PlannedNode]) -> Iterator[Entry]:
    """One entry for each other agent. Different agents may have the same name in different nodes."""
    users: dict[tuple[str, str], tuple[A2aAgent, list[str]]] = {}
    for planned in planned_nodes:
        for agent in _asked_by(config, planned):
            users.setdefault((agent.name, agent.url), (agent, []))[1].append(planned.node.name)
    for agent, nodes in users.values():
        spec = spec_of(agent.name, agent.description)
        yield _entry(spec, destructive=agent.destructive, server=agent.name, source="a2a", nodes=nodes)


def _asked_by(config: Config, planned: PlannedNode) -> list[A2aAgent]:
    match planned.node.type:
        case "llm":
            return agents_of(config, planned)
        case "a2a":
            return [planned.node.as_agent()]
    return []


def _called_agents(config: Config, models: Sequence[PlannedNode]) -> Iterator[Entry]:
    for name, agent in config.callable_agents.items():
        spec = agent_spec(name, agent.description, agent.input_schema)
        nodes = [each.node.name for each in models if name in (called.name for called in each.node.agents)]
        if nodes:
            yield _entry(spec, destructive=agent.destructive, server="", source="agent", nodes=nodes)


def _built_in(spec: ToolSpec, users: Sequence[PlannedNode]) -> Iterator[Entry]:
    if users:
        nodes = [planned.node.name for planned in users]
        yield _entry(spec, destructive=False, server="", source="built_in", nodes=nodes)


def _entry(spec: ToolSpec, *, destructive: bool, **where: Any) -> Entry:
    return {
        "name": spec.name,
        "description": spec.description,
        "inputSchema": spec.input_schema,
        "destructiveHint": destructive,
        **where,
    }
