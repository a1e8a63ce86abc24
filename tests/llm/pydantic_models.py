"""Draws models of pydantic as people write them for answers, each with values of it."""

import enum
import itertools
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, Union
from uuid import UUID

from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from typing_extensions import TypedDict  # pydantic refuses that of Python 3.11

_number = itertools.count()
_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)
_NAMES = st.sampled_from(
    [
        "total",
        "lines",
        "note",
        "kind",
        "type",
        "value",
        "items",
        "title",
        "enum",
        "ref",
        "größe",
        "a b",
        "x.y",
    ]
)


class Drawn(NamedTuple):
    """A type, and a strategy of its values."""

    type: Any
    values: st.SearchStrategy[Any]


class Model(NamedTuple):
    """A model, and a value of it."""

    model: type[BaseModel]
    value: BaseModel


def _minutes(minutes: int) -> timedelta:
    """Less than a year of them: the standard's durations have no fractions, and no part is left out between
    two others, as pydantic writes them (``PT19H1S``, ``P1Y1D``)."""
    return timedelta(minutes=minutes)


def _bounded_int(least: int, size: int) -> Drawn:
    bounds = Field(ge=least, lt=least + size)
    return Drawn(Annotated[int, bounds], st.integers(least, least + size - 1))


def _sized_text(least: int, more: int) -> Drawn:
    kind = Annotated[str, Field(min_length=least, max_length=least + more)]
    return Drawn(kind, st.text("abcä", min_size=least, max_size=least + more))


def _multiple(step: int) -> Drawn:
    kind = Annotated[int, Field(multiple_of=step)]
    return Drawn(kind, st.integers(-5, 5).map(lambda n: n * step))


def _literal(values: list[Any]) -> Drawn:
    return Drawn(Literal[tuple(values)], st.sampled_from(values))


def _enum(values: list[str]) -> Drawn:
    kind = enum.Enum(f"Enum{next(_number)}", [(f"member{i}", v) for i, v in enumerate(values)])  # type: ignore[misc]
    return Drawn(kind, st.sampled_from(list(kind)))


_SCALARS: st.SearchStrategy[Drawn] = st.one_of(
    st.sampled_from(
        [
            Drawn(int, st.integers(-(2**53), 2**53)),
            Drawn(float, st.floats(allow_nan=False, allow_infinity=False, width=32)),
            Drawn(str, _TEXTS),
            Drawn(bool, st.booleans()),
            Drawn(date, st.dates()),
            Drawn(datetime, st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC))),
            Drawn(timedelta, st.integers(0, 364 * 24 * 60).map(_minutes)),
            Drawn(UUID, st.uuids()),
            Drawn(Decimal, st.integers(-999, 999).map(Decimal)),
            Drawn(Annotated[str, Field(pattern="^[a-z]{2,4}$")], st.text("abz", min_size=2, max_size=4)),
            Drawn(Annotated[float, Field(gt=0, le=10)], st.integers(1, 10).map(float)),
            Drawn(Any, st.one_of(st.integers(0, 9), _TEXTS, st.none())),
        ]
    ),
    st.builds(_bounded_int, st.integers(-10, 10), st.integers(1, 9)),
    st.builds(_sized_text, st.integers(0, 3), st.integers(0, 3)),
    st.builds(_multiple, st.integers(2, 9)),
    st.builds(
        _literal,
        st.lists(
            st.one_of(st.sampled_from(["a", "b", "c"]), st.integers(2, 5), st.booleans()),
            min_size=1,
            max_size=4,
            unique=True,
        ),
    ),
    st.builds(_enum, st.lists(st.sampled_from(["small", "large", "none", "é"]), min_size=1, unique=True)),
)


def _list(inner: Drawn, least: int) -> Drawn:
    kind = Annotated[list[inner.type], Field(min_length=least, max_length=least + 2)]  # type: ignore[name-defined]
    return Drawn(kind, st.lists(inner.values, min_size=least, max_size=least + 2))


def _plain_list(inner: Drawn) -> Drawn:
    return Drawn(list[inner.type], st.lists(inner.values, max_size=2))  # type: ignore[name-defined]


