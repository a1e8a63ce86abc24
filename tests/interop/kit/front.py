"""A reverse proxy that says the id of each message in its text, too.

The compatibility kit tells by the id of a message what it wants of the agent, and a model reads text only.
What is added here is taken out again of the documents that come back: the kit looks for what it said.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

_METHODS = ["GET", "POST", "DELETE"]
_OUR_OWN = ("host", "content-length", "connection", "transfer-encoding", "accept-encoding")
_WITHIN_S = 60.0


def front(behind: str) -> Starlette:
    """The proxy before the agent at the URL ``behind``."""
    client = httpx.AsyncClient(base_url=behind, timeout=_WITHIN_S)
    ids: set[str] = set()

    async def passed(request: Request) -> Response:
        url = httpx.URL(path=request.url.path, query=request.url.query.encode())
        headers = {name: value for name, value in request.headers.items() if name not in _OUR_OWN}
        headers |= {"x-forwarded-host": request.headers["host"], "x-forwarded-proto": "http"}
        body = _with_id(await request.body(), ids)
        sent = client.build_request(request.method, url, headers=headers, content=body)
        answer = await client.send(sent, stream=True)
        kept = {name: value for name, value in answer.headers.items() if name not in _OUR_OWN}
        if "event-stream" in answer.headers.get("content-type", ""):
            return StreamingResponse(_pieces(answer), answer.status_code, kept)
        return Response(_without(ids, await answer.aread()), answer.status_code, kept)

    @asynccontextmanager
    async def closing(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(routes=[Route("/{path:path}", passed, methods=_METHODS)], lifespan=closing)


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


def _without(ids: set[str], body: bytes) -> bytes:
    for one in ids:
        body = body.replace(f"\\n{one}".encode(), b"")
    return body


def _with_id(body: bytes, ids: set[str]) -> bytes:
    try:
        asked = json.loads(body)
    except ValueError:
        return body
    message = _message(asked)
    if message is None:
        return body
    ids.add(message["messageId"])
    message["parts"].append({"text": message["messageId"]})
    return json.dumps(asked).encode()


def _message(asked: Any) -> dict[str, Any] | None:
    """The message of a request, if it has a whole one."""
    holder = asked.get("params", asked) if isinstance(asked, dict) else None
    message = holder.get("message") if isinstance(holder, dict) else None
    whole = isinstance(message, dict) and isinstance(message.get("parts"), list) and "messageId" in message
    return message if whole else None
