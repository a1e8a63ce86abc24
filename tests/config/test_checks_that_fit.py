"""Who can check the answers of whom: functions of Python files, agents, and what is said of others."""

from pathlib import Path

import pytest

from mesh.config.model import load, parse
from mesh.config.python_problems import python_problems
from mesh.config.validating_agents import validating_problems
from mesh.llm.config_checks import model_problems

RULES = """\
from pydantic import BaseModel
from mesh.tools import check, tool


class Item(BaseModel):
    price: int


def was_paid(order: str) -> str:
    return "unknown"


@tool(destructive=True, check=was_paid)
def pay(order: str) -> None:
    ...


@tool(read_only=True)
def count(output: str) -> int:
    return 3


@tool(read_only=True)
def find(order: str) -> str:
    return order


@tool(read_only=True)
def compare(output: str, other: str) -> str:
    return other


@tool(read_only=True)
def look(output: str):
    return True


@check
def is_known(output: str) -> bool | str:
    return True


@check
def is_item(output: Item) -> bool | str:
    return True
"""
USABLE = "expected one of: is_item, is_known, look"
FINDS_OUT = "was_paid finds out whether a call of pay took place, "


def node(*lines: str, kind: str = "llm") -> str:
    return "\n".join(["agent:", "  name: main", f"  type: {kind}", *(f"  {line}" for line in lines), ""])


def of_rules(folder: Path, *lines: str, kind: str = "llm", more: str = "", rules: str = RULES) -> list[str]:
    (folder / "rules.py").write_text(rules)
    servers = "mcp_servers: [{name: rules, python: rules.py}]\n"
    (folder / "agent.yaml").write_text(node(*lines, kind=kind) + servers + more)
    found = python_problems(load(folder / "agent.yaml", {}))
    return [problem.removeprefix(f"{folder}/agent.yaml:") for problem in found]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("was_paid", f"{FINDS_OUT}and does not check answers; {USABLE}"),
        ("pay", f"pay may change something, and a check only reads (read_only=True); {USABLE}"),
        ("count", f"count returns int, and a check returns True, or a text: what is wrong; {USABLE}"),
        ("find", f"find has no argument output, which is the answer that a check is given; {USABLE}"),
        ("compare", f"compare needs other, and a check is given only output and request; {USABLE}"),
        ("is_knwn", "no check has this name; did you mean is_known?"),
        ("x", f"no check has this name; {USABLE}"),
        (
            "is_item",
            "is_item takes an object, and the answer of main is text; expected an output_schema beside "
            "validate, or a check of output: str",
        ),
    ],
)
def test_what_cannot_check_an_answer_is_told_with_the_reason_and_what_can(
    tmp_path: Path, name: str, problem: str
) -> None:
    assert of_rules(tmp_path, "validate:", f"- check: {name}") == [f"5: agent.validate[0].check: {problem}"]


@pytest.mark.parametrize("where", ["exit_when", "validate"])
def test_a_tool_node_that_may_change_something_cannot_check_answers(tmp_path: Path, where: str) -> None:
    says = "exit_when: {agent: critic}" if where == "exit_when" else "validate: [{agent: critic}]"
    child, kind = ("agents: [{name: a, type: llm}]", "loop") if where == "exit_when" else ("tools: []", "llm")
    critic = "agents:\n- {name: critic, type: tool, tool: %s, args: {order: x}}\n"
    assert of_rules(tmp_path, child, says, kind=kind, more=critic % "pay") == [
        "8: agents[0].tool: critic checks answers, and pay may change something; name a tool there that only "
        "reads (read_only=True)"
    ]
    assert of_rules(tmp_path, child, says, kind=kind, more=critic % "find") == []
    assert of_rules(tmp_path, child, kind=kind, more=critic % "pay") == []


