"""What is wrong with a key, in words: from pydantic's errors to "what is wrong; expected …".

Only types, keys and bounds are told. A value is never repeated: it may be a secret.
"""

import types
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from mesh.config.source import Loc

_KINDS: dict[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number with a fraction",
    type(None): "nothing",
}
_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list (lines that begin with -)",
    "tuple_type": "a list (lines that begin with -)",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "path_type": "a path",
}
_SAID = {
    "greater_than": "is too small; expected more than {gt}",
    "greater_than_equal": "is too small; expected {ge} or more",
    "less_than_equal": "is too large; expected {le} or less",
    "string_pattern_mismatch": "does not fit; expected text that matches {pattern}",
    "string_too_short": "is empty; expected text",
    "literal_error": "is none of the choices; expected {expected}",
    "missing": "is missing; it is required",
}


def spelled(loc: Loc) -> str:
    """A place as it is read.

    >>> spelled(("mcp_servers", 0, "env", "TOKEN"))
    'mcp_servers[0].env.TOKEN'
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in loc)
    return text.removeprefix(".") or "config"


def problems_of(
    errors: Iterable[Mapping[str, Any]], model: type[BaseModel], data: Any
) -> Iterator[tuple[Loc, str]]:
    """(place, words) of each of pydantic's errors about ``data``."""
    for error in errors:
        loc: Loc = error["loc"]
        if loc and loc[-1] == "[key]":
            yield loc[:-2], "a key is empty; expected a name"
        elif error["type"] == "extra_forbidden":
            yield loc, _unknown(str(loc[-1]), known_keys(model, loc[:-1]))
        else:
            yield loc, _words(error, _value(data, loc))


def _words(error: Mapping[str, Any], value: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _SAID:
        return _SAID[kind].format(**_readable(context))
    if kind in _WANTED:
        return f"is {_KINDS.get(type(value), 'something else')}; expected {_WANTED[kind]}{_hint(kind, value)}"
    return f"is not right; {error['msg']}"


def _readable(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: f"{value:g}" if isinstance(value, float) else value for key, value in context.items()}


def _hint(kind: str, value: Any) -> str:
    if value is None:
        return " (or no key at all)"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return ' (put it in quotes: "…")'
    return ""


def _unknown(key: str, known: list[str]) -> str:
    close = get_close_matches(key, known, n=1)
    if close:
        return f"unknown key; did you mean {close[0]}?"
    return f"unknown key; expected one of: {', '.join(known)}"


def _value(data: Any, loc: Loc) -> Any:
    for key in loc:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def known_keys(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys a place may have, as the file spells them."""
    for key in loc:
        if isinstance(key, str):
            fields = {field.alias or name: field for name, field in model.model_fields.items()}
            model = next(_models_in(fields[key].annotation))
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models of an annotation such as ``tuple[Model, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, list):
        for inside in get_args(annotation):
            yield from _models_in(inside)
