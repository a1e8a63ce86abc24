"""Placeholders that lead to nothing: ``{order.pricee}``, where the schema of ``order`` has no such property.
`mesh.cli.shared.loaded` makes these checks for every command that reads a config.

Only what is certain is a problem: all nodes that write the key have a schema, and no caller of an agent
can give it another value.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mesh.config.model import AgentNode, Config
from mesh.config.schema_kinds import items, kinds, properties, spoken
from mesh.config.yaml_tree import Loc
from mesh.core.spelling import meant
from mesh.tree.plan import OF_ITEMS
from mesh.tree.template import BUILT_IN, paths_in

_GIVEN = ("task", "output", "request")
"""What agents are given that have no ``input_schema``."""


def placeholder_problems(config: Config) -> list[str]:
    """Returns the problems as `Config.parse` reports its own."""
    schemas = _schemas_of_keys(config)
    return config.told(
        (loc, problem)
        for at, node in config.nodes()
        for loc, text in _texts(config, at, node)
        for problem in _problems(text, schemas)
    )


def _schemas_of_keys(config: Config) -> dict[str, list[dict[str, Any]]]:
    """The schemas of all that writes each key of the state; without the keys of which not all is known."""
    written: dict[str, list[dict[str, Any] | None]] = {}
    for _, node in config.nodes():
        if node.output_key is not None:
            written.setdefault(node.output_key, []).append(node.output_schema)
    found = {key: [each for each in schemas if each is not None] for key, schemas in written.items()}
    unknown = {key for key, schemas in written.items() if None in schemas}
    return {key: found[key] for key in found.keys() - unknown if not _is_given(config, key)}


def _is_given(config: Config, name: str) -> bool:
    """Whether a name may have another value: one of the mesh, an item of a map, or an argument of an agent
    that is called."""
    if name in OF_ITEMS and any(node.type == "map" for _, node in config.nodes()):
        return True
    given = [each.input_schema for each in config.callable_agents.values() if each.input_schema is not None]
    known = [properties(schema, schema) for schema in given]
    return name in (*BUILT_IN, *_GIVEN) or any(names is None or name in names for names in known)


def _texts(config: Config, loc: Loc, node: AgentNode) -> Iterator[tuple[Loc, str]]:
    """The texts of a node in which placeholders are filled."""
    if node.prompt:
        yield (*loc, "prompt"), node.prompt
    elif node.type == "llm":
        yield ("prompt",), config.prompt
    yield from _texts_in((*loc, "args"), node.args)


def _texts_in(loc: Loc, value: Any) -> Iterator[tuple[Loc, str]]:
    match value:
        case str():
            yield loc, value
        case dict():
            for key, inner in value.items():
                yield from _texts_in((*loc, key), inner)
        case list():
            for index, inner in enumerate(value):
                yield from _texts_in((*loc, index), inner)


def _problems(text: str, schemas: Mapping[str, Sequence[dict[str, Any]]]) -> Iterator[str]:
    for name, path in paths_in(text):
        told = [_missing(schema, name, path) for schema in schemas.get(name, ())]
        if told and all(told):
            yield told[0]


def _missing(root: dict[str, Any], name: str, path: Sequence[str]) -> str:
    """Why a path leads nowhere in what fits a schema; an empty text if it may lead somewhere."""
    schema: Any = root
    asked = ".".join([name, *path])
    for at, key in enumerate(path):
        where, possible = ".".join([name, *path[:at]]), kinds(schema, root)
        if not possible & {"object", "array"}:
            return f"{{{asked}}} leads to nothing: {where} is {spoken(possible)}, which has no parts"
        if "array" in possible and key.isdecimal():
            schema = items(schema, root)
            continue
        if "object" not in possible:
            return f"{{{asked}}} leads to nothing: {where} is a list; expected a number, as in {{{where}.0}}"
        if (known := properties(schema, root)) is None:
            return ""
        if key not in known:
            return f"{{{asked}}} leads to nothing: {where} has no {key}; {meant(key, known)}"
        schema = known[key]
    return ""
