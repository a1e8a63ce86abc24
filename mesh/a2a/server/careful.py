"""What goes wrong inside, as clients are told it: that it went wrong, and nothing of what."""

import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from a2a.utils.errors import A2AError, InternalError
from starlette.exceptions import HTTPException

_log = logging.getLogger("mesh.gateway")
_OURS = (A2AError, HTTPException)
_TOLD = "internal error; the log of the mesh has more"
Kind = TypeVar("Kind", bound=type)


def careful(kind: Kind) -> Kind:
    """A request handler whose operations tell of a bug to the log alone. The SDK would tell the client."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("on_"):
            setattr(kind, name, _stream(method) if inspect.isasyncgenfunction(method) else _answer(method))
    return kind


def _answer(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def careful_answer(*args: Any) -> Any:
        try:
            return await method(*args)
        except _OURS:
            raise
        except Exception:  # noqa: BLE001 - told to the log, and to the client that it is there
            _log.exception("event=a2a_failed operation=%s", method.__name__)
            raise InternalError(_TOLD) from None

    return careful_answer


def _stream(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def careful_stream(*args: Any) -> AsyncGenerator[Any, None]:
        try:
            async for update in method(*args):
                yield update
        except _OURS:
            raise
        except Exception:  # noqa: BLE001 - told to the log, and to the client that it is there
            _log.exception("event=a2a_failed operation=%s", method.__name__)
            raise InternalError(_TOLD) from None

    return careful_stream
