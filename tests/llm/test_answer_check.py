"""Whether an answer fits its schema, and whether a schema is fit to be one."""

import json
import time
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.llm.answer_check import (
    MAX_ANSWER_CHARS,
    MAX_SCHEMA_BYTES,
    Checked,
    _size,
    checked,
    schema_problems,
)
from mesh.mcp.schema import checker_for
from mesh.mcp.schema_work import ENDLESS, CountingBudget

BOUND_S = 10.0
"""CPU seconds. A busy machine needs one or two; work without a bound takes minutes."""
ORDER = {
    "type": "object",
    "properties": {
        "total": {"type": "integer", "minimum": 1},
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[a-z]{2}$"},
    },
    "required": ["total"],
}


def test_an_answer_that_fits_is_its_value() -> None:
    assert checked(ORDER, ' {"total": 3, "more": [1.5, null]}\n') == Checked(
        {"total": 3, "more": [1.5, None]}, ""
    )


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"total": 0}, "total: 0 is less than the minimum of 1"),
        ({"total": "three"}, 'total: "three" is not of type "integer"'),
        ({"total": True}, 'total: true is not of type "integer"'),
        ({}, '"total" is a required property'),
        ({"total": 3, "day": "tomorrow"}, 'day: "tomorrow" is not a "date"'),
        ({"total": 3, "code": "abc"}, 'code: "abc" does not match'),
        ([], '[] is not of type "object"'),
    ],
)
def test_what_is_wrong_is_told_with_its_place(answer: Any, line: str) -> None:
    value, problem, _ = checked(ORDER, json.dumps(answer))
    assert value is None
    assert problem.startswith("The answer does not fit its schema:\n") and line in problem


@pytest.mark.parametrize(
    ("answer", "rules"),
    [
        ({"total": -777}, "total breaks the rule minimum: 1"),
        ({"total": "SECRET"}, 'total breaks the rule type: "integer"'),
        ({}, 'breaks the rule required: "total"'),
        ({"total": 3, "day": "SECRET"}, 'day breaks the rule format: "date"'),
        ({"total": 3, "code": "SECRET"}, 'code breaks the rule pattern: "^[a-z]{2}$"'),
        ({"total": 3, "more": ["SECRET"]}, 'more[0] breaks the rule const: "x"'),
        ({"total": 3, "map": {"SECRET": 1}}, "map breaks the rule that nothing may be there"),
        ({"total": 3, "names": {"SECRET": 1}}, "names breaks the rule propertyNames"),
        ({"total": 3, "open": {"SECRET": [{"n": ""}]}}, 'open[…][0].n breaks the rule type: "integer"'),
        ({"total": 3, "like": {"SECRET": 1}}, 'like[…] breaks the rule type: "string"'),
        ({"total": 3, "open": {"total": 1}}, 'open.total breaks the rule type: "array"'),
    ],
)
def test_those_who_are_not_to_see_an_answer_are_told_the_place_and_the_rule(answer: Any, rules: str) -> None:
    more = {
        "more": {"items": {"anyOf": [{"type": "integer"}, {"const": "x"}]}},
        "map": {"additionalProperties": False},
        "names": {"propertyNames": {"maxLength": 1}},
        "like": {"patternProperties": {"^S": {"type": "string"}}},
        "open": {
            "additionalProperties": {
                "type": "array",
                "items": {"type": "object", "properties": {"n": {"type": "integer"}}},
            }
        },
    }
    schema = ORDER | {"properties": ORDER["properties"] | more}  # type: ignore[operator]
    found = checked(schema, json.dumps(answer))
    assert found.rules == f"The answer does not fit its schema:\n{rules}"
    assert "SECRET" not in found.rules


@pytest.mark.parametrize("text", ["SECRET", '{"SECRET": 1, "SECRET": 2}', '{"total": 777e999}'])
def test_those_who_are_not_to_see_an_answer_are_told_nothing_of_one_that_cannot_be_read(text: str) -> None:
    assert (
        checked(ORDER, text).rules
        == "The answer does not fit its schema: it is no JSON value that can be read."
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON"),
        ("I would say 3.", "it is not JSON"),
        ('{"total": 3', "it is not JSON"),
        ('Here you are: {"total": 3}', "it is not JSON"),
        ('{"total": 3} Anything else?', "it is not JSON: Extra data"),
        ('```json\n{"total": 3}\n```', "it is not JSON"),
        ('{"total": 3}\n{"total": 4}', "it is not JSON: Extra data"),
        ('\ufeff{"total": 3}', "it is not JSON"),
        ('{"total": 3, "total": 4}', "two members of the name 'total'"),
        ('{"total": 3, "x": {"a": 1, "b": 2, "a": 1}}', "two members of the name 'a'"),
        ('{"total": NaN}', "it has NaN"),
        ('{"total": -Infinity}', "it has -Infinity"),
        ('{"total": 1e999}', "a number that is too large"),
        ('{"total": ' + "9" * 5000 + "}", "an integer beyond 64 bits"),
        ('{"total": 3, "x": "\\ud800"}', "not Unicode"),
        ('{"total": 3, "x": "\x00"}', "it is not JSON"),
        ("[" * 101 + "]" * 101, "nested more than 100 levels"),
        ("[" * 500_000 + "]" * 500_000, "nested more than 100 levels"),
    ],
)
def test_an_answer_that_is_not_exactly_one_json_value_does_not_fit(text: str, why: str) -> None:
    value, problem, _ = checked(ORDER, text)
    assert value is None and why in problem
    # The model may never have seen the schema: some endpoints ignore it.
    assert json.dumps(ORDER, separators=(",", ":")) in problem


