"""``mesh policy explain``: verdict, rule and line, why no other rule decided, and the exit code."""

import asyncio
from pathlib import Path

import pytest

from mesh.policy.book_file import FileGrantBook
from mesh.policy.grants import Grant
from mesh.policy.rules import PolicyRule
from tests.cli.test_cli import mesh

CONFIG = """\
name: a
host: 127.0.0.1
llm: {model: offline}
mcp_servers:
  - {name: resources, command: mcp-resources, args: [--db, FOLDER/resources.db]}
a2a:
  - {name: deployer, url: "http://127.0.0.1:9/"}
agent: {name: worker, type: llm, can_ask_user: true}
policy:
  rules:
    - {name: look, tools: ["resources_l*"], decide: allow}
    - {name: small, tools: [resources_add], args: {value: {max: 10}}, decide: allow}
    - {name: production, tools: ["*"], args: {name: "prod-*"}, decide: deny, say: Not there.}
    - {name: deploys, kinds: [a2a], args: {message: "re:(?i)production"}, decide: ask}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("resources_list",), 0, "allowed by look (PATH:11): "),
        (("resources_add", "name=db-1", "value=10"), 0, "allowed by small (PATH:12): "),
        (("resources_add", '{"name": "db-1", "value": 11}'), 3, "ask by default: "),
        (("resources_add", "name=prod-1", "value=1"), 4, "denied by production (PATH:13): Not there."),
        (("a2a_deployer", "message=to Production"), 3, "ask by deploys (PATH:14): "),
        (("a2a_deployer", "message=to staging", "--node", "worker"), 0, "allowed by default: "),
    ],
)
def test_it_says_what_is_decided_and_exits_with_it(
    path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    run = mesh("policy", "explain", path, *arguments)
    assert (run.exit_code, run.stdout.startswith(said.replace("PATH", str(path)))) == (code, True), run.output


def test_it_says_of_every_other_rule_why_it_did_not_decide(path: Path) -> None:
    run = mesh("policy", "explain", path, "resources_add", "name=prod-1", "value=1")
    rules = [line.strip().removeprefix(f"{path}:") for line in run.stdout.splitlines()[2:]]
    assert rules == [
        "11: look (allow): tools: resources_add matches none of resources_l*",
        "12: small (allow): it holds, but production decides before it",
        "13: production (deny): it decides",
        "14: deploys (ask): kinds: mcp is none of a2a",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nothing",), "there is no tool 'nothing'; there are: "),
        (("a2a_deployer", "words"), "'words' is no argument; expected KEY=VALUE"),
        (("a2a_deployer", "{"), "the arguments are no JSON object"),
        (("a2a_deployer", "--node", "x"), "'x' does not call a2a_deployer; it is called by: worker"),
        (("ask_user",), "ask_user is built in"),
    ],
)
def test_a_wrong_use_is_told_in_a_line(path: Path, arguments: tuple[str, ...], problem: str) -> None:
    run = mesh("policy", "explain", path, *arguments)
    assert run.exit_code == 2
    assert problem in run.stderr


CUSTOM = """
from mesh.policy.custom import allow, deny

async def judge(call, context):
    if context.verdict.rule == "default":
        return allow("Small enough.") if call.arguments.get("value", 0) < 100 else deny("Too much.")
"""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("name=db-1", "value=10"), 0, "allowed by small (PATH:12): "),
        (("name=db-1", "value=11"), 0, "allowed by custom (PATH:15): Small enough."),
        (("name=db-1", "value=100"), 4, "denied by custom (PATH:15): Too much."),
        (("name=prod-1", "value=11"), 4, "denied by production (PATH:13): Not there."),
    ],
)
def test_the_custom_function_is_asked_after_the_rules(
    path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    (path.parent / "judge_of_explain.py").write_text(CUSTOM)
    path.write_text(path.read_text() + "  custom: judge_of_explain:judge\n")
    run = mesh("policy", "explain", path, "resources_add", *arguments)
    assert (run.exit_code, run.stdout.startswith(said.replace("PATH", str(path)))) == (code, True), run.output


def test_what_is_remembered_for_good_is_counted(path: Path) -> None:
    path.write_text(f"data_dir: {path.parent}\n{path.read_text()}  grants: always\n")
    rule = PolicyRule(name="add", decide="allow", tools=("resources_add",), args={"name": "db-*"})
    grant = Grant(id="g", agent="worker", rule=rule, by="ann", remember="always")
    asyncio.run(FileGrantBook(path.parent).add(grant))
    run = mesh("policy", "explain", path, "resources_add", "name=db-1", "value=11")
    assert (run.exit_code, run.stdout.splitlines()[0]) == (
        0,
        "allowed by grant.g: ann has allowed it before.",
    ), run.output
    assert mesh("policy", "explain", path, "resources_add", "name=x", "value=11").exit_code == 3
    assert mesh("policy", "explain", path, "resources_add", "name=prod-db-1", "value=11").exit_code == 4


def test_an_example_that_is_wrong_is_a_problem_of_the_config(path: Path) -> None:
    path.write_text(
        'policy: {rules: [{name: r, command: ["rm *"], decide: deny, examples: {match: [ls]}}]}\n'
    )
    run = mesh("check", path)
    assert run.exit_code == 2
    assert ":1: policy.rules[0].examples.match[0]: the rule does not match it" in run.stderr


CALLING = """\
name: a
llm: {model: offline}
agents:
  - {name: helper, type: llm, description: Helps.}
  - {name: risky, type: llm, description: Dares., destructiveHint: true}
agent:
  name: steps
  type: sequential
  agents:
    - {name: first, type: llm, agents: [helper]}
    - {name: worker, type: llm, agents: [helper, risky], offer_agents: use_agent}
policy:
  rules:
    - {name: generic, tools: [use_agent], decide: allow}
    - {name: named, kinds: [agent], tools: [helper], args: {agent: helper, task: "re:prod"}, decide: deny}
"""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("agent=helper", "task=to prod"), 4, "denied by named (PATH:15): "),
        (("agent=helper", "task=x", "--node", "worker"), 0, "allowed by default: "),
        (("agent=risky", "task=x"), 3, "ask by default: "),
    ],
)
def test_an_agent_that_is_called_by_use_agent_is_judged_by_its_own_name(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(CALLING)
    run = mesh("policy", "explain", path, "use_agent", *arguments)
    assert (run.exit_code, run.stdout.startswith(said.replace("PATH", str(path)))) == (code, True), run.output
    assert "called by worker of steps; kind agent" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("agent=nobody",), "use_agent calls no agent 'nobody'; \"agent\" is one of: helper, risky"),
        (("task=x",), "use_agent calls no agent 'None'; "),
        (("agent=helper", "--node", "first"), "'first' does not call agents by use_agent"),
    ],
)
def test_use_agent_without_such_an_agent_is_told_in_a_line(
    tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(CALLING)
    run = mesh("policy", "explain", path, "use_agent", *arguments)
    assert (run.exit_code, problem in run.stderr) == (2, True), run.output
