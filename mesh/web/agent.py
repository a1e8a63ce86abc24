"""The mesh behind the page, over HTTP: one answer within bounds, or a stream of events as its bytes come.

It knows paths and bytes, and nothing of what they say. Problems are `MeshError`s in words, never with what
``agent_url`` may hide in it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import httpx2

from mesh.access.principal import bearer_in, is_key
from mesh.core.errors import MeshError, Unavailable
from mesh.net.bodies import BodyTooLarge, read_body
from mesh.net.origin import is_loopback
from mesh.web.config import WebConfig

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_CONNECT_S = 5.0
_SILENCE_S = 60.0
"""The mesh sends heartbeats every 15 s: a stream that says nothing for so long is dead."""


class Answer(NamedTuple):
    """What the mesh said: JSON, and the headers that a page may see."""

    status: int
    body: bytes
    headers: dict[str, str]


class AgentUnreachable(MeshError):
    """The mesh does not answer, or not as a mesh."""


class Agent:
    """A mesh at an address. Close it with `close`."""

    def __init__(self, config: WebConfig) -> None:
        self._base = config.agent_url.rstrip("/")
        self._key = config.key
        self._shown = config.agent_shown
        self._timeout_s = config.timeout_s
        # Streams have connections of their own: however many there are, a decision gets through.
        self._calls = _client(config, 100, config.timeout_s)
        self._streams = _client(config, config.max_streams, _SILENCE_S)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request and its whole answer, at most `MAX_ANSWER_BYTES`. Raises `MeshError`."""
        with self._in_words():
            asked = self._calls.stream(
                method, self._base + path, headers=self._keyed(headers), content=content, params=params
            )
            async with asyncio.timeout(self._timeout_s), asked as response:
                self._check_json(response)
                return Answer(response.status_code, await self._read(response), _passed_on(response))

    @asynccontextmanager
    async def events(
        self, path: str, *, headers: Mapping[str, str], params: Mapping[str, str]
    ) -> AsyncIterator[Answer | AsyncIterator[bytes]]:
        """The bytes of an event stream, or the answer that came in its place. Leaving closes the stream."""
        wanted = {**self._keyed(headers), "Accept": "text/event-stream"}
        with self._in_words():
            asked = self._streams.stream("GET", self._base + path, headers=wanted, params=params)
            async with asked as response:
                if _kind(response) == "text/event-stream":
                    yield self._bytes(response)
                else:
                    self._check_json(response)
                    yield Answer(response.status_code, await self._read(response), _passed_on(response))

    async def close(self) -> None:
        """Lets go of every connection."""
        await self._calls.aclose()
        await self._streams.aclose()

    def _keyed(self, headers: Mapping[str, str]) -> dict[str, str]:
        """With our key, for a person who did not give the page one of their own."""
        has_own = is_key(bearer_in(headers.get("authorization", "")))
        return {**headers, "X-API-Key": self._key} if self._key and not has_own else dict(headers)

    async def _bytes(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        with self._in_words():
            async for chunk in response.aiter_bytes():
                yield chunk

    async def _read(self, response: httpx2.Response) -> bytes:
        try:
            return await read_body(response.aiter_bytes(), MAX_ANSWER_BYTES)
        except BodyTooLarge as error:
            raise AgentUnreachable(f"the answer of {self._shown} is over {error.limit:,} bytes") from None

    def _check_json(self, response: httpx2.Response) -> None:
        if _kind(response) != "application/json":
            raise AgentUnreachable(
                f"what answers at {self._shown} is no mesh (HTTP {response.status_code}, "
                f"{_kind(response) or 'no Content-Type'}); is agent_url right?"
            )

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except httpx2.PoolTimeout:
            raise Unavailable(
                "too many requests are under way (max_streams); close some tabs and try again"
            ) from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise AgentUnreachable(
                f"the agent at {self._shown} cannot be reached; is it running (mesh up), is agent_url right?"
            ) from None
        except (httpx2.TimeoutException, TimeoutError):
            raise AgentUnreachable(
                f"the agent at {self._shown} did not answer within {self._timeout_s:g} s (timeout_s)"
            ) from None
        except httpx2.HTTPError:
            raise AgentUnreachable(f"the connection to the agent at {self._shown} broke; try again") from None


def _client(config: WebConfig, connections: int, silence_s: float) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(silence_s, connect=_CONNECT_S, pool=1.0),
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=20),
        # A proxy of the environment is for what is elsewhere, and could not reach this machine.
        trust_env=not is_loopback(httpx2.URL(config.agent_url).host),
        follow_redirects=False,
    )


def _kind(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _passed_on(response: httpx2.Response) -> dict[str, str]:
    names = ("X-Session-ID", "Location", "Retry-After")
    return {name: response.headers[name] for name in names if name in response.headers}
