"""Arguments against a tool's schema: every problem readable, nothing fetched, nothing slow."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.mcp.schema import MAX_PROBLEMS, checker_for, problems, refusal

BOUND_S = 10.0
"""CPU seconds. A busy machine needs one or two; work without a bound takes minutes."""
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
        ({}, '"name" is a required property\n"value" is a required property'),
        ({"name": "a", "value": "1"}, 'value: "1" is not of type "integer"'),
        ({"name": "a", "value": True}, 'value: true is not of type "integer"'),
        ({"name": "a", "value": 1, "x": 2}, "Additional properties are not allowed ('x' was unexpected)"),
        ({"name": "", "value": 1}, 'name: "" is shorter than 1 character'),
    ],
)
def test_each_problem_is_a_line_that_names_its_place(arguments: dict[str, Any], said: str) -> None:
    assert problems(ADD, arguments) == said


COLOURS = {"enum": ["red", "blue", "green", "white"], "type": "string"}


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        (COLOURS, "pink", '"pink" is not one of "red", "blue", "green", "white"'),
        (
            {"anyOf": [COLOURS, {"type": "null"}]},
            "pink",
            '"pink" is not one of "red", "blue", "green", "white"',
        ),
        (
            {"anyOf": [COLOURS, {"type": "null"}]},
            5,
            '5 is not one of "red", "blue", "green", "white"; 5 is not of type "null"',
        ),
        (
            {"anyOf": [{"type": "object", "properties": {"c": COLOURS}}, {"type": "null"}]},
            {"c": "é"},
            'c: "é" is not one of "red", "blue", "green", "white"',
        ),
        ({"oneOf": [{"const": "a"}, {"enum": ["b"]}]}, "c", '"a" was expected; "c" is not one of "b"'),
        ({"enum": [*range(100)]}, 100, f"100 is not one of {', '.join(map(str, range(20)))} and 80 others"),
        (
            {"anyOf": [{"minLength": 5}, {"pattern": "^x"}]},
            "a",
            "\"a\" is not valid under any of the schemas listed in the 'anyOf' keyword",
        ),
    ],
)
def test_the_values_that_are_allowed_are_named_also_where_there_are_alternatives(
    schema: dict[str, Any], value: Any, said: str
) -> None:
    assert problems(schema, value) == said


def test_alternatives_within_alternatives_are_followed_so_far() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(10):
        schema = {"anyOf": [{"type": "array", "items": schema}, {"type": "null"}]}
    value: Any = "x"
    for _ in range(10):
        value = [value]
    assert problems(schema, value).startswith("[0]" * 8 + ": ")


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


def test_a_reference_to_elsewhere_is_refused_without_a_look(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        schema = {"$ref": f"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema.json"}
        assert "refers to what is not in it" in problems(schema, {})
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    (tmp_path / "schema.json").write_text("true")
    assert "refers to what is not in it" in problems({"$ref": (tmp_path / "schema.json").as_uri()}, {})


def test_references_inside_the_schema_and_recursive_ones_work() -> None:
    tree = {"properties": {"kids": {"items": {"$ref": "#/$defs/tree"}}, "n": {"type": "number"}}}
    schema = {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"}
    assert problems(schema, {"kids": [{"kids": [{"n": 1}]}]}) == ""
    assert "kids[0].kids[0].n" in problems(schema, {"kids": [{"kids": [{"n": "x"}]}]})


def test_a_schema_that_only_refers_to_itself_ends() -> None:
    assert "nested too deeply" in problems({"$ref": "#"}, {})
    assert "refers to itself without end" in refusal({"$ref": "#"})


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
    [r"^(a+)+$", r"(a|a)*b", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"a*a*a*a*a*b", r"(x+x+)+y", r"a{1,9}{1,9}"],
)
def test_a_pattern_that_takes_others_forever_is_checked_in_no_time(pattern: str) -> None:
    start = time.process_time()
    assert "does not match" in problems({"properties": {"s": {"pattern": pattern}}}, {"s": "!" * 1000})
    problems({"properties": {"s": {"pattern": pattern}}}, {"s": "a" * 100_000 + "!"})
    problems({"patternProperties": {pattern: {}}, "additionalProperties": False}, {"a" * 5000 + "!": 1})
    assert time.process_time() - start < BOUND_S


@pytest.mark.parametrize("pattern", [r"^(?!x)", r"(?<=a)b", r"^(a)\1$", r"(((a{1,99}){1,99}){1,99})"])
def test_a_pattern_that_the_linear_engine_does_not_take_is_left_to_the_server(pattern: str) -> None:
    schema = {"properties": {"s": {"pattern": pattern, "maxLength": 3}}, "required": ["s"]}
    assert problems(schema, {"s": "x"}) == ""
    assert problems(schema, {"s": "xxxx"}).startswith("s: ")
    named = {"patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    assert problems(named, {"x": "y"}) == ""


def test_a_text_that_is_too_long_for_a_pattern_is_left_to_the_server() -> None:
    schema = {"properties": {"s": {"pattern": "^[a-z]+$", "maxLength": 10**6}, "n": {"type": "integer"}}}
    assert problems(schema, {"s": "!" * 10}) != ""
    assert problems(schema, {"s": "!" * 10**6}) == ""
    assert problems(schema, {"s": "!" * 10**6, "n": "x"}).startswith("n: ")


def test_a_property_named_like_a_keyword_is_no_keyword() -> None:
    schema = {"properties": {"pattern": {"const": {"pattern": "(?!x)"}}, "enum": {"type": "integer"}}}
    assert problems(schema, {"pattern": {"pattern": "(?!x)"}, "enum": 1}) == ""
    assert problems(schema, {"pattern": {}}).startswith("pattern: ")
    assert problems(schema, {"enum": "1"}).startswith("enum: ")


def test_names_by_pattern_are_checked() -> None:
    schema = {"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    assert problems(schema, {"x-a": 1}) == ""
    assert "x-a" in problems(schema, {"x-a": "no"})
    assert "'y' was unexpected" in problems(schema, {"y": 1})


def doubled(keyword: str, times: int) -> dict[str, Any]:
    """A schema whose subschemas each ask twice for the one before."""
    steps = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i - 1}"}] * 2} for i in range(1, times + 1)}
    return {"$defs": {"d0": {"type": "object"}, **steps}, "$ref": f"#/$defs/d{times}"}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    for _ in range(levels):
        value = {"a": value, "b": value}
    return value


TWICE = {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}
HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "allOf doubled 14 times": (doubled("allOf", 14), {}),
    "allOf doubled 40 times": (doubled("allOf", 40), {}),
    "anyOf doubled 40 times": (doubled("anyOf", 40), {"a": 1}),
    "oneOf doubled 400 times": (doubled("oneOf", 400), {}),
    "a recursion that doubles at each level": ({"properties": {"a": TWICE}}, nested(60)),
    "a dynamic recursion that doubles": (
        {"$dynamicAnchor": "n", "properties": {"a": {"anyOf": [{"$dynamicRef": "#n"}] * 2}}},
        nested(60),
    ),
    "an older recursion that doubles": (
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$recursiveAnchor": True,
            "properties": {"a": {"anyOf": [{"$recursiveRef": "#"}] * 2}},
        },
        nested(60),
    ),
    "many unevaluated properties": (
        {"allOf": [{"properties": {f"p{i}": {}}} for i in range(300)], "unevaluatedProperties": False},
        {f"q{i}": i for i in range(5000)},
    ),
    "a list that must have no item twice": ({"uniqueItems": True}, [{"i": [i]} for i in range(20_000)]),
    "many names against many patterns": (
        {"patternProperties": {f"^(a|{i})*$": {} for i in range(300)}},
        {"a" * 300 + str(i): 1 for i in range(1000)},
    ),
    "names that are schemas": ({"propertyNames": doubled("allOf", 12)}, {str(i): 1 for i in range(5000)}),
    "a step that is tiny": ({"additionalProperties": {"multipleOf": 1e-300}}, {"x": 10**300}),
    "a value that is nested deeply": ({"additionalProperties": {"$ref": "#"}}, nested(5000)),
    "a chain of references": (
        {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(9000)}, "$ref": "#/$defs/d0"},
        {},
    ),
    "half a character": ({"properties": {"\ud800": {}}}, {"s": "\ud800"}),
}


@pytest.mark.parametrize(("schema", "value"), HOSTILE.values(), ids=HOSTILE.keys())
def test_the_check_of_a_hostile_schema_is_bounded(schema: dict[str, Any], value: Any) -> None:
    start = time.process_time()
    refusal(schema)
    problems(schema, value)
    assert time.process_time() - start < BOUND_S


WIDE: dict[str, tuple[dict[str, Any], Any]] = {
    "many subschemas for each item": ({"items": {"allOf": [{"minimum": 0}] * 100}}, [*range(9000)]),
    "many subschemas for each text": (
        {"items": {"allOf": [{"minLength": 0}] * 100}},
        [f"text {i}" for i in range(9000)],
    ),
    "lists in a list": ({"items": {"items": {"type": "integer"}}}, [[i] for i in range(90_000)]),
    "a list of numbers": ({"additionalProperties": {"items": {"type": "integer"}}}, {"a": [*range(90_000)]}),
    "many properties of many items": (
        {"items": {"properties": {f"p{i}": {"type": "integer"} for i in range(50)}}},
        [{f"p{i}": i for i in range(50)} for _ in range(2000)],
    ),
}


@pytest.mark.parametrize(("schema", "value"), [*HOSTILE.values(), *WIDE.values()], ids=[*HOSTILE, *WIDE])
def test_a_loop_is_not_blocked_by_a_check(schema: dict[str, Any], value: Any) -> None:
    refusal(schema)  # when the catalogue is built: compiled once
    took, compared = [], []
    for _ in range(3):
        took.append(cpu_seconds(lambda: problems(schema, value)))
        compared.append(cpu_seconds(lambda: json.dumps([{"text": i} for i in range(100_000)])))
    # None takes much longer than what it is compared with. Without bounds, some take thirty times as long.
    assert min(took) < 4 * min(compared)


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def test_a_long_list_of_numbers_is_checked() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    assert problems(schema, {"a": [*range(90_000)]}) == ""
    assert problems(schema, {"a": [*range(90_000), "x"]}).startswith("a[90000]: ")


@pytest.mark.parametrize("times", [14, 40, 2000])
@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_a_schema_that_references_multiply_is_refused(keyword: str, times: int) -> None:
    assert "its input schema" in refusal(doubled(keyword, times))


@pytest.mark.parametrize("levels", [2, 10])
def test_a_recursive_schema_is_checked_where_the_value_is_not_nested_too_deeply(levels: int) -> None:
    operand = {"type": "object", "properties": {"not": {"$ref": "#/$defs/e"}}, "required": ["not"]}
    pair = {**operand, "properties": {"not": {"$ref": "#/$defs/e"}, "and": {"items": {"$ref": "#/$defs/e"}}}}
    schema = {"$defs": {"e": {"anyOf": [operand, pair, {"type": "string"}]}}, "$ref": "#/$defs/e"}
    value: Any = "x"
    for _ in range(levels):
        value = {"not": value}
    assert refusal(schema) == ""
    assert problems(schema, value) == ""
    assert problems(schema, 7) != ""


def test_arguments_of_a_hundred_thousand_bytes_are_checked() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"pattern": "^[a-z]+$"}}}
    schema = {"properties": {"rows": {"type": "array", "items": row}}}
    rows: list[dict[str, Any]] = [{"id": i, "name": "abc"} for i in range(5000)]
    assert refusal(schema) == problems(schema, {"rows": rows}) == ""
    assert problems(schema, {"rows": [*rows, {"id": "x"}]}).startswith("rows[5000].id: ")


def test_a_schema_of_half_a_megabyte_is_refused() -> None:
    assert "bytes" in refusal({"description": "x" * 600_000})


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12"])
def test_a_parameter_that_is_itself_a_schema_is_checked(draft: str) -> None:
    schema = {
        "properties": {"schema": {"$ref": f"http{'s' * ('/' in draft)}://json-schema.org/{draft}/schema"}}
    }
    assert problems(schema, {"schema": {"type": "object", "properties": {"a": {"type": "string"}}}}) == ""
    assert problems(schema, {"schema": {"type": 7}}).startswith("schema.type: ")


def test_a_draft_that_nobody_knows_is_taken_for_the_newest() -> None:
    schema = {"$schema": "https://example.com/my-own", "required": ["a"]}
    assert problems(schema, {}) == '"a" is a required property'


def test_equal_schemas_share_a_validator() -> None:
    assert checker_for({"type": "object", "required": ["a"]}) is checker_for(
        {"required": ["a"], "type": "object"}
    )
