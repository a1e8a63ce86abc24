"""Gemini generateContent.

API: https://ai.google.dev/api/generate-content. A call goes through the public methods of Google's SDK, which
bring its keys, URLs, headers and errors. Two things do not pass through its models. The request is given as
``extra_body``, so that pydantic does not walk the whole conversation for each call. And the answer is taken
where it arrives, in our own HTTP client: the SDK drops ``finishMessage``, the text of a tool call that Gemini
could not parse and the model has to see, and it gives no raw answer for streams. Answers are decoded by
msgspec, with only the fields that are used. ``docs/decisions/llm-clients.md`` has the numbers.
"""

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
from google import genai
from google.genai import errors, types

from mesh.core.events import Event, FinishReason, LlmCall, ToolCall, Usage
from mesh.core.messages import Assistant, Message, Result, ToolSpec, User
from mesh.llm.draft import LOCAL_ID, Draft, sent_arguments, tool_call
from mesh.llm.http import LlmHttp, message_of, read_failure
from mesh.llm.models import bare_model
from mesh.llm.offered import Offered, OfferedCache
from mesh.llm.parameters import Effort, given
from mesh.llm.port import LlmRequest
from mesh.llm.retry import Failure, retried, status_failure
from mesh.llm.schema_cache import SchemaCache
from mesh.llm.schema_forms import GEMINI, in_form
from mesh.net.sse import data_of_events

_FILTERED = ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY")
_FINISH: dict[str | None, FinishReason] = {
    "MAX_TOKENS": "length",
    **dict.fromkeys(_FILTERED, "content_filter"),
}
# In tokens, for Gemini 2.5: what Google itself makes of these words in its OpenAI format.
_THINKING_BUDGETS: dict[Effort, int] = {"low": 1024, "medium": 8192, "high": 24_576}
_BROKEN_CALL = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL")

# What the SDK would do by itself: call functions, and ask again when an answer stops in the middle.
_NOTHING_BY_ITSELF = {"automatic_function_calling": {"disable": True}, "automatic_continuation": False}
# The SDK wants some contents. These are never sent, because those of ``extra_body`` replace them.
_REPLACED = types.Content()

Tools = list[dict[str, Any]]


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
        self._http = _RawAnswers()
        options = types.HttpOptions(
            base_url=base_url,
            # The SDK's default, v1, lacks the models whose names end in -latest.
            api_version="v1beta",
            httpx_async_client=self._http,
            # Never used. Without it the SDK makes a client of its own and loads certificates for it (75 ms).
            httpx_client=httpx2.Client(transport=httpx2.BaseTransport()),
            # Retries are `mesh.llm.retry`'s.
            retry_options=types.HttpRetryOptions(attempts=1),
        )
        # ``vertexai`` is given, because the environment decides otherwise.
        self._client = genai.Client(api_key=api_key, vertexai=False, http_options=options)
        self._key = api_key
        self._offered: OfferedCache[Tools] = OfferedCache(_tools, forbidden=r"[^A-Za-z0-9_-]")
        self._schemas = SchemaCache(partial(in_form, form=GEMINI))

    def takes_schema(self, request: LlmRequest) -> bool:
        """See `mesh.llm.port.TakesSchema`."""
        return request.output_schema is not None and self._schemas.of(request.output_schema) is not None

    def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        """See `mesh.llm.port.Llm`."""
        model = bare_model(request.model)
        attempt = partial(self._attempt, model, request, self._offered.of(request.tools), time.monotonic())
        return retried(
            attempt, _failure_of, f"gemini model {model}", self._key, is_reserved=request.is_reserved
        )

    async def close(self) -> None:
        """See `mesh.llm.port.Llm`."""
        # The SDK does not close an HTTP client that it was given.
        await self._http.aclose()
        await self._client.aio.aclose()
        self._client.close()

    async def _attempt(
        self, model: str, request: LlmRequest, offered: Offered[Tools], started: float
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
        self, model: str, request: LlmRequest, offered: Offered[Tools]
    ) -> AsyncGenerator[_Response, None]:
        async with self._answer(model, request, offered) as answer:
            if request.deltas:
                async for data in data_of_events(answer):
                    yield _decode(data)
            else:
                yield _whole(_decode(answer.content))

    @asynccontextmanager
    async def _answer(
        self, model: str, request: LlmRequest, offered: Offered[Tools]
    ) -> AsyncGenerator[httpx2.Response, None]:
        answers: list[httpx2.Response] = []
        try:
            await self._ask(answers, model, request, offered)
            yield answers[0]
        finally:
            for answer in answers:
                await answer.aclose()

    async def _ask(
        self, answers: list[httpx2.Response], model: str, request: LlmRequest, offered: Offered[Tools]
    ) -> None:
        """Sends a request through the SDK; `_RawAnswers` adds its answer to ``answers``."""
        http_options = types.HttpOptions(
            timeout=max(1, round(request.timeout_s * 1000)), extra_body=self._body(request, offered)
        )
        # A dict, because the SDK copies a `GenerateContentConfig` with everything in it, for each call.
        config: Any = {**_NOTHING_BY_ITSELF, "http_options": http_options}
        models, name = self._client.aio.models, _sent_name(model)
        # Set and reset in this coroutine: in an async generator, the caller would see the variable as well.
        token = _answers_of_call.set(answers)
        try:
            if request.deltas:
                chunks = await models.generate_content_stream(model=name, contents=_REPLACED, config=config)
                # The request is sent when the first chunk is asked for. There is none.
                async for _ in chunks:
                    pass
            else:
                await models.generate_content(model=name, contents=_REPLACED, config=config)
        finally:
            _answers_of_call.reset(token)

    def _body(self, request: LlmRequest, offered: Offered[Tools]) -> dict[str, Any]:
        contents = [sent for message in request.messages for sent in _sent(message, offered)]
        body: dict[str, Any] = {"contents": contents}
        if request.system:
            body["systemInstruction"] = {"parts": [{"text": request.system}]}
        if request.tools:
            body["tools"] = offered.encoded
        if request.tools and (mode := _mode(request, offered)):
            body["toolConfig"] = {"functionCallingConfig": mode}
        schema = request.output_schema
        if generation := _generation(request, None if schema is None else self._schemas.of(schema)):
            body["generationConfig"] = generation
        return body


