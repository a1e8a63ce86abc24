"""Anthropic messages.

API: https://docs.anthropic.com/en/api/messages. The API requires that all results of one answer go back as
blocks of one user message. Requests are encoded and answers decoded by msgspec, with only the fields that are
used; `mesh.llm.stainless` says why.
"""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

import anthropic
import msgspec

from mesh.core.events import Event, FinishReason, Trace, Usage
from mesh.core.messages import Assistant, Message, Result, ToolSpec, User
from mesh.llm.draft import Draft, sent_arguments, tool_call
from mesh.llm.models import bare_model
from mesh.llm.offered import Offered, OfferedCache
from mesh.llm.parameters import Parameters, given
from mesh.llm.port import LlmRequest
from mesh.llm.retry import Failure, retried
from mesh.llm.schema_cache import SchemaCache
from mesh.llm.schema_forms import ANTHROPIC, in_form
from mesh.llm.stainless import client_options, endpoint, failure_of, post, post_stream

_log = logging.getLogger(__name__)
_PATH = "/v1/messages"
# The API requires a limit in every request; this one is sent when the config gives none.
ANTHROPIC_MAX_TOKENS = 4096
_FINISH: dict[str | None, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_PERMANENT = (
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
)

_KNOWN = (
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
)

_encode = msgspec.json.Encoder().encode


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Block(msgspec.Struct):
    """A content block, or a delta of one."""

    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    partial_json: str = ""
    stop_reason: str | None = None


class _Response(msgspec.Struct):
    content: list[_Block] = []
    stop_reason: str | None = None
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _StreamError(msgspec.Struct):
    type: str = ""
    message: str = ""


class _StreamEvent(msgspec.Struct):
    """Any event of a stream; each kind fills its own fields."""

    type: str
    index: int = 0
    message: _Response | None = None
    content_block: _Block | None = None
    delta: _Delta = msgspec.field(default_factory=_Delta)
    usage: _Usage | None = None
    error: _StreamError | None = None


_decode = msgspec.json.Decoder(_Response).decode
_decode_event = msgspec.json.Decoder(_StreamEvent).decode


class Anthropic:
    """`Llm` over the messages API."""

    def __init__(self, api_key: str, base_url: str | None) -> None:
        self._client = anthropic.AsyncAnthropic(**client_options(api_key, base_url))
        self._url = endpoint(self._client, _PATH)
        self._key = api_key
        self._offered = OfferedCache(_tools, forbidden=r"[^A-Za-z0-9_-]")
        self._schemas = SchemaCache(_format)

    def takes_schema(self, request: LlmRequest) -> bool:
        """See `mesh.llm.port.TakesSchema`."""
        return request.output_schema is not None and self._schemas.of(request.output_schema) is not None

    def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        """See `mesh.llm.port.Llm`."""
        offered = self._offered.of(request.tools)
        model = bare_model(request.model)
        attempt = partial(
            self._streamed if request.deltas else self._plain,
            self._body(request, model, offered),
            request,
            offered,
            time.monotonic(),
        )
        return retried(
            attempt,
            partial(failure_of, anthropic),
            f"anthropic model {model}",
            self._key,
            is_reserved=request.is_reserved,
        )

    async def close(self) -> None:
        """See `mesh.llm.port.Llm`."""
        await self._client.close()

    async def _plain(
        self, body: bytes, request: LlmRequest, offered: Offered[msgspec.Raw], started: float
    ) -> AsyncGenerator[Event, None]:
        response = _decode(await post(self._client, self._url, body, request.timeout_s))
        draft = Draft(request.model, started)
        draft.usage = _usage(response.usage)
        for block in response.content:
            if block.type == "text":
                draft.text(block.text)
            elif block.type == "tool_use":
                arguments = (
                    block.input if isinstance(block.input, str | dict) else _encode(block.input).decode()
                )
                draft.add(tool_call(block.id, offered.own(block.name), arguments))
        yield draft.done(_FINISH.get(response.stop_reason, "stop"))

    async def _streamed(
        self, body: bytes, request: LlmRequest, offered: Offered[msgspec.Raw], started: float
    ) -> AsyncGenerator[Event, None]:
        draft = Draft(request.model, started)
        usage = _Usage()
        reason: str | None = None
        ended = False
        async with aclosing(post_stream(self._client, self._url, body, request.timeout_s)) as payloads:
            async for data in payloads:
                event = _decode_event(data)
                usage = _later(usage, event)
                reason = event.delta.stop_reason or reason
                for delta in _deltas(draft, event, offered):
                    yield delta
                if ended := event.type == "message_stop":
                    break
        if not ended:
            raise Failure("the stream broke off", transient=True)
        draft.usage = _usage(usage)
        for ready in draft.end_all():
            yield ready
        yield draft.done(_FINISH.get(reason, "stop"))

    def _body(self, request: LlmRequest, model: str, offered: Offered[msgspec.Raw]) -> bytes:
        schema = request.output_schema
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": request.max_tokens or ANTHROPIC_MAX_TOKENS,
            "messages": [sent for message in request.messages for sent in _sent(message, offered)],
            **_parameters(request.parameters, None if schema is None else self._schemas.of(schema)),
        }
        if request.system:
            body["system"] = request.system
        if request.tools:
            body["tools"] = offered.encoded
        if request.tools and (choice := _tool_choice(request, offered)):
            body["tool_choice"] = choice
        if request.deltas:
            body["stream"] = True
        return _encode(body)


