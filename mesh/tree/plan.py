"""The plan of a tree: each node of a config with its path and with what it inherits.

Pure: from a `Config` to `PlannedNode`s. An agent without a tree is a tree of one llm node.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mesh.config.model import A2aAgent, AgentNode, Config
from mesh.core.places import ROOT, Place
from mesh.tree.template import BUILT_IN, placeholders

_AT_ONCE = ("parallel", "loop")


@dataclass(frozen=True)
class PlannedNode:
    """A node of the config in its tree. ``path`` is its node path, ``prompt`` its own or the config's.
    ``asks``: whether its destructive tools wait for a person."""

    path: str
    node: AgentNode
    prompt: str
    asks: bool
    children: tuple["PlannedNode", ...]

    @property
    def reads_history(self) -> bool:
        """Whether its prompt, or that of a node below it, contains the turns before."""
        return "history" in placeholders(self.prompt) or any(child.reads_history for child in self.children)

    def walk(self) -> Iterator["PlannedNode"]:
        """This node and all below it, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree_of(config: Config) -> PlannedNode:
    """The root of a config's tree, with all nodes below it."""
    return _planned(config, ROOT, config.tree, asks=True, at_once=False)


def _planned(config: Config, place: Place, node: AgentNode, *, asks: bool, at_once: bool) -> PlannedNode:
    """``at_once``: there is a parallel or loop node above. The nearest of these with ``approvals`` decides
    whether its nodes ask; where none has it, they do not."""
    if node.type in _AT_ONCE:
        inherited = asks and at_once
        asks = inherited if node.approvals is None else node.approvals == "ask"
        at_once = True
    children = tuple(
        _planned(config, place.child(index), child, asks=asks, at_once=at_once)
        for index, child in enumerate(node.agents)
    )
    prompt = (node.prompt or config.prompt) if node.type == "llm" else node.prompt
    return PlannedNode(place.path, node, prompt, asks, children)


def other_agents(config: Config) -> list[A2aAgent]:
    """Every other agent that a node of the tree may call."""
    found = list(config.a2a)
    for planned in tree_of(config).walk():
        found += planned.node.a2a
        if planned.node.type == "a2a":
            found.append(planned.node.as_agent())
    return found


def likely_mistakes(config: Config) -> list[str]:
    """What is probably a mistake: placeholders that nothing can have set before they are read."""
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
    where = config.location(*(loc if node.prompt else ()), "prompt")
    for name in sorted(placeholders(planned.prompt) - before):
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
