"""What goes over the wire to a provider besides the wire format, and what is not accepted from it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from mesh.core.errors import LlmError
from mesh.core.events import ToolCall
from mesh.core.messages import Assistant, Result, Results, ToolSpec, User
from mesh.llm import http
from mesh.llm.routing import provider_for
from tests.worlds.providers import FORMATS, KEY, MODELS, answer_of, env_for, provider, request

ANSWERS = {
    "openai": b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}',
    "anthropic": b'{"content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn"}',
    "gemini": b'{"candidates":[{"content":{"parts":[{"text":"Hi"}]},"finishReason":"STOP"}]}',
}


@asynccontextmanager
async def server(status: str, headers: str, body: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that answers every request so; its URL, and the heads of the requests that it got."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        length = f"content-length: {len(body)}\r\nconnection: close\r\n"
        writer.write(f"HTTP/1.1 {status}\r\n{headers}{length}\r\n".encode() + body)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", heads


@pytest.mark.parametrize("wire", FORMATS)
async def test_the_key_of_the_provider_is_sent_and_no_other(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_ADMIN_KEY", "ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY"):
        monkeypatch.setenv(variable, "of-somebody-else")
    async with server("200 OK", "content-type: application/json\r\n", ANSWERS[wire]) as (url, heads):
        llm = provider_for(MODELS[wire], env_for(url))
        assert (await answer_of(llm, request(wire))).text == "Hi"
        await llm.close()
    (head,) = heads
    assert KEY in head
    assert "of-somebody-else" not in head


@pytest.mark.parametrize("wire", FORMATS)
async def test_cookies_are_not_carried_from_one_call_to_the_next(wire: str) -> None:
    headers = "content-type: application/json\r\nset-cookie: who=me\r\n"
    async with server("200 OK", headers, ANSWERS[wire]) as (url, heads):
        llm = provider_for(MODELS[wire], env_for(url))
        for _ in range(2):
            await answer_of(llm, request(wire))
        await llm.close()
    assert len(heads) == 2
    assert "who=me" not in heads[1]


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("deltas", [False, True], ids=["plain", "stream"])
async def test_a_redirect_is_not_followed(wire: str, deltas: bool) -> None:
    async with server("200 OK", "", b"") as (elsewhere, stolen):
        location = f"location: {elsewhere}/\r\n"
        async with server("307 Temporary Redirect", location, b"") as (url, _):
            llm = provider_for(MODELS[wire], env_for(url))
            with pytest.raises(LlmError):
                await answer_of(llm, request(wire, deltas=deltas))
            await llm.close()
    assert stolen == []


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("deltas", [False, True], ids=["plain", "stream"])
async def test_an_answer_without_end_is_refused(
    wire: str, deltas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 5_000)
    endless = {"rules": [{"answer": {"text": "word " * 5_000}}]}
    async with provider(wire, endless) as (_, llm):
        with pytest.raises(LlmError, match="over 5000 bytes"):
            await answer_of(llm, request(wire, deltas=deltas))


async def test_the_keys_of_a_request_are_sent_as_they_are() -> None:
    """Google's SDK renames keys to and fro; a tool's schema and the arguments of a call are not its own."""
    properties = {name: {"type": "string"} for name in ("max_output_tokens", "maxOutputTokens", "_url")}
    tool = ToolSpec("ask", "Asks.", {"type": "object", "properties": properties})
    call = ToolCall("id-1", "ask", dict.fromkeys(properties, "x"))
    async with provider("gemini", None) as (stub, llm):
        said = (User("Go"), Assistant("", (call,)), Results((Result("id-1", "ask", "done"),)))
        await answer_of(llm, request("gemini", *said, tools=(tool,), max_tokens=9))
    sent = stub.calls[0].json
    assert sent.keys() == {"contents", "systemInstruction", "tools", "generationConfig"}
    assert sent["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"] == tool.input_schema
    assert sent["contents"][1]["parts"][0]["functionCall"]["args"] == call.arguments
    assert sent["generationConfig"] == {"maxOutputTokens": 9}


async def test_gemini_is_called_in_the_version_that_has_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_API_VERSION", "v1")
    async with provider("gemini", None) as (stub, llm):
        await answer_of(llm, request("gemini"))
    assert stub.calls[0].path == "/v1beta/models/gemini-test:generateContent"


async def test_a_model_whose_name_the_sdk_refuses_is_an_error_of_the_call() -> None:
    async with provider("gemini", None) as (stub, llm):
        with pytest.raises(LlmError, match=r"gemini model up/\.\./down: no such model"):
            await answer_of(llm, msgspec.structs.replace(request("gemini"), model="google:up/../down"))
    assert stub.calls == []


async def test_an_error_that_is_no_json_is_shown_as_it_came() -> None:
    async with server("403 Forbidden", "content-type: text/html\r\n", b"<h1>Blocked here</h1>") as (url, _):
        llm = provider_for(MODELS["gemini"], env_for(url))
        with pytest.raises(LlmError, match="HTTP 403: <h1>Blocked here</h1>"):
            await answer_of(llm, request("gemini"))
        await llm.close()
