"""The tables of the manual are held against the code: keys of the configs, and texts of errors."""

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.routing import Match

from mesh.config.files import FileText
from mesh.config.model import (
    A2aAgent,
    AgentNode,
    Auth,
    Budget,
    Card,
    Cluster,
    Config,
    Cors,
    ExitCondition,
    Limits,
    LlmOptions,
    McpServer,
    ModelParameters,
    ModelPrice,
    OtelOptions,
    PythonFile,
    Questions,
    RetentionOptions,
    Scale,
    ServerOptions,
    Spawn,
    StoreOptions,
    TurnBudget,
    Validator,
    parse,
)
from mesh.config.policy import (
    ConditionOptions,
    ExampleOptions,
    HintOptions,
    NodePolicyOptions,
    PolicyOptions,
    RuleOptions,
)
from mesh.gateway.app import http_app
from mesh.http.backend import Backend
from mesh.llm.installed import installed, names
from mesh.metrics import table
from mesh.servers.llm_stub.script import Script
from mesh.web.config import WebConfig
from tests.worlds.documents import MANUAL, ROOT, name_of

CONFIGURE = ROOT / "docs/configure.md"
TREES = ROOT / "docs/trees.md"
TROUBLESHOOT = ROOT / "docs/troubleshoot.md"

SECTIONS: dict[str, type[BaseModel]] = {
    "The agent": Config,
    "The model: `llm`": LlmOptions,
    "MCP servers": McpServer,
    "Other agents: `a2a`": A2aAgent,
    "Nodes of the tree": AgentNode,
    "Questions to the person: `can_ask_user`": Questions,
    "Agents that a node starts: `spawn`": Spawn,
    "Parameters of a model: `parameters`": ModelParameters,
    "Budgets: `budget`": TurnBudget,
    "Policy: `policy`": PolicyOptions,
    "Rules of a policy: `rules`": RuleOptions,
    "Limits": Limits,
    "Processes: `cluster`": Cluster,
    "A database: `store`": StoreOptions,
    "Traces: `otel`": OtelOptions,
    "Old conversations: `retention`": RetentionOptions,
    "API keys: `auth`": Auth,
    "Web pages: `cors`": Cors,
    "The agent card: `card`": Card,
    "The web chat: `web.yaml`": WebConfig,
}
IN_WORDS: dict[Any, set[str]] = {
    None: {"", "none", "all", "off", "absent"},
    "": {"empty"},
    (): {"none"},
}
"""How the tables tell defaults that are no value to write down."""

_REQUEST = re.compile(r"`(GET|POST|DELETE) (/[^`?\s]*)[^`]*`")
_KEY = re.compile(r"`(limits|llm|card|cluster|budget)\.(\w+)`")
_YAML = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SHORTEST = 8
"""A piece of a message that is shorter says nothing."""


class _AnyFile(dict[str, FileText]):
    """Files that examples name. Their text is valid as Python and as JSON."""

    def __contains__(self, loc: object) -> bool:
        return True

    def __missing__(self, loc: str) -> FileText:
        return FileText("/example", "{}")


@pytest.mark.parametrize("title", SECTIONS)
def test_a_table_of_the_config_has_its_keys_with_their_defaults(title: str) -> None:
    fields = {field.alias or name: field for name, field in SECTIONS[title].model_fields.items()}
    rows = _rows(_section(CONFIGURE.read_text(), title))
    told = {key.strip("`"): default for key, default, *_ in rows if key.startswith("`")}
    assert [key for key in told if key not in fields] == []
    assert [key for key in fields if key not in told] == []
    assert [(key, told[key]) for key, field in fields.items() if not _tells(told[key], field)] == []


def test_every_part_of_the_config_has_a_table() -> None:
    pieces = {Budget, ExitCondition, ModelPrice, PythonFile, Scale, ServerOptions, Validator}
    pieces |= {ConditionOptions, ExampleOptions, HintOptions, NodePolicyOptions}
    assert _parts(Config) - pieces <= set(SECTIONS.values())


def test_the_keys_of_a_node_are_all_described() -> None:
    rows = _rows(_section(TREES.read_text(), "Keys of a node"))
    told = {key for cell, *_ in rows for key in re.findall(r"`(\w+)`", cell)}
    assert told == {field.alias or name for name, field in AgentNode.model_fields.items()}


