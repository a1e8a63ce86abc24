"""What a schema says for certain of the values that fit it."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mesh.config.schema_kinds import ANY, items, kinds, properties, required, spoken

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)
TYPES = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])


def _wider(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
            "anyOf": some,
            "allOf": some,
            "oneOf": some,
            "properties": named,
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/none"]),
        },
    )


SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {}, optional={"type": TYPES, "const": VALUES, "enum": st.lists(VALUES, min_size=1)}
    ),
    _wider,
    max_leaves=6,
)


def kind_of(value: Any) -> frozenset[str]:
    return kinds({"const": value}, {})


@given(SCHEMAS, SCHEMAS, VALUES)
def test_a_value_that_fits_is_of_a_kind_that_the_schema_says(schema: Any, inner: Any, value: Any) -> None:
    whole = {**schema, "$defs": {"a": inner, "none": {}}}
    try:
        fits = jsonschema_rs.validator_for(whole).is_valid(value)
    except (jsonschema_rs.ValidationError, ValueError, RecursionError):
        fits = False
    assume(fits)
    assert kind_of(value) <= kinds(whole, whole)
    assert not isinstance(value, dict) or required(whole, whole) <= value.keys()


def test_required_properties_are_known_through_references() -> None:
    root = {"allOf": [{"$ref": "#/$defs/x"}, {"required": ["b"]}], "$defs": {"x": {"required": ["a"]}}}
    assert required({**root, "required": ["c"]}, root) == {"a", "b", "c"}
    assert required({"anyOf": [{"required": ["a"]}, {}]}, {}) == frozenset()
    assert required({"required": "a"}, {}) == required(True, {}) == frozenset()


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"a": {}}}, {"a"}),
        ({"type": "object"}, None),
        ({"type": "object", "additionalProperties": False}, set()),
        ({"properties": {"a": {}}, "additionalProperties": True}, None),
        ({"properties": {"a": {}}, "required": ["b"]}, {"a", "b"}),
        ({"properties": {"a": {}}, "required": ["b"], "additionalProperties": False}, {"a"}),
        ({"properties": {"a": {}}, "dependentRequired": {"b": ["c"]}}, {"a", "b", "c"}),
        ({"properties": {"a": {}}, "dependencies": {"b": ["c"]}}, {"a", "b", "c"}),
        ({"properties": {"a": {}}, "dependencies": {"a": {"properties": {"b": {}}}}}, None),
        ({"properties": {"a": {}}, "propertyNames": {"enum": ["a", "b"]}}, {"a", "b"}),
        ({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}, "required": ["c"]}]}, {"a", "b", "c"}),
        ({"required": ["b"]}, None),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, None),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}, {"a", "b"}),
        ({"anyOf": [{"properties": {"a": {}}}, {"type": "null"}]}, {"a"}),
        ({"anyOf": [{"properties": {"a": {}}}, {"type": "object"}]}, None),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {}}}}}, {"a"}),
        ({"$ref": "#"}, None),
        ({"$ref": "https://example.com/x"}, None),
        (True, None),
    ],
)
def test_the_properties_of_an_object_are_known_where_the_schema_names_them(
    schema: Any, expected: set[str] | None
) -> None:
    found = properties(schema, schema)
    assert (None if found is None else set(found)) == expected


def test_the_items_of_a_list_are_known_where_the_schema_says_them() -> None:
    root = {"$defs": {"x": {"type": "array", "items": {"type": "string"}}}}
    assert items({"$ref": "#/$defs/x"}, root) == {"type": "string"}
    assert items({"type": "array", "prefixItems": [{}], "items": {"type": "string"}}, root) == {}
    assert items({}, root) == {}


def test_kinds_are_told_in_words() -> None:
    assert spoken(frozenset({"null", "object"})) == "an object or null"
    assert spoken(frozenset()) == "nothing"
    assert "a list" in spoken(ANY)


def test_references_that_multiply_are_read_in_bounded_time() -> None:
    twice = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(29)}
    root = {"$ref": "#/$defs/d0", "$defs": {**twice, "d29": {"type": "object", "properties": {"a": {}}}}}
    assert (kinds(root, root), properties(root, root)) == (ANY, None)
    itself = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "object"}
    assert (kinds(itself, itself), properties(itself, itself)) == (frozenset({"object"}), None)
    endless = {"allOf": [{"$ref": "#"}, {"$ref": "#"}], "required": ["a"]}
    assert required(endless, endless) == {"a"}
