"""Turns pydantic's errors into messages for people: "what is wrong; expected …".

The messages name types, keys and bounds, and never a value, because the value may be a secret.
"""

import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mesh.config.yaml_tree import Loc
from mesh.core.spelling import closest, with_article

_KINDS: dict[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number with a fraction",
    type(None): "nothing",
}
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list ([…], or lines that begin with -)",
    "tuple_type": "a list ([…], or lines that begin with -)",
    "sequence_str": "a list",
    "is_instance_of": "a list",  # of a sequence, in a Python file
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "path_type": "a path",
    "callable_type": "a function or a class",
}
_NOT_FOUND = object()
"""In place of a value whose location is none in the file: pydantic names the choices of a union, too."""
_FEW = 4
"""Keys of a section that are all told to somebody who wrote no section at all."""
_FEW_HOMES = 2
"""Sections that have a key, which are told to somebody who wrote it elsewhere."""
_CLOSE = 0.8
"""How close a known key has to be, to be meant more probably than the same key of another section."""
_LISTS = ("list_type", "tuple_type", "sequence_str", "is_instance_of")
_MESSAGES = {
    "greater_than": "is too small; expected more than {gt}",
    "greater_than_equal": "is too small; expected {ge} or more",
    "less_than_equal": "is too large; expected {le} or less",
    "string_pattern_mismatch": "does not fit; expected text that matches {pattern}",
    "string_too_short": "is empty; expected text",
    "string_too_long": "is too long; expected at most {max_length} characters",
    "too_short": "has too few entries; expected at least {min_length}",
    "too_long": "has too many entries; expected at most {max_length}",
    "missing": "is missing; it is required",
}


def spelled(loc: Loc) -> str:
    """Returns a location as people read it.

    >>> spelled(("mcp_servers", 0, "env", "TOKEN"))
    'mcp_servers[0].env.TOKEN'
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in loc)
    return text.removeprefix(".") or "config"


def problems_of(
    errors: Iterable[Mapping[str, Any]], model: type[BaseModel], data: Any
) -> Iterator[tuple[Loc, str]]:
    """Yields (location, message) for each of pydantic's errors about ``data``."""
    for error in errors:
        loc: Loc = error["loc"]
        if loc and loc[-1] == "[key]":
            yield loc[:-2], "a key is empty; expected a name"
        elif error["type"] == "extra_forbidden":
            yield loc, _unknown(str(loc[-1]), known_keys(model, loc[:-1]), _homes(model, loc))
        else:
            keys = known_keys(model, loc) if error["type"] == "model_type" else []
            yield loc, _message(error, _value(data, loc)) + _few(keys)


def _message(error: Mapping[str, Any], value: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _MESSAGES:
        return _MESSAGES[kind].format(**_readable(context)) + _braces(context, value)
    if kind == "literal_error":
        return _no_choice(context["expected"], value)
    if kind in _EXPECTED:
        found = _KINDS.get(type(value)) or _kind_of_object(value)
        return f"is {found}; expected {_EXPECTED[kind]}{_hint(kind, value)}"
    if kind == "pattern":
        return f"{error['msg']}"
    return f"is not right; {error['msg']}"


def _few(keys: list[str]) -> str:
    return f"; its keys are {', '.join(keys)}" if 0 < len(keys) <= _FEW else ""


def _kind_of_object(value: Any) -> str:
    """What something is that only a Python file can have."""
    if value is _NOT_FOUND:
        return "not right"
    if isinstance(value, BaseModel):
        return with_article(type(value).__name__)
    return "a class" if isinstance(value, type) else "a function" if callable(value) else "something else"


def _no_choice(expected: str, value: Any) -> str:
    """``expected`` are the choices as pydantic writes them: ``'llm', 'loop' or 'tool'``."""
    if expected == "True":
        return "is not true, so that it says nothing; expected true, or remove the entry"
    choices = re.findall(r"'([^']+)'", expected)
    if isinstance(value, str) and (close := closest(value, choices)):
        return f"is none of the choices; did you mean {close}?"
    return f"is none of the choices; expected {expected}"


def _braces(context: Mapping[str, Any], value: Any) -> str:
    """For a name that is written like a placeholder."""
    name = value[1:-1] if isinstance(value, str) and value[:1] + value[-1:] == "{}" else ""
    fits = name and re.search(str(context.get("pattern", "")), name)
    return f" (without the braces: {name})" if fits else ""


def _readable(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: f"{value:g}" if isinstance(value, float) else value for key, value in context.items()}


def _hint(kind: str, value: Any) -> str:
    if value is None:
        return " (or no key at all)"
    if kind in _LISTS and (callable(value) or isinstance(value, BaseModel)):
        return " (put it in brackets: […])"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return ' (put it in quotes: "…")'
    return ""


def _unknown(key: str, known: list[str], homes: Sequence[str]) -> str:
    """``homes`` are the sections that have this very key."""
    if 0 < len(homes) <= _FEW_HOMES and not closest(key, known, _CLOSE):
        return f"unknown key; it is a key of {' and '.join(homes)}"
    if close := closest(key, known):
        return f"unknown key; did you mean {close}?"
    return f"unknown key; expected one of: {', '.join(known)}" if known else "unknown key"


def _value(data: Any, loc: Loc) -> Any:
    for key in loc:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return _NOT_FOUND
    return data


def known_keys(model: type[BaseModel], loc: Loc) -> list[str]:
    """Returns the keys that the section at a location may have, as the file spells them."""
    section = next(_sections(model, loc), None)
    return list(_fields(section)) if section else []


def _homes(model: type[BaseModel], loc: Loc) -> list[str]:
    """The sections other than that of a location which have its last key, by the keys that lead to them."""
    found = {name for name, section in _all_sections(model, set()) if str(loc[-1]) in _fields(section)}
    return sorted(found - {str(loc[-2]) if len(loc) > 1 else ""})


def _all_sections(
    model: type[BaseModel], seen: set[type[BaseModel]]
) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yields the sections below a model that stand there once, not in a list, each with the key that leads to
    it."""
    seen.add(model)
    for name, field in _fields(model).items():
        for section in _sections(field.annotation, ()):
            yield name, section
            if section not in seen:
                yield from _all_sections(section, seen)


def _sections(annotation: Any, loc: Loc) -> Iterator[type[BaseModel]]:
    """Yields the models at a location below an annotation such as ``tuple[Model, ...] | None``."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not loc:
            yield annotation
        elif field := _fields(annotation).get(str(loc[0])):
            yield from _sections(field.annotation, loc[1:])
    elif origin in (Annotated, Union, types.UnionType):
        for each in inside:
            yield from _sections(each, loc)
    elif origin in (tuple, list, Sequence, dict) and loc:
        for each in inside:
            yield from _sections(each, loc[1:])


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}