# Where `_RawAnswers` puts the answer to the call that this task is making. The SDK passes nothing from a call
# on to the HTTP client by which the two could be matched.
_answers_of_call: ContextVar[list[httpx2.Response]] = ContextVar("answers_of_call")


class _RawAnswers(LlmHttp):
    """Keeps each answer of status 200 for `Gemini`, and gives the SDK an empty one in its place. Any other
    answer goes to the SDK, which raises its error."""

    async def send(self, request: httpx2.Request, *, stream: bool = False, **more: Any) -> httpx2.Response:
        response = await super().send(request, stream=stream, **more)
        if response.status_code != 200:
            return response
        _answers_of_call.get().append(response)
        return httpx2.Response(200, request=request, content=b"")


def _whole(response: _Response) -> _Response:
    """A plain answer is whole by itself, whatever it says; only a stream can break off."""
    response.candidates = response.candidates or [_Candidate()]
    response.candidates[0].finish_reason = response.candidates[0].finish_reason or "STOP"
    return response


def _sent_name(model: str) -> str:
    # The SDK refuses such a name as well, but with a plain ValueError, which could mean anything.
    if ".." in model:
        raise Failure("no such model", transient=False)
    return quote(model, safe="/")


def _mode(request: LlmRequest, offered: Offered[Tools]) -> dict[str, Any]:
    """Whether the model may, must or must not call its tools."""
    if not request.ends_with:
        return {"mode": "NONE"} if request.answer_only else {}
    if not request.answer_only:
        return {"mode": "ANY"}
    return {"mode": "ANY", "allowedFunctionNames": [offered.wire(request.ends_with)]}


def _generation(request: LlmRequest, schema: dict[str, Any] | None) -> dict[str, Any]:
    parameters = request.parameters
    return given(
        responseMimeType=None if schema is None else "application/json",
        responseJsonSchema=schema,
        temperature=parameters.temperature,
        topP=parameters.top_p,
        maxOutputTokens=request.max_tokens,
        stopSequences=parameters.stop,
        seed=parameters.seed,
        thinkingConfig=_thinking(bare_model(request.model), parameters.effort) if parameters.effort else None,
    )


def _thinking(model: str, effort: Effort) -> dict[str, Any]:
    # Gemini 2.5 refuses levels, and is told its budget; the models after it have levels.
    if model.startswith("gemini-2.5"):
        return {"thinkingBudget": _THINKING_BUDGETS[effort]}
    return {"thinkingLevel": effort.upper()}


def _tools(tools: list[tuple[str, ToolSpec]]) -> Tools:
    declared = [
        {"name": name, "description": tool.description, "parametersJsonSchema": tool.input_schema}
        for name, tool in tools
    ]
    return [{"functionDeclarations": declared}]


def _sent(message: Message, offered: Offered[Tools]) -> Iterator[dict[str, Any]]:
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


def _sent_call(call: ToolCall, offered: Offered[Tools]) -> dict[str, Any]:
    function = {"name": offered.wire(call.name), "args": sent_arguments(call), **_sent_id(call.id)}
    part: dict[str, Any] = {"functionCall": function}
    return {**part, "thoughtSignature": call.opaque} if call.opaque else part


def _sent_result(result: Result, offered: Offered[Tools]) -> dict[str, Any]:
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


def _events(draft: Draft, response: _Response, offered: Offered[Tools]) -> Iterator[Event]:
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


def _part_events(draft: Draft, part: _Part, offered: Offered[Tools]) -> Iterator[Event]:
    if part.function_call is not None:
        call = part.function_call
        yield draft.add(tool_call(call.id, offered.own(call.name), call.args or {}, part.thought_signature))
    elif part.text and not part.thought:
        yield draft.text(part.text)


def _broken_call(candidate: _Candidate, offered: Offered[Tools]) -> ToolCall:
    """A call that Gemini could not parse. It is reported as text only: ``Malformed function call: f(x=``."""
    message = candidate.finish_message or candidate.finish_reason or ""
    names = [name for name in re.findall(r"[\w-]+(?=\()", message) if offered.own(name) in offered.names]
    call = tool_call("", offered.own(names[0]) if names else "unknown", message)
    return call if call.malformed else msgspec.structs.replace(call, malformed=message)


def _usage(usage: _Usage) -> Usage:
    output = usage.candidates_token_count + usage.thoughts_token_count
    return Usage(usage.prompt_token_count, output, usage.cached_content_token_count)


def _failure_of(error: Exception) -> Failure | None:
    if isinstance(error, Failure):
        return error
    if isinstance(error, errors.APIError) and isinstance(error.response, httpx2.Response):
        response = error.response
        return status_failure(response.status_code, message_of(response), response.headers)
    return read_failure(error)
