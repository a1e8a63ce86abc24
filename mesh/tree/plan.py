"""The plan of a tree: each node of a config with its path and with what it inherits.

Pure: from a `Config` to `PlannedNode`s. An agent without a tree is a tree of one llm node.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mesh.config.model import A2aAgent, AgentNode, Config
from mesh.core.places import ROOT, Place
from mesh.tree.template import BUILT_IN, placeholders, placeholders_in, plain_placeholders
from mesh.tree.turn import PassInput

_AT_ONCE = ("parallel", "loop")


@dataclass(frozen=True)
class ApprovalRule:
    """Whether destructive tools wait for a person, as far as the config tells: ``asks`` None means that it is
    inherited from where the agent was called. ``at_once``: there is a parallel or loop node above."""

    asks: bool | None = None
    at_once: bool = False

    def inside(self, node: AgentNode) -> "ApprovalRule":
        """The rule for the children of a parallel or loop node. The nearest of these with ``approvals``
        decides; where none has it, its nodes do not ask.

        Invariant: without a node of these above it, a node asks as its agent does. So an agent that is called
        has the rule of its caller, and how a tree is cut into agents does not decide what asks. The exception
        are agents that check answers, which ask where nothing is said (`run_agent`).
        """
        if node.approvals is not None:
            return ApprovalRule(node.approvals == "ask", at_once=True)
        return ApprovalRule(self.asks, at_once=True)

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
    ``approvals`` says whether its destructive tools wait for a person. ``reads_history``: its prompt or
    arguments, those of a node below it, or of an agent that one of them calls contain the turns before."""

    path: str
    node: AgentNode
    prompt: str
    approvals: ApprovalRule
    children: tuple["PlannedNode", ...]
    reads_history: bool

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
    return _planned(config, ROOT, config.tree, ApprovalRule(), _readers(config))


def callable_agents(config: Config) -> list[PlannedNode]:
    """The roots of the agents that others may call. Their node paths begin with their names."""
    agents, readers = config.callable_agents.items(), _readers(config)
    return [_planned(config, Place(name), agent, ApprovalRule(), readers) for name, agent in agents]


def all_nodes(config: Config) -> Iterator[PlannedNode]:
    """Every node that has actors: those of the tree, and those of the agents that others may call."""
    for root in (tree_of(config), *callable_agents(config)):
        yield from root.walk()


def callers(nodes: Iterable[PlannedNode], agent: str) -> list[str]:
    """The names of those of these nodes that may call an agent of the config."""
    return [planned.node.name for planned in nodes if agent in planned.node.called]


def _readers(config: Config) -> frozenset[str]:
    """The names of the agents that others may call and that read the turns before, themselves or by an agent
    that they call. Agents may call each other in circles."""
    agents, found = config.callable_agents, frozenset[str]()
    while True:
        readers = frozenset(name for name, agent in agents.items() if _reads_history(config, agent, found))
        if readers == found:
            return found
        found = readers


def _reads_history(config: Config, node: AgentNode, readers: frozenset[str]) -> bool:
    if "history" in placeholders(_prompt(config, node)) | placeholders_in(node.args):
        return True
    if any(name in readers for name in node.called):
        return True
    return any(_reads_history(config, child, readers) for child in node.children)


def _prompt(config: Config, node: AgentNode) -> str:
    return (node.prompt or config.prompt) if node.type == "llm" else node.prompt


def _planned(
    config: Config, place: Place, node: AgentNode, rule: ApprovalRule, readers: frozenset[str]
) -> PlannedNode:
    if node.type in _AT_ONCE:
        rule = rule.inside(node)
    children = tuple(
        _planned(config, place.child(index), child, rule, readers)
        for index, child in enumerate(node.children)
    )
    reads_history = _reads_history(config, node, readers)
    return PlannedNode(place.path, node, _prompt(config, node), rule, children, reads_history)


def other_agents(config: Config) -> list[A2aAgent]:
    """Every other agent that a node of the tree may call."""
    found = list(config.a2a)
    for planned in all_nodes(config):
        found += planned.node.a2a
        if planned.node.type == "a2a":
            found.append(planned.node.as_agent())
    return found


def likely_mistakes(config: Config) -> list[str]:
    """What is probably a mistake: placeholders that nothing can have set before they are read. Agents that
    are called are left out: each caller brings a state and arguments of its own."""
    found: list[str] = []
    if config.agent is not None:
        _unset(config, tree_of(config), ("agent",), frozenset(BUILT_IN), found)
    return found


def _unset(
    config: Config, planned: PlannedNode, loc: tuple[str | int, ...], before: frozenset[str], found: list[str]
) -> frozenset[str]:
    """Adds a problem for each placeholder below that is not in ``before``; the keys set after this node."""
    node = planned.node
    written = {below.node.output_key for below in planned.walk() if below.node.output_key}
    if node.type == "loop":
        before |= written  # by the iteration before
    key = (*loc, "args") if node.type == "tool" else (*(loc if node.prompt else ()), "prompt")
    where = config.location(*key)
    for name in sorted(planned.placeholders - before):
        found.append(
            f"{where}: nothing sets {{{name}}} before {node.name} runs in the first "
            f"turn; it will stay as it is (output_key of an earlier node, or {', '.join(BUILT_IN)})"
        )
    seen = before
    for index, child in enumerate(planned.children):
        after = _unset(config, child, (*loc, "agents", index), seen, found)
        if node.type != "parallel":
            seen = after
    return before | written
