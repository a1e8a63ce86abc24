"""Sessions over Streamable HTTP with servers that vanish, refuse and overdo: real sockets."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from mesh.core.errors import ToolSessionError
from mesh.mcp.http import shown
from mesh.mcp.session import McpSession
from tests.worlds.held import begun, held
from tests.worlds.ports import free_port
from tests.worlds.tool_servers import Spec, sdk_server, served, without_discover


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[McpSession]:
    session = McpSession(Spec(url=f"{url}/mcp", **options))
    try:
        yield session
    finally:
        await session.close()


def seen(app: Any, requests: list[dict[str, Any]]) -> Any:
    """``app``, with the headers and the method of each request noted."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            requests.append(
                {"verb": scope["method"], **{k.decode(): v.decode() for k, v in scope["headers"]}}
            )
        await app(scope, receive, send)

    return wrapped


def tampered(only: bytes, instead: Callable[[Any], Awaitable[None]]) -> Any:
    """The real server, but requests whose body contains ``only`` get what ``instead`` sends."""
    real = sdk_server().streamable_http_app(json_response=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await real(scope, receive, send)
        first = [await receive()]
        if only in first[0]["body"]:
            return await instead(send)

        async def again() -> Any:
            return first.pop() if first else await receive()

        return await real(scope, again, send)

    return app


def answering(status: int, body: bytes, content_type: str = "text/plain", only: bytes = b"") -> Any:
    async def answer(send: Any) -> None:
        headers = [(b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return tampered(only, answer)


async def test_configured_headers_go_out_with_each_request() -> None:
    requests: list[dict[str, Any]] = []
    secret = {"Authorization": "Bearer t0ken-for-tests"}
    app = seen(sdk_server().streamable_http_app(), requests)
    async with served(app) as url, opened(url, headers=secret) as session:
        await session.call("echo", {"text": "x"})
    assert requests
    assert all(request["authorization"] == "Bearer t0ken-for-tests" for request in requests)


async def test_a_server_that_is_not_there_is_named_with_its_address() -> None:
    port = free_port()
    async with opened(f"http://user:pass@127.0.0.1:{port}") as session:
        with pytest.raises(ToolSessionError, match=rf"srv: http://127\.0\.0\.1:{port}/mcp") as raised:
            await session.catalogue()
        assert not raised.value.may_have_run
        assert "pass" not in str(raised.value)
        with pytest.raises(ToolSessionError, match=r"not started within 0\.3 s") as raised:
            await session.call("echo", {"text": "x"}, timeout_s=0.3)
        assert not raised.value.may_have_run


@pytest.mark.parametrize("old", [False, True], ids=["2026", "2025"])
async def test_a_call_waits_for_a_server_that_comes_back(old: bool) -> None:
    port = free_port()

    def app() -> Any:
        real = sdk_server().streamable_http_app()
        return without_discover(real) if old else real

    async with opened(f"http://127.0.0.1:{port}") as session:
        async with served(app(), port):
            assert (await session.call("echo", {"text": "1"})).content == "1"
        waiting = asyncio.create_task(session.call("echo", {"text": "2"}, timeout_s=60))
        await asyncio.sleep(0.2)
        async with served(app(), port):
            assert (await waiting).content == "2"


async def test_a_session_that_the_server_forgot_is_opened_anew() -> None:
    apps = [without_discover(sdk_server().streamable_http_app()) for _ in range(2)]

    async def moving(scope: Any, receive: Any, send: Any) -> None:
        await apps[current](scope, receive, send)

    current = 0
    # Both apps need their lifespan: the second is served on a port of its own.
    async with served(apps[1]), served(moving) as url, opened(url) as session:
        assert (await session.call("echo", {"text": "1"})).content == "1"
        current = 1
        assert (await session.call("echo", {"text": "2"})).content == "2"


async def test_a_connection_that_breaks_in_a_call_may_have_run_it() -> None:
    async def break_off(send: Any) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"99")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})

    async with served(tampered(b"tools/call", break_off)) as url, opened(url) as session:
        async with asyncio.timeout(30):
            with pytest.raises(ToolSessionError) as raised:
                await session.call("echo", {"text": "x"})
        assert raised.value.may_have_run


@pytest.mark.parametrize(("status", "words"), [(401, "HTTP 401"), (502, "HTTP 502"), (503, "HTTP 503")])
async def test_an_http_error_at_the_start_is_said_as_such(status: int, words: str) -> None:
    async with served(answering(status, b"no")) as url, opened(url) as session:
        with pytest.raises(ToolSessionError, match=words):
            await session.catalogue()


async def test_an_http_error_of_a_proxy_in_a_call_may_have_run_it() -> None:
    async with served(answering(502, b"bad gateway", only=b"tools/call")) as url, opened(url) as session:
        with pytest.raises(ToolSessionError, match="HTTP 502") as raised:
            await session.call("echo", {"text": "x"})
        assert raised.value.may_have_run


async def test_an_answer_that_is_no_mcp_may_have_run() -> None:
    app = answering(200, b"{]", "application/json", only=b"tools/call")
    async with served(app) as url, opened(url) as session:
        with pytest.raises(ToolSessionError) as raised:
            await session.call("echo", {"text": "x"})
        assert raised.value.may_have_run


