"""What a Python file says is what its YAML says: for any agent, and any text, number, list and mapping."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.agents import Agent, Budget, LlmOptions, ModelParameters, Settings, Spawn, Validator
from mesh.agents.as_config import AsConfig
from mesh.agents.plain_data import AgentProblem
from mesh.config.call_lines import CallLines
from mesh.config.model import parse
from mesh.config.yaml_text import yaml_text
from mesh.config.yaml_tree import canonical, compose
from mesh.processes.code import import_code
from mesh.tools.file import ToolFile

CODE = '''
from pydantic import BaseModel
from mesh.tools import check, tool

class Order(BaseModel):
    id: str
    total: int = 5

@tool(read_only=True)
def find(order: str) -> str:
    """Finds an order."""

@tool
def refund(order: str, cents: int) -> str:
    """Pays money back."""

@check
def is_polite(output: str) -> bool | str: ...
'''

any_text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")).filter(
    lambda text: "${" not in text
)
hard_text = any_text | st.sampled_from(
    [
        "yes",
        "1e5",
        "0123",
        "null",
        "~",
        "1.5",
        ".5",
        "0x10",
        "\x85",
        "\u2028\n",
        "12:30",
        "- a",
        "a: b",
        "# c",
        " x ",
        "\n\n",
        "a\n b\n",
    ]
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 10**18, 10**18 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | hard_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hard_text, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(hard_text, json_values, max_size=4))
def test_data_is_read_as_it_was_written(data: dict[str, Any]) -> None:
    text = yaml_text(data)
    read = compose(text, "x").data()
    assert read == data
    assert canonical(read) == canonical(data)  # 1 and 1.0 and True are equal, and not the same
    assert yaml_text(read) == text


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The file that the agents are said to stand in."""
    path = tmp_path_factory.mktemp("shop") / "shop.py"
    path.write_text(CODE)
    return import_code(CODE, path)


class Drawing:
    """Draws agents that a config allows. Each has a name of its own."""

    def __init__(self, data: st.DataObject, module: ModuleType) -> None:
        self.data = data
        self.module = module
        self.made = 0

    def one_of(self, *values: Any) -> Any:
        return self.data.draw(st.sampled_from(values))

    def name(self) -> str:
        self.made += 1
        return f"{self.one_of('shop', 'null', 'yes')}-{self.made}"

    def prompt(self) -> str:
        return self.data.draw(hard_text).replace("{", "").replace("}", "")

    def llm(self, depth: int) -> Agent:
        agents = [self.llm(depth - 1) for _ in range(self.one_of(0, 1, 2) if depth else 0)]
        keys: dict[str, Any] = {
            "description": self.data.draw(hard_text),
            "model": self.one_of("offline", "openai:gpt-5", "claude-x"),
            "parameters": ModelParameters(temperature=self.data.draw(st.floats(0, 1)), stop=("1", "yes\n")),
            "tools": self.one_of([], [self.module.find], ["fi*", self.module.refund]),
            "budget": Budget(max_llm_calls=self.one_of(1, 9)),
            "output_schema": self.one_of(self.module.Order, {"type": "object"}),
            "validate": [*self.one_of([], [self.module.is_polite], [Validator(person=True)]), *agents[:1]],
            "output_key": f"draft_{self.made}",
            "replicas": self.one_of(0, 3),
            "spawn": self.one_of(Spawn(fork=True, review="ask"), Spawn(fork=True, unwaited="delete")),
        }
        if depth == 0:
            keys["input_schema"] = self.one_of(self.module.Order, {"type": "object"})
        chosen = self.data.draw(st.sets(st.sampled_from(sorted(keys))))
        given = {key: keys[key] for key in keys if key in chosen}
        return Agent(name=self.name(), prompt=self.prompt(), agents=agents, **given)

    def tree(self, depth: int) -> Agent:
        kind = self.one_of("llm", "sequential", "parallel", "loop", "tool") if depth else "llm"
        if kind == "llm":
            return self.llm(1)
        if kind == "tool":
            args = self.data.draw(st.dictionaries(hard_text, json_values, max_size=2))
            return Agent(name=self.name(), type="tool", tool=self.module.find, args=args)
        more: dict[str, Any] = {}
        if kind == "loop":
            ends = self.one_of(self.module.is_polite, self.module.Order, self.llm(0), {"schema": {}})
            more = {"exit_when": ends}
        agents = [self.tree(depth - 1) for _ in range(self.one_of(1, 2))]
        return Agent(name=self.name(), type=kind, agents=agents, **more)


@given(st.data())
def test_an_agent_is_its_yaml(module: ModuleType, data: st.DataObject) -> None:
    drawing = Drawing(data, module)
    settings = drawing.one_of(None, Settings(port=8081, llm=LlmOptions(model="offline"), name="1e5"))
    converted = AsConfig(
        Path(str(module.__file__)), module, ToolFile(module, CODE), CallLines(CODE, Path("x"))
    )
    converted.convert(drawing.tree(2), settings)
    text = yaml_text(converted.data)

    config = parse(text, str(module.__file__), {})
    again = parse(yaml_text(compose(config.source, "x").data()), str(module.__file__), {})
    assert (again.source, again.digest, again) == (text, config.digest, config)
    written, read = converted.data["agent"], config.tree.model_dump(by_alias=True, exclude_unset=True)
    assert _without_references(read) == _without_references(written)
    assert [agent.name for agent in config.agents] == [
        each["name"] for each in converted.data.get("agents", [])
    ]


def _without_references(node: Any) -> Any:
    """A node without what stands in a config for something else: schemas of files, and names of agents."""
    if isinstance(node, dict):
        if node.get("type") == "agent":
            return node["name"]
        schemas = ("output_schema", "schema")
        return {key: _without_references(each) for key, each in node.items() if key not in schemas}
    return [_without_references(each) for each in node] if isinstance(node, list | tuple) else node


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({1, 2}, "is of type set; expected text, a number, a list or a mapping"),
        ([0, float("inf")], "is no finite number; expected one"),
        (10**18, "has more than 18 digits; expected a shorter number"),
        ({"a": "\0"}, "has a character that a config cannot hold; remove it"),
        ("\ud800", "has a character that a config cannot hold; remove it"),
        ({1: 2}, "has a key that is no text"),
    ],
)
def test_what_a_config_cannot_hold_is_a_problem(module: ModuleType, value: Any, told: str) -> None:
    agent = Agent(name="a", type="tool", tool=module.find, args={"x": value})
    converted = AsConfig(Path("x.py"), module, ToolFile(module, CODE), CallLines(CODE, Path("x.py")))
    with pytest.raises(AgentProblem, match=f"^{re.escape(told)}$") as caught:
        converted.convert(agent, None)
    assert caught.value.loc[:3] == ("agent", "args", "x")
