"""The wire format of OpenAI chat completions: see `mesh.servers.llm_stub.wire.WireFormat`.

API: https://platform.openai.com/docs/api-reference/chat. Requests are decoded with only the fields that a
script can match.
"""

from typing import Any

import msgspec

from mesh.net.sse import encode
from mesh.servers.llm_stub.script import ModelRequest, ScriptedAnswer, ScriptedCall
from mesh.servers.llm_stub.wire import STATUS_NAMES, dumps, forced_tool, halves, pieces, text_of, usage_of

_CREATED = 1_700_000_000
_SYSTEM = ("system", "developer")


class _Message(msgspec.Struct):
    role: str
    content: Any = None


class _Function(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Tool(msgspec.Struct):
    function: _Function


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Schema(msgspec.Struct):
    schema: dict[str, Any] = {}


class _ResponseFormat(msgspec.Struct):
    json_schema: _Schema | None = None


class _Request(msgspec.Struct):
    model: str
    messages: list[_Message]
    tools: list[_Tool] = []
    stream: bool = False
    stream_options: _StreamOptions | None = None
    response_format: _ResponseFormat | None = None
    tool_choice: str | dict[str, Any] = "auto"


_decode = msgspec.json.Decoder(_Request).decode


def read(path: str, body: bytes) -> ModelRequest:
    request = _decode(body)
    asked = [message for message in request.messages if message.role in ("user", "tool")]
    last = asked[-1] if asked else _Message("user", "")
    return ModelRequest(
        format="openai",
        model=request.model,
        last=text_of(last.content),
        speaker="tool" if last.role == "tool" else "user",
        tools=frozenset(tool.function.name for tool in request.tools),
        conversation_call=1 + sum(message.role == "assistant" for message in request.messages),
        stream=request.stream,
        system="\n".join(text_of(each.content) for each in request.messages if each.role in _SYSTEM),
        size=len(body),
        output_schema=_output_schema(request),
        forced_tool=_forced_tool(request),
    )


def _output_schema(request: _Request) -> dict[str, Any] | None:
    asked = request.response_format and request.response_format.json_schema
    return asked.schema if asked else None


def _forced_tool(request: _Request) -> tuple[str, dict[str, Any]] | None:
    choice = request.tool_choice
    named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    tools = {tool.function.name: tool.function.parameters for tool in request.tools}
    return forced_tool(tools, named, must_call=choice == "required")


def plain(call: ModelRequest, answer: ScriptedAnswer, number: int) -> bytes:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text or None,
        "refusal": answer.refusal or None,
    }
    if answer.tool_calls:
        message["tool_calls"] = [
            {"id": _call_id(each, number, at), "type": "function", "function": _function(each)}
            for at, each in enumerate(answer.tool_calls)
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
    return dumps(
        {**_envelope(call, number, "chat.completion"), "choices": [choice], "usage": _usage(call, answer)}
    )


def chunks(call: ModelRequest, answer: ScriptedAnswer, number: int) -> list[bytes]:
    envelope = _envelope(call, number, "chat.completion.chunk")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces(answer.text)]
    deltas += [{"refusal": piece} for piece in pieces(answer.refusal)]
    for at, each in enumerate(answer.tool_calls):
        function = _function(each)
        start: dict[str, Any] = {"index": at, "id": _call_id(each, number, at), "type": "function"}
        deltas.append({"tool_calls": [{**start, "function": {"name": each.name, "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": at, "function": {"arguments": piece}}]}
            for piece in halves(function["arguments"])
        ]
    sent: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    sent.append({"choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]})
    tail = {"choices": [], "usage": _usage(call, answer)}
    return [_event({**envelope, **each}) for each in [*sent, tail]] + [encode(b"[DONE]")]


def error(status: int, message: str) -> bytes:
    kind = STATUS_NAMES.get(status, "server_error")
    return dumps({"error": {"message": message, "type": kind, "param": None, "code": kind}})


def _event(data: dict[str, Any]) -> bytes:
    return encode(dumps(data))


def _envelope(call: ModelRequest, number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": _CREATED, "model": call.model}


def _call_id(scripted: ScriptedCall, number: int, at: int) -> str:
    return scripted.id or f"call_{number}_{at}"


def _function(scripted: ScriptedCall) -> dict[str, str]:
    return {"name": scripted.name, "arguments": scripted.malformed or dumps(scripted.arguments).decode()}


def _finish(answer: ScriptedAnswer) -> str:
    if answer.content_filter:
        return "content_filter"
    return answer.finish or ("tool_calls" if answer.tool_calls else "stop")


def _usage(call: ModelRequest, answer: ScriptedAnswer) -> dict[str, Any]:
    usage = usage_of(call, answer)
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