@pytest.mark.parametrize(
    ("key", "where", "kind"),
    [
        ("validate: [{check: is_polite}]", "validate[0].check", "@check"),
        ("tools: [is_polite]", "tools[0]", "@tool"),
    ],
)
def test_a_function_that_lacks_its_decorator_is_told_as_that(
    tmp_path: Path, key: str, where: str, kind: str
) -> None:
    rules = f"{RULES}\n\ndef is_polite(output: str) -> bool:\n    return True\n"
    assert of_rules(tmp_path, key, rules=rules) == [
        f"4: agent.{where}: is_polite is only a function of rules.py; put {kind} before its def"
    ]


def test_checks_that_take_the_answer_are_no_problem(tmp_path: Path) -> None:
    schema = "output_schema: rules.py:Item"
    assert of_rules(tmp_path, schema, "validate: [{check: is_item}, {check: look}, {check: is_known}]") == []
    assert of_rules(tmp_path, "validate: [{check: look}, {check: is_known}]") == []
    verdict = "agents:\n- {name: critic, type: llm, validate: [{check: is_item}]}\n"
    assert of_rules(tmp_path, "validate: [{agent: critic}]", more=verdict) == []


def test_a_check_of_an_object_cannot_check_a_list_or_the_text_of_a_loop(tmp_path: Path) -> None:
    (problem,) = of_rules(tmp_path, "output_schema: {type: array}", "validate: [{check: is_item}]")
    assert problem.endswith("and the answer of main is a list; expected a check that takes it")
    child, ends = "agents: [{{name: a, type: llm{}}}]", "exit_when: {check: is_item}"
    (problem,) = of_rules(tmp_path, child.format(""), ends, kind="loop")
    assert problem.startswith("5: agent.exit_when.check: is_item takes an object, and the answer of main is")
    assert of_rules(tmp_path, child.format(", output_schema: {}"), ends, kind="loop") == []


def test_names_that_another_server_may_have_are_no_problem(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    servers = "mcp_servers: [{name: rules, python: rules.py}, {name: other, command: other}]\n"
    keys = ("tools: [x, is_known]", "validate: [{check: y}, {check: was_paid}]")
    (tmp_path / "agent.yaml").write_text(servers + node(*keys))
    found = [each.partition(": ")[2] for each in python_problems(load(tmp_path / "agent.yaml", {}))]
    assert [each.partition(";")[0] for each in found] == [
        "agent.tools[1]: is_known is a check of answers, which models are not offered",
        f"agent.validate[1].check: {FINDS_OUT}and does not check answers",
    ]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("tools: [fnd]", "4: agent.tools[0]: no tool has this name; did you mean find?"),
        (
            "tools: ['x*']",
            "4: agent.tools[0]: no tool has this name; expected one of: compare, count, find, ",
        ),
        ("tools: [was_paid]", f"4: agent.tools[0]: {FINDS_OUT}which only the mesh asks; remove it here"),
        (
            "tools: [is_item]",
            "4: agent.tools[0]: is_item is a check of answers, which models are not offered",
        ),
    ],
)
def test_tools_that_models_cannot_be_offered_are_told_at_their_line(
    tmp_path: Path, key: str, problem: str
) -> None:
    (found,) = of_rules(tmp_path, key)
    assert found.startswith(problem), found
    assert of_rules(tmp_path, "tools: ['co*', find, a2a_other]") == []


def critics(*agents: str) -> list[str]:
    text = node("validate: [{agent: critic}]") + "agents:\n" + "".join(f"- {each}\n" for each in agents)
    return validating_problems(parse(text, "agent.yaml", {}))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{type: array}", "this is a list"),
        ("{properties: {ok: {}, feedback: {}}}", "its valid is missing here"),
        ("{additionalProperties: false}", "its valid is missing here and its feedback is missing here"),
        ("{properties: {valid: {type: string}, feedback: {enum: [1]}}}", "its valid is text here and its "),
        ("{$ref: '#/$defs/a', $defs: {a: {properties: {valid: {}}}}}", "its feedback is missing here"),
    ],
)
def test_an_agent_whose_own_schema_has_no_verdict_cannot_check_answers(schema: str, problem: str) -> None:
    (found,) = critics(f"{{name: critic, type: llm, output_schema: {schema}}}")
    assert found.startswith(f"agent.yaml:6: agents[0].output_schema: critic checks answers, and {problem}")
    assert found.endswith("or no output_schema, which is that of a verdict then")