def _tool_choice(request: LlmRequest, offered: Offered[msgspec.Raw]) -> dict[str, str] | None:
    if not request.ends_with:
        return {"type": "none"} if request.answer_only else None
    if not request.answer_only:
        return {"type": "any"}
    return {"type": "tool", "name": offered.wire(request.ends_with)}


def _format(schema: dict[str, Any]) -> msgspec.Raw:
    """Raises `NotExpressible`."""
    return msgspec.Raw(_encode({"type": "json_schema", "schema": in_form(schema, ANTHROPIC)}))


def _parameters(parameters: Parameters, answer_format: msgspec.Raw | None) -> dict[str, Any]:
    # The API has temperature and top_p for the models up to 4.6 only, and the SDK's types lack them.
    return given(
        temperature=parameters.temperature,
        top_p=parameters.top_p,
        stop_sequences=parameters.stop,
        output_config=given(effort=parameters.effort, format=answer_format) or None,
    )


def _tools(tools: list[tuple[str, ToolSpec]]) -> msgspec.Raw:
    sent = [
        {"name": name, "description": tool.description, "input_schema": tool.input_schema}
        for name, tool in tools
    ]
    return msgspec.Raw(_encode(sent))


def _sent(message: Message, offered: Offered[msgspec.Raw]) -> Iterator[dict[str, Any]]:
    if isinstance(message, User):
        yield {"role": "user", "content": message.text}
    elif isinstance(message, Assistant):
        # An empty answer is left out, because the API refuses empty content.
        if blocks := list(_blocks(message, offered)):
            yield {"role": "assistant", "content": blocks}
    else:
        yield {"role": "user", "content": [_result(result) for result in message.results]}


def _blocks(message: Assistant, offered: Offered[msgspec.Raw]) -> Iterator[dict[str, Any]]:
    if message.text.strip():
        yield {"type": "text", "text": message.text}
    for call in message.tool_calls:
        named = {"type": "tool_use", "id": call.id, "name": offered.wire(call.name)}
        yield {**named, "input": sent_arguments(call)}


def _result(result: Result) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": result.call_id, "content": result.content}
    return {**block, "is_error": True} if result.is_error else block


def _deltas(draft: Draft, event: _StreamEvent, offered: Offered[msgspec.Raw]) -> Iterator[Event]:
    block = event.content_block
    if event.type == "error":
        error = event.error or _StreamError()
        raise Failure(error.message or error.type, transient=error.type not in _PERMANENT)
    if event.type == "content_block_start" and block is not None and block.type == "tool_use":
        yield draft.start(event.index, block.id, offered.own(block.name))
    elif event.type == "content_block_delta" and event.delta.text:
        yield draft.text(event.delta.text)
    elif event.type == "content_block_delta" and event.delta.partial_json and draft.knows(event.index):
        yield draft.arguments(event.index, event.delta.partial_json)
    elif event.type == "content_block_stop" and draft.knows(event.index):
        yield draft.end(event.index)
    elif event.type not in _KNOWN:
        told = f"the provider sent an event that is not known: {event.type[:100]}"
        _log.info(told)
        yield Trace(message=told)


def _later(usage: _Usage, event: _StreamEvent) -> _Usage:
    """The usage after an event: its numbers replace those of earlier events, field by field."""
    news = event.message.usage if event.message is not None else event.usage
    if news is None:
        return usage
    given = {name: value for name in news.__struct_fields__ if (value := getattr(news, name)) is not None}
    return msgspec.structs.replace(usage, **given)


def _usage(usage: _Usage) -> Usage:
    # The API counts what was read from its cache and written to it separately.
    cached = usage.cache_read_input_tokens or 0
    fresh = (usage.input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Usage(fresh + cached, usage.output_tokens or 0, cached)
