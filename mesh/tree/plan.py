"""The tree of a config as its nodes stand in it: what each one is, where, and what it inherits.

Pure: from a `Config` to `PlannedNode`s. A single llm agent is a tree of one node.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mesh.config.model import A2aAgent, AgentNode, Config
from mesh.core.places import ROOT, Place
from mesh.tree.template import BUILT_IN, placeholders

_AT_ONCE = ("parallel", "loop")


@dataclass(frozen=True)
class PlannedNode:
    """One node in its place. ``asks``: whether its destructive tools wait for a person."""

    path: str
    node: AgentNode
    prompt: str
    asks: bool
    children: tuple["PlannedNode", ...]

    @property
    def reads_history(self) -> bool:
        """Whether it, or a node below it, has the turns before in its prompt."""
        return "history" in placeholders(self.prompt) or any(child.reads_history for child in self.children)

    def walk(self) -> Iterator["PlannedNode"]:
        """This one and all below it, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree_of(config: Config) -> PlannedNode:
    """The root of a config's tree, with all below it."""
    return _planned(config, ROOT, config.tree, asks=True, at_once=False)


def _planned(config: Config, place: Place, node: AgentNode, *, asks: bool, at_once: bool) -> PlannedNode:
    """``at_once``: a parallel or loop is above. Of these the nearest that says so decides who asks; where
    none does, nobody asks."""
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
    """Every other agent that one of the nodes may ask, or hand its work to."""
    found = list(config.a2a)
    for planned in tree_of(config).walk():
        found += planned.node.a2a
        if planned.node.type == "a2a":
            found.append(planned.node.as_agent())
    return found


def hints(config: Config) -> list[str]:
    """What is probably a mistake, as problems: placeholders that nothing can have set before."""
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
        before |= written  # by the round before
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