@pytest.mark.parametrize(
    "schema",
    [
        "{}",
        "{type: object}",
        "{properties: {valid: {type: boolean}, feedback: {type: [string, 'null']}}}",
        "{properties: {valid: {type: boolean}}, additionalProperties: true}",
        "{anyOf: [{properties: {valid: {}, feedback: {}}}, {type: 'null'}]}",
    ],
)
def test_an_agent_whose_schema_may_have_a_verdict_checks_answers(schema: str) -> None:
    assert critics(f"{{name: critic, type: llm, output_schema: {schema}}}") == []


@pytest.mark.parametrize(
    "critic",
    [
        "type: llm",
        "type: sequential, agents: [{name: a, type: llm}]",
        "type: a2a, url: 'http://127.0.0.1:1'",
    ],
)
def test_a_destructive_agent_cannot_check_answers(critic: str) -> None:
    (found,) = critics(f"{{name: critic, {critic}, destructiveHint: true}}")
    assert found.startswith(
        "agent.yaml:6: agents[0].destructiveHint: critic checks answers, and an agent that"
    )
    assert critics(f"{{name: critic, {critic}, destructiveHint: false}}") == []


def test_a_destructive_agent_can_neither_end_a_loop_nor_check_where_it_is_written_in_another_one() -> None:
    ends = node("agents: [{name: a, type: llm}]", "exit_when: {agent: critic}", kind="loop")
    agents = "agents:\n- {name: critic, type: llm, destructiveHint: true}\n"
    (found,) = validating_problems(parse(ends + agents, "agent.yaml", {}))
    assert found.startswith("agent.yaml:7: agents[0].destructiveHint: critic checks answers")
    written = node(
        "agents:", "- {name: critic, type: llm, destructiveHint: true}", "validate: [{agent: critic}]"
    )
    (found,) = validating_problems(parse(written, "agent.yaml", {}))
    assert found.startswith("agent.yaml:5: agent.agents[0].destructiveHint: critic checks answers")


def test_what_a_validating_agent_calls_may_be_destructive() -> None:
    assert (
        critics(
            "{name: critic, type: llm, agents: [eraser]}", "{name: eraser, type: llm, destructiveHint: true}"
        )
        == []
    )


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{type: array}", "this is a list"),
        ("{properties: {task: {}}}", "the answer, its output, is missing here"),
        ("{additionalProperties: false}", "the answer, its output, is missing here"),
        ("{properties: {output: {}, a: {}, b: {}}, required: [b, output, a]}", "this requires a and b"),
        (
            "{properties: {task: {}}, required: [task]}",
            "the answer, its output, is missing here and this req",
        ),
        ("{properties: {output: {}}, required: [request]}", "this requires request"),
        ("{properties: {output: {}, request: {type: integer}}}", "its request, which is text, is a number "),
        (
            "{$ref: '#/$defs/a', $defs: {a: {properties: {output: {}, a: {}}, required: [a]}}}",
            "this requires a",
        ),
    ],
)
def test_an_agent_that_takes_no_answer_cannot_check_one(schema: str, problem: str) -> None:
    (found,) = critics(f"{{name: critic, type: llm, input_schema: {schema}}}")
    assert found.startswith(f"agent.yaml:6: agents[0].input_schema: critic checks answers, and {problem}")
    assert found.endswith("; it is given only output, and request if its properties have that")


@pytest.mark.parametrize(
    "schema",
    [
        "{}",
        "{type: object}",
        "{required: [output]}",
        "{properties: {task: {}}, required: [output]}",
        "{properties: 3, required: 4}",
        "{properties: {task: {}}, additionalProperties: true}",
        "{properties: {output: {type: string}}, required: [output], additionalProperties: false}",
        "{properties: {output: {}, request: {}, task: {}}, required: [request]}",
        "{anyOf: [{properties: {output: {}}}, {properties: {task: {}}, required: [task]}]}",
    ],
)
def test_an_agent_that_may_take_the_answer_checks_it(schema: str) -> None:
    assert critics(f"{{name: critic, type: llm, input_schema: {schema}}}") == []


