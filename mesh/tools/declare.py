"""The decorators: they note what a function is, and return it as it was."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

_MARK = "__mesh_tool__"


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
) -> Any:
    """Offers a function to models.

    ``destructive=True``: a person approves each call. ``read_only=True``: it changes nothing, so that nobody
    is asked, and it may run again. ``idempotent=True``: running it twice does no more than running it once.
    Without either of the first two, a person is asked.

    ``check`` finds out whether a call took place: see `mesh.tools`.
    """
    if read_only and destructive:
        raise TypeError("a tool that is read_only cannot be destructive; say one of them")
    if check is not None and not _is_function(check):
        raise TypeError(f"check is a function with a name, and no {type(check).__name__}; write one with def")
    said = {"destructiveHint": destructive, "readOnlyHint": read_only, "idempotentHint": idempotent}
    hints = {name: value for name, value in said.items() if value is not None}

    def declare(function: F) -> F:
        return _declared(function, Declared(function, hints, check=check), "tool")

    return declare if function is None else declare(function)


def check(function: F, /) -> F:
    """Marks a function as a check of answers. It returns True if the answer is valid, and otherwise a text
    that says what is wrong. It must not change anything, and models do not see it."""
    return _declared(function, Declared(function, {"readOnlyHint": True}, is_check=True), "check")


def declared_of(function: object) -> Declared | None:
    """Returns the declaration that a decorator attached to a function, or None."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Declared) else None


def _is_function(value: object) -> bool:
    return callable(value) and isinstance(getattr(value, "__name__", None), str)


def _declared(function: F, declared: Declared, kind: str) -> F:
    if not _is_function(function):
        raise TypeError(f"@{kind} goes before a function")
    if declared_of(function) is not None:
        raise TypeError(f"{declared.name} is declared twice; put one of @tool and @check before it")
    setattr(function, _MARK, declared)
    DECLARED.append(declared)
    return function
