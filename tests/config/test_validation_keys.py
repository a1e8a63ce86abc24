"""The keys of checked answers: what goes with what, and what is said of mistakes, with file and line."""

from pathlib import Path

import pytest

from mesh.config.model import load, parse
from mesh.config.python_problems import python_problems
from mesh.core.errors import ConfigError
from mesh.llm.config_checks import model_problems


def said(text: str) -> list[str]:
    try:
        return model_problems(parse(text, "agent.yaml", {}))
    except ConfigError as error:
        return error.problems


def node(*lines: str, kind: str = "llm") -> str:
    return "\n".join(["agent:", "  name: main", f"  type: {kind}", *(f"  {line}" for line in lines), ""])


NOTHING = "nothing is checked here; expected output_schema or validate beside it"
NOBODY = "no agent has this name; expected one of agents: (there are none)"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (node("validate:", "- agent: critic"), f"5: agent.validate[0].agent: {NOBODY}"),
        (
            node("agents: [{name: a, type: llm}]", "exit_when: {agent: critic}", kind="loop"),
            f"5: agent.exit_when.agent: {NOBODY}",
        ),
        (
            node("validate:", "- {}"),
            "5: agent.validate[0]: says nothing; expected one of check, agent, person",
        ),
        (
            node("validate:", "- {check: a, person: true}"),
            "5: agent.validate[0]: check and person exclude each other; expected one of check, agent, person",
        ),
        (
            node("validate:", "- person: false"),
            "5: agent.validate[0].person: is not true, so that it says nothing; expected true, or remove the",
        ),
        (
            node("agents: [{name: a, type: llm}]", "exit_when: {}", kind="loop"),
            "5: agent.exit_when: says nothing; expected one of check, schema, agent",
        ),
        (node("max_runs: 2"), f"4: agent.max_runs: {NOTHING}"),
        (node("on_invalid: ask"), f"4: agent.on_invalid: {NOTHING}"),
        (node("show_drafts: true"), f"4: agent.show_drafts: {NOTHING}"),
        (
            node("agents: [{name: a, type: llm}]", "validate: [{person: true}]", kind="sequential"),
            "5: agent.validate: does not go with type: sequential; expected type: llm",
        ),
        (
            node("exit_when: {check: a}"),
            "4: agent.exit_when: does not go with type: llm; expected type: loop",
        ),
        *(
            (
                node(key, "prompt: x"),
                f"4: agent.{key[:-1]}: is nothing; expected a JSON Schema (or no key at all)",
            )
            for key in ("output_schema:", "input_schema:")
        ),
        (
            node("agents: [{name: a, type: llm}]", "exit_when:", kind="loop"),
            "5: agent.exit_when: is nothing; expected one of check, schema, agent (or no key at all)",
        ),
        *(
            (
                node("agents: [{name: a, type: llm}]", f"exit_when: {{{kind}: }}", kind="loop"),
                "5: agent.exit_when: says nothing; expected one of check, schema, agent",
            )
            for kind in ("check", "schema", "agent")
        ),
        *(
            (
                node("validate:", f"- {kind}:"),
                "5: agent.validate[0]: says nothing; expected one of check, agent, person",
            )
            for kind in ("check", "agent", "person")
        ),
        (
            node("validate: [{check: , person: true}]"),
            "4: agent.validate[0]: check and person exclude each other",
        ),
        (
            node("args: &schema {type: object}", "output_schema:", "  <<: *schema"),
            "6: merge keys (<<) are not supported; write the keys here",
        ),
        (
            node("output_schema: {type: object}", "max_runs: 21"),
            "5: agent.max_runs: is too large; expected 20 or less",
        ),
        (
            node("output_schema:", "  type: object", "  properties:", "    n: {type: many}"),
            "7: agent.output_schema.properties.n.type: is not a type of JSON Schema",
        ),
        (
            node("output_schema:", "  properties:", "    n: {$ref: 'https://example.com/n'}"),
            "6: agent.output_schema.properties.n.$ref: refers to 'https://example.com/n'",
        ),
        (
            node("agents: [{name: a, type: llm}]", "exit_when: {schema: {type: 3}}", kind="loop"),
            "5: agent.exit_when.schema.type: is not",
        ),
        (
            node(
                "output_schema: {type: object}",
                "agents:",
                "- {name: a, type: llm, can_return_to_user: true}",
            ),
            "6: agent.agents[0].can_return_to_user: ends the turn past the checks of the root node",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, problem: str) -> None:
    assert [each for each in said(text) if each.startswith(f"agent.yaml:{problem}")], said(text)


