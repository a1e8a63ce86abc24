"""The smallest value that fits a schema."""

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from mesh.llm.schema_example import example
from mesh.mcp.schema import ANSWER, problems
from tests.llm.pydantic_models import Model, models
from tests.worlds.long import as_often_as

NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "of": {"type": "integer"}},
    "required": ["next"],
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "integer", "exclusiveMaximum": -3, "multipleOf": 2}, -4),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "string", "minLength": 3}, "xxx"),
        ({"type": "array", "minItems": 2, "items": {"type": "boolean"}}, [False, False]),
        ({"type": "array", "prefixItems": [{"type": "null"}], "minItems": 1}, [None]),
        ({"type": ["null", "string"]}, None),
        ({"enum": ["a", "b"]}, "a"),
        ({"const": 7, "default": 8}, 7),
        ({"default": 8, "type": "integer"}, 8),
        (NODE, {"next": None}),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, None),
    ],
    ids=str,
)
def test_it_is_small(schema: dict[str, Any], value: Any) -> None:
    assert example(schema) == value


@settings(max_examples=as_often_as(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models())
def test_it_fits_the_schema_of_a_model(drawn: Model) -> None:
    schema = drawn.model.model_json_schema()
    if "^[a-z]{2,4}$" not in str(schema):  # patterns are not understood
        assert problems(schema, example(schema), ANSWER) == ""


@pytest.mark.parametrize("keyword", ["anyOf", "required"])
def test_a_schema_that_asks_for_a_value_without_end_is_given_up_soon(keyword: str) -> None:
    both = {"a": {"$ref": "#"}, "b": {"$ref": "#"}}
    branch = {"type": "object", "properties": both, "required": ["a", "b"]}
    schema = {"anyOf": [branch, {**branch, "required": ["b"]}]} if keyword == "anyOf" else branch
    started = time.process_time()
    assert example(schema) is None
    assert time.process_time() - started < 10
