"""What one key of a config requires of another: names that differ, keys that exclude each other.

The checks read plain data whose types have not been checked yet, so that one run reports every problem. Data
of the wrong shape is skipped here, because the models report it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mesh.config.policy_checks import policy_checks
from mesh.config.problem_texts import spelled
from mesh.config.yaml_tree import Loc
from mesh.core.places import FORK

Problem = tuple[Loc, str]

MAX_TREE_DEPTH = 32
MAX_TREE_NODES = 500

_CHILDREN = ("sequential", "parallel", "loop", "map")
_KEYS_OF: dict[str, tuple[str, ...]] = {
    "agents": (*_CHILDREN, "llm"),
    "model": ("llm",),
    "parameters": ("llm",),
    "prompt": ("llm", "a2a"),
    "output_schema": ("llm",),
    "validate": ("llm",),
    "max_runs": ("llm",),
    "on_invalid": ("llm",),
    "show_drafts": ("llm",),
    "exit_when": ("loop",),
    "can_exit_loop": ("llm",),
    "can_ask_user": ("llm",),
    "can_complete_task": ("llm",),
    "can_return_to_user": ("llm",),
    "offer_agents": ("llm",),
    "spawn": ("llm",),
    "python": ("llm",),
    "a2a": ("llm",),
    "tools": ("llm",),
    "tool": ("tool",),
    "args": ("tool",),
    "max_iterations": ("loop",),
    "over": ("map",),
    "most": ("map",),
    "with_status": ("map",),
    "approvals": ("parallel", "loop", "map"),
    "on_error": ("parallel", "map"),
    "url": ("a2a",),
    "key": ("a2a",),
    "card_url": ("a2a",),
    "destructiveHint": ("a2a",),
}
"""The types of node that may have a key. A key that is not listed goes with all of them."""
_TYPES = {kind for kinds in _KEYS_OF.values() for kind in kinds}

_REQUIRED = {
    "a2a": ("url", "an a2a node needs the URL of its agent"),
    "tool": ("tool", "a tool node needs the name of its tool"),
    "map": ("over", "a map node needs the key of the session state whose items it takes"),
}
"""The key that a type of node needs, and what for."""

BUILT_IN_TOOLS = ("ask_user", "exit_loop", "complete_task", "return_to_user", "use_agent")
"""The names of the tools that the mesh itself gives to models."""
SPAWN_TOOLS = ("spawn", "fork", "wait", "tell", "stop")
"""Those that it gives to nodes with ``spawn``, which alone may have no other tools of these names."""
PYTHON_TOOL = "python"
"""The one that it gives to nodes with ``python: true``, likewise."""

_RENAME = "give the agent another name"

_UNUSABLE = {
    "command": ("headers",),
    "url": ("args", "env", "replicas"),
    "python": ("args", "headers"),
}
"""Keys that a server of each kind cannot use."""


def cross_checks(data: Any) -> Iterator[Problem]:
    """Yields (location, what is wrong) for the keys of a whole config that do not go together."""
    config = _mapping(data)
    yield from _servers(config)
    yield from _scales(_mapping(config.get("cluster")))
    yield from _repeated(_named(config.get("a2a"), ("a2a",)))
    yield from _card(_mapping(config.get("card")), has_auth=config.get("auth") is not None)
    yield from _tree(config)
    yield from policy_checks(config.get("policy"), ("policy",))


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


def _scales(cluster: dict[str, Any]) -> Iterator[Problem]:
    for key in ("gateways", "keepers"):
        scale = _mapping(cluster.get(key))
        least, most = scale.get("min", 1), scale.get("max")
        if isinstance(least, int) and isinstance(most, int) and most < least:
            yield ("cluster", key, "max"), f"is less than min, {least}; expected {least} or more"


def _transport(loc: Loc, server: dict[str, Any]) -> Iterator[Problem]:
    kinds = [kind for kind in _UNUSABLE if kind in server]
    if not kinds:
        yield loc, "has neither command, url nor python; expected one of them"
    elif len(kinds) > 1:
        yield (*loc, kinds[1]), f"{' and '.join(kinds)} exclude each other; expected one of them"
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
    nodes = [*_all_nodes(config)]
    deep = next((at.loc for at in nodes if _over(at.depth, max_depth)), None)
    if deep:
        yield deep, f"deeper than {max_depth} levels; raise limits.max_tree_depth or flatten the tree"
    if _over(len(nodes), max_nodes):
        yield ("agent",), f"{len(nodes)} nodes, more than {max_nodes}; raise limits.max_tree_nodes"
    yield from _repeated([((*at.loc, "name"), at.node.get("name")) for at in nodes])
    yield from _past_the_root(nodes)
    callable_names = {at.node.get("name") for at in nodes if at.is_callable}
    shared = [*_named(config.get("a2a"), ("a2a",))]
    for at in nodes:
        yield from _node(at)
        yield from _references(at, callable_names)
        yield from _validation(at, callable_names)
        yield from policy_checks(at.node.get("policy"), (*at.loc, "policy"))
        own = [*_named(at.node.get("a2a"), (*at.loc, "a2a"))]
        yield from _repeated([*shared, *own], of=own)


def _references(at: "_At", callable_names: set[Any]) -> Iterator[Problem]:
    """Agents that an llm node names."""
    seen: set[str] = set()
    agents = at.node.get("agents")
    for index, entry in enumerate(agents if isinstance(agents, list) else ()):
        loc = (*at.loc, "agents", index)
        name = entry.get("name") if _mapping(entry).get("type") == "agent" else entry
        if not isinstance(name, str):
            continue
        if at.node.get("type") in _CHILDREN:
            yield loc, "only an llm node calls agents by their names; expected a node"
        elif name not in callable_names:
            yield loc, _no_such_agent(callable_names)
        elif name in seen:
            yield loc, "the same agent twice; remove one of them"
        elif key := _giver_of(at.node, name):
            yield loc, f"is the name of a tool that {key} gives to this node; {_RENAME}"
        seen.add(name)


_VALIDATORS = ("check", "agent", "person")
_EXITS = ("check", "schema", "agent")
_CHECKING = {
    "output_schema": "a JSON Schema",
    "input_schema": "a JSON Schema",
    "exit_when": f"one of {', '.join(_EXITS)}",
}
_OF_VALIDATION = ("max_runs", "on_invalid", "show_drafts")
"""Keys that say nothing unless answers are checked."""


def _validation(at: "_At", callable_names: set[Any]) -> Iterator[Problem]:
    """What checks answers, and what ends a loop. One that says nothing would let everything pass."""
    for key, expected in _CHECKING.items():
        if key in at.node and at.node[key] is None:
            yield (*at.loc, key), f"is nothing; expected {expected} (or no key at all)"
    for loc, entry in _entries(at.node.get("validate"), (*at.loc, "validate")):
        yield from _condition(loc, entry, _VALIDATORS, callable_names)
    if isinstance(exit_when := at.node.get("exit_when"), dict):
        yield from _condition((*at.loc, "exit_when"), exit_when, _EXITS, callable_names)
    if not _is_checked(at.node):
        for key in _OF_VALIDATION:
            if key in at.node and at.node.get("type") == "llm":
                yield (*at.loc, key), "nothing is checked here; expected output_schema or validate beside it"


def _condition(
    loc: Loc, entry: dict[str, Any], kinds: Sequence[str], callable_names: set[Any]
) -> Iterator[Problem]:
    given = [kind for kind in kinds if kind in entry]
    if all(entry[kind] is None for kind in given):
        yield loc, f"says nothing; expected one of {', '.join(kinds)}"
    elif len(given) != 1:
        yield loc, f"{' and '.join(given)} exclude each other; expected one of {', '.join(kinds)}"
    name = entry.get("agent")
    if isinstance(name, str) and name not in callable_names:
        yield (*loc, "agent"), _no_such_agent(callable_names)


def _is_checked(node: dict[str, Any]) -> bool:
    return node.get("output_schema") is not None or bool(node.get("validate"))


def _past_the_root(nodes: Sequence["_At"]) -> Iterator[Problem]:
    """What would end the turn without the checks of the root node, which hold for the whole turn."""
    if not nodes or not _is_checked(nodes[0].node) or nodes[0].is_callable:
        return
    for at in nodes[1:]:
        if at.node.get("can_return_to_user") is True:
            why = "ends the turn past the checks of the root node"
            yield (*at.loc, "can_return_to_user"), f"{why}; remove it, or the checks of the root"


def _no_such_agent(callable_names: set[Any]) -> str:
    known = ", ".join(sorted(each for each in callable_names if isinstance(each, str)))
    return f"no agent has this name; expected one of agents: {known or '(there are none)'}"


def _over(count: int, bound: Any) -> bool:
    return isinstance(bound, int) and count > bound


class _At(NamedTuple):
    """A node with its location, its depth from 1 in its agent, and whether a loop, or a map, is above it
    there. ``is_callable``: it is the root of an agent that others may call."""

    loc: Loc
    node: dict[str, Any]
    depth: int = 1
    in_loop: bool = False
    in_map: bool = False
    is_callable: bool = False


def _all_nodes(config: dict[str, Any]) -> Iterator[_At]:
    if isinstance(config.get("agent"), dict):
        yield from _walk(_At(("agent",), config["agent"]))
    for loc, agent in _entries(config.get("agents"), ("agents",)):
        yield from _walk(_At(loc, agent, is_callable=True))


def _walk(at: _At) -> Iterator[_At]:
    """Yields each node of an agent, and of the agents that are written in its llm nodes."""
    yield at
    kind = at.node.get("type")
    for loc, child in _entries(at.node.get("agents"), (*at.loc, "agents")):
        if child.get("type") == "agent":
            continue
        if kind == "llm":
            yield from _walk(_At(loc, child, is_callable=True))
        else:
            in_loop, in_map = at.in_loop or kind == "loop", at.in_map or kind == "map"
            yield from _walk(_At(loc, child, at.depth + 1, in_loop, in_map))


def _node(at: _At) -> Iterator[Problem]:
    loc, node = at.loc, at.node
    kind = node.get("type")
    if not isinstance(kind, str):
        return
    if at.is_callable:
        yield from _callable_agent(loc, node)
    for key, kinds in _KEYS_OF.items():
        if key == "destructiveHint" and at.is_callable:
            continue
        if key in node and kind not in kinds and kind in _TYPES:
            yield (*loc, key), f"does not go with type: {kind}; expected type: {' or '.join(kinds)}"
    if kind in _CHILDREN and node.get("agents", []) == []:
        yield (*loc, "agents"), f"is missing; a {kind} node needs at least one child"
    for of, (key, why) in _REQUIRED.items():
        if kind == of and node.get(key) is None:
            yield (*loc, key), f"is missing; {why}"
    if "input_schema" in node and not at.is_callable:
        yield (*loc, "input_schema"), "only an agent that others call has one; see agents:"
    if node.get("can_exit_loop") is True and not at.in_loop:
        yield (*loc, "can_exit_loop"), "no loop is around this node; expected a parent of type: loop"
    yield from _of_type(kind, loc, node)


def _of_type(kind: str, loc: Loc, node: dict[str, Any]) -> Iterator[Problem]:
    match kind:
        case "parallel":
            yield from _shared_keys(loc, node)
        case "map":
            yield from _one_child(loc, node)
        case "llm":
            yield from _own_tools(loc, node)


def _one_child(loc: Loc, node: dict[str, Any]) -> Iterator[Problem]:
    agents = node.get("agents")
    if isinstance(agents, list) and len(agents) > 1:
        what = "a map node has one child, which runs once for each item"
        yield (*loc, "agents", 1), f"{what}; put several into one node of type: sequential"


def _spawn(loc: Loc, node: dict[str, Any]) -> Iterator[Problem]:
    """What a node starts, which must be something."""
    spawn = node["spawn"]
    if spawn is None:
        yield (*loc, "spawn"), "is nothing; expected its keys, such as {fork: true}, or {} for the defaults"
    elif isinstance(spawn, dict) and spawn.get("fork", False) is False and node.get("agents", []) == []:
        yield (
            (*loc, "spawn"),
            "starts nothing; expected agents: in this node, with those that it may start, or fork: true",
        )


def _own_tools(loc: Loc, node: dict[str, Any]) -> Iterator[Problem]:
    """What a node starts, and its agents that are named like a tool which the mesh gives to it."""
    if "spawn" in node:
        yield from _spawn(loc, node)
    for agent_loc, agent in _entries(node.get("agents"), (*loc, "agents")):
        if agent.get("type") != "agent" and (key := _giver_of(node, agent.get("name"))):
            yield (*agent_loc, "name"), f"is the name of a tool that {key} gives to {_of(node)}; {_RENAME}"


def _giver_of(node: dict[str, Any], name: Any) -> str:
    """The key by which a node gets a tool of this name; empty if there is none."""
    if name in SPAWN_TOOLS and "spawn" in node:
        return "spawn"
    return "python" if name == PYTHON_TOOL and node.get("python") is True else ""


def _of(node: dict[str, Any]) -> str:
    name = node.get("name")
    return name if isinstance(name, str) else "this node"


def _callable_agent(loc: Loc, node: dict[str, Any]) -> Iterator[Problem]:
    """An agent that others call is a tool to them, and names the places where it runs."""
    name = node.get("name")
    if not isinstance(name, str):
        return
    if name in BUILT_IN_TOOLS or name.startswith("a2a_"):
        yield (*loc, "name"), "is the name of a tool; expected another one"
    elif name == FORK:
        yield (*loc, "name"), "stands for an agent that forks itself; expected another name"
    elif not name[:1].isalpha():
        yield (*loc, "name"), "does not begin with a letter; the name of an agent that others call has to"


def _shared_keys(loc: Loc, node: dict[str, Any]) -> Iterator[Problem]:
    """Branches run at the same time, so two of them may not write the same key of the session state."""
    written: set[str] = set()
    for child_loc, child in _entries(node.get("agents"), (*loc, "agents")):
        branch: set[str] = set()
        for below in _walk(_At(child_loc, child)):
            key = None if below.is_callable or below.in_map else below.node.get("output_key")
            if isinstance(key, str) and key in written:
                yield (*below.loc, "output_key"), "another branch of the parallel node writes the same key"
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
