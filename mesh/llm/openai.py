"""OpenAI chat completions, and every endpoint that speaks them (OpenRouter, Ollama, …).

API: https://platform.openai.com/docs/api-reference/chat. Requests are encoded and answers decoded by msgspec,
with only the fields that are used; `mesh.llm.stainless` says why.
"""

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import openai

from mesh.core.events import Event, FinishReason, LlmCall, ToolCall, Usage
from mesh.core.messages import Result, Results, ToolSpec, User
from mesh.llm.draft import Draft, sent_arguments, tool_call
from mesh.llm.models import bare_model
from mesh.llm.offered import Offered, OfferedCache
from mesh.llm.parameters import Parameters, given
from mesh.llm.port import LlmRequest
from mesh.llm.retry import BAD_REQUEST, Failure, retried
from mesh.llm.schema_cache import SchemaCache
from mesh.llm.schema_forms import OPENAI, NotExpressible, has_object_root, in_form, with_resolved_root
from mesh.llm.stainless import client_options, endpoint, failure_of, post, post_stream

_PATH = "/chat/completions"
# As the SDK does for this path. Without it, an OPENAI_ADMIN_KEY in the environment would be sent in place of
# the API key.
_SECURITY = {"bearer_auth": True}
_FINISH: dict[str | None, FinishReason] = {"length": "length", "content_filter": "content_filter"}

_encode = msgspec.json.Encoder().encode


class _SentFunction(msgspec.Struct):
    name: str
    arguments: str


class _SentCall(msgspec.Struct):
    id: str
    function: _SentFunction
    type: str = "function"


class _Sent(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | None = None
    tool_calls: list[_SentCall] | None = None
    tool_call_id: str = ""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)


