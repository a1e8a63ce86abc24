"""A client that calls an ASGI app without a server: as uvicorn would, byte for byte, and often.

What the app raises is raised here. A stream is left as soon as it has begun.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

WITHIN_S = 30.0


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # percent-encoded
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def call(app: Any, request: Request) -> Answer:
    """The app's answer."""
    async with asyncio.timeout(WITHIN_S):
        return await _Call(request).made(app)


class _Call:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._received = False
        self._leaves = asyncio.Event()
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []

    async def made(self, app: Any) -> Answer:
        await app(_scope(self._request), self._receive, self._send)
        return Answer(self._status, self._headers, b"".join(self._parts))

    async def _receive(self) -> dict[str, Any]:
        if not self._received:
            self._received = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
        else:
            self._parts.append(message.get("body", b""))
            if not message.get("more_body") or self._headers[b"content-type"].startswith(
                b"text/event-stream"
            ):
                self._leaves.set()


def _scope(request: Request) -> dict[str, Any]:
    named = {name for name, _ in request.headers}
    usual: Iterable[tuple[bytes, bytes]] = (
        (b"host", b"localhost:8080"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(request.body)).encode()),
    )
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8080),
        "client": ("127.0.0.1", 50_000),
        "method": request.method,
        "root_path": "",
        "path": unquote(request.path),
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "headers": [*request.headers, *(pair for pair in usual if pair[0] not in named)],
        "state": {},
    }
