"""From a signature to a JSON Schema, and from JSON to the values of a call."""

import datetime
import enum
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from mesh.mcp.schema import problems
from mesh.testing import FakeContext
from mesh.tools import Context
from mesh.tools.arguments import Arguments, UnusableArgument

CONTEXT = FakeContext()


class Colour(enum.Enum):
    RED = "red"


class Item(BaseModel):
    name: str
    parts: "list[Item]" = []


@dataclass
class Point:
    x: int


class Options(TypedDict, total=False):
    deep: bool


def called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    positional, named = Arguments(function).bound(arguments, CONTEXT)
    return function(*positional, **named)


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    found = Arguments(function).schema["properties"]
    assert isinstance(found, dict)
    return found


def test_each_parameter_is_an_argument_and_those_without_a_default_are_required() -> None:
    def refund(order: str, cents: Annotated[int, Field(gt=0)] = 5, *, note: str | None = None) -> None: ...

    assert Arguments(refund).schema == {
        "type": "object",
        "properties": {
            "order": {"type": "string"},
            "cents": {"type": "integer", "exclusiveMinimum": 0, "default": 5},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["order"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("hint", "json", "value"),
    [
        (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
        (Decimal, "1.50", Decimal("1.50")),
        (Colour, "red", Colour.RED),
        (Literal["a", 1], 1, 1),
        (Item, {"name": "a", "parts": [{"name": "b"}]}, Item(name="a", parts=[Item(name="b")])),
        (Point, {"x": 1}, Point(1)),
        (Options, {"deep": True}, {"deep": True}),
        (dict[str, list[Point]], {"a": [{"x": 1}]}, {"a": [Point(1)]}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 2], {1, 2}),
        (int | Point | None, {"x": 1}, Point(1)),
        (Any, {"x": [1]}, {"x": [1]}),
    ],
)
def test_whatever_pydantic_can_express_is_an_argument(hint: Any, json: Any, value: Any) -> None:
    def same(it: Any) -> Any:
        return it

    same.__annotations__["it"] = hint
    assert problems(Arguments(same).schema, {"it": json}) == ""
    assert called(same, {"it": json}) == value


def test_descriptions_come_from_field_from_annotated_and_from_the_docstring() -> None:
    def refund(
        order: Annotated[str, "The order."],
        cents: Annotated[int, Field(description="How much.")],
        note: str,
        until: Annotated[str, "Not this."] = Field(default="", description="The last day."),
    ) -> None:
        """Pays money back.

        Args:
            order: Not this either.
            note: What the
                customer reads.
        """

    assert {name: each.get("description") for name, each in properties(refund).items()} == {
        "order": "The order.",
        "cents": "How much.",
        "note": "What the\ncustomer reads.",
        "until": "The last day.",
    }
    assert Arguments(refund).description == "Pays money back."


def test_the_context_is_no_argument_wherever_it_stands() -> None:
    def first(ctx: Context, order: str) -> tuple[Context, str]:
        return ctx, order

    def maybe(order: str, *, told: Context | None = None) -> tuple[Context | None, str]:
        return told, order

    for function in (first, maybe):
        assert [*properties(function)] == ["order"]
        assert called(function, {"order": "A"}) == (CONTEXT, "A")


def test_arguments_may_have_names_that_pydantic_uses_itself() -> None:
    def odd(schema: int, model_config: int, _hidden: int, json: int, class_: int, /) -> list[int]:
        return [schema, model_config, _hidden, json, class_]

    names = ["schema", "model_config", "_hidden", "json", "class_"]
    assert [*properties(odd)] == names
    assert called(odd, {name: index for index, name in enumerate(names)}) == [0, 1, 2, 3, 4]


def test_a_default_that_json_cannot_express_is_left_out() -> None:
    def wait(until: Any = object) -> Any:
        return until

    assert "default" not in properties(wait)["until"]
    assert called(wait, {}) is object


def test_a_default_within_a_type_counts() -> None:
    def wait(
        seconds: Annotated[int, Field(default=3)], names: Annotated[list[str], Field(default_factory=list)]
    ) -> Any:
        return seconds, names

    assert called(wait, {}) == (3, [])


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def add(name: str, names: list[str] = []) -> list[str]:  # noqa: B006 - it is what is tested
        names.append(name)
        return names

    assert [called(add, {"name": "a"}), called(add, {"name": "b"})] == [["a"], ["b"]]


def test_an_argument_that_is_not_declared_is_refused() -> None:
    def refund(order: str) -> None: ...

    with pytest.raises(ValidationError):
        Arguments(refund).bound({"order": "A", "cents": 1}, CONTEXT)
    assert Arguments(refund, extra="ignore").bound({"order": "A", "cents": 1}, CONTEXT) == (
        [],
        {"order": "A"},
    )


class Unknown:
    pass


def untyped(order) -> None: ...  # type: ignore[no-untyped-def]
def unusable(good: int, order: Unknown) -> None: ...
def callback(order: Callable[[], int]) -> None: ...
def collected(*order: int) -> None: ...
def keywords(**order: int) -> None: ...
def undefined(good: int, order: "Ordr") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "has no type; write one, such as order: str"),
        (unusable, "has no usable type: JSON Schema cannot express Unknown"),
        (callback, "has no usable type: JSON Schema cannot express"),
        (collected, "*order has no usable type; give each argument a name and a type"),
        (keywords, "**order has no usable type; give each argument a name and a type"),
        (undefined, "has no usable type: NameError: name 'Ordr' is not defined"),
    ],
)
def test_an_argument_without_a_usable_type_is_named(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(UnusableArgument) as raised:
        _ = Arguments(function).schema
    assert (raised.value.argument, str(raised.value)[: len(message)]) == ("order", message)


SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**53), 2**53)),
    (str, st.text(max_size=10)),
    (bool, st.booleans()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (datetime.date, st.dates()),
    (Colour, st.sampled_from(Colour)),
    (Point, st.builds(Point, st.integers(0, 9))),
]
NAMES = st.text(max_size=3)
TYPES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.map(lambda each: (list[each[0]], st.lists(each[1], max_size=3))),  # type: ignore[misc]
        inner.map(
            lambda each: (dict[str, each[0]], st.dictionaries(st.text(max_size=3), each[1], max_size=3))
        ),  # type: ignore[misc]
        inner.map(lambda each: (each[0] | None, st.none() | each[1])),
    ),
    max_leaves=3,
)


@given(st.lists(TYPES, max_size=4), st.data())
def test_any_values_reach_the_function_as_they_were(types: list[Any], data: st.DataObject) -> None:
    names = [f"a{index}" for index in range(len(types))]
    scope: dict[str, Any] = {f"T{index}": hint for index, (hint, _) in enumerate(types)}
    parameters = ", ".join(f"{name}: T{index}" for index, name in enumerate(names))
    exec(f"def same({parameters}): return [{', '.join(names)}]", scope)
    values = [data.draw(strategy) for _, strategy in types]
    json = to_jsonable_python(dict(zip(names, values, strict=True)))
    assert problems(Arguments(scope["same"]).schema, json) == ""
    assert called(scope["same"], json) == values
