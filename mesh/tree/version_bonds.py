"""What a turn that is open binds of its version: another version can take it over where this is the same.

Prompts, models, budgets and policies may differ: they shape what follows. What is open in a node rests on the
rest: on what it consists of, on whom it calls, on what checks its answers. Approvals that wait name tools and
agents, which have to be the ones that people were asked about.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from mesh.config.model import A2aAgent, AgentNode, Config
from mesh.core.events import NodeInfo
from mesh.core.messages import AGENT_TOOL_PREFIX
from mesh.tree.plan import all_nodes, infos_of_nodes

_SAME = {
    "children": "what it consists of",
    "spawn": "which agents it may start",
    "python": "whether it may run code",
    "validate": "what checks its answers",
    "exit_when": "what ends it",
    "output_schema": "the schema of its answers",
    "over": "what it goes through",
    "tools": "which tools it may use",
    "tool": "the tool that it calls",
    "args": "what it calls its tool with",
    "remote": "the agent that it hands its work to",
}
"""What has to be the same, by the names of `NodeBond.same`, in words."""
_THERE = {"calls": "agent", "peers": "other agent", "servers": "MCP server"}
"""What has to be there as it was, by the names of `NodeBond.there`; there may be more."""


# Which server or agent it is, and what is believed of it. Not where it runs, and how long it may take.
_OF_SERVERS = set("command args env url headers python unannotated believe_checks trust previews".split())  # noqa: SIM905
_OF_PEERS = {"url", "card_url", "description", "destructive"}


class NodeBond(msgspec.Struct, frozen=True):
    """What is bound of one node: ``same`` and ``there`` by name, and how many rounds or items it has at
    ``most``."""

    info: NodeInfo
    same: Mapping[str, Any]
    there: Mapping[str, Mapping[str, Any]]
    most: int

    def names_of_calls(self) -> set[str]:
        """The names by which its model calls agents, here and elsewhere."""
        return {*self.there["calls"], *(f"{AGENT_TOOL_PREFIX}{name}" for name in self.there["peers"])}


def bonds_of(config: Config) -> dict[str, NodeBond]:
    """What is bound of each node of a config, by node path."""
    infos = infos_of_nodes(config)
    servers = {each.name: each.model_dump(mode="json", include=_OF_SERVERS) for each in config.servers}
    return {each.path: _bond(config, each.node, infos[each.path], servers) for each in all_nodes(config)}


def _bond(config: Config, node: AgentNode, info: NodeInfo, servers: Mapping[str, Any]) -> NodeBond:
    agents = config.callable_agents
    peers = {each.name: _peer(each) for each in (*config.a2a, *node.a2a)}
    dumped = node.model_dump(mode="json", by_alias=True)
    same = {name: dumped.get(name) for name in _SAME if name not in ("children", "remote")}
    same["children"] = [child.type for child in node.children]
    same["remote"] = _peer(node.as_agent()) if node.type == "a2a" else None
    calls = {
        name: [agents[name].description, agents[name].input_schema] for name in node.called if name in agents
    }
    most = node.max_iterations if node.type == "loop" else node.most if node.type == "map" else 0
    return NodeBond(info, same, {"calls": calls, "peers": peers, "servers": servers}, most)


def _peer(agent: A2aAgent) -> dict[str, Any]:
    return agent.model_dump(mode="json", include=_OF_PEERS)


def broken_bonds(path: str, before: NodeBond, after: NodeBond | None) -> Iterator[str]:
    """Yields how another version differs from what is bound of a node, for people."""
    was = f"{before.info.kind} node {before.info.name} ({path})"
    if after is None:
        yield f"{was} is not there"
        return
    if (before.info.name, before.info.kind) != (after.info.name, after.info.kind):
        yield f"{was} is {after.info.kind} node {after.info.name}"
        return
    for name, words in _SAME.items():
        if before.same[name] != after.same[name]:
            yield f"{was} differs in {words}"
    for name, words in _THERE.items():
        for each, how in before.there[name].items():
            if after.there[name].get(each) != how:
                yield f"{was} differs in {words} {each}"
    if after.most < before.most:
        yield f"{was} has {after.most} rounds or items at most, and had {before.most}"
