"""The plan of a tree: each node of a config with its path and with what it inherits.

Pure: from a `Config` to `PlannedNode`s. An agent without a tree is a tree of one llm node.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mesh.config.model import A2aAgent, AgentNode, Config
from mesh.config.schema_kinds import required
from mesh.config.yaml_tree import Loc
from mesh.core.agent_limits import OF_STARTED_AGENT, OF_TURN
from mesh.core.events import NodeInfo
from mesh.core.places import ROOT, Place
from mesh.tree.template import BUILT_IN, placeholders, placeholders_in, plain_placeholders
from mesh.tree.turn import PassInput

OF_ITEMS = ("item", "index")
"""The placeholders of the child of a map, and of all below it."""
_AT_ONCE = ("parallel", "loop", "map")


@dataclass(frozen=True)
class ApprovalRule:
    """Whether destructive tools wait for a person, as far as the config tells: ``asks`` None means that it is
    inherited from where the agent was called. ``at_once``: there is a parallel, loop or map node above."""

    asks: bool | None = None
    at_once: bool = False

    def inside(self, node: AgentNode) -> "ApprovalRule":
        """The rule for the children of a parallel, loop or map node. The nearest of these with ``approvals``
        decides; where none has it, its nodes do not ask. A map that does not say it asks: nobody knows how
        many items it will have.

        Invariant: without a node of these above it, a node asks as its agent does. So an agent that is called
        has the rule of its caller, and how a tree is cut into agents does not decide what asks. The exception
        are agents that check answers, which ask where nothing is said (`run_agent`).
        """
        if node.approvals is not None:
            return ApprovalRule(node.approvals == "ask", at_once=True)
        return ApprovalRule(True if node.type == "map" else self.asks, at_once=True)

    def said_in(self, turn: PassInput) -> bool | None:
        """Whether they wait, as far as the config says so here, or above an agent that was called as this
        pass says."""
        return turn.asks if self.asks is None else self.asks

    def asks_in(self, turn: PassInput) -> bool:
        """Whether they wait. Where nothing is said, parallel and loop nodes run them at once."""
        said = self.said_in(turn)
        return not (self.at_once or turn.at_once) if said is None else said


@dataclass(frozen=True)
class PlannedNode:
    """A node of the config in its tree. ``path`` is its node path, ``prompt`` its own or the config's.
    ``approvals`` says whether its destructive tools wait for a person. ``reads`` are the names of the
    placeholders in its prompt and arguments, in those of a node below it, and of an agent that one of them
    calls."""

    path: str
    node: AgentNode
    prompt: str
    approvals: ApprovalRule
    children: tuple["PlannedNode", ...]
    reads: frozenset[str]

    @property
    def reads_history(self) -> bool:
        """Whether the turns before are read here, below, or in an agent that is called."""
        return "history" in self.reads

    @property
    def placeholders(self) -> set[str]:
        """The names of the placeholders in its prompt and its arguments, as far as these are no code."""
        return plain_placeholders(self.prompt) | placeholders_in(self.node.args)

    def agent_of(self, config: Config) -> str:
        """The name of the agent that it belongs to."""
        root = self.path.partition(".")[0]
        return config.tree.name if root == ROOT.path else root

    def walk(self) -> Iterator["PlannedNode"]:
        """This node and all below it, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree_of(config: Config) -> PlannedNode:
    """The root of a config's tree, with all nodes below it."""
    return _planned(config, ROOT, config.tree, ApprovalRule(), _reads_of_agents(config))


def callable_agents(config: Config) -> list[PlannedNode]:
    """The roots of the agents that others may call. Their node paths begin with their names."""
    agents, reads = config.callable_agents.items(), _reads_of_agents(config)
    return [_planned(config, Place(name), agent, ApprovalRule(), reads) for name, agent in agents]


def all_nodes(config: Config) -> Iterator[PlannedNode]:
    """Every node that has actors: those of the tree, and those of the agents that others may call."""
    for root in (tree_of(config), *callable_agents(config)):
        yield from root.walk()


def startable_agents(config: Config) -> dict[str, dict[str, str]]:
    """The agents that each node may start, by the path of the node, each with the type of its root."""
    kinds = {name: agent.type for name, agent in config.callable_agents.items()}
    spawning = (planned for planned in all_nodes(config) if planned.node.spawn is not None)
    return {each.path: {name: kinds[name] for name in each.node.called if name in kinds} for each in spawning}


def infos_of_nodes(config: Config) -> dict[str, NodeInfo]:
    """What a journal says of the nodes of a config, by node path."""
    return {planned.path: _info(planned.node) for planned in all_nodes(config)}


def _info(node: AgentNode) -> NodeInfo:
    if node.type != "loop":
        return NodeInfo(node.name, node.type)
    return NodeInfo(node.name, node.type, node.max_iterations, node.exit_when is not None)


def callers(nodes: Iterable[PlannedNode], agent: str) -> list[str]:
    """The names of those of these nodes that may call an agent of the config."""
    return [planned.node.name for planned in nodes if agent in planned.node.called]


def _reads_of_agents(config: Config) -> dict[str, frozenset[str]]:
    """What the agents that others may call read, by name: see `PlannedNode.reads`. Agents may call each other
    in circles."""
    agents = config.callable_agents
    found = dict.fromkeys(agents, frozenset[str]())
    while True:
        reads = {name: _reads(config, agent, found) for name, agent in agents.items()}
        if reads == found:
            return found
        found = reads


def _reads(config: Config, node: AgentNode, of_agents: Mapping[str, frozenset[str]]) -> frozenset[str]:
    own = placeholders(_prompt(config, node)) | placeholders_in(node.args)
    called = (of_agents[name] for name in node.called)
    return frozenset(own).union(*called, *(_reads(config, child, of_agents) for child in node.children))


