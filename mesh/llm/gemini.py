"""Gemini generateContent.

API: https://ai.google.dev/api/generate-content. The requests are sent without Google's SDK, because its
public methods cannot carry what this provider needs: they drop ``finishMessage`` (the text of a tool call
that X ``docs/decisions/llm-clients.md``.
"""

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from mesh.core.events import Event, FinishReason, LlmCall, ToolCall, Usage
from mesh.core.messages import Assistant, Message, Result, ToolSpec, User
from mesh.llm.draft import LOCAL_ID, Draft, sent_arguments, tool_call
from mesh.llm.http import LlmHttp, message_of, read_failure
from mesh.llm.models import bare_model
from mesh.llm.offered import Offered, OfferedCache
from mesh.llm.port import LlmRequest
from mesh.llm.retry import Failure, retried, status_failure
from mesh.net.sse import data_of_events

_BASE_URL = "https://generativelanguage.googleapis.com"
_API_VERSION = "v1beta"
_FILTERED = ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY")
_FINISH: dict[str | None, FinishReason] = {
    "MAX_TOKENS": "length",
    **dict.fromkeys(_FILTERED, "content_filter"),
}
_BROKEN_CALL = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL")

_encode = msgspec.json.Encoder().encode


class _FunctionCall(msgspec.Struct):
    name: str = ""
    args: dict[str, Any] | None = None
    id: str = ""


class _Part(msgspec.Struct, rename="camel"):
    text: str = ""
    thought: bool = False
    thought_signature: str = ""
    function_call: _FunctionCall | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str = ""


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str = ""


class _Usage(msgspec.Struct, rename="camel"):
    prompt_token_count: int = 0
    candidates_token_count: int = 0
    thoughts_token_count: int = 0
    cached_content_token_count: int = 0


class _Response(msgspec.Struct, rename="camel"):
    """An answer, or a chunk of one."""

    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Usage | None = None


_decode = msgspec.json.Decoder(_Response).decode


class Gemini:
    """`Llm` over generateContent."""

    def __init__(self, api_key: str, base_url: str | None) -> None:
        self._http = LlmHttp()
        self._models = f"{(base_url or _BASE_URL).rstrip('/')}/{_API_VERSION}/models"
        self._headers = {"x-goog-api-key": api_key, "Content-Type": "application/json"}
        self._key = api_key
        self._offered: OfferedCache[msgspec.Raw] = OfferedCache(_tools, forbidden=r"[^A-Za-z0-9_-]")

    def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        """See `mesh.llm.port.Llm`."""
        model = bare_model(request.model)
        attempt = partial(self._attempt, model, request, self._offered.of(request.tools), time.monotonic())
        return retried(attempt, _failure_of, f"gemini model {model}", self._key)

    async def close(self) -> None:
        """See `mesh.llm.port.Llm`."""
        await self._http.aclose()

    async def _attempt(
        self, model: str, request: LlmRequest, offered: Offered[msgspec.Raw], started: float
    ) -> AsyncGenerator[Event, None]:
        draft = Draft(request.model, started)
        last: LlmCall | None = None
        async with aclosing(self._responses(model, request, offered)) as responses:
            async for response in responses:
                # The counts of a chunk include those of the chunks before it.
                if response.usage_metadata is not None:
                    draft.usage = _usage(response.usage_metadata)
                for event in _events(draft, response, offered):
                    if isinstance(event, LlmCall):
                        last = event
                    elif request.deltas:
                        yield event
        if last is None:
            raise Failure("the stream broke off", transient=True)
        yield msgspec.structs.replace(last, usage=draft.usage)

    async def _responses(
        self, model: str, request: LlmRequest, offered: Offered[msgspec.Raw]
    ) -> AsyncGenerator[_Response, None]:
        method = "streamGenerateContent?alt=sse" if request.deltas else "generateContent"
        async with self._http.stream(
            "POST",
            f"{self._models}/{quote(model, safe='/')}:{method}",
            content=_body(request, offered),
            headers=self._headers,
            timeout=request.timeout_s,
        ) as response:
            if response.status_code != 200:
                await response.aread()
                raise status_failure(response.status_code, message_of(response), response.headers)
            if request.deltas:
                async for data in data_of_events(response):
                    yield _decode(data)
            else:
                yield _whole(_decode(await response.aread()))


