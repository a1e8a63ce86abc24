"""Placeholders that lead to nothing are told before the first turn."""

from typing import Any

import pytest

from mesh.config.model import parse
from mesh.tree.placeholder_checks import placeholder_problems
from mesh.tree.template import fill
from tests.worlds.trees import config, llm, sequential

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "price": {"type": "integer"},
        "buyer": {"$ref": "#/$defs/Buyer"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "more": {},
        "note": {"anyOf": [{"type": "object", "properties": {"text": {}}}, {"type": "null"}]},
    },
    "$defs": {"Buyer": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


def told(prompt: str, *, schema: Any = ORDER, more: tuple[Any, ...] = (), **keys: Any) -> list[str]:
    taker = llm("taker", output_key="order", **({"output_schema": schema} if schema else {}))
    reader = {**llm("reader"), "prompt": prompt}
    text = config(sequential(taker, *more, reader), **keys)
    return placeholder_problems(parse(text, "agent.yaml", {}))


@pytest.mark.parametrize(
    ("placeholder", "why"),
    [
        ("{order.pricee}", "order has no pricee; did you mean price?"),
        ("{order.x}", "order has no x; expected one of: buyer, items, more, note, price"),
        ("{order.buyer.nme}", "order.buyer has no nme; did you mean name?"),
        ("{order.items.0.nmae}", "order.items.0 has no nmae; did you mean name?"),
        ("{order.items.name}", "order.items is a list; expected a number, as in {order.items.0}"),
        ("{order.price.cents}", "order.price is a number, which has no parts"),
        ("{order.note.txt}", "order.note has no txt; did you mean text?"),
    ],
)
def test_a_placeholder_that_leads_to_nothing_is_told_with_what_was_meant(placeholder: str, why: str) -> None:
    (problem,) = told(f"Ship {placeholder} to {{order.buyer.name}}.")
    assert problem.endswith(f"agent.agents[1].prompt: {placeholder} leads to nothing: {why}")


@pytest.mark.parametrize(
    "placeholder",
    [
        "{order}",
        "{order.price}",
        "{order.items.3.name}",
        "{order.more.or.less}",
        "{order.note.text}",
        "{self.price}",
        "{turn.x}",
    ],
)
def test_what_may_lead_somewhere_is_no_problem(placeholder: str) -> None:
    assert told(placeholder) == []


def test_where_not_all_is_known_nothing_is_told() -> None:
    text = llm("other", output_key="order")
    open_schema = {**ORDER, "additionalProperties": True}
    takes_order = {**llm("helper"), "input_schema": {"type": "object", "properties": {"order": {}}}}
    takes_anything = {**llm("helper"), "input_schema": {"type": "object"}}
    assert told("{order.x}", schema=None) == []
    assert told("{order.x}", schema=open_schema) == []
    assert told("{order.x}", more=(text,)) == []
    assert told("{order.x}", agents=[takes_order]) == []
    assert told("{order.x}", agents=[takes_anything]) == []
    assert len(told("{order.x}", agents=[llm("helper")])) == 1


def test_one_of_two_schemas_that_has_the_part_is_enough() -> None:
    other = llm("other", output_key="order", output_schema={"properties": {"x": {}}})
    assert told("{order.x}", more=(other,)) == []
    assert len(told("{order.y}", more=(other,))) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"required": ["b"]},
        {"dependentRequired": {"price": ["b"]}},
        {"dependencies": {"b": ["price"]}},
        {"propertyNames": {"enum": ["price", "b"]}},
    ],
)
def test_a_name_that_the_schema_has_elsewhere_is_known(more: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"price": {"type": "integer"}}, **more}
    assert told("{order.b.c}", schema=schema) == []
    assert len(told("{order.x}", schema=schema)) == 1


def test_arguments_of_a_tool_node_are_looked_at() -> None:
    tool = {"name": "ship", "type": "tool", "tool": "ship", "args": {"to": ["{order.byer}"]}}
    (problem,) = told("x", more=(tool,))
    assert "agent.agents[1].args.to[0]: {order.byer} leads to nothing" in problem


def test_a_path_that_is_told_is_one_that_is_not_filled() -> None:
    values = {"order": '{"price": 5, "items": [{"name": "tea"}]}'}
    assert fill("{order.pricee} {order.items.0.name}", values) == "{order.pricee} tea"
