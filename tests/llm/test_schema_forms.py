"""A schema in the forms of the providers: every answer stays possible, and what is wider is listed."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.llm.answer_check import Checked, checked, schema_problems
from mesh.llm.schema_forms import (
    ANTHROPIC,
    GEMINI,
    OPENAI,
    Form,
    NotExpressible,
    as_arguments,
    has_object_root,
    in_form,
    subschemas,
    with_resolved_root,
)
from mesh.mcp.schema import problems
from tests.llm.pydantic_models import Model, models
from tests.worlds.long import as_often_as

FORMS = {"openai": OPENAI, "anthropic": ANTHROPIC, "gemini": GEMINI}
_DATA = ("enum", "const", "default", "examples")
_BY_NAME = ("properties", "$defs")
_DRAWN = settings(
    max_examples=as_often_as(200),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@_DRAWN
@given(models())
def test_an_answer_of_any_model_comes_back_through_every_form(drawn: Model) -> None:
    schema, text = drawn.model.model_json_schema(), drawn.value.model_dump_json(by_alias=True)
    assert schema_problems(schema) == []
    value = json.loads(text)
    assert checked(schema, text) == Checked(value, "")
    drawn.model.model_validate(value)
    for form in FORMS.values():
        try:
            sent = in_form(schema, form)
        except NotExpressible as reason:
            assert len(str(reason)) > 10
            continue
        assert_is_in_form(sent, form)
        assert problems(sent, value) == ""
    arguments = as_arguments(schema)
    jsonschema.Draft202012Validator.check_schema(arguments)
    assert has_object_root(arguments)
    wrapped = value if has_object_root(with_resolved_root(schema)) else {"result": value}
    assert problems(arguments, wrapped) == ""


def assert_is_in_form(sent: dict[str, Any], form: Form) -> None:
    jsonschema.Draft202012Validator.check_schema(sent)
    assert sent.get("type") == "object" or not form.object_root
    for path, part in subschemas(sent):
        if path and path[-1] == "additionalProperties":
            assert not form.closed
        narrowing = part.keys() - _SHAPES
        assert all(form.has(key, part[key]) for key in narrowing), narrowing
        if "$ref" in part:
            assert part.keys() <= {"$ref"} or path == ()
            assert part["$ref"] == "#" or part["$ref"].removeprefix("#/$defs/") in sent["$defs"]
        elif "anyOf" not in part:
            assert part["type"]
        if form.closed and "object" in part.get("type", ()):
            assert part["additionalProperties"] is False
            assert not form.all_required or part["required"] == list(part["properties"])


_SHAPES = {
    *("type", "title", "description", "properties", "required", "additionalProperties", "items"),
    *("prefixItems", "enum", "anyOf", "$ref", "$defs"),
}


@_DRAWN
@given(st.data(), models())
@pytest.mark.parametrize("name", FORMS)
def test_what_a_form_allows_the_schema_allows_but_for_what_was_left_out(
    name: str, data: st.DataObject, drawn: Model
) -> None:
    schema = drawn.model.model_json_schema()
    try:
        sent = in_form(schema, FORMS[name])
    except NotExpressible:
        return
    value = data.draw(values_of(sent, sent, 0))
    assert problems(sent, value) == ""
    assert problems(widened(schema, FORMS[name]), value) == ""


def values_of(schema: dict[str, Any], root: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    """Values that a form allows, as a model would write them that sees nothing else."""
    if "$ref" in schema:
        target = root if schema["$ref"] == "#" else root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        return st.deferred(lambda: values_of(target, root, depth + 1))
    if "anyOf" in schema:
        # The last branch of what refers to itself is null, or a value that ends.
        branches = schema["anyOf"][-1:] if depth > 3 else schema["anyOf"]
        return st.one_of([values_of(each, root, depth + 1) for each in branches])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of([_typed(kind, schema, root, depth) for kind in types])


def _typed(kind: str, schema: dict[str, Any], root: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    if kind == "object":
        return _objects(schema, root, depth)
    if kind == "array":
        return _arrays(schema, root, depth)
    if kind == "string":
        return _texts(schema)
    if kind == "integer":
        step = schema.get("multipleOf", 1)
        least = max(schema.get("minimum", -99), schema.get("exclusiveMinimum", -100) + 1)
        most = min(schema.get("maximum", 99), schema.get("exclusiveMaximum", 100) - 1)
        return st.integers(-(-least // step), most // step).map(lambda n: n * step)
    if kind == "number":
        least = max(schema.get("minimum", -99), schema.get("exclusiveMinimum", -99) + 1)
        most = min(schema.get("maximum", 99), schema.get("exclusiveMaximum", 99))
        return st.floats(least, most, exclude_max=least < most)
    return st.booleans() if kind == "boolean" else st.none()


def _objects(schema: dict[str, Any], root: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    known = {name: values_of(each, root, depth + 1) for name, each in schema.get("properties", {}).items()}
    required = {name: known[name] for name in schema.get("required", ())}
    optional = {} if depth > 3 else {name: each for name, each in known.items() if name not in required}
    listed = st.fixed_dictionaries(required, optional=optional)
    others = schema.get("additionalProperties", False)
    if not isinstance(others, dict):
        return listed
    more = st.dictionaries(st.text("abc", max_size=2), values_of(others, root, depth + 1), max_size=2)
    return st.builds(lambda more, listed: {**more, **listed}, more, listed)


def _arrays(schema: dict[str, Any], root: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    least = schema.get("minItems", 0)
    if "prefixItems" in schema:
        return st.tuples(*[values_of(each, root, depth + 1) for each in schema["prefixItems"]]).map(list)
    most = least if depth > 3 else min(schema.get("maxItems", least + 2), least + 2)
    return st.lists(values_of(schema["items"], root, depth + 1), min_size=least, max_size=most)


_FORMATS = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "P1D",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def _texts(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    if "pattern" in schema:
        return st.from_regex(schema["pattern"].replace("$", r"\Z"))
    return st.just(_FORMATS[schema["format"]]) if "format" in schema else st.text("abc", max_size=3)


def widened(schema: Any, form: Form) -> Any:
    """A schema without what `Form` says that this one leaves out."""
    if isinstance(schema, list):
        return [widened(each, form) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _NARROWING or form.has(key, value)}
    if "prefixItems" in kept and not form.prefix_items:
        del kept["prefixItems"]
    if (
        "enum" in kept
        and not form.scalar_enums
        and {True, False} & {v for v in kept["enum"] if v is True or v is False}
    ):
        kept["enum"] = [*kept["enum"], True, False]
    if "const" in kept and not form.scalar_enums and isinstance(kept["const"], bool):
        kept["enum"] = [True, False]
        del kept["const"]
    if "oneOf" in kept:
        kept["anyOf"] = kept.pop("oneOf")
    return {key: _widened(key, value, form) for key, value in kept.items()}


_NARROWING = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
    *("pattern", "format", "minItems", "maxItems"),
)


def _widened(key: str, value: Any, form: Form) -> Any:
    if key in _DATA:
        return value
    if key in _BY_NAME:
        return {name: widened(each, form) for name, each in value.items()}
    return widened(value, form)


def order(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("schema", "openai", "anthropic", "gemini"),
    [
        (
            {"type": "integer", "minimum": 1, "description": "How many."},
            {"type": "integer", "minimum": 1, "description": "How many."},
            {"type": "integer", "description": "How many.\n\n(minimum: 1)"},
            {"type": "integer", "minimum": 1, "description": "How many."},
        ),
        (
            {"type": "string", "maxLength": 5, "format": "uri"},
            {"type": "string", "description": '(maxLength: 5, format: "uri")'},
            {"type": "string", "format": "uri", "description": "(maxLength: 5)"},
            {"type": "string", "description": '(maxLength: 5, format: "uri")'},
        ),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 2},
            {"type": "array", "items": {"type": "string"}, "minItems": 2},
            {"type": "array", "items": {"type": "string"}, "description": "(minItems: 2)"},
            {"type": "array", "items": {"type": "string"}, "minItems": 2},
        ),
        (
            {"const": "cat"},
            *[{"type": "string", "enum": ["cat"]}] * 3,
        ),
        (
            {"enum": ["a", 1, None, True]},
            *[
                {
                    "anyOf": [
                        {"type": "string", "enum": ["a"]},
                        {"type": "integer", "enum": [1]},
                        {"type": "null"},
                        {"type": "boolean", "enum": [True]},
                    ]
                }
            ]
            * 2,
            {
                "anyOf": [
                    {"type": "string", "enum": ["a"]},
                    {"type": "integer", "enum": [1]},
                    {"type": "null"},
                    {"type": "boolean"},
                ]
            },
        ),
        (
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
            {
                "type": "array",
                "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "maxItems": 2,
            },
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "maxItems": 2},
        ),
        (
            {"allOf": [{"type": "string"}], "description": "One."},
            *[{"type": "string", "description": "One."}] * 3,
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "null"}], "default": None},
            *[{"anyOf": [{"type": "string"}, {"type": "null"}], "description": "(default: null)"}] * 3,
        ),
    ],
    ids=lambda value: "",
)
def test_each_keyword_is_kept_told_or_replaced(schema: Any, openai: Any, anthropic: Any, gemini: Any) -> None:
    for name, expected in (("openai", openai), ("anthropic", anthropic), ("gemini", gemini)):
        assert in_form(order(x=schema), FORMS[name])["properties"]["x"] == expected


def order_of_nothing() -> dict[str, Any]:
    return {"type": "object", "properties": {"a": False}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "why", "not_by"),
    [
        ({}, "any value", "openai anthropic gemini"),
        ({"type": "object"}, "not listed", "openai anthropic"),
        (
            {"type": "object", "properties": {}, "additionalProperties": True},
            "not listed",
            "openai anthropic",
        ),
        ({"additionalProperties": {"type": "string"}}, "not listed", "openai anthropic"),
        ({"type": "object", "patternProperties": {"a": {}}}, "patternProperties", "openai anthropic gemini"),
        ({"type": "array"}, "any value", "openai anthropic gemini"),
        ({"type": "array", "prefixItems": [{"type": "null"}]}, "any value", "openai anthropic gemini"),
        ({"allOf": [{"type": "string"}, {"pattern": "a"}]}, "allOf", "openai anthropic gemini"),
        ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if", "openai anthropic gemini"),
        ({"enum": [[1]]}, "an array among", "openai anthropic gemini"),
        ({"enum": []}, "no value", "openai anthropic gemini"),
        ({"type": "integer", "enum": ["a"]}, "no value", "openai anthropic gemini"),
        (order_of_nothing(), "no value", "openai anthropic gemini"),
        ({"properties": {"a": {"type": "string"}}}, "'a' may be left out", "openai"),
        ({"type": "object", "required": ["a"]}, "not listed", "openai anthropic"),
        ({"$ref": "#/properties/x"}, "refers to #/properties/x", "openai anthropic gemini"),
        (
            {"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]},
            "anyOf beside",
            "openai anthropic gemini",
        ),
        ({"properties": {"y": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}, "itself", "anthropic"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_would_make_answers_impossible_is_not_expressed(schema: Any, why: str, not_by: str) -> None:
    for name, form in FORMS.items():
        if name in not_by.split():
            with pytest.raises(NotExpressible, match=why):
                in_form(order(x=schema), form)
        else:
            in_form(order(x=schema), form)


def test_a_property_with_a_default_or_that_may_be_null_is_required_where_all_must_be() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "default": 5},
            "b": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "string"}]},
            "c": {"enum": ["x", None]},
        },
        "$defs": {"b": {"type": ["null", "integer"]}},
    }
    assert in_form(schema, OPENAI)["required"] == ["a", "b", "c"]
    assert in_form(schema, ANTHROPIC)["required"] == []
    assert "required" not in in_form(schema, GEMINI)


def test_definitions_are_kept_if_they_are_used_and_described_references_are_wrapped() -> None:
    schema = {
        **order(x={"$ref": "#/definitions/used", "description": "It."}, y={"$ref": "#/definitions/used"}),
        "definitions": {"used": {"type": "string"}, "unused": {"allOf": [True, True]}},
    }
    for form in FORMS.values():
        sent = in_form(schema, form)
        assert sent["$defs"] == {"used": {"type": "string"}}
        assert sent["properties"]["x"] == {"anyOf": [{"$ref": "#/$defs/used"}], "description": "It."}
        assert sent["properties"]["y"] == {"$ref": "#/$defs/used"}


def test_a_root_that_is_a_reference_becomes_what_it_refers_to() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}
    schema = {"$ref": "#/$defs/n", "$defs": {"n": node}}
    sent = in_form(schema, OPENAI)
    assert sent["type"] == "object" and sent["$defs"]["n"]["required"] == ["next"]
    circle = {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}
    with pytest.raises(NotExpressible):
        in_form(circle, OPENAI)


def test_an_answer_that_is_no_object_is_an_argument_whose_references_still_hold() -> None:
    text, parts = {"type": "string"}, {"type": "array", "items": {"$ref": "#"}}
    schema = {"anyOf": [{"$ref": "#/$defs/text"}, {"$ref": "#/anyOf/2"}, parts], "$defs": {"text": text}}
    arguments = as_arguments(schema)
    assert arguments["$defs"] == {"text": text}
    assert [problems(arguments, {"result": value}) for value in ("a", [], ["a", [["b"]]])] == ["", "", ""]
    assert problems(arguments, {"result": [[1]]}) and problems(arguments, {"result": "a", "x": 1})
    named = as_arguments({"$id": "https://example.com/x", "items": {"$ref": "#"}, "type": "array"})
    assert problems(named, {"result": [[], [[]]]}) == "" and problems(named, {"result": [[1]]})


def test_a_schema_that_is_nested_too_deeply_for_python_is_not_expressed() -> None:
    chain = {f"d{n}": order(x={"$ref": f"#/$defs/d{n + 1}"}) for n in range(2000)}
    schema = {**order(x={"$ref": "#/$defs/d0"}), "$defs": {**chain, "d2000": {"type": "string"}}}
    with pytest.raises(NotExpressible, match="too deeply"):
        in_form(schema, OPENAI)


def test_definitions_keep_their_names_and_are_not_taken_for_each_other() -> None:
    odd = {**order(x={"$ref": "#/$defs/a~1b"}), "$defs": {"a/b": {"type": "string"}}}
    sent = in_form(odd, OPENAI)
    assert (sent["properties"]["x"], sent["$defs"]) == ({"$ref": "#/$defs/a~1b"}, {"a/b": {"type": "string"}})
    assert problems(sent, {"x": "text"}) == "" != problems(sent, {"x": 1})
    twice = {
        **order(x={"$ref": "#/$defs/a"}, y={"$ref": "#/definitions/a"}),
        "$defs": {"a": {"type": "string"}},
        "definitions": {"a": {"type": "integer"}},
    }
    with pytest.raises(NotExpressible, match="two definitions 'a'"):
        in_form(twice, OPENAI)


def test_a_root_that_says_more_than_it_refers_to_stays() -> None:
    schema = {"$ref": "#/$defs/a", "required": ["y"], "$defs": {"a": order(x={"type": "string"})}}
    assert with_resolved_root(schema) == schema
    arguments = as_arguments(schema)
    assert problems(arguments, {"result": {"x": "a", "y": 1}}) == ""
    assert problems(arguments, {"result": {"x": "a"}})
