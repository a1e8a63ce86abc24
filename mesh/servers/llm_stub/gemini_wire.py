"""The wire format of Gemini generateContent: see `mesh.servers.llm_stub.wire.WireFormat`.

API: https://ai.google.dev/api/generate-content. Requests are decoded with only the fields that a script can
match.
"""

import re
from typing import Any

import msgspec

from mesh.net.sse import encode
from mesh.servers.llm_stub.script import ModelRequest, ScriptedAnswer, ScriptedCall
from mesh.servers.llm_stub.wire import dumps, forced_tool, pieces, usage_of

_PATH = re.compile(r"/models/([^/:]+):(streamGenerateContent|generateContent)")
_STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}


class _FunctionResponse(msgspec.Struct):
    name: str
    response: dict[str, Any] = {}


class _Part(msgspec.Struct, rename="camel"):
    text: str = ""
    function_response: _FunctionResponse | None = None


class _Content(msgspec.Struct):
    parts: list[_Part]
    role: str = "user"


class _Declaration(msgspec.Struct, rename="camel"):
    name: str
    parameters_json_schema: dict[str, Any] = {}


class _Tool(msgspec.Struct, rename="camel"):
    function_declarations: list[_Declaration] = []


class _Generation(msgspec.Struct, rename="camel"):
    response_json_schema: dict[str, Any] | None = None


class _Calling(msgspec.Struct, rename="camel"):
    mode: str = "AUTO"
    allowed_function_names: list[str] = []


class _ToolConfig(msgspec.Struct, rename="camel"):
    function_calling_config: _Calling = msgspec.field(default_factory=_Calling)


class _Request(msgspec.Struct, rename="camel"):
    contents: list[_Content]
    system_instruction: _Content | None = None
    tools: list[_Tool] = []
    generation_config: _Generation = msgspec.field(default_factory=_Generation)
    tool_config: _ToolConfig = msgspec.field(default_factory=_ToolConfig)


_decode = msgspec.json.Decoder(_Request).decode


def read(path: str, body: bytes) -> ModelRequest:
    request = _decode(body)
    found = _PATH.search(path)
    asked = [part for content in request.contents if content.role != "model" for part in content.parts]
    last = asked[-1] if asked else _Part()
    result = last.function_response
    declared = [each for tool in request.tools for each in tool.function_declarations]
    calling = request.tool_config.function_calling_config
    return ModelRequest(
        format="gemini",
        model=found.group(1) if found else "",
        last=last.text if result is None else "\n".join(str(each) for each in result.response.values()),
        speaker="user" if result is None else "tool",
        tools=frozenset(each.name for each in declared),
        conversation_call=1 + sum(content.role == "model" for content in request.contents),
        stream=found is not None and found.group(2).startswith("stream"),
        system="\n".join(part.text for part in system.parts)
        if (system := request.system_instruction)
        else "",
        size=len(body),
        output_schema=request.generation_config.response_json_schema,
        forced_tool=forced_tool(
            {each.name: each.parameters_json_schema for each in declared},
            next(iter(calling.allowed_function_names), None),
            must_call=calling.mode == "ANY",
        ),
    )


def plain(call: ModelRequest, answer: ScriptedAnswer, number: int) -> bytes:
    tail = _tail(call, answer, number)
    if answer.refusal:
        return dumps({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, **tail})
    parts: list[dict[str, Any]] = [{"text": answer.text}] if answer.text else []
    return dumps({"candidates": [_candidate(answer, parts + _calls(answer))], **tail})


def chunks(call: ModelRequest, answer: ScriptedAnswer, number: int) -> list[bytes]:
    if answer.refusal:
        return [_event(plain(call, answer, number))]
    first = {"responseId": f"resp-{number}", "modelVersion": call.model}
    parts: list[dict[str, Any]] = [{"text": piece} for piece in pieces(answer.text)] + _calls(answer)
    sent = [
        {"candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}}], **first}
        for part in parts
    ]
    last = {"candidates": [_candidate(answer, [])], **_tail(call, answer, number)}
    return [_event(dumps(each)) for each in [*sent, last]]


def error(status: int, message: str) -> bytes:
    name = "RESOURCE_EXHAUSTED" if status == 429 else _STATUSES.get(status, "UNAVAILABLE")
    return dumps({"error": {"code": status, "message": message, "status": name}})


def _event(data: bytes) -> bytes:
    # Gemini ends lines with CR LF. Nothing within the data changes: JSON has line breaks only as escapes.
    return encode(data).replace(b"\n", b"\r\n")


def _calls(answer: ScriptedAnswer) -> list[dict[str, Any]]:
    return [_function_call(each) for each in answer.tool_calls if not each.malformed]


def _function_call(scripted: ScriptedCall) -> dict[str, Any]:
    call: dict[str, Any] = {"name": scripted.name, "args": scripted.arguments}
    if scripted.id:
        call["id"] = scripted.id
    part: dict[str, Any] = {"functionCall": call}
    if scripted.signature:
        part["thoughtSignature"] = scripted.signature
    return part


def _candidate(answer: ScriptedAnswer, parts: list[dict[str, Any]]) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "finishReason": _finish(answer)}
    if parts:
        candidate["content"] = {"role": "model", "parts": parts}
    # Gemini reports a call that it could not parse as text only.
    if broken := [each for each in answer.tool_calls if each.malformed]:
        candidate["finishReason"] = "MALFORMED_FUNCTION_CALL"
        candidate["finishMessage"] = f"Malformed function call: {broken[0].name}({broken[0].malformed}"
    return candidate


def _finish(answer: ScriptedAnswer) -> str:
    if answer.content_filter:
        return "SAFETY"
    return "MAX_TOKENS" if answer.finish == "length" else "STOP"


def _tail(call: ModelRequest, answer: ScriptedAnswer, number: int) -> dict[str, Any]:
    usage = usage_of(call, answer)
    counts = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output,
        "totalTokenCount": usage.input + usage.output,
        "cachedContentTokenCount": usage.cached,
    }
    return {"usageMetadata": counts, "modelVersion": call.model, "responseId": f"resp-{number}"}
