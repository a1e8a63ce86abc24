"""What the provider tests share: the three formats against the scripted server, real SDKs between."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mesh.core.messages import Message, User
from mesh.llm.port import Llm, LlmRequest
from mesh.llm.routing import provider_for
from mesh.servers.llm_stub import LlmStub
from mesh.testing.conformance import KEY, answer_of, events_of
from mesh.testing.provider_promises import DOTTED, WEATHER

__all__ = [
    "DOTTED",
    "FORMATS",
    "KEY",
    "MODELS",
    "WEATHER",
    "answer_of",
    "closing_provider",
    "env_for",
    "events_of",
    "provider",
    "request",
]
MODELS = {"openai": "openai:gpt-test", "anthropic": "claude-test", "gemini": "gemini-test"}
FORMATS = list(MODELS)


def env_for(url: str) -> dict[str, str]:
    """The environment that sends every provider to one server."""
    return {
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_KEY": KEY,
        "GEMINI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{url}/v1",
        "ANTHROPIC_BASE_URL": url,
        "GOOGLE_GEMINI_BASE_URL": url,
    }


@asynccontextmanager
async def provider(wire: str, script: dict[str, Any] | None) -> AsyncIterator[tuple[LlmStub, Llm]]:
    """A stub with a script, and the provider of one format in front of it."""
    async with LlmStub(script) as stub, closing_provider(wire, stub.url) as llm:
        yield stub, llm


@asynccontextmanager
async def closing_provider(wire: str, url: str) -> AsyncIterator[Llm]:
    """The provider of one format, for a server at a URL."""
    llm = provider_for(MODELS[wire], env_for(url))
    try:
        yield llm
    finally:
        await llm.close()


def request(wire: str, *messages: Message, **more: Any) -> LlmRequest:
    """A request; one user message when none is given."""
    return LlmRequest(
        model=MODELS[wire], system="Be brief.", messages=messages or (User("Hello there"),), **more
    )
