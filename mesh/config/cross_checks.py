"""What one key of a config requires of another: names that differ, keys that exclude each other.

The checks read plain data whose types have not been checked yet, so that one run reports every problem. Data
of the wrong shape is skipped here, because the models report it.
"""

from collections.abc import Iterator
from typing import Any

from mesh.config.problem_texts import spelled
from mesh.config.yaml_tree import Loc

Problem = tuple[Loc, str]

MAX_TREE_DEPTH = 32
MAX_TREE_NODES = 500

_CHILDREN = ("sequential", "parallel", "loop")
_KEYS_OF: dict[str, tuple[str, ...]] = {
    "agents": _CHILDREN,
    "model": ("llm",),
    "prompt": ("llm", "a2a"),
    "can_exit_loop": ("llm",),
    "can_ask_user": ("llm",),
    "a2a": ("llm",),
    "tools": ("llm",),
    "max_iterations": ("loop",),
    "approvals": ("parallel", "loop"),
    "on_error": ("parallel",),
    "url": ("a2a",),
    "key": ("a2a",),
    "card_url": ("a2a",),
    "destructiveHint": ("a2a",),
}
"""The types of node that may have a key. A key that is not listed goes with all of them."""
_TYPES = {kind for kinds in _KEYS_OF.values() for kind in kinds}

_UNUSABLE = {"command": ("headers",), "url": ("args", "env")}
"""Keys that a server of each kind cannot use."""


def cross_checks(data: Any) -> Iterator[Problem]:
    """Yields (location, what is wrong) for the keys of a whole config that do not go together."""
    config = _mapping(data)
    yield from _servers(config)
    yield from _repeated(_named(config.get("a2a"), ("a2a",)))
    yield from _card(_mapping(config.get("card")), has_auth=config.get("auth") is not None)
    if isinstance(config.get("agent"), dict):
        yield from _tree(config)


def _servers(config: dict[str, Any]) -> Iterator[Problem]:
    mcp = config.get("mcp")
    if isinstance(mcp, dict) and "command" not in mcp:
        yield ("mcp", "command"), "is missing; expected a program (an HTTP server goes in mcp_servers)"
    names = [*_named(config.get("mcp_servers"), ("mcp_servers",))]
    if mcp is not None:
        names.insert(0, (("mcp",), "mcp"))
    yield from _repeated(names)
    for loc, server in _entries(config.get("mcp_servers"), ("mcp_servers",)):
        yield from _transport(loc, server)


def _transport(loc: Loc, server: dict[str, Any]) -> Iterator[Problem]:
    kinds = [kind for kind in _UNUSABLE if kind in server]
    if not kinds:
        yield loc, "has neither command nor url; expected one of them"
    elif len(kinds) == 2:
        yield (*loc, "url"), "command and url exclude each other; expected one of them"
    else:
        for key in _UNUSABLE[kinds[0]]:
            if key in server:
                yield (*loc, key), f"does not go with {kinds[0]}; remove it"


def _card(card: dict[str, Any], *, has_auth: bool) -> Iterator[Problem]:
    """The specification (1.0.1, section 3.1.11) gives the extended card to authenticated callers only."""
    if card.get("public_skills") is not None and not (card.get("security") or has_auth):
        how = "say how in card.security, or turn on auth"
        yield ("card", "public_skills"), f"the others are for callers who log in; {how}"


def _tree(config: dict[str, Any]) -> Iterator[Problem]:
    limits = _mapping(config.get("limits"))
    max_depth = limits.get("max_tree_depth", MAX_TREE_DEPTH)
    max_nodes = limits.get("max_tree_nodes", MAX_TREE_NODES)
    nodes = [*_walk(("agent",), config["agent"], 1, False)]
    deep = next((loc for loc, _, depth, _ in nodes if _over(depth, max_depth)), None)
    if deep:
        yield deep, f"deeper than {max_depth} levels; raise limits.max_tree_depth or flatten the tree"
    if _over(len(nodes), max_nodes):
        yield ("agent",), f"{len(nodes)} nodes, more than {max_nodes}; raise limits.max_tree_nodes"
    names = [((*loc, "name"), node.get("name")) for loc, node, _, _ in nodes]
    yield from _repeated(names)
    shared = [*_named(config.get("a2a"), ("a2a",))]
    for loc, node, _, in_loop in nodes:
        yield from _node(loc, node, in_loop)
        own = [*_named(node.get("a2a"), (*loc, "a2a"))]
        yield from _repeated([*shared, *own], of=own)


def _over(count: int, bound: Any) -> bool:
    return isinstance(bound, int) and count > bound


def _walk(
    loc: Loc, node: dict[str, Any], depth: int, in_loop: bool
) -> Iterator[tuple[Loc, dict[str, Any], int, bool]]:
    """Yields each node with its location, its depth from 1, and whether a loop is above it."""
    yield loc, node, depth, in_loop
    for child_loc, child in _entries(node.get("agents"), (*loc, "agents")):
        yield from _walk(child_loc, child, depth + 1, in_loop or node.get("type") == "loop")


def _node(loc: Loc, node: dict[str, Any], in_loop: bool) -> Iterator[Problem]:
    kind = node.get("type")
    if not isinstance(kind, str):
        return
    for key, kinds in _KEYS_OF.items():
        if key in node and kind not in kinds and kind in _TYPES:
            yield (*loc, key), f"does not go with type: {kind}; expected type: {' or '.join(kinds)}"
    if kind in _CHILDREN and node.get("agents", []) == []:
        yield (*loc, "agents"), f"is missing; a {kind} node needs at least one child"
    if kind == "a2a" and "url" not in node:
        yield (*loc, "url"), "is missing; an a2a node needs the URL of its agent"
    if node.get("can_exit_loop") is True and not in_loop:
        yield (*loc, "can_exit_loop"), "no loop is around this node; expected a parent of type: loop"
    if kind == "parallel":
        yield from _shared_keys(loc, node)


def _shared_keys(loc: Loc, node: dict[str, Any]) -> Iterator[Problem]:
    """Branches run at the same time, so two of them may not write the same key of the session state."""
    written: set[str] = set()
    for child_loc, child in _entries(node.get("agents"), (*loc, "agents")):
        branch: set[str] = set()
        for below_loc, below, _, _ in _walk(child_loc, child, 1, False):
            key = below.get("output_key")
            if isinstance(key, str) and key in written:
                yield (*below_loc, "output_key"), "another branch of the parallel node writes the same key"
            elif isinstance(key, str):
                branch.add(key)
        written |= branch


def _mapping(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _entries(data: Any, loc: Loc) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """Yields the mappings of a list, each with its location."""
    if isinstance(data, list):
        for index, entry in enumerate(data):
            if isinstance(entry, dict):
                yield (*loc, index), entry


def _named(data: Any, loc: Loc) -> Iterator[tuple[Loc, Any]]:
    for entry_loc, entry in _entries(data, loc):
        yield (*entry_loc, "name"), entry.get("name")


def _repeated(names: list[tuple[Loc, Any]] | Iterator[tuple[Loc, Any]], of: Any = None) -> Iterator[Problem]:
    """Yields a problem for each name that appeared before, if it is one of ``of``. None stands for all."""
    first: dict[str, Loc] = {}
    for loc, name in names:
        if not isinstance(name, str):
            continue
        if name in first and (of is None or (loc, name) in of):
            yield loc, f"the same name as {spelled(first[name])}; expected names that differ"
        first.setdefault(name, loc)