class _Answer(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Answer | None = None
    delta: _Answer | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    """An answer, or a chunk of one. ``error`` is what compatible endpoints send under status 200."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Response).decode


class OpenAI:
    """`Llm` over chat completions. ``name`` is the provider's name in error messages.

    ``compatible``: the endpoint is not OpenAI's own. Such endpoints take the limit as ``max_tokens``, which
    OpenAI has replaced by ``max_completion_tokens``.
    """

    def __init__(
        self, api_key: str, base_url: str | None, name: str = "openai", compatible: bool = False
    ) -> None:
        # The SDK refuses an empty key. Endpoints that need no key ignore this one.
        self._client = openai.AsyncOpenAI(**client_options(api_key or "none", base_url))
        self._url = endpoint(self._client, _PATH)
        self._key = api_key
        self._name = name
        self._limit = "max_tokens" if compatible else "max_completion_tokens"
        self._offered = OfferedCache(_tools, forbidden=r"[^A-Za-z0-9_-]")
        self._schemas = SchemaCache(_response_format)

    def takes_schema(self, request: LlmRequest) -> bool:
        """See `mesh.llm.port.TakesSchema`."""
        # Ollama makes its models write JSON at once when they get a schema, so that they call no tool.
        if self._name == "ollama" and request.tools:
            return False
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
            partial(failure_of, openai),
            f"{self._name} model {model}",
            self._key,
            is_reserved=request.is_reserved,
        )

    async def close(self) -> None:
        """See `mesh.llm.port.Llm`."""
        await self._client.close()

    async def _plain(
        self, body: bytes, request: LlmRequest, offered: Offered[msgspec.Raw], started: float
    ) -> AsyncGenerator[Event, None]:
        raw = await post(self._client, self._url, body, request.timeout_s, security=_SECURITY)
        response = _decode(raw)
        _check(response)
        draft = Draft(request.model, started)
        draft.usage = _usage(response.usage)
        choice = response.choices[0] if response.choices else _Choice()
        answer = choice.message or _Answer()
        _add_text(draft, answer)
        for call in answer.tool_calls or ():
            name = offered.own(call.function.name or "")
            draft.add(tool_call(call.id or "", name, _arguments(call)))
        yield _done(draft, choice.finish_reason)

    async def _streamed(
        self, body: bytes, request: LlmRequest, offered: Offered[msgspec.Raw], started: float
    ) -> AsyncGenerator[Event, None]:
        draft = Draft(request.model, started)
        finish: str | None = None
        ended = False
        stream = post_stream(self._client, self._url, body, request.timeout_s, security=_SECURITY)
        async with aclosing(stream) as payloads:
            async for data in payloads:
                if ended := data == "[DONE]":
                    break
                chunk = _decode(data)
                _check(chunk)
                if chunk.usage is not None:
                    draft.usage = _usage(chunk.usage)
                for choice in (chunk.choices or ())[:1]:
                    finish = choice.finish_reason or finish
                    for event in _deltas(draft, choice.delta or _Answer(), offered):
                        yield event
        if not ended and finish is None:
            raise Failure("the stream broke off", transient=True)
        for ready in draft.end_all():
            yield ready
        yield _done(draft, finish)

    def _body(self, request: LlmRequest, model: str, offered: Offered[msgspec.Raw]) -> bytes:
        body: dict[str, Any] = {
            "model": model,
            "messages": _messages(request, offered),
            **_parameters(request.parameters),
        }
        if request.tools:
            body["tools"] = offered.encoded
        if request.tools and (choice := _tool_choice(request, offered)):
            body["tool_choice"] = choice
        if request.output_schema is not None:
            body["response_format"] = self._schemas.of(request.output_schema)
        if request.max_tokens is not None:
            body[self._limit] = request.max_tokens
        if request.deltas:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return _encode(body)


def _parameters(parameters: Parameters) -> dict[str, Any]:
    return given(
        temperature=parameters.temperature,
        top_p=parameters.top_p,
        stop=parameters.stop,
        seed=parameters.seed,
        reasoning_effort=parameters.effort,
    )


def _tool_choice(request: LlmRequest, offered: Offered[msgspec.Raw]) -> Any:
    if not request.ends_with:
        return "none" if request.answer_only else None
    if not request.answer_only:
        return "required"
    return {"type": "function", "function": {"name": offered.wire(request.ends_with)}}


def _response_format(schema: dict[str, Any]) -> msgspec.Raw:
    """Raises `NotExpressible`."""
    try:
        sent, strict = in_form(schema, OPENAI), True
    except NotExpressible:
        sent, strict = with_resolved_root(schema), False
        if not has_object_root(sent):
            raise
    named = {"name": _schema_name(schema), "strict": strict, "schema": sent}
    return msgspec.Raw(_encode({"type": "json_schema", "json_schema": named}))


def _schema_name(schema: dict[str, Any]) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", str(schema.get("title", "")))[:64] or "answer"


def _tools(tools: list[tuple[str, ToolSpec]]) -> msgspec.Raw:
    functions = [
        {"name": name, "description": tool.description, "parameters": tool.input_schema}
        for name, tool in tools
    ]
    return msgspec.Raw(_encode([{"type": "function", "function": function} for function in functions]))


def _messages(request: LlmRequest, offered: Offered[msgspec.Raw]) -> list[_Sent]:
    # One loop without helper functions, because each call runs it over the whole conversation.
    sent = [_Sent("system", request.system)] if request.system else []
    for message in request.messages:
        if isinstance(message, User):
            sent.append(_Sent("user", message.text))
        elif isinstance(message, Results):
            sent += [_Sent("tool", _content(result), None, result.call_id) for result in message.results]
        elif message.tool_calls:
            calls = [_sent_call(call, offered) for call in message.tool_calls]
            sent.append(_Sent("assistant", message.text or None, calls))
        else:
            sent.append(_Sent("assistant", message.text))
    return sent


def _sent_call(call: ToolCall, offered: Offered[msgspec.Raw]) -> _SentCall:
    arguments = _encode(sent_arguments(call)).decode()
    return _SentCall(call.id, _SentFunction(offered.wire(call.name), arguments))


def _content(result: Result) -> str:
    # The wire format has no field that says that a tool failed.
    return f"Error: {result.content}" if result.is_error else result.content


def _add_text(draft: Draft, answer: _Answer) -> list[Event]:
    events: list[Event] = []
    if answer.content:
        events.append(draft.text(answer.content))
    if answer.refusal:
        draft.refused = True
        events.append(draft.text(answer.refusal))
    return events


def _deltas(draft: Draft, delta: _Answer, offered: Offered[msgspec.Raw]) -> Iterator[Event]:
    yield from _add_text(draft, delta)
    for call in delta.tool_calls or ():
        # Endpoints that do not number the calls send each call as a whole, with an id.
        key = call.index if call.index is not None else call.id
        if not draft.knows(key):
            yield from draft.end_all()
            yield draft.start(key, call.id or "", offered.own(call.function.name or ""))
        if call.function.arguments:
            arguments = _arguments(call)
            yield draft.arguments(
                key, arguments if isinstance(arguments, str) else _encode(arguments).decode()
            )


def _arguments(call: _Call) -> str | dict[str, Any]:
    return call.function.arguments or ""


def _done(draft: Draft, finish: str | None) -> LlmCall:
    return draft.done(_FINISH.get(finish, "stop"))


def _usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage()
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens, (details and details.cached_tokens) or 0)


def _check(response: _Response) -> None:
    if response.error is not None:
        error = response.error if isinstance(response.error, dict) else {"message": str(response.error)}
        code = error.get("code")
        transient = not isinstance(code, int) or code >= 500 or code in (408, 409, 429)
        # Of the others it is not known whether they are charged.
        status = BAD_REQUEST if code == BAD_REQUEST else None
        raise Failure(str(error.get("message") or error), transient=transient, status=status)
