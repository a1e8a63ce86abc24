"""The port to language models: what a tree node asks of a provider.

There is one module for each provider, over its official SDK, and the offline model. A provider knows no
conversation, journal, approval or tool session. It turns messages into text and tool calls, and runs nothing
itself.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

import msgspec

from mesh.core.events import Event
from mesh.core.messages import Message, ToolSpec
from mesh.llm.parameters import Parameters


class LlmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call.

    ``max_tokens`` None: the provider's default (4096 for Anthropic, whose API requires a number).
    ``parameters`` are those that the provider takes: `mesh.llm.config_checks` refuses a config with others.
    ``timeout_s`` bounds each HTTP request, the body of its response included; `mesh.llm.retry` bounds the
    number of requests. ``deltas`` False: nobody watches, so that the provider need not stream.
    ``answer_only``: the model must not call its tools any more. ``is_reserved``: what one request can cost
    is reserved, so that no other one follows a request that may be charged (`LlmError.is_final`).
    ``output_schema``: the JSON Schema of the answer, whose text is JSON then; `mesh.llm.structured` says how
    far that is true. ``ends_with``: the name of the tool that alone can end the work; every answer must call
    a tool, and with ``answer_only`` this one. `mesh.llm.structured` sets it, and nobody else.
    """

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    parameters: Parameters = Parameters()
    timeout_s: float = 60.0
    deltas: bool = False
    answer_only: bool = False
    is_reserved: bool = False
    output_schema: dict[str, Any] | None = None
    ends_with: str = ""


class Llm(Protocol):
    """A provider.

    Events come in the order in which the model made them. A stream that ends without an exception has ended
    with exactly one `LlmCall`, whose ``latency_ms`` is counted from the first attempt. A refusal, a content
    filter, an empty answer and malformed tool arguments are answers too, not errors. `LlmError` is raised
    when there is no answer.

    A request with an ``output_schema`` is answered in JSON as far as the provider can make its model do so:
    whoever asks checks the answer. A provider that is not a `TakesSchema` never sees such a request.

    Deltas are a preview, and only the `LlmCall` counts: deltas may be missing, and those of an attempt that
    broke off are followed by those of the next one. A tool that the model names need not have been offered.
    """

    def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        """Yields `TextDelta`, `ToolCallDelta` and `Trace` as they come, and one `LlmCall` at the end."""
        ...

    async def close(self) -> None:
        """Closes the connections. The provider must not be used afterwards."""
        ...


@runtime_checkable
class TakesSchema(Protocol):
    """A provider whose API takes the schema of an answer in a form of its own."""

    def takes_schema(self, request: LlmRequest) -> bool:
        """Whether that form can express the schema of this request, and goes together with its tools. A
        provider may still refuse it with a status 400."""
        ...
