"""HTTP to an application in the same process."""

import asyncio
from typing import Any

import httpx2
import pytest

from mesh.net.asgi import AsgiTransport, Message

START = {"type": "http.response.start", "status": 200, "headers": [(b"x-kind", b"test")]}


def client(app: Any, read_s: float = 30.0) -> httpx2.AsyncClient:
    timeout = httpx2.Timeout(30.0, read=read_s)
    return httpx2.AsyncClient(transport=AsgiTransport(app), base_url="http://mesh", timeout=timeout)


def chunk(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_the_application_gets_the_request_and_the_client_its_response() -> None:
    async def app(scope: Message, receive: Any, send: Any) -> None:
        message = await receive()
        await send({**START, "status": 201})
        seen = [scope["method"], scope["path"], scope["query_string"].decode(), message["body"].decode()]
        await send(chunk(" ".join(seen).encode(), more=False))

    async with client(app) as http:
        answer = await http.post("/a%20b", params={"x": "1"}, content="hi")
    assert (answer.status_code, answer.headers["x-kind"]) == (201, "test")
    assert answer.text == "POST /a b x=1 hi"


async def test_a_stream_arrives_as_it_is_sent_and_ends_with_its_reader() -> None:
    go = asyncio.Event()

    async def app(scope: Message, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await send(chunk(b"first"))
        await go.wait()
        await send(chunk(b"second"))
        await receive()

    async with client(app) as http, http.stream("GET", "/") as answer:
        body = answer.aiter_raw()
        assert await anext(body) == b"first"
        go.set()
        assert await anext(body) == b"second"
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_an_application_that_says_nothing_is_left_after_the_clients_own_time() -> None:
    ended = asyncio.Event()

    async def app(scope: Message, receive: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with client(app, read_s=0.05) as http:
        with pytest.raises(httpx2.ReadTimeout):
            await http.get("/")
    assert ended.is_set()


async def test_an_application_that_breaks_is_an_error_of_the_transport(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Message, receive: Any, send: Any) -> None:
        raise ValueError("a defect")

    async with client(app) as http:
        with pytest.raises(httpx2.RemoteProtocolError):
            await http.get("/x")
    assert "event=request_failed path=/x" in caplog.text and "a defect" in caplog.text