def test_a_schema_may_be_in_a_file_whose_text_is_kept(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"type": "object", "properties": {"total": {"type": "integer"}}}')
    loop = "{name: a, type: loop, exit_when: {schema: order.json}, agents: [{name: b, type: llm}]}"
    text = node("output_schema: order.json", f"agents: [{loop}]")
    (tmp_path / "agent.yaml").write_text(text)
    config = load(tmp_path / "agent.yaml", {})
    (tmp_path / "order.json").unlink()
    again = parse(config.source, config.origin, {}, config.files)
    assert again.digest == config.digest
    assert again.tree.output_schema == config.tree.output_schema
    assert again.tree.output_schema is not None
    assert again.tree.output_schema["properties"] == {"total": {"type": "integer"}}
    assert again.tree.agents[0].exit_when is not None
    assert again.tree.agents[0].exit_when.accepted == again.tree.output_schema


def test_a_file_that_is_no_schema_is_told_once_with_the_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text("[]")
    (tmp_path / "agent.yaml").write_text(node("output_schema: order.json", "max_runs: 2"))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "agent.yaml", {})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path}/agent.yaml:4: agent.output_schema: ")
    assert "order.json:1: expected a JSON object" in problem


def test_an_agent_that_validates_is_one_that_the_node_may_call() -> None:
    text = node("validate: [{agent: critic}]") + "agents: [{name: critic, type: llm}]\n"
    config = parse(text, "agent.yaml", {})
    assert config.tree.called == ("critic",)
    assert config.validating_agents == {"critic"}


@pytest.mark.parametrize(
    ("key", "where", "keys"),
    [
        ("validate: [is_fine]", "validate[0]", "check, agent, person"),
        ("exit_when: is_fine", "exit_when", "check, schema, agent"),
    ],
)
def test_a_name_in_place_of_a_validator_is_told_with_the_keys_of_one(key: str, where: str, keys: str) -> None:
    told = f"is text; expected a mapping (key: value); its keys are {keys}"
    with pytest.raises(ConfigError) as refused:
        parse(node(key), "agent.yaml", {})
    assert f"agent.{where}: {told}" in str(refused.value)


def test_a_check_without_any_python_file_is_told_with_where_one_belongs(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(node("validate: [{check: is_fine}]"))
    (found,) = python_problems(load(tmp_path / "agent.yaml", {}))
    assert found.endswith("(output: str) -> bool | str, in a Python file that mcp_servers names")


def test_a_check_that_no_python_file_has_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(
        "from mesh.tools import check, tool\n\n@check\ndef is_fine(output: str) -> bool:\n    return True\n\n"
        "@tool(read_only=True)\ndef look(output: str) -> str:\n    return 'true'\n\n"
        "@tool(destructive=True)\ndef change(output: str) -> str:\n    return 'true'\n"
    )
    server = "mcp_servers: [{name: rules, python: rules.py}]\n"
    for name, is_one in (("is_fine", True), ("look", True), ("change", False), ("is_fin", False)):
        (tmp_path / "agent.yaml").write_text(server + node("validate:", f"- check: {name}"))
        found = [*python_problems(load(tmp_path / "agent.yaml", {}))]
        assert bool(found) is not is_one, found
    assert found == [
        f"{tmp_path}/agent.yaml:6: agent.validate[0].check: no check has this name; did you mean is_fine?"
    ]
