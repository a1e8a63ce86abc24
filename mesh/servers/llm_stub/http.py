"""The HTTP server of the stub: aiohttp speaks HTTP, a route answers, faults are played on the connection."""

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import web

from mesh.net.bodies import BodyTooLarge, read_body

MAX_BODY_BYTES = 64 * 1024 * 1024


class StubResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What goes back. ``chunks`` makes it an event stream.

    ``broken`` closes the connection before the response or in its middle; ``hang`` never answers. Delays are
    seconds: before the response, and between the chunks.
    """

    status: int = 200
    body: bytes = b""
    chunks: tuple[bytes, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    chunk_delay: float = 0.0
    broken: str = ""
    hang: bool = False


Route = Callable[[str, str, bytes], StubResponse]
"""(method, path with query, body) to a response."""


class StubServer:
    """Serves a route, from `start` to `close`."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._runner: web.ServerRunner | None = None

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._runner.server.connections) if self._runner and self._runner.server else 0

    async def start(self, host: str, port: int) -> str:
        """Listens; port 0 picks a free one. Returns the URL. Raises `OSError`."""
        # A handler that hangs on purpose ends when its client leaves, and is cut off when the stub stops.
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0)
        await self._runner.setup()
        # Load tests open all their connections at once.
        await web.TCPSite(self._runner, host, port, backlog=4096).start()
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        """Drops every connection."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            body = await read_body(request.content.iter_any(), MAX_BODY_BYTES)
        except BodyTooLarge as error:
            return web.Response(status=413, text=str(error))
        response = self._route(request.method, request.raw_path, body)
        if response.hang:
            await asyncio.Event().wait()
        if response.delay > 0:
            await asyncio.sleep(response.delay)
        if response.broken == "before":
            return _cut(request, web.StreamResponse())
        if response.chunks:
            return await _stream(request, response)
        return await _plain(request, response)


async def _plain(request: web.BaseRequest, response: StubResponse) -> web.StreamResponse:
    headers = {"Content-Type": "application/json", **dict(response.headers)}
    if not response.broken:
        return web.Response(status=response.status, body=response.body, headers=headers)
    sent = web.StreamResponse(status=response.status, headers=headers)
    sent.content_length = len(response.body)
    await sent.prepare(request)
    await sent.write(response.body[: len(response.body) // 2])
    return _cut(request, sent)


async def _stream(request: web.BaseRequest, response: StubResponse) -> web.StreamResponse:
    headers = {"Content-Type": "text/event-stream", **dict(response.headers)}
    sent = web.StreamResponse(status=response.status, headers=headers)
    await sent.prepare(request)
    chunks = response.chunks[: len(response.chunks) // 2] if response.broken else response.chunks
    if response.chunk_delay > 0:
        for chunk in chunks:
            await sent.write(chunk)
            await asyncio.sleep(response.chunk_delay)
    elif chunks:
        await sent.write(b"".join(chunks))
    return _cut(request, sent) if response.broken else sent


def _cut(request: web.BaseRequest, sent: web.StreamResponse) -> web.StreamResponse:
    """Ends the connection after what was sent, whatever the response had promised."""
    if request.transport is not None:
        request.transport.close()
    return sent
