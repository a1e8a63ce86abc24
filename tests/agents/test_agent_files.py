"""A Python file that says ``agent = Agent(…)``: what it is as YAML, and what is told at its lines."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mesh.cli import app
from mesh.config.agent_file import load
from mesh.core.errors import ConfigError

SHOP = '''\
from pydantic import BaseModel
from mesh.agents import Agent, Budget, LlmOptions, Settings, Validator
from mesh.tools import check, tool


class Order(BaseModel):
    total: int


@tool(read_only=True)
def find(order: str) -> str:
    """Finds an order."""
    return order


@check
def is_polite(output: str) -> bool | str:
    return True


critic = Agent(name="critic", prompt="Is it right?\\nSay why.")
settings = Settings(host="127.0.0.1", llm=LlmOptions(model="${MODEL:-offline}"))
agent = Agent(
    name="shop",
    prompt="You help.",
    tools=[find],
    agents=[critic],
    output_schema=Order,
    validate=[is_polite, critic, Validator(person=True)],
    budget=Budget(max_llm_calls=9),
)
'''
YAML = """\
name: shop
host: 127.0.0.1
llm:
  model: ${MODEL:-offline}
agent:
  name: shop
  type: llm
  agents:
  - critic
  prompt: You help.
  output_schema: shop.py:Order
  validate:
  - check: is_polite
  - agent: critic
  - person: true
  budget:
    max_llm_calls: 9
  tools:
  - find
agents:
- name: critic
  type: llm
  prompt: |-
    Is it right?
    Say why.
mcp_servers:
- name: shop
  python: shop.py
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("shop.py")


def problems(file: Path, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    return caught.value.problems


def test_check_prints_the_yaml_that_a_file_is_and_that_yaml_is_the_same_agent(file: Path) -> None:
    file.write_text(SHOP)
    printed = CliRunner().invoke(app, ["check", "shop.py", "--yaml"])
    assert (printed.exit_code, printed.stdout) == (0, YAML)
    Path("shop.yaml").write_text(printed.stdout)
    python, yaml = load(file, {}), load(Path("shop.yaml"), {})
    assert python.model_dump() == yaml.model_dump()
    assert (python.digest, python.files) == (yaml.digest, yaml.files)
    assert CliRunner().invoke(app, ["check", "shop.yaml", "--yaml"]).stdout == YAML


def test_variables_are_those_of_the_environment_in_which_the_agent_runs(file: Path) -> None:
    file.write_text(SHOP)
    here, there = load(file, {}), load(file, {"MODEL": "openai:gpt-5"})
    assert (here.llm.model, there.llm.model) == ("offline", "openai:gpt-5")
    assert here.digest == there.digest


def test_other_processes_parse_the_text_without_the_file(file: Path) -> None:
    file.write_text(SHOP)
    config = load(file, {})
    file.unlink()
    again = type(config).parse(config.source, config.origin, {}, config.files)
    assert (again.model_dump(), again.digest) == (config.model_dump(), config.digest)


def test_a_change_of_a_function_is_another_version_of_the_agent(file: Path) -> None:
    file.write_text(SHOP)
    before = load(file, {}).digest
    file.write_text(SHOP.replace("return order", 'return order + "!"'))
    assert load(file, {}).digest != before


def test_a_file_without_functions_has_no_server(file: Path) -> None:
    file.write_text('from mesh.agents import Agent\nagent = Agent(name="a", model="offline")\n')
    assert load(file, {}).source == "name: a\nagent:\n  name: a\n  type: llm\n  model: offline\n"


def test_none_is_the_same_as_no_key(file: Path) -> None:
    nothing = "model='offline', output_schema=None, exit_when=None, tools=None"
    file.write_text(f'from mesh.agents import Agent\nagent = Agent(name="a", {nothing})\n')
    assert load(file, {}).source == "name: a\nagent:\n  name: a\n  type: llm\n  model: offline\n"


def test_trees_and_agents_that_are_used_twice_are_written_once_where_they_are_called(file: Path) -> None:
    file.write_text("""\
from mesh.agents import Agent
helper = Agent(name="helper")
one, two = Agent(name="one", agents=[helper]), Agent(name="two", agents=[helper, "helper"][:1])
agent = Agent(name="both", type="sequential", agents=[one, two])
""")
    config = load(file, {})
    assert [(node.name, [each.name for each in node.agents]) for node in config.tree.agents] == [
        ("one", ["helper"]),
        ("two", ["helper"]),
    ]
    assert [*config.callable_agents] == ["helper"]


HEAD = "from mesh.agents import Agent, Settings\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["1: agent: is missing; expected a line such as agent = Agent("]),
        ("\nagent = 5", ["2: agent: is no Agent; expected a line such as agent = Agent("]),
        (
            HEAD + "agent = Agent(name='a')\nsettings = {}",
            ["3: settings: are no Settings; expected a line such"],
        ),
        (
            HEAD + "agnet = Agent(name='a')\nsettigns = Settings(port=1)",
            [
                "2: agnet: is an Agent, and none is named agent; write agent = Agent(",
                "3: settigns: is not read; name it settings",
            ],
        ),
        (
            HEAD + "agent = Agent(name='a',\n  type='sequentail')",
            ["3: Agent(type): is none of the choices; did"],
        ),
        (
            HEAD + "def find(): ...\nagent = Agent(name='a', tools=find, validate=Agent(name='b'))",
            [
                "3: Agent(tools): is a function; expected a list (put it in brackets: […])",
                "3: Agent(validate): is an Agent; expected a list (put it in brackets: […])",
            ],
        ),
        ("import no_such_module", ["1: cannot be imported:\n    Traceback (most recent call last):\n"]),
        ("x = (", ["1: cannot be imported:\n"]),
        (
            "from pydantic import BaseModel\nclass Card(BaseModel):\n  suit: str\nCard(suit=5)",
            ["4: cannot be imported:\n"],
        ),
        ("import os\nos._exit(3)", ["1: cannot be imported: it exited with code 3"]),
        (
            HEAD + "agent = Agent(\n  name='a',\n  promt='x',\n  parameters={'temperature': 'hot'},\n)",
            [
                "4: Agent(promt): unknown key; did you mean prompt?",
                "5: Agent(parameters.temperature): is text; expected a number",
            ],
        ),
        (
            HEAD + "settings = Settings(\n  port=0)\nagent = Agent(name='a')",
            ["3: Settings(port): is too small; expected 1 or more"],
        ),
        (
            HEAD + "critic = Agent(\n  name='critic',\n  can_exit_loop=True)\nagent = Agent(name='a',\n"
            "  agents=[critic],\n  validate=[{'agent': 'nobody'}])",
            [
                "4: agents[0].can_exit_loop: no loop is around this node",
                "7: agent.validate[0].agent: no agent has this name",
            ],
        ),
        (
            HEAD
            + "settings = Settings(\n  llm={'model': 'acme:x'},\n  name='n')\nagent = Agent(\n  name='a',\n"
            "  model='${NONE}')",
            ["7: agent.model: the environment variable NONE is not set"],
        ),
        (
            HEAD + "def find(): ...\nagent = Agent(name='a',\n  tools=[find])",
            ["4: agent.tools: find is only a function; put @tool before its def"],
        ),
        (
            HEAD + "def fine(output): ...\nagent = Agent(name='a',\n\n  validate=[fine])",
            ["5: agent.validate: fine is only a function; put @check before its def"],
        ),
        (
            HEAD + "from functools import cache\nfrom mesh.tools import tool\n@cache\n@tool\n"
            "def find() -> str: ...\nagent = Agent(name='a', tools=[find])",
            [
                "7: agent.tools: find is a function around the one with @tool or @check; put that above all "
                "other decorators"
            ],
        ),
        (
            HEAD + "def make():\n  class X: ...\n  return X\nagent = Agent(name='a', output_schema=make())",
            ["5: agent.output_schema: X is no name of this file; define it at the top level"],
        ),
        (
            HEAD + "agent = Agent(name='a', type='tool', tool='x', args={'x': {1, 2}})",
            ["2: agent.args.x: is of type set; expected text, a number, a list or a mapping"],
        ),
        (
            HEAD + "more = {}\nmore['more'] = [more]\n"
            "agent = Agent(name='a', type='tool', tool='x',\n  args={'x': more})",
            ["5: agent.args.x.more[0].more: is nested deeper than 100 levels, or contains itself"],
        ),
        (
            HEAD + "agent = Agent(name='a', tools='find',\n  validate=[5], agents=[{'name': 'b'}],\n"
            "  output_schema=5,\n  a2a=[{'nme': 'b', 'key': 'a s3cret'}])",
            [
                "2: Agent(tools): is text; expected a list",
                "3: Agent(agents[0]): is not right; expected an Agent, or the name of one",
                "3: Agent(validate[0]): is not right; expected a function with @check, an Agent or",
                "4: Agent(output_schema): is not right; expected a type, a JSON Schema, or the path of one",
                "5: Agent(a2a[0].key): does not fit; expected text that matches ",
                "5: Agent(a2a[0].name): is missing; it is required",
                "5: Agent(a2a[0].nme): unknown key; did you mean name?",
                "5: Agent(a2a[0].url): is missing; it is required",
            ],
        ),
        (
            HEAD
            + "agent = Agent(name='a', type='loop', agents=[Agent(name='b')],\n  exit_when={'chek': 'x'})",
            [
                "3: agent.exit_when: says nothing; expected one of check, schema, agent",
                "3: agent.exit_when.chek: unknown key; did you mean check?",
            ],
        ),
        (
            HEAD + "agent = Agent(name='a')\nsettings = Settings(agent=agent)",
            ["3: agent: is the variable agent of this file, and no key of its settings"],
        ),
    ],
)
def test_what_is_wrong_is_told_at_its_line(file: Path, text: str, told: list[str]) -> None:
    found = problems(file, text)
    assert "s3cret" not in str(found)
    assert len(found) == len(told), found
    assert [
        each for each, start in zip(found, told, strict=True) if not each.startswith(f"shop.py:{start}")
    ] == []


def test_a_file_that_is_not_there_is_told(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"shop.py:1: shop.py cannot be read: No such file"):
        load(file, {})
