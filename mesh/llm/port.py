"""The port to language models: what a node asks of one, whoever makes it.

Above: a tree node that keeps the conversation. Below: one file per provider, its official SDK.
A model knows no conversation, no journal, no approval and no tool session: it turns messages into
text and tool calls, and never runs anything.
"""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from mesh.core.events import Event
from mesh.core.messages import Message, ToolSpec


class LlmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call.

    ``max_tokens`` None: the provider's default (for Anthropic, which requires one, 4096).
    ``timeout_s`` bounds each HTTP request; the retries have their own bound.
    ``deltas`` False: nobody watches, so that a provider need not stream.
    """

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    timeout_s: float = 60.0
    deltas: bool = False


class Llm(Protocol):
    """A provider.

    Promises: events come in the order the model made them; a stream that ends without raising has
    ended with exactly one `LlmCall`, whose ``latency_ms`` counts from the first attempt; a refusal,
    a content filter, an empty answer and malformed tool arguments are such answers, not errors.
    Raises `LlmError` when there is no answer.

    Does not promise: that deltas come at all (``deltas`` False, or a retry after some came: what
    counts is the `LlmCall`), that two equal requests give equal answers, that a tool the model
    names was offered.
    """

    def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        """`TextDelta`, `ToolCallDelta` and `Trace` as they come, one `LlmCall` at the end."""
        ...

    async def close(self) -> None:
        """Gives back connections. The provider is not used after."""
        ...
