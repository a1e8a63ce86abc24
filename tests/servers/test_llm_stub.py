"""The scripted model server: what its scripts mean, what it refuses, and that it is fast."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mesh.core.errors import ConfigError
from mesh.servers.llm_stub import LlmStub
from mesh.servers.llm_stub.script import Script, load

PATHS = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/some-model:generateContent",
}


def body(wire: str, text: str, **more: Any) -> dict[str, Any]:
    if wire == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": text}]}], **more}
    return {"model": "some-model", "max_tokens": 9, "messages": [{"role": "user", "content": text}], **more}


def text_in(wire: str, answer: dict[str, Any]) -> str:
    if wire == "openai":
        return str(answer["choices"][0]["message"]["content"])
    if wire == "anthropic":
        return str(answer["content"][0]["text"])
    return str(answer["candidates"][0]["content"]["parts"][0]["text"])


async def ask(
    stub: LlmStub, text: str = "hi", wire: str = "openai", **more: Any
) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(stub.url + PATHS[wire], json=body(wire, text, **more)) as response,
    ):
        return response.status, await response.json()


async def said(stub: LlmStub, text: str = "hi", wire: str = "openai", **more: Any) -> str:
    status, answer = await ask(stub, text, wire, **more)
    assert status == 200
    return text_in(wire, answer)


@pytest.mark.parametrize("wire", list(PATHS))
async def test_without_a_script_it_echoes(wire: str) -> None:
    async with LlmStub() as stub:
        assert await said(stub, "good day", wire) == "echo: good day"


async def test_the_first_rule_that_fits_answers() -> None:
    rules = [
        {"match": {"model": "other-*"}, "answer": {"text": "wrong model"}},
        {"match": {"format": "gemini"}, "answer": {"text": "gemini"}},
        {"match": {"last": "^wea.*r$"}, "answer": {"text": "weather"}},
        {"match": {"tools": ["get_time"]}, "answer": {"text": "has a clock"}},
        {"match": {"conversation_call": 2}, "answer": {"text": "second of the conversation"}},
        {"match": {"from": "tool"}, "answer": {"text": "after a tool"}},
        {"match": {"call": 7}, "answer": {"text": "the seventh"}},
    ]
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    result = [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "1", "content": "42"}]
    async with LlmStub({"rules": rules}) as stub:
        assert await said(stub, "hi", "gemini") == "gemini"
        assert await said(stub, "weather") == "weather"
        assert await said(stub, tools=[{"function": {"name": "get_time"}}]) == "has a clock"
        assert await said(stub, messages=history) == "second of the conversation"
        assert await said(stub, messages=result) == "after a tool"
        assert await said(stub, "nothing fits") == "echo: nothing fits"
        assert await said(stub, "nothing fits") == "the seventh"


SYSTEM: dict[str, dict[str, Any]] = {
    "openai": {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]},
    "anthropic": {"system": [{"type": "text", "text": "Be kind."}]},
    "gemini": {"systemInstruction": {"parts": [{"text": "Be kind."}]}},
}


@pytest.mark.parametrize("wire", list(PATHS))
async def test_a_rule_can_go_by_the_system_prompt(wire: str) -> None:
    async with LlmStub({"rules": [{"match": {"system": "^Be k"}, "answer": {"text": "kindly"}}]}) as stub:
        assert await said(stub, "hi", wire, **SYSTEM[wire]) == "kindly"
        assert await said(stub, "Be kind.", wire) == "echo: Be kind."


COUNT = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}
ASKED_FOR: dict[str, dict[str, Any]] = {
    "openai": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": COUNT}}},
    "anthropic": {"output_config": {"format": {"type": "json_schema", "schema": COUNT}}},
    "gemini": {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": COUNT}},
}
TOOLS: dict[str, Any] = {
    "openai": [{"type": "function", "function": {"name": name, "parameters": COUNT}} for name in "ab"],
    "anthropic": [{"name": name, "input_schema": COUNT} for name in "ab"],
    "gemini": [
        {"functionDeclarations": [{"name": name, "parametersJsonSchema": COUNT} for name in "ab"]},
    ],
}
ANY_TOOL: dict[str, dict[str, Any]] = {
    "openai": {"tool_choice": "required"},
    "anthropic": {"tool_choice": {"type": "any"}},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
}
TOOL_A: dict[str, dict[str, Any]] = {
    "openai": {"tool_choice": {"type": "function", "function": {"name": "a"}}},
    "anthropic": {"tool_choice": {"type": "tool", "name": "a"}},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a"]}}},
}


@pytest.mark.parametrize("wire", list(PATHS))
async def test_without_a_rule_a_schema_is_honoured_and_so_is_a_tool_that_must_be_called(wire: str) -> None:
    async with LlmStub() as stub:
        assert json.loads(await said(stub, "hi", wire, **ASKED_FOR[wire])) == {"n": 3}
        for choice, name in ((ANY_TOOL, "b"), (TOOL_A, "a")):
            _, answer = await ask(stub, "hi", wire, tools=TOOLS[wire], **choice[wire])
            assert f'"name": "{name}"' in json.dumps(answer) and "echo" not in json.dumps(answer)
        assert await said(stub, "hi", wire, tools=TOOLS[wire]) == "echo: hi"


@pytest.mark.parametrize("wire", list(PATHS))
async def test_a_rule_can_refuse_schemas_or_answer_beside_them(wire: str) -> None:
    refusal = {"match": {"output_schema": True, "last": "refuse"}, "answer": {"status": 400}}
    rules = [refusal, {"match": {"output_schema": False}, "answer": {"text": "none"}}]
    prose = {"match": {"output_schema": True, "last": "prose"}, "answer": {"text": "prose"}}
    async with LlmStub({"rules": [*rules, prose]}) as stub:
        status, _ = await ask(stub, "refuse", wire, **ASKED_FOR[wire])
        assert status == 400
        assert await said(stub, "refuse", wire) == "none"
        assert await said(stub, "prose", wire, **ASKED_FOR[wire]) == "prose"


@pytest.mark.parametrize("choice", [{"type": "allowed_tools"}, {"type": "function", "function": {}}])
async def test_a_choice_of_tools_that_it_does_not_know_forces_none(choice: dict[str, Any]) -> None:
    async with LlmStub() as stub:
        assert await said(stub, tools=TOOLS["openai"], tool_choice=choice) == "echo: hi"


async def test_a_rule_is_spent_after_its_times() -> None:
    async with LlmStub({"rules": [{"times": 2, "answer": {"text": "twice"}}]}) as stub:
        assert [await said(stub) for _ in range(3)] == ["twice", "twice", "echo: hi"]


async def test_a_status_comes_with_its_headers() -> None:
    rule = {"answer": {"status": 429, "headers": {"retry-after": "7"}, "error": "slow down"}}
    async with (
        LlmStub({"rules": [rule]}) as stub,
        aiohttp.ClientSession() as client,
        client.post(stub.url + PATHS["openai"], json=body("openai", "hi")) as response,
    ):
        assert (response.status, response.headers["retry-after"]) == (429, "7")
        assert (await response.json())["error"]["message"] == "slow down"


async def test_delays_are_kept() -> None:
    async with LlmStub({"delay": [0.05, 0.06]}, latency_s=0.05) as stub:
        started = time.monotonic()
        await said(stub)
        assert time.monotonic() - started >= 0.1


async def test_faults_come_at_their_rate_and_are_the_same_every_time() -> None:
    async def statuses() -> list[int]:
        async with LlmStub({"seed": 3, "faults": {"error": 0.5, "status": 503}}) as stub:
            return [(await ask(stub))[0] for _ in range(20)]

    first = await statuses()
    assert first == await statuses()
    assert set(first) == {200, 503}


async def test_the_log_tells_what_was_asked_and_can_be_cleared(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    async with LlmStub({"log": str(file)}) as stub, aiohttp.ClientSession() as client:
        await said(stub, "remember me")
        async with client.get(f"{stub.url}/calls") as response:
            (call,) = await response.json()
        assert (call["number"], call["format"], call["model"]) == (1, "openai", "some-model")
        assert call["body"]["messages"] == [{"role": "user", "content": "remember me"}]
        assert stub.calls[0].json == call["body"]
        async with client.delete(f"{stub.url}/calls") as response:
            assert response.status == 200
        assert stub.calls == []
        assert json.loads(file.read_text()) == call


async def test_health_and_unknown_paths() -> None:
    async with LlmStub() as stub, aiohttp.ClientSession() as client:
        async with client.get(f"{stub.url}/health") as response:
            assert await response.json() == {"status": "ok"}
        async with client.get(f"{stub.url}/nowhere") as response:
            assert response.status == 404


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b'{"messages": 3}'])
async def test_what_is_no_request_gets_a_400(content: bytes) -> None:
    async with LlmStub() as stub, aiohttp.ClientSession() as client:
        for path in PATHS.values():
            async with client.post(stub.url + path, data=content) as response:
                assert response.status == 400
                assert "cannot read this request" in (await response.json())["error"]["message"]


async def test_what_is_not_http_is_refused_and_loses_its_connection() -> None:
    async with LlmStub() as stub:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(stub.url.rpartition(":")[2]))
        writer.write(b"\x16\x03\x01 not http\r\n\r\n")
        assert b" 400 " in (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n")[0]
        writer.close()


async def test_one_connection_carries_many_requests() -> None:
    async with LlmStub() as stub, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as client:
        for _ in range(5):
            async with client.post(stub.url + PATHS["openai"], json=body("openai", "hi")) as response:
                await response.read()
        assert stub._server.connections == 1


def test_a_wrong_script_names_every_rule_and_key() -> None:
    document = {
        "delay": [2, 1],
        "rules": [
            {"answer": {"text": "fine"}},
            {"match": {"last": "("}, "answer": {"status": 200}},
            {"nonsense": 1},
        ],
    }
    with pytest.raises(ConfigError) as caught:
        Script(document)
    text = str(caught.value)
    for place in (
        "delay",
        "rules[1].match.last",
        "rules[1].answer.status",
        "rules[2].answer",
        "rules[2].nonsense",
    ):
        assert f"script: {place}" in text


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"rules": [{"mach": {}, "answer": {}}]}, "rules[0].mach: unknown key; did you mean match?"),
        ({"rules": [{"answer": {"text": 3}}]}, "rules[0].answer.text: is a number; expected text"),
        ({"rules": [{"match": "clerk", "answer": {}}]}, "rules[0].match: is text; expected a mapping"),
        ({"delay": "x"}, "is not right; expected a list"),
    ],
)
def test_a_mistake_in_a_script_is_told_as_one_in_a_config(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Script(document)
    assert problem in str(caught.value)


def test_a_script_that_is_no_mapping_or_no_yaml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    for content, problem in (("- a", "expected a mapping"), ("a: [", "not YAML")):
        file.write_text(content)
        with pytest.raises(ConfigError, match=problem):
            load(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")


async def test_a_log_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the log"):
        async with LlmStub({"log": str(tmp_path / "none" / "calls.jsonl")}):
            pass


async def test_a_port_in_use_is_one_clear_error() -> None:
    async with LlmStub() as stub:
        with pytest.raises(ConfigError, match="cannot listen on 127"):
            async with LlmStub(port=int(stub.url.rpartition(":")[2])):
                pass


def test_serve_says_where_it_is_and_ends_on_sigterm(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("rules: [{answer: {text: from the file}}]")
    code = (
        "import pathlib, sys; from mesh.servers.llm_stub import serve; "
        "serve('127.0.0.1', 0, pathlib.Path(sys.argv[1]), 0.0)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("llm-stub is ready at http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