def _prompt(config: Config, node: AgentNode) -> str:
    return (node.prompt or config.prompt) if node.type == "llm" else node.prompt


def _planned(
    config: Config,
    place: Place,
    node: AgentNode,
    rule: ApprovalRule,
    of_agents: Mapping[str, frozenset[str]],
) -> PlannedNode:
    if node.type in _AT_ONCE:
        rule = rule.inside(node)
    children = tuple(
        _planned(config, place.child(index), child, rule, of_agents)
        for index, child in enumerate(node.children)
    )
    reads = _reads(config, node, of_agents)
    return PlannedNode(place.path, node, _prompt(config, node), rule, children, reads)


def other_agents(config: Config) -> list[A2aAgent]:
    """Every other agent that a node of the tree may call."""
    found = list(config.a2a)
    for planned in all_nodes(config):
        found += planned.node.a2a
        if planned.node.type == "a2a":
            found.append(planned.node.as_agent())
    return found


def likely_mistakes(config: Config) -> list[str]:
    """What is probably a mistake: placeholders that nothing can have set before they are read, agents that
    are started without what they need, maps that may have more items than may be started, and servers whose
    files are on whichever machine. Of placeholders, agents that are called are left out: each caller brings a
    state and arguments of its own."""
    found: list[str] = [*_without_arguments(config), *_too_wide(config), *_without_machine(config)]
    if config.agent is not None:
        _unset(config, tree_of(config), ("agent",), frozenset(BUILT_IN), found)
    return found


def _without_arguments(config: Config) -> Iterator[str]:
    """Agents that a node may start, which gives them a task alone, and that need more."""
    agents = config.callable_agents
    for loc, node in config.nodes():
        for index, agent in enumerate(node.agents if node.spawn is not None else ()):
            schema = agents[agent.name].input_schema or {}
            if missing := sorted(required(schema, schema) - {"task"}):
                where = config.location(*loc, "agents", index)
                yield (
                    f"{where}: {agent.name} needs {' and '.join(missing)}, and gets its task alone where it "
                    "is started with the tool spawn; where it is called, it gets all"
                )


def _without_machine(config: Config) -> Iterator[str]:
    """Servers in a subprocess that may run on any machine, of an agent that is made for several."""
    if config.store is None:
        return
    for index, server in enumerate(config.servers):
        if server.command is None and server.python is None:
            continue
        if server.labels or server.resources:
            continue
        own = index - (config.mcp is not None)
        where = config.location("mcp") if own < 0 else config.location("mcp_servers", own)
        yield (
            f"{where}: files that {server.name} writes stay on the machine where its session happens to be, "
            "and it starts on another one without them if that is lost; if it writes any, say by labels or "
            "resources where it is to be"
        )


def _too_wide(config: Config) -> Iterator[str]:
    """Maps whose ``most`` promises more items than the budgets around them let start."""
    nodes = dict(config.nodes())
    own = [each for each in (config.budget.max_agents, config.tree.budget.max_agents) if each is not None]
    for loc, node in nodes.items():
        if node.type != "map" or "most" not in node.model_fields_set:
            continue
        limits = [(min(own, default=OF_TURN), "a turn", "at the top of the config")]
        limits += [(limit, name, f"in {name}") for limit, name in _limits_around(nodes, loc)]
        limit, who, where = min(limits, key=lambda each: each[0])
        if node.most > limit:
            yield (
                f"{config.location(*loc, 'most')}: {node.name} fails with more than {limit} items, as {who} "
                f"may start no more agents; expected budget: {{max_agents: {node.most}}} or more {where}"
            )


def _limits_around(nodes: Mapping[Loc, AgentNode], loc: Loc) -> Iterator[tuple[int, str]]:
    """How many agents a node, and those around it, may each start, with their names; those with a limit."""
    while (node := nodes.get(loc)) is not None:
        loc = loc[:-2]
        is_item = loc in nodes and nodes[loc].type == "map"
        limit = node.budget.max_agents or (OF_STARTED_AGENT if is_item else None)
        if limit is not None:
            yield limit, node.name


def _unset(
    config: Config, planned: PlannedNode, loc: tuple[str | int, ...], before: frozenset[str], found: list[str]
) -> frozenset[str]:
    """Adds a problem for each placeholder below that is not in ``before``; the keys set after this node."""
    node = planned.node
    written = {*_written(planned)}
    if node.type == "loop":
        before |= written  # by the iteration before
    key = (*loc, "args") if node.type == "tool" else (*(loc if node.prompt else ()), "prompt")
    where = config.location(*key)
    if node.over is not None and node.over not in before - {*BUILT_IN}:
        found.append(
            f"{config.location(*loc, 'over')}: nothing sets {node.over} before {node.name} runs in the first "
            "turn, so that it would fail; expected the output_key of an earlier node"
        )
    for name in sorted(planned.placeholders - before):
        if name in OF_ITEMS:
            hint = "only nodes below a map have it"
        else:
            hint = f"expected the output_key of an earlier node, or {', '.join(BUILT_IN)}"
        found.append(
            f"{where}: nothing sets {{{name}}} before {node.name} runs in the first turn, so that it will "
            f"stay as it is; {hint}"
        )
    seen = before | {*OF_ITEMS} if node.type == "map" else before
    for index, child in enumerate(planned.children):
        after = _unset(config, child, (*loc, "agents", index), seen, found)
        if node.type != "parallel":
            seen = after
    return before | written


def _written(planned: PlannedNode) -> Iterator[str]:
    """The keys of the state that a node and those below it write for the nodes after it. What the items of a
    map write ends with them."""
    if planned.node.output_key:
        yield planned.node.output_key
    for child in planned.children if planned.node.type != "map" else ():
        yield from _written(child)
