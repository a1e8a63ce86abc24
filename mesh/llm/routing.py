"""The providers of a process: made on first use, and shared by all who use the same endpoint and key.

One provider holds one pool of connections, and a process may run many nodes that call the same endpoint.
An SDK is imported when its first provider is made, because each import takes about a second.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from weakref import WeakKeyDictionary

from mesh.core.events import Event
from mesh.llm.models import API_KEY_VARIABLES, Provider, Route, check_key, resolve
from mesh.llm.port import Llm, LlmRequest
from mesh.llm.structured import StructuredAnswers

_Identity = tuple[Provider, str | None, str]  # provider, base URL, API key


def provider_for(model: str, env: Mapping[str, str] | None = None) -> Llm:
    """The provider of a model, made on first use and shared within the running event loop.

    ``env`` None: the process's environment. Call this with a loop running. ``close`` of the result gives up
    one share; the last share closes the connections. Raises `ConfigError` when the API key is missing.
    """
    env = os.environ if env is None else env
    route = resolve(model, env)
    check_key(route, env)
    api_key = (env.get(API_KEY_VARIABLES.get(route.provider, "")) or "").strip()
    shared = _shared.setdefault(asyncio.get_running_loop(), {})
    identity = (route.provider, route.base_url, api_key)
    if identity not in shared:
        llm = StructuredAnswers(_make(route, api_key))
        shared[identity] = _SharedProvider(llm, lambda: shared.pop(identity, None))
    return _Share(shared[identity])


class _SharedProvider:
    """A provider and the number of its shares. The last release closes it."""

    def __init__(self, llm: Llm, forget: Callable[[], object]) -> None:
        self.llm = llm
        self._forget = forget
        self._shares = 0

    def acquire(self) -> None:
        self._shares += 1

    async def release(self) -> None:
        self._shares -= 1
        if self._shares == 0:
            # Before the first await: `provider_for` must not hand out a provider that is being closed.
            self._forget()
            await self.llm.close()


class _Share:
    """`Llm`: one share of a provider."""

    def __init__(self, shared: _SharedProvider) -> None:
        shared.acquire()
        self._shared: _SharedProvider | None = shared

    def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if self._shared is None:
            raise RuntimeError("this provider was closed")
        return self._shared.llm.stream(request)

    async def close(self) -> None:
        # A second close of the same share must not give up somebody else's.
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release()


# Weak keys: connections cannot outlive their event loop, and tests run one loop after the other.
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Identity, _SharedProvider]] = WeakKeyDictionary()


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
