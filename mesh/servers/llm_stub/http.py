"""One HTTP/1.1 connection of the stub: httptools parses, a route answers, the transport writes.

Invariant: one request at a time. A client that sends a second one before the answer to the first
(pipelining, which no LLM SDK does) loses its connection.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools
import msgspec

MOST_BODY = 64 * 1024 * 1024
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    413: "Content Too Large",
    429: "Too Many Requests",
}


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What goes back. ``chunks`` makes it an event stream.

    ``broken`` closes the connection before the answer or in its middle; ``hang`` never answers.
    Delays are seconds: before the answer, and between the chunks.
    """

    status: int = 200
    body: bytes = b""
    chunks: tuple[bytes, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    chunk_delay: float = 0.0
    broken: str = ""
    hang: bool = False


Route = Callable[[str, str, bytes], Reply]
"""(method, path with query, body) to a reply."""


class Connection(asyncio.Protocol):
    """Speaks HTTP/1.1 with keep-alive."""

    def __init__(self, route: Route, connections: "set[Connection]") -> None:
        self._route = route
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self._url = b""
        self._body: list[bytes] = []
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Drops the connection at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    # What httptools calls, in this order.

    def on_message_begin(self) -> None:
        if self._busy:
            self._transport.abort()
        self._url, self._body, self._size = b"", [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MOST_BODY:
            self._transport.abort()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._transport.is_closing():
            return
        self._busy = True
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        reply = self._route(self._parser.get_method().decode(), self._url.decode("latin-1"), body)
        if reply.hang:
            return
        if reply.delay > 0:
            self._timer = self._loop.call_later(reply.delay, self._answer, reply)
        else:
            self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        if reply.broken == "before":
            self._transport.abort()
        elif reply.chunks:
            self._transport.write(_head(reply, "text/event-stream", "transfer-encoding: chunked"))
            cut = len(reply.chunks) // 2
            self._stream(reply, reply.chunks[:cut] if reply.broken else reply.chunks, 0)
        else:
            head = _head(reply, "application/json", f"content-length: {len(reply.body)}")
            cut = len(reply.body) // 2
            self._transport.write(head + (reply.body[:cut] if reply.broken else reply.body))
            self._done(reply)

    def _stream(self, reply: Reply, chunks: tuple[bytes, ...], at: int) -> None:
        if reply.chunk_delay > 0 and at < len(chunks):
            self._transport.write(_framed(chunks[at]))
            self._timer = self._loop.call_later(reply.chunk_delay, self._stream, reply, chunks, at + 1)
            return
        rest = b"".join(_framed(chunk) for chunk in chunks[at:])
        self._transport.write(rest if reply.broken else rest + b"0\r\n\r\n")
        self._done(reply)

    def _done(self, reply: Reply) -> None:
        self._busy = False
        if reply.broken or not self._parser.should_keep_alive():
            self._transport.close()


def _framed(chunk: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(chunk), chunk)


def _head(reply: Reply, content_type: str, length: str) -> bytes:
    extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    reason = _REASONS.get(reply.status, "Scripted")
    head = f"HTTP/1.1 {reply.status} {reason}\r\ncontent-type: {content_type}\r\n{length}\r\n{extra}\r\n"
    return head.encode("latin-1")