def test_an_answer_that_is_too_long_does_not_fit() -> None:
    _, problem, _ = checked(ORDER, json.dumps({"total": 3, "x": "x" * MAX_ANSWER_CHARS}))
    assert "longer than 1,048,576 characters" in problem


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string", "pattern": "^a+$"}},
        {"type": "array", "items": {"anyOf": [{"type": "string", "pattern": f"^{c}+$"} for c in "abcdefgh"]}},
        {"type": "array", "uniqueItems": True},
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": {"anyOf": [{"items": {"$ref": "#/$defs/n"}}, {"type": "integer"}]}},
        },
    ],
    ids=["a pattern", "many patterns", "unique", "recursive"],
)
@pytest.mark.parametrize("item", ["a" * 1000, 7, ["b"], [[[[1]]]]], ids=str)
def test_a_large_answer_is_checked_or_refused_in_bounded_time(schema: dict[str, Any], item: Any) -> None:
    answer = json.dumps([item] * (MAX_ANSWER_CHARS // (len(json.dumps(item)) + 2)))
    assert schema_problems(schema) == []
    checked(schema, "[]")
    started = time.process_time()
    value, problem, _ = checked(schema, answer)
    assert time.process_time() - started < BOUND_S
    assert (value is None) == bool(problem)
    assert len(problem) < 6000


def test_an_answer_that_is_too_large_for_its_patterns_is_refused_and_not_let_pass() -> None:
    schema = {"type": "array", "items": {"type": "string", "pattern": "^a+$"}}
    _, problem, _ = checked(schema, json.dumps(["a" * 1000] * 500 + ["b"]))
    assert "too large" in problem


@pytest.mark.parametrize(
    ("schema", "path", "why"),
    [
        (None, (), "is no JSON Schema"),
        (True, (), "is no JSON Schema"),
        ("object", (), "is no JSON Schema"),
        ({"type": "objct"}, ("type",), "expected one of: object, array"),
        ({"properties": {"a": {"type": 3}}}, ("properties", "a", "type"), "is not a type"),
        ({"required": "a"}, ("required",), 'is not valid JSON Schema: "a" is not of type "array"'),
        ({"items": [{}]}, ("items",), "is not valid JSON Schema"),
        ({"minimum": float("nan")}, (), "it has NaN"),
        ({"enum": [2**70]}, (), "64 bits"),
        ({"const": date(2026, 1, 1)}, (), "what JSON lacks"),
        ({"$ref": "#/$defs/a"}, (), "refers to what is not in the schema"),
        ({"items": {"$ref": "https://example.com/a"}}, ("items", "$ref"), "outside of the schema"),
        ({"items": {"$ref": "other.json#/a"}}, ("items", "$ref"), "outside of the schema"),
        ({"$ref": "#"}, (), "refers to itself without end"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#"}}}, (), "without end"),
        ({"items": {"pattern": "^(?=a)"}}, ("items", "pattern"), "without look-around"),
        ({"items": {"pattern": "(a)\\1"}}, ("items", "pattern"), "without look-around"),
        ({"items": {"pattern": "("}}, ("items", "pattern"), "is no regular expression"),
        ({"patternProperties": {"(?!a)": {}}}, ("patternProperties",), "without look-around"),
        ({"properties": {f"p{n}": {"pattern": f"{n}"} for n in range(101)}}, (), "more than 100 patterns"),
        ({"description": "x" * MAX_SCHEMA_BYTES}, (), "over the bound of 65,536"),
    ],
)
def test_a_schema_that_is_not_fit_to_be_one_is_told_with_its_place(schema: Any, path: Any, why: str) -> None:
    (problem,) = schema_problems(schema)
    assert problem.path == path and why in problem.text


def test_a_schema_that_multiplies_is_refused() -> None:
    doubled = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(20)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**doubled, "a20": {"type": "string"}}}
    (problem,) = schema_problems(schema)
    assert "cannot be checked in bounded time" in problem.text


def test_a_schema_nested_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    (problem,) = schema_problems(schema)
    assert "nested" in problem.text


def test_what_only_looks_like_a_keyword_is_none() -> None:
    names = {"$ref": {"type": "string"}, "pattern": {"type": "integer"}, "required": {"type": "array"}}
    data = {"enum": [{"$ref": "http://example.com", "pattern": "(?=a)"}]}
    assert schema_problems({"type": "object", "properties": {**names, "x": data}}) == []


_LEAVES: list[dict[str, Any]] = [
    {"type": "string", "pattern": "^a+$"},
    {"enum": ["a", 1, None]},
    {"type": "integer", "minimum": 0},
    {"minLength": 2, "maxLength": 9, "format": "date"},
]


def _compounds(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    return st.one_of(
        named.map(lambda each: {"type": "object", "properties": each, "required": [*each]}),
        inner.map(lambda each: {"items": each, "additionalProperties": each}),
        several.map(lambda each: {"anyOf": each}),
        several.map(lambda each: {"allOf": each, "unevaluatedProperties": False}),
        inner.map(lambda each: {"propertyNames": each, "patternProperties": {"^a": each}}),
        st.tuples(inner, inner).map(lambda both: {"if": both[0], "then": both[1], "not": both[0]}),
    )


_SCHEMAS = st.recursive(st.sampled_from(_LEAVES), _compounds, max_leaves=12)
_VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-1, 1), st.text("a1", max_size=600)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcaa"), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_SCHEMAS, _VALUES)
def test_the_work_that_is_known_without_counting_is_no_less_than_the_work(
    schema: dict[str, Any], value: Any
) -> None:
    text = json.dumps(value)
    size = _size(text)
    graph = checker_for(schema, is_complete=True).graph
    assert graph.work(value, ENDLESS, CountingBudget(10**7)) <= graph.most_work(*size) < ENDLESS
    all_errors = graph.work(value, ENDLESS, CountingBudget(10**7), errors="all")
    assert all_errors <= graph.most_work_of_errors(*size) < ENDLESS


def _values(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, parts))


