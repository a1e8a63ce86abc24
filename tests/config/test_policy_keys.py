"""``policy:`` in a config: what is taken, what is refused with its line, which policies hold for a node."""

import pytest

from mesh.config.model import Config, parse
from mesh.config.node_policies import policy_of
from mesh.config.policy_examples import example_problems, never_deciding
from mesh.core.errors import ConfigError
from mesh.core.hints import Hints
from mesh.policy.decide import decide
from mesh.policy.policy_call import PolicyCall


def config(rules: str, more: str = "") -> Config:
    return parse(f"name: a\npolicy:\n{more}  rules:\n    - {rules}\n", "a.yaml", {})


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a.yaml", {})
    return caught.value.problems


def call(tool: str, node: str) -> PolicyCall:
    return PolicyCall(agent="a", node=node, kind="mcp", tool=tool, hints=Hints(True, False))


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("{decide: ask}", "name: is missing; it is required"),
        ("{name: r, decide: alow}", "decide: is none of the choices; did you mean allow?"),
        ("{name: r, decide: ask, tool: x}", "tool: unknown key; did you mean tools?"),
        (
            "{name: hide, decide: ask}",
            "name: is what verdicts call something built in; expected another name",
        ),
        (
            "{name: r, decide: ask, tools: []}",
            "tools: is empty; expected at least one entry, or no key at all",
        ),
        ('{name: r, decide: ask, tools: ["[z-a]"]}', "tools[0]: is no expression of RE2: invalid character"),
        ('{name: r, decide: ask, args: {x: "re:(s3cret"}}', "args.x: is no expression of RE2: missing )"),
        ("{name: r, decide: ask, args: {x: {mn: 3}}}", "args.x: is not right; expected a value"),
        ("{name: r, decide: ask, args: {x: {min: 3, max: 1}}}", "args.x: min is above max"),
        ("{name: r, decide: ask, hints: {readonly: true}}", "hints.readonly: unknown key; did you mean"),
        ("{name: r, decide: allow, remember: none}", "remember: goes with decide: ask"),
        ("{name: r, decide: deny, unless: {}}", "unless: says nothing"),
        ("{name: r, decide: ask, paths: [/]}", "paths[0]: matches nothing"),
        ("{name: r, decide: ask, examples: {match: [x]}}", "examples: a rule without command, paths, args"),
        (
            "{name: r, decide: ask, command: [ls], examples: {not: [{a: 1}]}}",
            "examples.not[0]: the rule has command; expected a text",
        ),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_with_its_line_and_key(rule: str, problem: str) -> None:
    (found,) = problems(f"name: a\npolicy:\n  rules:\n    - {rule}\n")
    assert found.startswith(f"a.yaml:4: policy.rules[0].{problem}")
    assert "s3cret" not in found


def test_two_rules_of_a_policy_have_different_names() -> None:
    (found,) = problems(
        "policy: {rules: [{name: r, decide: ask}, {name: r, decide: deny}]}\n",
    )
    assert "policy.rules[1].name: the same name as rules[0]" in found


def test_the_policies_of_the_nodes_down_to_a_node_hold_for_it() -> None:
    found = parse(
        """
policy: {rules: [{name: all, decide: allow}]}
agent:
  name: root
  type: sequential
  policy: {rules: [{name: drop, tools: [drop], decide: deny}]}
  agents:
    - {name: reader, type: llm, policy: {default: deny, rules: [{name: look, tools: [read], decide: allow}]}}
    - {name: writer, type: llm}
""",
        "a.yaml",
        {},
    )
    said = {
        (node, tool): decide(policy_of(found, node), call(tool, node)).rule
        for node in ("reader", "writer")
        for tool in ("read", "write", "drop")
    }
    assert said == {
        ("reader", "read"): "all",
        ("reader", "write"): "reader.default",
        ("reader", "drop"): "root.drop",
        ("writer", "read"): "all",
        ("writer", "write"): "all",
        ("writer", "drop"): "root.drop",
    }


def test_without_a_policy_the_hints_decide() -> None:
    found = parse("name: a", "a.yaml", {})
    verdict = decide(policy_of(found, "a"), call("write", "a"))
    assert (verdict.decision, verdict.rule, verdict.remember) == ("ask", "default", "none")


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ('command: ["pytest *"], decide: allow, examples: {match: [pytest -q, nice pytest], not: [ls]}', []),
        ('command: ["pytest *"], decide: allow, examples: {match: ["pytest; ls"]}', ["match[0]"]),
        ('command: ["rm *"], decide: deny, examples: {match: ["ls; rm x"], not: [rmdir x]}', []),
        ('command: ["rm *"], decide: deny, examples: {match: [ls], not: [rm x]}', ["match[0]", "not[0]"]),
        ('paths: ["docs/**"], decide: allow, examples: {match: [docs/a], not: [a, docs/../a]}', []),
        ("args: {n: {max: 3}}, decide: allow, examples: {match: [{n: 3}], not: [{n: 4}, {}]}", []),
        ('tools: [x], args: {n: "re:a"}, decide: ask, examples: {match: [{n: b}]}', ["match[0]"]),
    ],
)
def test_the_examples_of_a_rule_are_tried(rule: str, wrong: list[str]) -> None:
    found = example_problems(config(f"{{name: r, {rule}}}"))
    starts = [f"a.yaml:4: policy.rules[0].examples.{each}: the rule " for each in wrong]
    assert len(found) == len(starts)
    assert all(text.startswith(start) for text, start in zip(found, starts, strict=True))


def test_a_rule_that_can_never_decide_is_warned_of() -> None:
    found = config(
        '{name: all, tools: ["read_*"], decide: allow}\n'
        "    - {name: one, tools: [read_file], decide: ask}\n"
        "    - {name: two, tools: [write_file], decide: ask}\n"
        '    - {name: never, tools: ["w*"], decide: deny}'
    )
    assert never_deciding(found) == [
        "a.yaml:5: policy.rules[1]: it can never decide, because all holds wherever it does",
        "a.yaml:6: policy.rules[2]: it can never decide, because never holds wherever it does",
    ]
