"""Arguments against a tool's schema: every problem readable, nothing fetched, nothing slow."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.mcp.schema import MAX_PROBLEMS, is_cheap, problems, validator_for

ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "value": {"type": "integer"}},
    "required": ["name", "value"],
    "additionalProperties": False,
}


def test_arguments_that_fit_have_no_problems() -> None:
    assert problems(ADD, {"name": "a", "value": 1}) == ""
    assert problems({"type": "object"}, {"anything": [1, {"goes": None}]}) == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'name' is a required property\n'value' is a required property"),
        ({"name": "a", "value": "1"}, "value: '1' is not of type 'integer'"),
        ({"name": "a", "value": True}, "value: True is not of type 'integer'"),
        ({"name": "a", "value": 1, "x": 2}, "Additional properties are not allowed ('x' was unexpected)"),
        ({"name": "", "value": 1}, "name: '' should be non-empty"),
    ],
)
def test_each_problem_is_a_line_that_names_its_place(arguments: dict[str, Any], said: str) -> None:
    assert problems(ADD, arguments) == said


def test_a_place_deep_inside_is_written_as_a_path() -> None:
    schema = {"properties": {"rows": {"items": {"properties": {"n": {"type": "integer"}}}}}}
    assert problems(schema, {"rows": [{"n": 1}, {"n": "x"}]}).startswith("rows[1].n: ")


def test_problems_are_bounded_in_number_and_in_length() -> None:
    schema = {"properties": {"xs": {"items": {"type": "integer"}}}}
    lines = problems(schema, {"xs": ["x" * 5000] * 1000}).split("\n")
    assert len(lines) == MAX_PROBLEMS + 1
    assert max(map(len, lines)) < 400


@pytest.mark.parametrize(
    "schema",
    [{"type": "objekt"}, {"properties": 7}, {"properties": {"a": {"pattern": "("}}, "required": "a"}],
)
def test_a_broken_schema_is_said_to_be_broken(schema: dict[str, Any]) -> None:
    assert problems(schema, {}).startswith("the tool's input schema is not valid JSON Schema")


def test_a_reference_to_elsewhere_is_refused_without_a_look() -> None:
    start = time.perf_counter()
    assert "refers to what is not in it" in problems({"$ref": "http://192.0.2.1/schema.json"}, {})
    assert "refers to what is not in it" in problems({"$ref": "file:///etc/passwd"}, {})
    assert time.perf_counter() - start < 0.5


def test_references_inside_the_schema_and_recursive_ones_work() -> None:
    tree = {"properties": {"kids": {"items": {"$ref": "#/$defs/tree"}}, "n": {"type": "number"}}}
    schema = {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"}
    assert problems(schema, {"kids": [{"kids": [{"n": 1}]}]}) == ""
    assert "kids[0].kids[0].n" in problems(schema, {"kids": [{"kids": [{"n": "x"}]}]})


def test_a_schema_that_only_refers_to_itself_ends() -> None:
    assert "nested too deeply" in problems({"$ref": "#"}, {})


def test_an_older_draft_is_honoured() -> None:
    limit = {"maximum": 5, "exclusiveMaximum": True}
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"n": limit}}
    assert problems(old, {"n": 5}) != ""
    assert problems(old, {"n": 4}) == ""


def test_a_simple_pattern_is_checked() -> None:
    schema = {"properties": {"id": {"pattern": r"^[0-9]+$"}}}
    assert problems(schema, {"id": "12"}) == ""
    assert "does not match" in problems(schema, {"id": "1x"})


@pytest.mark.parametrize(
    "pattern",
    [r"^(a+)+$", r"(a|a)*b", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"a*a*a*a*a*b", r"(x+x+)+y", r"a{1,30}{1,30}"],
)
def test_a_pattern_that_could_take_forever_is_left_to_the_server(pattern: str) -> None:
    start = time.perf_counter()
    problems({"properties": {"s": {"pattern": pattern}}}, {"s": "a" * 100 + "!"})
    problems({"patternProperties": {pattern: {}}, "additionalProperties": False}, {"a" * 100 + "!": 1})
    assert time.perf_counter() - start < 1


def test_names_by_pattern_are_checked_where_that_is_cheap() -> None:
    schema = {"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    assert problems(schema, {"x-a": 1}) == ""
    assert "x-a" in problems(schema, {"x-a": "no"})
    assert problems(schema, {"y": 1}) == "'y' does not match any of the regexes: '^x-'"
    assert "a name of 500 characters" in problems(schema, {"x" * 500: 1})


@given(st.text(st.sampled_from("ab|*+?(){}[]\\.^$1,"), max_size=12), st.integers(0, 128))
@settings(deadline=None)
def test_what_is_called_cheap_is_cheap(pattern: str, length: int) -> None:
    import re
    import warnings

    text = "ab" * (length // 2)
    if not is_cheap(pattern, text):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = re.compile(pattern)
        except (re.error, OverflowError):
            return
    start = time.process_time()
    compiled.search(text)
    assert time.process_time() - start < 1


def test_equal_schemas_share_a_validator() -> None:
    assert validator_for({"type": "object", "required": ["a"]}) is validator_for(
        {"required": ["a"], "type": "object"}
    )
