"""Errors of the mesh in the terms of A2A, and defects, of which clients learn nothing but that there is
one."""

import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from starlette.exceptions import HTTPException

from mesh.core.errors import (
    Conflict,
    JournalDamaged,
    JournalError,
    MeshError,
    NotFound,
    RequestError,
    Unavailable,
)
from mesh.net.http_status import retry_after_of

_log = logging.getLogger("mesh.gateway")
_EXPECTED = (A2AError, HTTPException)
_MESSAGE = "internal error; the log of the mesh has more"
Kind = TypeVar("Kind", bound=type)


@contextmanager
def a2a_errors() -> Iterator[None]:
    """Raises errors of the mesh as errors of A2A."""
    try:
        yield
    except MeshError as problem:
        raise a2a_error(problem) from None


def a2a_error(problem: MeshError) -> Exception:
    """The error of A2A that stands for an error of ours."""
    match problem:
        case NotFound():
            return TaskNotFoundError(f"Task not found: {problem}")
        case Conflict():
            return UnsupportedOperationError(str(problem))
        case RequestError():
            return InvalidParamsError(str(problem))
        case Unavailable() | JournalError() if not isinstance(problem, JournalDamaged):
            # The mesh cannot answer just now, and the request may have had its effect: that is no answer of
            # the protocol, which would be one of the agent.
            return HTTPException(503, str(problem), {"Retry-After": str(retry_after_of(problem) or 1)})
        case _:
            return InternalError(str(problem))


def hides_defects(kind: Kind) -> Kind:
    """Class decorator for a request handler: the details of an unexpected exception go to the log alone. The
    SDK would send them to the client."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("on_"):
            setattr(kind, name, _stream(method) if inspect.isasyncgenfunction(method) else _answer(method))
    return kind


def _answer(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def guarded(*args: Any) -> Any:
        try:
            return await method(*args)
        except _EXPECTED:
            raise
        except Exception:  # noqa: BLE001 - logged; the client gets an InternalError
            _log.exception("event=a2a_failed operation=%s", method.__name__)
            raise InternalError(_MESSAGE) from None

    return guarded


def _stream(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def guarded(*args: Any) -> AsyncGenerator[Any, None]:
        try:
            async for update in method(*args):
                yield update
        except _EXPECTED:
            raise
        except Exception:  # noqa: BLE001 - logged; the client gets an InternalError
            _log.exception("event=a2a_failed operation=%s", method.__name__)
            raise InternalError(_MESSAGE) from None

    return guarded
