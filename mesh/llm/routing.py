"""The providers of a process: made on first use, and shared by all who use the same endpoint and key.

One provider holds one pool of connections, and a process may run many nodes that call the same endpoint.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from weakref import WeakKeyDictionary

from mesh.core.events import Event
from mesh.llm.installed import made
from mesh.llm.models import check_variables, provider_of, resolve
from mesh.llm.port import Llm, LlmRequest
from mesh.llm.provider import ModelEndpoint
from mesh.llm.structured import StructuredAnswers

_Identity = tuple[Callable[[ModelEndpoint], Llm], ModelEndpoint]


def provider_for(model: str, env: Mapping[str, str] | None = None) -> Llm:
    """The provider of a model, made on first use and shared within the running event loop.

    ``env`` None: the process's environment. Call this with a loop running. ``close`` of the result gives up
    one share; the last share closes the connections. Raises `ConfigError` when the API key is missing, and
    when the provider is not installed or cannot be used.
    """
    env = os.environ if env is None else env
    provider, route = provider_of(model), resolve(model, env)
    check_variables(route, env)
    # A key that is not needed is sent all the same: a server in place of the provider's may ask for one.
    endpoint = ModelEndpoint(provider.name, env.get(provider.key, "").strip(), route.base_url)
    shared = _shared.setdefault(asyncio.get_running_loop(), {})
    identity = (provider.make, endpoint)
    if identity not in shared:
        llm = StructuredAnswers(made(provider, endpoint))
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