@given(_VALUES)
def test_the_size_of_a_text_is_no_less_than_that_of_its_value(value: Any) -> None:
    text = json.dumps(value)
    assert _values(value) <= _size(text).values


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": {"$ref": "#"}},
        {"uniqueItems": True},
        {"items": {"const": {"a": [1]}}},
        {"$dynamicRef": "#a", "$dynamicAnchor": "a", "items": {"$dynamicRef": "#a"}},
    ],
)
def test_the_work_of_what_depends_on_the_value_is_counted(schema: dict[str, Any]) -> None:
    assert checker_for(schema, is_complete=True).graph.most_work(1, 1) == ENDLESS


@pytest.mark.parametrize(
    "text",
    [
        "{" + ",".join(f'"k{n}": 1' for n in range(80_000)) + ', "k79999": 1}',
        "[" + ",".join(['{"a": 1}'] * 110_000) + "]",
        "[" * 99 + ",".join(["[1]"] * 250_000) + "]" * 99,
        json.dumps(["\n" * 500_000]),
    ],
    ids=["one name twice at the end", "objects", "depth", "escapes"],
)
def test_reading_and_checking_a_large_answer_takes_a_bounded_time(text: str) -> None:
    assert len(text) < MAX_ANSWER_CHARS
    schema = {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"additionalProperties": {"$ref": "#/$defs/a"}}}}
    started = time.process_time()
    checked(schema, text)
    assert time.process_time() - started < BOUND_S


CLOSED = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "path", "text"),
    [
        (
            CLOSED | {"properties": {"a": {}}, "required": ["a", "b"]},
            ("required",),
            "requires b, which properties lacks, and additionalProperties is false: no object fits",
        ),
        (
            {"properties": {"n": {"minimum": 5, "maximum": 4}}},
            ("properties", "n", "minimum"),
            "minimum 5 is over maximum 4: no number fits",
        ),
        ({"minLength": 3, "maxLength": 2}, ("minLength",), "minLength 3 is over maxLength 2: no text fits"),
        ({"items": {"minItems": 3, "maxItems": 2}}, ("items", "minItems"), "minItems 3 is over maxItems 2"),
        ({"minimum": 5, "exclusiveMaximum": 5}, ("minimum",), "minimum 5 is not below exclusiveMaximum 5"),
        ({"requierd": ["a"]}, ("requierd",), "is no keyword of JSON Schema; did you mean required?"),
        (
            {"properties": {"a": {"maxlength": 3}}},
            ("properties", "a", "maxlength"),
            "is no keyword of JSON Schema; did you mean maxLength?",
        ),
    ],
)
def test_a_schema_that_nothing_fits_or_with_a_misspelt_keyword_is_refused(
    schema: dict[str, Any], path: tuple[str, ...], text: str
) -> None:
    (problem,) = schema_problems(schema)
    assert problem.path == path and problem.text.startswith(text), problem


@pytest.mark.parametrize(
    "schema",
    [
        CLOSED | {"required": ["x-b"], "patternProperties": {"^x-": {}}},
        CLOSED | {"properties": {"requierd": {}}, "required": ["requierd"]},
        {"properties": {"minimum": {"type": "integer"}, "maximum": {"type": "integer"}}},
        {"minimum": 5, "maximum": 5, "minLength": 2, "maxLength": 2},
        {"not": CLOSED | {"required": ["b"]}},
        {"example": 1, "x-types": 1, "units": "m", "nullable": True, "discriminator": {"propertyName": "a"}},
        {"const": {"requierd": 1}, "default": {"minimum": 5, "maximum": 4}},
    ],
)
def test_a_schema_with_words_of_others_is_no_problem(schema: dict[str, Any]) -> None:
    assert schema_problems(schema) == []
