"""HTTP to an application in the same process: no sockets, and streams arrive as they are sent."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx2

_log = logging.getLogger("mesh.http")
_MOST_CHUNKS = 16
"""Chunks of a response that wait for its reader; then the application does."""

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class AsgiTransport(httpx2.AsyncBaseTransport):
    """Sends each request to ``app``, in a task of its own that ends with the response. httpx2's own transport
    of this kind returns a response when it is complete, which an event stream never is."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _Exchange(self._app, request, await request.aread())
        try:
            status, headers = await exchange.started()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx2.Response(status, headers=headers, stream=exchange)


class _Exchange(httpx2.AsyncByteStream):
    """One request and its response, whose body this is."""

    def __init__(self, app: AsgiApp, request: httpx2.Request, body: bytes) -> None:
        self._body: bytes | None = body
        self._read_within_s = request.extensions.get("timeout", {}).get("read")
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue(_MOST_CHUNKS)
        self._is_over = asyncio.Event()
        self._task = asyncio.create_task(self._run(app, _scope(request)))

    async def started(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Returns status and headers. Raises `httpx2.TransportError`."""
        message = await self._next()
        if message is None:
            raise httpx2.RemoteProtocolError("the application ended without a response")
        return message["status"], list(message.get("headers", []))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._next()) is not None:
            yield message.get("body", b"")

    async def aclose(self) -> None:
        self._is_over.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _next(self) -> Message | None:
        """The next message of the application; None when it has ended."""
        try:
            async with asyncio.timeout(self._read_within_s):
                return await self._sent.get()
        except TimeoutError:
            raise httpx2.ReadTimeout("no answer in time") from None

    async def _run(self, app: AsgiApp, scope: Message) -> None:
        try:
            await app(scope, self._receive, self._sent.put)
        except Exception:  # noqa: BLE001 - a defect: the client gets what was sent before it
            _log.exception("event=request_failed path=%s", scope["path"])
        await self._sent.put(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_over.wait()
        return {"type": "http.disconnect"}


def _scope(request: httpx2.Request) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }
