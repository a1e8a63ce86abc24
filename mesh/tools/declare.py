"""The decorators: they note what a function is, and return it as it was."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from mesh.core.spelling import meant

_MARK = "__mesh_tool__"
_HINTS = {"destructive": "destructiveHint", "read_only": "readOnlyHint", "idempotent": "idempotentHint"}
_OTHERWISE = {
    "name": "its name is that of the function",
    "description": "its description is the docstring of the function",
}
"""What other decorators of tools take, and where it is here."""


class WrongDeclaration(TypeError):
    """A decorator is not used as it can be. The message says all that there is to know."""


class ToolError(Exception):
    """Raised by a tool: it failed, and the model is told the message, which it may act on."""


@dataclass(frozen=True)
class Declared:
    """A function that a file offers. ``hints`` are those of MCP that the decorator said. ``is_check``: it is
    not shown to models. ``check`` finds out whether a call of this tool took place."""

    function: Callable[..., Any]
    hints: dict[str, bool] = field(default_factory=dict)
    is_check: bool = False
    check: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.function.__name__


DECLARED: list[Declared] = []
"""All of this process, in their order: of two functions with one name a module keeps only the second."""

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    destructive: bool | None = None,
    read_only: bool | None = None,
    idempotent: bool | None = None,
    check: Callable[..., Any] | None = None,
) -> Callable[[F], F]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    destructive: bool | None = None,
    read_only: bool | None = None,
    idempotent: bool | None = None,
    check: Callable[..., Any] | None = None,
    **unknown: object,
) -> Any:
    """Offers a function to models.

    ``destructive=True``: a person approves each call. ``read_only=True``: it changes nothing, so that nobody
    is asked, and it may run again. ``idempotent=True``: running it twice does no more than running it once.
    Without either of the first two, a person is asked.

    ``check`` finds out whether a call took place: see `mesh.tools`.
    """
    said = {"destructive": destructive, "read_only": read_only, "idempotent": idempotent}
    for problem in (*_unknown(unknown), *_no_bools(said)):
        raise WrongDeclaration(f"@tool: {problem}")
    if read_only and destructive:
        raise WrongDeclaration("@tool: a tool that is read_only cannot be destructive; say one of them")
    if check is not None and not _is_function(check):
        kind = type(check).__name__
        raise WrongDeclaration(f"@tool: check is a function with a name, and no {kind}; write one with def")
    hints = {_HINTS[name]: value for name, value in said.items() if value is not None}

    def declare(function: F) -> F:
        return _declared(function, Declared(function, hints, check=check), "tool")

    return declare if function is None else declare(function)


@overload
def check(function: F, /) -> F: ...
@overload
def check() -> Callable[[F], F]: ...
def check(function: Callable[..., Any] | None = None, /, **unknown: object) -> Any:
    """Marks a function as a check of answers. It returns True if the answer is valid, and otherwise a text
    that says what is wrong. It must not change anything, and models do not see it."""
    if unknown:
        raise WrongDeclaration(f"@check: unknown argument {next(iter(unknown))}; it takes none")
    if function is None:
        return check
    return _declared(function, Declared(function, {"readOnlyHint": True}, is_check=True), "check")


def declared_of(function: object) -> Declared | None:
    """Returns the declaration that a decorator attached to a function, or None."""
    found = noted_on(function)
    return found if found is not None and found.function is function else None


def noted_on(function: object) -> Declared | None:
    """Returns the declaration of a function, or of the one around which it was made: ``functools.wraps``
    copies all that was attached to that."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Declared) else None


def _unknown(arguments: Mapping[str, object]) -> Iterator[str]:
    for name in arguments:
        expected = _OTHERWISE.get(name) or meant(name.lower(), [*_HINTS, "check"])
        yield f"unknown argument {name}; {expected}"


def _no_bools(said: Mapping[str, object]) -> Iterator[str]:
    for name, value in said.items():
        if not isinstance(value, bool | None):
            yield f"{name} is of the type {type(value).__name__}; expected True or False"


def _is_function(value: object) -> bool:
    is_named = isinstance(getattr(value, "__name__", None), str)
    return is_named and callable(value) and not isinstance(value, type)


def _declared(function: F, declared: Declared, kind: str) -> F:
    if not _is_function(function):
        raise WrongDeclaration(f"@{kind}: it goes before a function, and not before a {_kind(function)}")
    if noted_on(function) is not None:
        name = declared.name
        raise WrongDeclaration(f"@{kind}: {name} is declared twice; put one of @tool and @check before it")
    setattr(function, _MARK, declared)
    DECLARED.append(declared)
    return function


def _kind(value: object) -> str:
    return "class" if isinstance(value, type) else type(value).__name__