def _tuple(first: Drawn, second: Drawn) -> Drawn:
    return Drawn(tuple[first.type, second.type], st.tuples(first.values, second.values))  # type: ignore[name-defined]


def _mapping(inner: Drawn) -> Drawn:
    return Drawn(dict[str, inner.type], st.dictionaries(_TEXTS, inner.values, max_size=2))  # type: ignore[name-defined]


def _optional(inner: Drawn) -> Drawn:
    return Drawn(Optional[inner.type], st.none() | inner.values)  # noqa: UP045


def _union(first: Drawn, second: Drawn) -> Drawn:
    return Drawn(Union[first.type, second.type], first.values | second.values)  # noqa: UP007


@st.composite
def _typed_dict(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    needed, extra = draw(inner), draw(inner)
    fields = {"needed": needed.type, "extra": NotRequired[extra.type]}  # type: ignore[name-defined]
    kind = TypedDict(f"Dict{next(_number)}", fields)  # type: ignore[operator]
    both = {"needed": needed.values, "extra": extra.values}
    # Null and nothing are the same to a form in which everything is required, but not to the schema.
    if _takes_none(extra.type):
        return Drawn(kind, st.fixed_dictionaries(both))
    return Drawn(kind, st.fixed_dictionaries({"needed": needed.values}, optional={"extra": extra.values}))


def _takes_none(kind: Any) -> bool:
    try:
        TypeAdapter(kind).validate_python(None)
    except ValidationError:
        return False
    return True


@st.composite
def _model(draw: st.DrawFn, inner: st.SearchStrategy[Drawn], recursive: bool = False) -> Drawn:
    names = draw(st.lists(_NAMES, min_size=0, max_size=4, unique=True))
    fields: dict[str, Any] = {}
    values: dict[str, st.SearchStrategy[Any]] = {}
    for at, alias in enumerate(names):
        kind, drawn = draw(inner)
        said = draw(st.sampled_from([None, "What it is."]))
        more: dict[str, Any] = {"default": draw(drawn)} if draw(st.booleans()) else {}
        fields[f"field{at}"] = (kind, Field(alias=alias, description=said, **more))
        values[alias] = drawn
    name = f"Model{next(_number)}"
    if recursive:
        fields["children"] = (list[name], Field(default=[]))  # type: ignore[valid-type]
        fields["parent"] = (Optional[name], None)  # type: ignore[valid-type]  # noqa: UP045
    extra = draw(st.sampled_from(["ignore", "ignore", "ignore", "forbid", "allow"]))
    model = create_model(
        name, __config__=ConfigDict(extra=extra), __doc__=draw(st.sampled_from([None, "A doc."])), **fields
    )
    if recursive:
        model.model_rebuild(_types_namespace={name: model})
    whole = st.fixed_dictionaries(values)
    made = whole.map(model.model_validate)
    if recursive:
        made = st.builds(
            lambda given, children: model.model_validate({**given, "children": children}),
            whole,
            st.lists(made, max_size=2),
        )
    return Drawn(model, made)


@st.composite
def _tagged(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    """A discriminated union."""
    branches = []
    for tag in ("cat", "dog"):
        kind, values = draw(inner)
        model = create_model(f"Model{next(_number)}", kind=(Literal[tag], tag), value=(kind, ...))  # type: ignore[valid-type]
        branches.append((model, values.map(lambda value, model=model: model(value=value))))
    (first, firsts), (second, seconds) = branches
    union = Annotated[Union[first, second], Field(discriminator="kind")]  # type: ignore[valid-type]  # noqa: UP007
    return Drawn(union, firsts | seconds)


def _compound(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    return st.one_of(
        st.builds(_list, inner, st.integers(0, 2)),
        st.builds(_plain_list, inner),
        st.builds(_tuple, inner, inner),
        st.builds(_mapping, inner),
        st.builds(_optional, inner),
        st.builds(_union, inner, inner),
        _typed_dict(inner),
        _model(inner),
        _model(inner),
        _model(inner, recursive=True),
        _tagged(inner),
    )


_TYPES = st.recursive(_SCALARS, _compound, max_leaves=6)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """A model, and a value of it."""
    model, values = draw(st.one_of(_model(_TYPES), _model(_TYPES, recursive=True)))
    return Model(model, draw(values))
