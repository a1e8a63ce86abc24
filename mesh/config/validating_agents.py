"""Agents that check answers, or end loops, and cannot: a person has to approve their calls, they do not take
what they would be given, their own schema has no verdict, or they check each other in a circle.
`mesh.cli.shared.loaded` makes these checks for every command that reads a config.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mesh.config.function_uses import kinds_of_answers
from mesh.config.model import AgentNode, Config
from mesh.config.read_model import Problem
from mesh.config.schema_kinds import TEXT, kinds, properties, required, spoken
from mesh.config.yaml_tree import Loc

_VERDICT = "expected {valid: boolean, feedback: string}, or no output_schema, which is that of a verdict then"
_ONLY_READS = "an agent that does only reads; remove this, or name another agent there"
_GIVEN = "it is given only output, and request if its properties have that"
_PARTS = {"valid": "boolean", "feedback": "string"}

Edges = Mapping[str, Sequence[tuple[Loc, str]]]
"""For each agent, the agents that have to judge before its answer counts, and where the config says so."""


def validating_problems(config: Config) -> list[str]:
    """Returns the problems as `Config.parse` reports its own."""
    checks = (_destructive, _without_answer, _unfit, _without_verdict, _circles)
    return config.told([problem for check in checks for problem in check(config)])


def _destructive(config: Config) -> Iterator[Problem]:
    for loc, node in _validating(config):
        if node.destructive:
            yield (*loc, "destructiveHint"), f"{node.name} checks answers, and {_ONLY_READS}"


def _without_answer(config: Config) -> Iterator[Problem]:
    for loc, node in _validating(config):
        if node.input_schema is not None and (wrong := " and ".join(_refused(node.input_schema))):
            yield (*loc, "input_schema"), f"{node.name} checks answers, and {wrong}; {_GIVEN}"


def _refused(schema: dict[str, Any]) -> Iterator[str]:
    """Why an agent with this ``input_schema`` does not take an answer; nothing if it may."""
    if "object" not in (found := kinds(schema, schema)):
        yield f"this is {spoken(found)}"
        return
    known, needed, own = properties(schema, schema), required(schema, schema), _own_properties(schema)
    if known is not None and "output" not in known.keys() | needed:
        yield "the answer, its output, is missing here"
    if "string" not in (found := kinds(own.get("request", {}), schema)):
        yield f"its request, which is text, is {spoken(found)} here"
    if more := needed - {"output", *({"request"} & own.keys())}:
        yield f"this requires {' and '.join(sorted(more))}"


def _own_properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _unfit(config: Config) -> Iterator[Problem]:
    """Agents that take answers, and none of the node that names them."""
    agents = config.callable_agents
    for at, node in config.nodes():
        for loc, name in node.named_conditions(at, "agent"):
            schema = agents[name].input_schema or {}
            takes = kinds(_own_properties(schema).get("output", {}), schema)
            gives = kinds_of_answers(config, node)
            if not takes & (gives | TEXT):  # it gets the text where it does not take the value
                what = f"{name} takes {spoken(takes)}, and the answer of {node.name} is {spoken(gives)}"
                yield loc, f"{what}; expected an agent that takes it"


def _without_verdict(config: Config) -> Iterator[Problem]:
    for loc, node in _validating(config):
        if node.output_schema is not None and (wrong := " and ".join(_lacks(node.output_schema))):
            yield (*loc, "output_schema"), f"{node.name} checks answers, and {wrong}; {_VERDICT}"


def _lacks(schema: dict[str, Any]) -> Iterator[str]:
    """Why no value that fits a schema is a verdict; nothing if one may be."""
    if "object" not in (found := kinds(schema, schema)):
        yield f"this is {spoken(found)}"
        return
    if (known := properties(schema, schema)) is None:
        return
    for name, kind in _PARTS.items():
        if name not in known:
            yield f"its {name} is missing here"
        elif kind not in (found := kinds(known[name], schema)):
            yield f"its {name} is {spoken(found)} here"


def _circles(config: Config) -> Iterator[Problem]:
    edges = {name: [*_judges(*agent)] for name, agent in _located(config).items()}
    for name, judges in edges.items():
        for loc, judge in judges:
            if path := _path(edges, judge, name):
                yield loc, _told(name, path)


def _told(name: str, path: Sequence[str]) -> str:
    if len(path) == 1:
        return f"{name} would check its own answers, without end; name another agent"
    return (
        f"{name} would check answers of its own, without end: {' → '.join([name, *path])}; remove one of them"
    )


def _validating(config: Config) -> Iterator[tuple[Loc, AgentNode]]:
    """The agents that check answers, or end loops, each with its location."""
    named = config.validating_agents
    yield from (located for name, located in _located(config).items() if name in named)


def _located(config: Config) -> dict[str, tuple[Loc, AgentNode]]:
    """The agents that can be called, by name, each with its location."""
    agents = config.callable_agents
    return {node.name: (loc, node) for loc, node in config.nodes() if agents.get(node.name) is node}


def _judges(loc: Loc, node: AgentNode) -> Iterator[tuple[Loc, str]]:
    yield from node.named_conditions(loc, "agent")
    for index, child in enumerate(node.children):
        yield from _judges((*loc, "agents", index), child)


def _path(edges: Edges, start: str, end: str) -> list[str]:
    """The shortest way from one agent to another, both included; empty if there is none."""
    waiting, seen = [[start]], {start}
    while waiting:
        path = waiting.pop(0)
        if path[-1] == end:
            return path
        for _, judge in edges.get(path[-1], ()):
            if judge not in seen:
                seen.add(judge)
                waiting.append([*path, judge])
    return []
