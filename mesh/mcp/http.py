"""The transport to a server over Streamable HTTP: the SDK's, with what it leaves out.

That is a bound on JSON bodies, an account of what went wrong, and whether an error is the server's own.

Above: `mesh.mcp.connection`. Below: the SDK's `streamable_http_client` over httpx2. A refused connection
breaks the SDK's task group and so cancels the task that entered it; the owner of the connection expects that.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp.client.streamable_http import streamable_http_client
from pydantic import ValidationError

from mesh.net import bodies

# At INFO it logs each request with its full URL, and a URL may contain a key.
logging.getLogger("httpx2").setLevel(logging.WARNING)

CONNECT_TIMEOUT_S = 10.0
GOODBYE_TIMEOUT_S = 2.0
REFUSED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
"""The errors which prove that a request did not reach the server."""
TAIL_BYTES = 64 << 10
KEPT_TAILS = 8


def shown(url: str) -> str:
    """Returns ``url`` as it may be shown: without user, password, query and fragment."""
    parsed = httpx2.URL(url)
    port = f":{parsed.port}" if parsed.port else ""
    return f"{parsed.scheme}://{parsed.host}{port}{parsed.path}"


class BodyRefused(httpx2.StreamError):
    """The body is over its bound. The SDK answers the waiting request when it meets a `StreamError`; any
    other error would end the session."""


class WatchedBody(httpx2.AsyncByteStream):
    """The body of a response, of at most ``limit`` bytes if that is given. Its last bytes are kept in
    ``tail``."""

    def __init__(self, body: httpx2.AsyncByteStream, limit: int | None, tail: bytearray) -> None:
        self._body = body
        self._limit = limit
        self._tail = tail

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = self._body if self._limit is None else bodies.at_most(self._limit, self._body)
        try:
            async for chunk in chunks:
                self._tail += chunk[-TAIL_BYTES:]
                del self._tail[:-TAIL_BYTES]
                yield chunk
        except bodies.BodyTooLarge as problem:
            raise BodyRefused(str(problem)) from None

    async def aclose(self) -> None:
        await self._body.aclose()


class HttpTransport:
    """One connection to an HTTP server, from `__aenter__` to `__aexit__`; used once. See
    `mesh.mcp.connection.McpTransport`.

    ``max_body`` (bytes) bounds a JSON body and an event of a stream.
    """

    def __init__(self, url: str, headers: Mapping[str, str], max_body: int) -> None:
        self.problem = ""
        self.reached_server = True
        self.session_expired = False
        self.max_body = max_body
        self.url = url
        self._headers = headers
        self._tails: deque[bytearray] = deque(maxlen=KEPT_TAILS)
        self._stack = AsyncExitStack()

    def begin_call(self) -> None:
        # Only a refused connection and a 404 prove that a call did not arrive.
        self.reached_server = True
        self.problem = ""
        self._tails.clear()

    def abort(self, reason: str) -> None:
        # Nothing to kill: the connection is closed on leaving.
        self.problem = self.problem or reason

    def is_from_server(self, error: types.ErrorData) -> bool:
        """Whether a response that arrived since `begin_call` contains the error.

        The SDK puts an error of its own in place of an answer that never came, in the same form as those of
        the server. After the server's own error the call has ended; after one of the SDK's it may have run.
        """
        return any(error == found for tail in self._tails for found in errors_in(bytes(tail)))

    async def __aenter__(self) -> tuple[Any, Any]:  # the SDK does not export the types of its streams
        client = await self._stack.enter_async_context(WatchedClient(self, dict(self._headers)))
        transport = streamable_http_client(self.url, http_client=client, max_sse_event_size=self.max_body)
        return await self._stack.enter_async_context(transport)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def watch(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Takes note of a response, and bounds its body."""
        if response.status_code >= 400 and request.method == "POST":
            status = f"HTTP {response.status_code} {response.reason_phrase}"
            self.problem = f"{shown(self.url)} answered {status}"
            if response.status_code == 404:
                self.session_expired = "mcp-session-id" in request.headers
                self.reached_server = self.reached_server and not calls_tool(request)
        # The SDK bounds the events of a stream, but not a JSON body.
        is_json = response.headers.get("content-type", "").startswith("application/json")
        limit = self.max_body if is_json else None
        if is_json and response.headers.get("content-encoding", "identity") != "identity":
            # Nobody asked for it, and a bound on compressed bytes does not bound what they decompress to.
            self.problem = f"{shown(self.url)} sent a compressed body"
            limit = 0
        tail = bytearray()
        self._tails.append(tail)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = WatchedBody(response.stream, limit, tail)

    def fail(self, request: httpx2.Request, error: httpx2.TransportError) -> None:
        """Takes note of a request without a response."""
        if request.method != "POST":
            return
        self.problem = f"{shown(self.url)}: {str(error) or type(error).__name__}"
        if isinstance(error, REFUSED) and calls_tool(request):
            self.reached_server = False


class WatchedClient(httpx2.AsyncClient):
    """Reports to the transport what happens to its requests; otherwise a client like any other."""

    def __init__(self, transport: HttpTransport, headers: dict[str, str]) -> None:
        # Reading has no bound of its own: an answer may take as long as the call's deadline allows.
        timeout = httpx2.Timeout(
            None, connect=CONNECT_TIMEOUT_S, write=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S
        )
        super().__init__(headers={"accept-encoding": "identity"} | headers, timeout=timeout)
        self._reports_to = transport

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            # The SDK says goodbye to servers that may be gone: that must not delay the end of a session.
            with anyio.fail_after(GOODBYE_TIMEOUT_S if request.method == "DELETE" else None):
                response = await super().send(request, **options)
        except httpx2.TransportError as error:
            self._reports_to.fail(request, error)
            raise
        self._reports_to.watch(request, response)
        return response


def calls_tool(request: httpx2.Request) -> bool:
    """Whether a request is a tool call, by its first bytes: the SDK writes the method before the
    parameters."""
    return b'"method":"tools/call"' in request.content[:256]


def errors_in(body: bytes) -> list[types.ErrorData]:
    """Returns the JSON-RPC errors in a body, which is one JSON message or a stream of events."""
    events = [line.removeprefix(b"data:") for line in body.splitlines() if line.startswith(b"data:")]
    found = []
    for text in (body, *events):
        with suppress(ValidationError):  # anything else, or the first event of a body that was cut
            message = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
            if isinstance(message, types.JSONRPCError):
                found.append(message.error)
    return found
