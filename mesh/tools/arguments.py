"""The arguments of a function: their JSON Schema, and their values from JSON.

    signature ── type hints ──► a model of pydantic ──► schema
                                arguments as JSON ──► values with which the function is called

The fields of the model have names of their own (`argument_0`), and those of the function as aliases: pydantic
takes some names for itself, such as ``schema`` and ``_id``.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from mesh.tools.context import Context
from mesh.tools.docstrings import read_docstring

Kind = inspect.Parameter
_KEPT_BY_POSITION = {Kind.POSITIONAL_ONLY}
_SUGGESTED = {name: f"{name}: Context, with Context from mesh.tools" for name in ("ctx", "context")}
"""What a parameter without a type most probably is, by its name."""
_OF_METHODS = ("self", "cls")
_COLLECTED = {Kind.VAR_POSITIONAL: "*", Kind.VAR_KEYWORD: "**"}


class UnusableArgument(Exception):
    """An argument has no type that JSON can express. ``argument`` is its name."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument


class WithoutTitles(GenerateJsonSchema):
    """A schema without the titles that pydantic makes of the names, which tell a model nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Parameter(NamedTuple):
    """A parameter of a function that is an argument of the tool."""

    name: str
    type: Any
    default: Any
    is_positional: bool


class Arguments:
    """The arguments of a function. ``extra`` says whether others are refused. Raises `UnusableArgument`."""

    def __init__(self, function: Callable[..., Any], extra: Literal["forbid", "ignore"] = "forbid") -> None:
        self.description, described = read_docstring(function.__doc__)
        hints = type_hints(function)
        self.context_name = ""
        self.parameters: list[Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            if is_context(hints.get(parameter.name)):
                self.context_name = parameter.name
            else:
                self.parameters.append(_parameter(parameter, hints))
        self._model = self._make_model(function.__name__, described, extra)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, an object."""
        with warnings.catch_warnings(action="ignore"):  # a default that JSON cannot express is left out
            schema = self._model.model_json_schema(schema_generator=WithoutTitles)
        schema.pop("title", None)
        return schema

    def bound(self, arguments: Mapping[str, Any], context: Context) -> tuple[list[Any], dict[str, Any]]:
        """Returns what the function is called with. Raises `pydantic.ValidationError`."""
        values = self._model.model_validate(dict(arguments))
        positional: list[Any] = []
        named: dict[str, Any] = {self.context_name: context} if self.context_name else {}
        for index, parameter in enumerate(self.parameters):
            value = getattr(values, f"argument_{index}")
            if parameter.is_positional:
                positional.append(value)
            else:
                named[parameter.name] = value
        return positional, named

    def _make_model(
        self, name: str, described: Mapping[str, str], extra: Literal["forbid", "ignore"]
    ) -> type[BaseModel]:
        fields: dict[str, Any] = {
            f"argument_{index}": _field(each, described) for index, each in enumerate(self.parameters)
        }
        try:
            model = create_model(name, __config__=ConfigDict(extra=extra), **fields)
            with warnings.catch_warnings(action="ignore"):
                model.model_json_schema()
        except Exception:
            # Pydantic does not say which of them it was.
            for parameter in self.parameters:
                check_type(parameter.name, parameter.type)
            raise
        return model


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the types of the parameters and of ``return``. Raises `UnusableArgument` for one that cannot be
    evaluated."""
    function = inspect.unwrap(function)
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:  # whatever the expression of an annotation raises
        for name, hint in function.__annotations__.items():
            _evaluate(name, hint, function)
        raise UnusableArgument("", f"its type hints cannot be read: {_said(error)}") from error


def is_context(hint: Any) -> bool:
    """Whether a type is `Context`, or may be."""
    if get_origin(hint) in (Union, UnionType, Annotated):
        return any(is_context(each) for each in get_args(hint))
    return isinstance(hint, type) and issubclass(hint, Context)


def check_type(name: str, hint: Any) -> None:
    """Raises `UnusableArgument` if pydantic cannot express a type as JSON Schema."""
    try:
        with warnings.catch_warnings(action="ignore"):
            TypeAdapter(hint).json_schema()
    except Exception as error:
        shown = getattr(hint, "__name__", None) or str(hint)
        why = f"has no usable type: JSON Schema cannot express {shown}"
        # For a type that it does not know, pydantic only says how to go on without a schema.
        more = "" if isinstance(error, PydanticSchemaGenerationError) else f" ({_said(error)})"
        raise UnusableArgument(name, why + more) from error


def _parameter(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Parameter:
    name = parameter.name
    if parameter.kind in _COLLECTED:
        shown = _COLLECTED[parameter.kind] + name
        raise UnusableArgument(name, f"{shown} has no usable type; give each argument a name and a type")
    if name not in hints and name in _OF_METHODS:
        raise UnusableArgument(name, "a method cannot be a tool; write a function outside of the class")
    if name not in hints:
        suggested = _SUGGESTED.get(name, f"one, such as {name}: str")
        raise UnusableArgument(name, f"has no type; write {suggested}")
    return Parameter(name, hints[name], parameter.default, parameter.kind in _KEPT_BY_POSITION)


def _field(parameter: Parameter, described: Mapping[str, str]) -> tuple[Any, Any]:
    options: dict[str, Any] = {"alias": parameter.name}
    if description := _description(parameter) or described.get(parameter.name):
        options["description"] = description
    hint: Any = Annotated.__class_getitem__((parameter.type, Field(**options)))  # type: ignore[attr-defined]
    if parameter.default is inspect.Parameter.empty:
        return hint, _default_of(parameter.type)
    return hint, parameter.default


def _default_of(hint: Any) -> Any:
    """The default that a `Field` within a type says; none if there is none."""
    for said in _metadata(hint):
        if isinstance(said, FieldInfo) and not said.is_required():
            return Field(default=said.default, default_factory=said.default_factory)  # type: ignore[call-overload]
    return ...


def _description(parameter: Parameter) -> str | None:
    """What `Field`, or a text in `Annotated`, says about a parameter."""
    for said in (parameter.default, *_metadata(parameter.type)):
        if isinstance(said, FieldInfo) and said.description:
            return said.description
    for said in _metadata(parameter.type):
        text = said if isinstance(said, str) else getattr(said, "documentation", None)
        if isinstance(text, str):
            return text
    return None


def _metadata(hint: Any) -> tuple[Any, ...]:
    return hint.__metadata__ if get_origin(hint) is Annotated else ()


def _evaluate(name: str, hint: Any, function: Callable[..., Any]) -> None:
    scope = getattr(function, "__globals__", {})
    try:
        holder = type("Holder", (), {"__annotations__": {name: hint}})
        get_type_hints(holder, globalns=scope, include_extras=True)
    except Exception as error:
        raise UnusableArgument(name, f"has no usable type: {_said(error)}") from error


def _said(error: Exception) -> str:
    """What an exception says, in one line."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


__all__ = ["Arguments", "UnusableArgument", "check_type", "is_context", "type_hints"]
