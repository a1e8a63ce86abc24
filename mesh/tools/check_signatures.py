"""What a check takes and returns. Pure.

A check of answers takes the answer, and may take the request that is answered. It returns True, or what is
wrong with the answer. A check of the outcome of a tool takes arguments of that tool, and returns ``applied``,
``not_applied`` or ``unknown``.
"""

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_WANTED = "expected (output: str) -> bool | str"


def answer_check_problems(schema: Mapping[str, Any], returned: Any) -> Iterator[str]:
    """Yields what is wrong with a check of answers. ``schema`` is that of its arguments, ``returned`` the
    type that it returns, None if it does not say."""
    arguments = schema.get("properties", {})
    if "output" not in arguments:
        yield f"a check takes the answer as output; {_WANTED}"
    for name in schema.get("required", ()):
        if name not in ("output", "request"):
            yield f"a check gets output and request, and nothing for {name}; {_WANTED}"
    if returned is not None and not _only(returned, (bool, str)):
        yield f"a check returns True, or a text that says what is wrong; {_WANTED}"


def cannot_judge(returned: Any) -> bool:
    """Whether a tool returns what is no verdict about an answer. ``returned`` is its type, or None if it does
    not say."""
    return returned not in (None, Any, object) and not _only(returned, (bool, str))


def outcome_check_problems(
    schema: Mapping[str, Any], returned: Any, tool: str, tool_schema: Mapping[str, Any]
) -> Iterator[str]:
    """Yields what is wrong with a check of the outcome of ``tool``."""
    given = tool_schema.get("properties", {})
    for name, argument in schema.get("properties", {}).items():
        if name not in given and name in schema.get("required", ()):
            yield f"{name} is no argument of {tool}, whose outcome it checks; expected those of {tool}"
        elif name in given and _kind(argument) != _kind(given[name]):
            yield f"{name} has another type than in {tool}, whose outcome it checks"
    if _only(returned, (bool, int, float, NoneType)):
        yield 'it returns no outcome; expected "applied", "not_applied" or "unknown"'


def _kind(argument: Mapping[str, Any]) -> Any:
    return argument.get("type", argument.get("$ref"))


def _only(hint: Any, allowed: tuple[type, ...]) -> bool:
    """Whether all values of a type are of the ``allowed`` ones."""
    if get_origin(hint) in (Union, UnionType):
        return all(_only(each, allowed) for each in get_args(hint))
    if get_origin(hint) is Annotated:
        return _only(get_args(hint)[0], allowed)
    if get_origin(hint) is Literal:
        return all(isinstance(each, allowed) for each in get_args(hint))
    return isinstance(hint, type) and issubclass(hint, allowed)