async def test_a_json_rpc_error_of_the_server_is_an_outcome_whatever_the_status() -> None:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        raise MCPError(code=types.INVALID_PARAMS, message="no such thing")

    app = Server("x", on_list_tools=list_tools, on_call_tool=call_tool).streamable_http_app(
        json_response=True
    )
    async with served(app) as url, opened(url) as session:
        outcome = await session.call("echo", {})
    assert outcome.is_error
    assert "no such thing" in outcome.content


@pytest.mark.parametrize("fails", ["list", "call"])
async def test_no_error_shows_a_configured_header(fails: str) -> None:
    refused = MCPError(code=-32000, message="t0ken-for-tests is not valid")

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        if fails == "list":
            raise refused
        return types.ListToolsResult(tools=[])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        raise refused

    server = Server("x", on_list_tools=list_tools, on_call_tool=call_tool)
    headers = {"Authorization": "Bearer t0ken-for-tests"}
    app = server.streamable_http_app(json_response=True)
    async with served(app) as url, opened(url, headers=headers) as session:
        if fails == "call":
            said = (await session.call("echo", {})).content
        else:
            with pytest.raises(ToolSessionError) as raised:
                await session.catalogue()
            said = str(raised.value)
    assert "*** is not valid" in said
    assert "t0ken" not in said


@pytest.mark.parametrize("json_response", [False, True], ids=["sse", "json"])
@pytest.mark.parametrize("message", ["Session terminated", "Not Found", "SSE stream ended"])
async def test_a_servers_own_error_is_an_outcome_whatever_its_words(
    message: str, json_response: bool
) -> None:
    """The SDK puts errors with these words in place of answers that never came."""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        raise MCPError(code=types.INVALID_REQUEST, message=message)

    server = Server("x", on_list_tools=list_tools, on_call_tool=call_tool)
    app = server.streamable_http_app(json_response=json_response)
    async with served(app) as url, opened(url) as session:
        outcome = await session.call("echo", {})
    assert outcome.is_error
    assert outcome.content == f"the server refused the call: {message}"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answering(202, b"", only=b"tools/call"), id="202"),
        pytest.param(answering(307, b"", only=b"tools/call"), id="no location"),
        pytest.param(answering(200, b"hello", "text/html", only=b"tools/call"), id="html"),
        pytest.param(
            answering(200, b"data: no json\n\n", "text/event-stream", only=b"tools/call"), id="event"
        ),
        pytest.param(answering(200, b"", "text/event-stream", only=b"tools/call"), id="empty stream"),
        pytest.param(answering(500, b'{"error": "down"}', "application/json", only=b"tools/call"), id="500"),
    ],
)
async def test_an_error_that_the_sdk_puts_in_place_of_an_answer_may_have_run(answer: Any) -> None:
    async with served(answer) as url, opened(url) as session:
        with pytest.raises(ToolSessionError) as raised:
            await session.call("echo", {"text": "x"})
        assert raised.value.may_have_run


async def test_a_compressed_body_does_not_get_past_the_bound() -> None:
    """A few kilobytes may decompress to gigabytes."""
    result = {"content": [{"type": "text", "text": "x" * (50 << 20)}]}
    body = gzip.compress(json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode())

    async def answer(send: Any) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with served(tampered(b"tools/call", answer)) as url, opened(url) as session:
        with pytest.raises(ToolSessionError, match="sent a compressed body") as raised:
            await session.call("echo", {"text": "x"})
        assert raised.value.may_have_run


@pytest.mark.parametrize("json_response", [False, True], ids=["sse", "json"])
async def test_results_over_a_megabyte_arrive_and_those_over_the_bound_do_not(json_response: bool) -> None:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        size = (params.arguments or {})["n"]
        return types.CallToolResult(content=[types.TextContent(text="x" * size)])

    server = Server("x", on_list_tools=list_tools, on_call_tool=call_tool)
    app = server.streamable_http_app(json_response=json_response)
    async with served(app) as url, opened(url, max_result_bytes=2 << 20) as session:
        assert len((await session.call("big", {"n": 2 << 20})).content) == 2 << 20
        outcome = await session.call("big", {"n": 3 << 20})
        assert outcome.is_error
        assert "the tool ran" in outcome.content
        with pytest.raises(ToolSessionError) as raised:
            await session.call("big", {"n": 6 << 20})
        assert raised.value.may_have_run
        assert len((await session.call("big", {"n": 5})).content) == 5


async def test_a_server_that_hangs_does_not_hold_up_closing(tmp_path: Path) -> None:
    async with served(sdk_server().streamable_http_app()) as url:
        session = McpSession(Spec(url=f"{url}/mcp"))
        await session.catalogue()
        call = held(session, tmp_path, 0)
        await begun(tmp_path, 1)
        async with asyncio.timeout(30):
            await session.close()
        with pytest.raises(ToolSessionError) as raised:
            await call
        assert raised.value.may_have_run


def test_an_address_is_shown_without_what_may_be_secret() -> None:
    assert shown("https://me:pw@host.example:8443/mcp?key=1#x") == "https://host.example:8443/mcp"
    assert json.dumps(shown("http://host/mcp")) == '"http://host/mcp"'
