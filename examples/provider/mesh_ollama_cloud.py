"""Models of ollama.com, by Ollama's own API: https://docs.ollama.com/api/chat."""

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from functools import partial
from typing import Any

import msgspec

from mesh.providers import (
    ALL_PARAMETERS,
    Assistant,
    Draft,
    Event,
    Failure,
    LlmHttp,
    LlmRequest,
    Message,
    ModelEndpoint,
    Offered,
    OfferedCache,
    Provider,
    Results,
    ToolSpec,
    Usage,
    bare_model,
    given,
    message_of,
    read_failure,
    retried,
    sent_arguments,
    status_failure,
    tool_call,
)


class Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] = ""


class Call(msgspec.Struct):
    function: Function


class Said(msgspec.Struct):
    content: str = ""
    tool_calls: list[Call] = []


class Part(msgspec.Struct):
    """A line of the response: a piece of the answer, or all of it."""

    message: Said = msgspec.field(default_factory=Said)
    done: bool = False
    done_reason: str = "stop"
    prompt_eval_count: int = 0
    eval_count: int = 0
    error: str = ""


decode = msgspec.json.Decoder(Part).decode


class OllamaCloud:
    """`Llm` over Ollama's chat API. Its calls have no ids."""

    def __init__(self, endpoint: ModelEndpoint) -> None:
        self._http = LlmHttp()
        self._name, self._key = endpoint.name, endpoint.api_key
        self._url = f"{endpoint.base_url}/api/chat"
        self._offered = OfferedCache(sent_tools, forbidden=r"[^A-Za-z0-9_-]")

    def takes_schema(self, request: LlmRequest) -> bool:
        """With a schema, a model writes JSON at once, and calls no tool before."""
        return not request.tools

    def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        who = f"{self._name} model {bare_model(request.model)}"
        attempt = partial(self._attempt, request, time.monotonic())
        return retried(attempt, failure_of, who, self._key, is_reserved=request.is_reserved)

    async def close(self) -> None:
        await self._http.aclose()

    async def _attempt(self, request: LlmRequest, started: float) -> AsyncGenerator[Event, None]:
        offered = self._offered.of(callable_tools(request))
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key}"}
        content = json.dumps(body(request, offered)).encode()
        sent = self._http.build_request(
            "POST", self._url, headers=headers, content=content, timeout=request.timeout_s
        )
        response = await self._http.send(sent, stream=True)
        draft, part = Draft(request.model, started), Part()
        try:
            if response.status_code != 200:
                await response.aread()
                raise status_failure(response.status_code, message_of(response), response.headers)
            async for line in response.aiter_lines():
                part = decode(line)
                for event in events(draft, part, offered):
                    if request.deltas:
                        yield event
        finally:
            await response.aclose()
        if not part.done:
            raise Failure("the stream broke off", transient=True)
        draft.usage = Usage(part.prompt_eval_count, part.eval_count)
        yield draft.done("length" if part.done_reason == "length" else "stop")


def failure_of(error: Exception) -> Failure | None:
    return error if isinstance(error, Failure) else read_failure(error)


def callable_tools(request: LlmRequest) -> tuple[ToolSpec, ...]:
    """The API cannot forbid to call tools: those that must not be called any more are not sent."""
    if not request.answer_only:
        return request.tools
    return tuple(tool for tool in request.tools if tool.name == request.ends_with)


def sent_tools(tools: list[tuple[str, ToolSpec]]) -> list[dict[str, Any]]:
    functions = [
        {"name": name, "description": tool.description, "parameters": tool.input_schema}
        for name, tool in tools
    ]
    return [{"type": "function", "function": function} for function in functions]


def body(request: LlmRequest, offered: Offered[list[dict[str, Any]]]) -> dict[str, Any]:
    parameters = request.parameters
    options = given(
        num_predict=request.max_tokens,
        temperature=parameters.temperature,
        top_p=parameters.top_p,
        stop=parameters.stop,
        seed=parameters.seed,
    )
    system = [{"role": "system", "content": request.system}] if request.system else []
    messages = [*system, *(sent for message in request.messages for sent in sent_messages(message, offered))]
    return {
        "model": bare_model(request.model),
        "messages": messages,
        "stream": request.deltas,
        **given(
            tools=offered.encoded or None,
            options=options or None,
            think=parameters.effort,
            format=request.output_schema,
        ),
    }


def sent_messages(message: Message, offered: Offered[Any]) -> Iterator[dict[str, Any]]:
    if isinstance(message, Results):
        for result in message.results:
            content = f"Error: {result.content}" if result.is_error else result.content
            yield {"role": "tool", "tool_name": offered.wire(result.name), "content": content}
    elif isinstance(message, Assistant):
        calls = [
            {"function": {"name": offered.wire(call.name), "arguments": sent_arguments(call)}}
            for call in message.tool_calls
        ]
        yield {"role": "assistant", "content": message.text, **given(tool_calls=calls or None)}
    else:
        yield {"role": "user", "content": message.text}


def events(draft: Draft, part: Part, offered: Offered[Any]) -> Iterator[Event]:
    if part.error:
        raise Failure(part.error, transient=True)
    if part.message.content:
        yield draft.text(part.message.content)
    for call in part.message.tool_calls:
        yield draft.add(tool_call("", offered.own(call.function.name), call.function.arguments))


provider = Provider(
    make=OllamaCloud,
    parameters=ALL_PARAMETERS,
    key="OLLAMA_API_KEY",
    base_url="https://ollama.com",
    base_url_variable="OLLAMA_CLOUD_BASE_URL",
)
