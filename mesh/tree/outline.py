"""What clients are shown of a config: the outlines of its trees, and its agents. Pure."""

from typing import Any

import msgspec

from mesh.config.model import Config
from mesh.tree.agent_call import agent_spec
from mesh.tree.configured_limits import limits_of, limits_of_turn
from mesh.tree.plan import PlannedNode, all_nodes, callable_agents, callers, tree_of


class Outline(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node and the nodes below it. ``path`` is its node path, such as ``0.2``. ``calls`` are the names of
    the agents of the config that it may call: each has an outline of its own."""

    name: str
    type: str
    path: str
    description: str = ""
    model: str = ""
    agents: "tuple[Outline, ...]" = ()
    calls: tuple[str, ...] = ()


class AgentInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent: the root agent, whose ``path`` is ``0``, or one that others may call, whose path is its name.
    ``input_schema`` is what its callers give it, which are the nodes named ``callers``; the root agent has
    neither. ``model`` is that of an llm node. ``budget`` are the limits of one run, by key: for the root
    agent, of a turn."""

    name: str
    type: str
    path: str
    description: str = ""
    model: str = ""
    input_schema: dict[str, Any] = {}
    callers: tuple[str, ...] = ()
    budget: dict[str, float] = {}


def outline(config: Config) -> Outline:
    """The whole tree of a config, without the agents that are called."""
    return _outline(config, tree_of(config))


def outlines_of_called_agents(config: Config) -> list[Outline]:
    """The trees of the agents that others may call."""
    return [_outline(config, root) for root in callable_agents(config)]


def agents(config: Config) -> list[AgentInfo]:
    """The root agent, and the agents that others may call."""
    root = _outline(config, tree_of(config))
    budget = limits_of_turn(config)
    found = [AgentInfo(root.name, root.type, root.path, root.description, root.model, budget=budget)]
    nodes = list(all_nodes(config))
    for planned in callable_agents(config):
        node = planned.node
        spec = agent_spec(node.name, node.description, node.input_schema)
        found.append(
            AgentInfo(
                name=node.name,
                type=node.type,
                path=planned.path,
                description=spec.description,
                model=_model(config, planned),
                input_schema=spec.input_schema,
                callers=tuple(callers(nodes, node.name)),
                budget=limits_of(node.budget),
            )
        )
    return found


def _outline(config: Config, planned: PlannedNode) -> Outline:
    node, model = planned.node, _model(config, planned)
    below = tuple(_outline(config, child) for child in planned.children)
    return Outline(node.name, node.type, planned.path, node.description, model, below, node.called)


def _model(config: Config, planned: PlannedNode) -> str:
    """The model of an llm node; other nodes have none."""
    return (planned.node.model or config.llm.model) if planned.node.type == "llm" else ""
