"""Streamable HTTP as the pair of streams that the SDK's client takes, with what the SDK leaves out:
a bound on JSON bodies, and an account of what went wrong.

Above: `mesh.mcp.link`. Below: the SDK's `streamable_http_client` over httpx2. A refused connection
breaks the SDK's task group and so cancels the task that entered it: the link's owner expects that.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import anyio
import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

# At INFO it logs each request with its full URL, and a URL may carry a key.
logging.getLogger("httpx2").setLevel(logging.WARNING)

CONNECT_S = 10.0
GOODBYE_S = 2.0
REFUSED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


def shown(url: str) -> str:
    """``url`` as it may be shown: without user, password, query and fragment."""
    parsed = httpx2.URL(url)
    port = f":{parsed.port}" if parsed.port else ""
    return f"{parsed.scheme}://{parsed.host}{port}{parsed.path}"


class BodyTooLarge(httpx2.StreamError):
    """The SDK answers the waiting request when it meets a `StreamError`; others end the session."""


class BoundedBody(httpx2.AsyncByteStream):
    """A body that fails once it is over ``limit`` bytes."""

    def __init__(self, body: httpx2.AsyncByteStream, limit: int) -> None:
        self._body = body
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._body:
            size += len(part)
            if size > self._limit:
                raise BodyTooLarge(f"the body is over the bound of {self._limit} bytes")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()


class HttpWire:
    """One connection to an HTTP server, from `__aenter__` to `__aexit__`; used once.

    ``max_body`` (bytes) bounds a JSON body and an event of a stream. `trouble` says what went wrong
    last, for a person; `forgotten` that the server does not know the session any more.
    """

    def __init__(self, url: str, headers: Mapping[str, str], max_body: int) -> None:
        self.trouble = ""
        self.reached = True
        self.forgotten = False
        self.max_body = max_body
        self.url = url
        self._headers = headers
        self._stack = AsyncExitStack()

    def mark(self) -> None:
        """From here on `reached` says whether a tool call may have arrived. Only a refused connection
        and a 404 prove that it did not."""
        self.reached = True
        self.trouble = ""

    def doom(self, why: str) -> None:
        """The server is beyond hope. Nothing to kill: the connection is closed on leaving."""
        self.trouble = self.trouble or why

    async def __aenter__(self) -> TransportStreams:
        client = await self._stack.enter_async_context(WatchedClient(self, dict(self._headers)))
        transport = streamable_http_client(self.url, http_client=client, max_sse_event_size=self.max_body)
        return await self._stack.enter_async_context(transport)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)


class WatchedClient(httpx2.AsyncClient):
    """Tells the wire what happens to its requests; otherwise a client as any other."""

    def __init__(self, wire: HttpWire, headers: dict[str, str]) -> None:
        # Reading has no bound of its own: an answer may take as long as the call's deadline allows.
        timeout = httpx2.Timeout(None, connect=CONNECT_S, write=CONNECT_S, pool=CONNECT_S)
        super().__init__(headers=headers, timeout=timeout)
        self._wire = wire

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            # The goodbye is said to servers that may be gone: it must not hold up the end.
            with anyio.fail_after(GOODBYE_S if request.method == "DELETE" else None):
                response = await super().send(request, **options)
        except httpx2.TransportError as error:
            self._failed(request, error)
            raise
        self._answered(request, response)
        return response

    def _failed(self, request: httpx2.Request, error: httpx2.TransportError) -> None:
        if request.method != "POST":
            return
        self._wire.trouble = f"{shown(self._wire.url)}: {str(error) or type(error).__name__}"
        if isinstance(error, REFUSED) and calls_tool(request):
            self._wire.reached = False

    def _answered(self, request: httpx2.Request, response: httpx2.Response) -> None:
        if response.status_code >= 400 and request.method == "POST":
            status = f"HTTP {response.status_code} {response.reason_phrase}"
            self._wire.trouble = f"{shown(self._wire.url)} answered {status}"
            if response.status_code == 404:
                self._wire.forgotten = "mcp-session-id" in request.headers
                self._wire.reached = self._wire.reached and not calls_tool(request)
        if response.headers.get("content-type", "").startswith("application/json"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = BoundedBody(response.stream, self._wire.max_body)


def calls_tool(request: httpx2.Request) -> bool:
    """By its first bytes: the SDK writes the method before the parameters."""
    return b'"method":"tools/call"' in request.content[:256]
