"""The wire format of Anthropic messages: see `mesh.servers.llm_stub.wire.WireFormat`.

API: https://docs.anthropic.com/en/api/messages. Requests are decoded with only the fields that a script can
match.
"""

from typing import Any

import msgspec

from mesh.net.sse import encode
from mesh.servers.llm_stub.script import ModelRequest, ScriptedAnswer, ScriptedCall
from mesh.servers.llm_stub.wire import STATUS_NAMES, dumps, forced_tool, halves, pieces, text_of, usage_of

_STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


class _Message(msgspec.Struct):
    role: str
    content: Any


class _Tool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any] = {}


class _Format(msgspec.Struct):
    schema: dict[str, Any] = {}


class _OutputConfig(msgspec.Struct):
    format: _Format | None = None


class _ToolChoice(msgspec.Struct):
    type: str = "auto"
    name: str | None = None


class _Request(msgspec.Struct):
    model: str
    messages: list[_Message]
    max_tokens: int
    system: Any = ""
    tools: list[_Tool] = []
    stream: bool = False
    output_config: _OutputConfig = msgspec.field(default_factory=_OutputConfig)
    tool_choice: _ToolChoice = msgspec.field(default_factory=_ToolChoice)


_decode = msgspec.json.Decoder(_Request).decode


def read(path: str, body: bytes) -> ModelRequest:
    request = _decode(body)
    asked = [message for message in request.messages if message.role == "user"]
    last = asked[-1].content if asked else ""
    results = [part for part in last if part.get("type") == "tool_result"] if isinstance(last, list) else []
    return ModelRequest(
        format="anthropic",
        model=request.model,
        last=text_of(results[-1:] or last),
        speaker="tool" if results else "user",
        tools=frozenset(tool.name for tool in request.tools),
        conversation_call=1 + sum(message.role == "assistant" for message in request.messages),
        stream=request.stream,
        system=text_of(request.system),
        size=len(body),
        output_schema=request.output_config.format.schema if request.output_config.format else None,
        forced_tool=forced_tool(
            {tool.name: tool.input_schema for tool in request.tools},
            request.tool_choice.name,
            must_call=request.tool_choice.type == "any",
        ),
    )


def plain(call: ModelRequest, answer: ScriptedAnswer, number: int) -> bytes:
    text = answer.text or answer.refusal
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [
        {**_tool_use(each, number, at), "input": each.malformed or each.arguments}
        for at, each in enumerate(answer.tool_calls)
    ]
    message = {**_envelope(call, number), "content": content, "stop_reason": _stop(answer)}
    return dumps({**message, "usage": _usage(call, answer)})


def chunks(call: ModelRequest, answer: ScriptedAnswer, number: int) -> list[bytes]:
    usage = _usage(call, answer)
    # The API reports tokens as they are made: one at the start of the stream, all of them at its end.
    start = {
        **_envelope(call, number),
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": 1},
    }
    events = [_event("message_start", message=start), _event("ping")]
    index = 0
    if text := answer.text or answer.refusal:
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(text)]
        events += _block(index, {"type": "text", "text": ""}, deltas)
        index += 1
    for at, each in enumerate(answer.tool_calls):
        arguments = each.malformed or dumps(each.arguments).decode()
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in halves(arguments)]
        events += _block(index + at, {**_tool_use(each, number, at), "input": {}}, deltas)
    stop = {"stop_reason": _stop(answer), "stop_sequence": None}
    events.append(_event("message_delta", delta=stop, usage={"output_tokens": usage["output_tokens"]}))
    return [*events, _event("message_stop")]


def error(status: int, message: str) -> bytes:
    kind = STATUS_NAMES.get(status, "api_error")
    return dumps({"type": "error", "error": {"type": kind, "message": message}})


def _block(index: int, block: dict[str, Any], deltas: list[dict[str, str]]) -> list[bytes]:
    return [
        _event("content_block_start", index=index, content_block=block),
        *(_event("content_block_delta", index=index, delta=delta) for delta in deltas),
        _event("content_block_stop", index=index),
    ]


def _event(kind: str, **fields: Any) -> bytes:
    return encode(dumps({"type": kind, **fields}), event=kind)


def _envelope(call: ModelRequest, number: int) -> dict[str, Any]:
    base = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": call.model}
    return {**base, "stop_sequence": None}


def _tool_use(scripted: ScriptedCall, number: int, at: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": scripted.id or f"toolu_{number}_{at}", "name": scripted.name}


def _stop(answer: ScriptedAnswer) -> str:
    if answer.refusal or answer.content_filter:
        return "refusal"
    return _STOPS[answer.finish or ("tool_calls" if answer.tool_calls else "stop")]


def _usage(call: ModelRequest, answer: ScriptedAnswer) -> dict[str, int]:
    usage = usage_of(call, answer)
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }
