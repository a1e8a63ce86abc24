"""From a model's name to the provider that serves it.

    claude-…, anthropic:…      Anthropic       ANTHROPIC_API_KEY    ANTHROPIC_BASE_URL
    openai:…                   OpenAI          OPENAI_API_KEY       OPENAI_BASE_URL (then no key needed)
    openrouter:…               OpenRouter      OPENROUTER_API_KEY   OPENROUTER_BASE_URL
    ollama:…                   Ollama          none                 OLLAMA_BASE_URL
    google:…, anything else    Gemini          GEMINI_API_KEY       GOOGLE_GEMINI_BASE_URL
    offline                    no network, no key

The SDKs are imported when a provider is made: each takes about a second.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal
from weakref import WeakKeyDictionary

import msgspec

from mesh.core.errors import ConfigError
from mesh.core.events import Event
from mesh.llm.port import Llm, LlmRequest

Provider = Literal["gemini", "anthropic", "openai", "openrouter", "ollama", "offline"]

ANTHROPIC_MAX_TOKENS = 4096
OFFLINE_NAME = "offline"
_PREFIXES: dict[str, Provider] = {
    "google": "gemini",
    "anthropic": "anthropic",
    "openai": "openai",
    "openrouter": "openrouter",
    "ollama": "ollama",
}
_KEYS: dict[Provider, str] = {
    "gemini": "GEMINI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}
_BASE_URLS: dict[Provider, tuple[str, str | None]] = {
    "gemini": ("GOOGLE_GEMINI_BASE_URL", None),
    "anthropic": ("ANTHROPIC_BASE_URL", None),
    "openai": ("OPENAI_BASE_URL", None),
    "openrouter": ("OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
    "ollama": ("OLLAMA_BASE_URL", "http://127.0.0.1:11434/v1"),
}


class Route(msgspec.Struct, frozen=True):
    """Where a model is served. ``base_url`` None: the SDK's own. ``key`` names the environment
    variable that must hold the API key, None when none is needed."""

    provider: Provider
    model: str
    base_url: str | None = None
    key: str | None = None
    max_tokens: int | None = None


def bare_model(model: str) -> str:
    """The model's name without the provider's prefix.

    >>> bare_model("ollama:llama3:8b")
    'llama3:8b'
    """
    prefix, colon, rest = model.partition(":")
    return rest if colon and prefix in _PREFIXES else model


def resolve(model: str, env: Mapping[str, str]) -> Route:
    """The route of a model. Raises `ConfigError` when nothing follows the prefix."""
    bare = bare_model(model)
    if not bare.strip():
        raise ConfigError([f"llm.model: {model!r} names no model; expected a name such as claude-sonnet-4-5"])
    if model == OFFLINE_NAME:
        return Route("offline", OFFLINE_NAME)
    provider = _provider(model)
    variable, usual = _BASE_URLS[provider]
    custom = env.get(variable) or None
    free = provider == "ollama" or (provider == "openai" and custom is not None)
    return Route(
        provider,
        bare,
        custom or usual,
        None if free else _KEYS[provider],
        ANTHROPIC_MAX_TOKENS if provider == "anthropic" else None,
    )


def check_key(route: Route, env: Mapping[str, str]) -> None:
    """Raises `ConfigError`, naming the variable, when the route's API key is missing."""
    if route.key is not None and not env.get(route.key, "").strip():
        raise ConfigError(
            [f"{route.key} is not set: the model {route.model!r} ({route.provider}) needs an API key in it"]
        )


def provider_for(model: str, env: Mapping[str, str] | None = None) -> Llm:
    """The provider of a model, made on first use and shared by the process's running event loop.

    ``env`` None: the process's. Call it with a loop running. ``close`` gives up this share; the last
    one closes the connections. Raises `ConfigError` when the key is missing.
    """
    env = os.environ if env is None else env
    route = resolve(model, env)
    check_key(route, env)
    api_key = (env.get(_KEYS.get(route.provider, "")) or "").strip()
    shared = _shared.setdefault(asyncio.get_running_loop(), {})
    identity = (route.provider, route.base_url, api_key)
    if identity not in shared:
        shared[identity] = _Shared(_make(route, api_key), lambda: shared.pop(identity, None))
    return _Share(shared[identity])


_Identity = tuple[Provider, str | None, str]


class _Shared:
    """A provider and how many hold it."""

    def __init__(self, llm: Llm, forget: Callable[[], object]) -> None:
        self.llm = llm
        self._forget = forget
        self._holders = 0

    def hold(self) -> None:
        self._holders += 1

    async def release(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._forget()
            await self.llm.close()


class _Share:
    """One holder's share of a provider."""

    def __init__(self, shared: _Shared) -> None:
        shared.hold()
        self._shared: _Shared | None = shared

    def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if self._shared is None:
            raise RuntimeError("this provider was closed")
        return self._shared.llm.stream(request)

    async def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release()


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Identity, _Shared]] = WeakKeyDictionary()


def _provider(model: str) -> Provider:
    prefix, colon, _ = model.partition(":")
    if colon and prefix in _PREFIXES:
        return _PREFIXES[prefix]
    return "anthropic" if model.startswith("claude-") else "gemini"


def _make(route: Route, api_key: str) -> Llm:
    if route.provider == "offline":
        from mesh.llm.offline import Offline

        return Offline()
    if route.provider == "gemini":
        from mesh.llm.gemini import Gemini

        return Gemini(api_key, route.base_url)
    if route.provider == "anthropic":
        from mesh.llm.anthropic import Anthropic

        return Anthropic(api_key, route.base_url)
    from mesh.llm.openai import OpenAI

    compatible = route.base_url is not None
    return OpenAI(api_key, route.base_url, name=route.provider, compatible=compatible)