def _whole(response: _Response) -> _Response:
    """A plain answer is whole by itself, whatever it says; only a stream can break off."""
    response.candidates = response.candidates or [_Candidate()]
    response.candidates[0].finish_reason = response.candidates[0].finish_reason or "STOP"
    return response


def _body(request: LlmRequest, offered: Offered[msgspec.Raw]) -> bytes:
    contents = [sent for message in request.messages for sent in _sent(message, offered)]
    body: dict[str, Any] = {"contents": contents}
    if request.system:
        body["systemInstruction"] = {"parts": [{"text": request.system}]}
    if request.tools:
        body["tools"] = offered.encoded
    if request.max_tokens is not None:
        body["generationConfig"] = {"maxOutputTokens": request.max_tokens}
    return _encode(body)


def _tools(tools: list[tuple[str, ToolSpec]]) -> msgspec.Raw:
    declared = [
        {"name": name, "description": tool.description, "parametersJsonSchema": tool.input_schema}
        for name, tool in tools
    ]
    return msgspec.Raw(_encode([{"functionDeclarations": declared}]))


def _sent(message: Message, offered: Offered[msgspec.Raw]) -> Iterator[dict[str, Any]]:
    if isinstance(message, User):
        yield {"role": "user", "parts": [{"text": message.text}]}
    elif isinstance(message, Assistant):
        parts = [{"text": message.text}] if message.text else []
        parts += [_sent_call(call, offered) for call in message.tool_calls]
        # An empty answer is left out, because the API refuses content without parts.
        if parts:
            yield {"role": "model", "parts": parts}
    else:
        yield {"role": "user", "parts": [_sent_result(result, offered) for result in message.results]}


def _sent_call(call: ToolCall, offered: Offered[msgspec.Raw]) -> dict[str, Any]:
    function = {"name": offered.wire(call.name), "args": sent_arguments(call), **_sent_id(call.id)}
    part: dict[str, Any] = {"functionCall": function}
    return {**part, "thoughtSignature": call.opaque} if call.opaque else part


def _sent_result(result: Result, offered: Offered[msgspec.Raw]) -> dict[str, Any]:
    response = {"error" if result.is_error else "result": result.content}
    return {
        "functionResponse": {
            "name": offered.wire(result.name),
            "response": response,
            **_sent_id(result.call_id),
        }
    }


def _sent_id(call_id: str) -> dict[str, str]:
    return {} if call_id.startswith(LOCAL_ID) else {"id": call_id}


def _events(draft: Draft, response: _Response, offered: Offered[msgspec.Raw]) -> Iterator[Event]:
    if response.prompt_feedback is not None and response.prompt_feedback.block_reason:
        yield draft.done("content_filter")
        return
    for candidate in (response.candidates or ())[:1]:
        for part in (candidate.content and candidate.content.parts) or ():
            yield from _part_events(draft, part, offered)
        if candidate.finish_reason in _BROKEN_CALL:
            yield draft.add(_broken_call(candidate, offered))
        if candidate.finish_reason:
            yield draft.done(_FINISH.get(candidate.finish_reason, "stop"))


def _part_events(draft: Draft, part: _Part, offered: Offered[msgspec.Raw]) -> Iterator[Event]:
    if part.function_call is not None:
        call = part.function_call
        yield draft.add(tool_call(call.id, offered.own(call.name), call.args or {}, part.thought_signature))
    elif part.text and not part.thought:
        yield draft.text(part.text)


def _broken_call(candidate: _Candidate, offered: Offered[msgspec.Raw]) -> ToolCall:
    """A call that Gemini could not parse. It is reported as text only: ``Malformed function call: f(x=``."""
    message = candidate.finish_message or candidate.finish_reason or ""
    names = [name for name in re.findall(r"[\w-]+(?=\()", message) if offered.own(name) in offered.names]
    call = tool_call("", offered.own(names[0]) if names else "unknown", message)
    return call if call.malformed else msgspec.structs.replace(call, malformed=message)


def _usage(usage: _Usage) -> Usage:
    output = usage.candidates_token_count + usage.thoughts_token_count
    return Usage(usage.prompt_token_count, output, usage.cached_content_token_count)


def _failure_of(error: Exception) -> Failure | None:
    return error if isinstance(error, Failure) else read_failure(error)