def test_every_metric_is_described_as_prometheus_is_told() -> None:
    section = Path("docs/operate.md").read_text().partition("## Metrics")[2].partition("## Ports")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| `")]
    named = [
        [f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.help]
        for each in table.ALL
    ]
    assert [[cell.strip() for cell in row] for row in rows] == named


def test_every_request_that_is_described_has_a_route() -> None:
    # Routes are made without asking the backend anything.
    routes = http_app(cast(Backend, None), parse("name: agent", "test", {}), b"secret").routes
    described = {found for file in MANUAL for found in _REQUEST.findall(file.read_text())}
    assert len(described) > 20
    scopes = [{"type": "http", "method": method, "path": path} for method, path in described]
    assert [s for s in scopes if not any(route.matches(s)[0] is Match.FULL for route in routes)] == []


def test_every_key_of_the_config_that_is_named_exists() -> None:
    parts = {
        "limits": Limits,
        "llm": LlmOptions,
        "card": Card,
        "cluster": Cluster,
        "cors": Cors,
        "auth": Auth,
        "budget": TurnBudget,
    }
    named = {found for file in MANUAL for found in _KEY.findall(file.read_text())}
    assert len(named) > 8
    assert [(part, key) for part, key in named if key not in parts[part].model_fields] == []


@pytest.mark.parametrize("document", MANUAL, ids=name_of)
def test_every_config_and_every_script_that_is_shown_is_one(document: Path) -> None:
    for text in _YAML.findall(document.read_text()):
        if text.startswith("rules:"):
            Script(yaml.safe_load(text))
        elif not text.startswith(" "):  # an indented block is a piece of a config
            env = dict.fromkeys(re.findall(r"\$\{(\w+)", text), "x")
            parse(text, name_of(document), env, _AnyFile())


def test_every_error_that_is_explained_is_an_error_of_the_code() -> None:
    column = [cell for row in _rows(TROUBLESHOOT.read_text()) for cell in row]
    messages = [cell[1:-1] for cell in column if re.fullmatch(r"`[^`]*(?:…| )[^`]*`", cell)]
    pieces = {piece for text in messages for piece in text.split("…") if len(piece) >= _SHORTEST}
    assert len(pieces) > 40
    assert sorted(piece for piece in pieces if piece.strip() not in _texts()) == []


def test_every_provider_of_models_is_listed_with_its_key() -> None:
    rows = _rows(_section(CONFIGURE.read_text(), "Models"))
    variables = re.findall(r"`(\w+_API_KEY)`", " ".join(key for _, _, key, *_ in rows))
    providers = {installed(name).name: installed(name) for name in names()}
    assert sorted(variables) == sorted(each.key for each in providers.values() if each.key)
    assert len(rows) == len(providers)


def _section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def _rows(text: str) -> list[list[str]]:
    """The cells of all rows of tables, without the heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    heads = {index - 1 for index, cells in enumerate(split) if all(set(cell) <= set("-") for cell in cells)}
    return [cells for index, cells in enumerate(split) if index not in heads and index - 1 not in heads]


def _tells(told: str, field: FieldInfo) -> bool:
    """Whether a cell tells the default of a field."""
    if field.is_required():
        return told == "required"
    default = field.get_default(call_default_factory=True)
    values = re.findall(r"`([^`]*)`", told)
    if isinstance(default, BaseModel):
        return told == ""
    if isinstance(default, Path):
        return values == [str(default)]
    if isinstance(default, tuple) and default:
        return values == [*default]
    if isinstance(default, bool | int | float | str) and values:
        return values == [default if isinstance(default, str) else json.dumps(default)]
    # What is not there: in a word, or in words that say what counts instead.
    return (
        not values
        or told in IN_WORDS.get(default if default != {} and default != [] else (), set())
        or not default
    )


def _parts(annotation: Any) -> set[type[BaseModel]]:
    """The models in an annotation, and those in their fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner = [
            f.annotation for f in annotation.model_fields.values() if annotation not in get_args(f.annotation)
        ]
        return {annotation}.union(*map(_parts, inner))
    return set().union(*map(_parts, get_args(annotation)))


@cache
def _texts() -> str:
    """All texts of the code, the parts of one text joined, with nothing for what is put in."""
    found = [(ROOT / "Makefile").read_text()]
    for folder in ("mesh", "deployments"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Constant(value=str(text)):
                        found.append(text)
                    case ast.JoinedStr(values=values):
                        found.append(
                            "".join(v.value if isinstance(v, ast.Constant) else "\0" for v in values)
                        )
    return "\n".join(found)