def test_an_agent_that_takes_objects_cannot_check_texts_and_is_told_where_it_is_named() -> None:
    critic = "- {name: critic, type: llm, input_schema: {properties: {output: {type: object}}}}\n"

    def found(*lines: str, kind: str = "llm") -> list[str]:
        text = node(*lines, kind=kind) + f"agents:\n{critic}"
        return validating_problems(parse(text, "agent.yaml", {}))

    why = "critic takes an object, and the answer of main is {}; expected an agent that takes it"
    checked, schema = "validate: [{agent: critic}]", "output_schema: {{type: {}}}"
    assert found(checked) == [f"agent.yaml:4: agent.validate[0].agent: {why.format('text')}"]
    (problem,) = found(schema.format("array"), checked)
    assert problem.endswith(why.format("a list"))
    assert found(schema.format("object"), checked) == []
    child, ends = "agents: [{{name: a, type: llm{}}}]", "exit_when: {agent: critic}"
    assert found(child.format(""), ends, kind="loop") == [
        f"agent.yaml:5: agent.exit_when.agent: {why.format('text')}"
    ]
    assert found(child.format(", output_schema: {}"), ends, kind="loop") == []


def test_an_agent_that_checks_its_own_answers_is_told_at_its_line() -> None:
    assert critics("{name: critic, type: llm, validate: [{agent: critic}]}") == [
        "agent.yaml:6: agents[0].validate[0].agent: critic would check its own answers, without end; "
        "name another agent"
    ]


def test_agents_that_check_each_other_in_a_circle_are_told_at_their_lines() -> None:
    inner = "{name: inner, type: llm, validate: [{agent: critic}]}"
    found = critics(
        "{name: critic, type: llm, validate: [{agent: judge}]}",
        f"{{name: judge, type: loop, agents: [{{name: a, type: llm}}, {inner}]}}",
    )
    assert [each.partition(", without end: ")[0] for each in found] == [
        "agent.yaml:6: agents[0].validate[0].agent: critic would check answers of its own",
        "agent.yaml:7: agents[1].agents[1].validate[0].agent: judge would check answers of its own",
    ]
    assert found[0].endswith("critic → judge → critic; remove one of them")


def test_agents_that_only_may_ask_each_other_are_no_circle() -> None:
    asks = "{name: judge, type: llm, agents: [critic]}"
    assert critics("{name: critic, type: llm, validate: [{agent: judge}]}", asks) == []


def test_what_is_wrong_in_the_file_of_a_schema_is_told_at_its_line_there(tmp_path: Path) -> None:
    lines = ["{", '\t"type": "object",', ' "properties": {', '  "total": {', '   "type": "many"', "}}}"]
    (tmp_path / "order.json").write_text("\n".join(lines))
    (tmp_path / "agent.yaml").write_text(node("output_schema: order.json"))
    (problem,) = model_problems(load(tmp_path / "agent.yaml", {}))
    at = f"{tmp_path}/agent.yaml:4: agent.output_schema: {tmp_path}/order.json:5: properties.total.type"
    assert problem.startswith(f"{at}: is not a type of JSON Schema")


def test_what_is_wrong_in_the_schema_of_a_type_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from pydantic import BaseModel\n\nclass Odd(BaseModel):\n    x: int\n"
        "    model_config = {'json_schema_extra': {'properties': {'x': {'type': 'many'}}}}\n"
    )
    (tmp_path / "agent.yaml").write_text(node("output_schema: odd.py:Odd"))
    (problem,) = model_problems(load(tmp_path / "agent.yaml", {}))
    assert f"agent.yaml:4: agent.output_schema: {tmp_path}/odd.py: properties.x.type: is not a" in problem
