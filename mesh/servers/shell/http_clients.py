"""Notices that nobody waits for an answer over HTTP any more.

In the protocols of MCP before 2026, a call goes on when its request is closed: a client might resume it
later. Nobody can resume it here, because no answers are kept. So its command is ended, as one over stdio is,
and what came of it can be looked up.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

_OVER = "mesh.request_over"


class NotesEnd:
    """Middleware: whoever handles a request can see that it is over, answered or not."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        scope[_OVER] = over = anyio.Event()
        try:
            await self._app(scope, receive, send)
        finally:
            over.set()


@asynccontextmanager
async def until_over(request: "Request | None") -> AsyncIterator[None]:
    """Breaks off what is in the ``with`` statement when its request is over. Without a request, never."""
    if request is None:
        yield
        return
    with anyio.CancelScope() as here:
        watching = asyncio.create_task(_cancel_after(request.scope[_OVER], here))
        try:
            yield
        finally:
            watching.cancel()


async def _cancel_after(over: anyio.Event, scope: anyio.CancelScope) -> None:
    await over.wait()
    scope.cancel()
