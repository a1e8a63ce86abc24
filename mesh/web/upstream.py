"""The mesh behind the page, over HTTP: one answer within bounds, or a stream of events as its bytes come.

It knows paths and bytes, and not what they mean. Errors are `MeshError`s for people, and never contain the
credentials that ``agent_url`` may have in it.
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
"""The mesh sends a heartbeat every 15 s: a stream that is silent for so long is dead."""


class UpstreamResponse(NamedTuple):
    """A response of the mesh: JSON, and the headers that a page may see."""

    status: int
    body: bytes
    headers: dict[str, str]


class UpstreamUnreachable(MeshError):
    """The mesh did not respond, or what responded is no mesh."""


class Upstream:
    """The mesh at an address. Close it with `close`."""

    def __init__(self, config: WebConfig) -> None:
        self._base = config.agent_url.rstrip("/")
        self._key = config.key
        self._shown = config.agent_shown
        self._timeout_s = config.timeout_s
        # Streams have their own connections, so that a decision gets through however many streams are open.
        self._requests = _client(config, 100, config.timeout_s)
        self._streams = _client(config, config.max_streams, _SILENCE_S)

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
    ) -> UpstreamResponse:
        """Sends a request and reads its whole response, at most `MAX_ANSWER_BYTES`. Raises `MeshError`."""
        with self._errors_for_people():
            asked = self._requests.stream(
                method, self._base + path, headers=self._keyed(headers), content=content, params=params
            )
            async with asyncio.timeout(self._timeout_s), asked as response:
                return await self._read(response)

    @asynccontextmanager
    async def events(
        self, path: str, *, headers: Mapping[str, str], params: Mapping[str, str]
    ) -> AsyncIterator[UpstreamResponse | AsyncIterator[bytes]]:
        """The bytes of an event stream, or the response that came instead. Leaving closes the stream."""
        wanted = {**self._keyed(headers), "Accept": "text/event-stream"}
        with self._errors_for_people():
            asked = self._streams.stream("GET", self._base + path, headers=wanted, params=params)
            async with asked as response:
                if _media_type(response) == "text/event-stream":
                    yield self._bytes(response)
                else:
                    yield await self._read(response)

    async def close(self) -> None:
        """Closes every connection."""
        await self._requests.aclose()
        await self._streams.aclose()

    def _keyed(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Adds the key of the config, unless the person gave the page one of their own."""
        has_own = is_key(bearer_in(headers.get("authorization", "")))
        return {**headers, "X-API-Key": self._key} if self._key and not has_own else dict(headers)

    async def _bytes(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        with self._errors_for_people():
            async for chunk in response.aiter_bytes():
                yield chunk

    async def _read(self, response: httpx2.Response) -> UpstreamResponse:
        self._check_json(response)
        try:
            body = await read_body(response.aiter_bytes(), MAX_ANSWER_BYTES)
        except BodyTooLarge as error:
            raise UpstreamUnreachable(f"the answer of {self._shown} is over {error.limit:,} bytes") from None
        return UpstreamResponse(response.status_code, body, _visible_headers(response))

    def _check_json(self, response: httpx2.Response) -> None:
        if _media_type(response) != "application/json":
            raise UpstreamUnreachable(
                f"what answers at {self._shown} is no mesh (HTTP {response.status_code}, "
                f"{_media_type(response) or 'no Content-Type'}); is agent_url right?"
            )

    @contextmanager
    def _errors_for_people(self) -> Iterator[None]:
        try:
            yield
        except httpx2.PoolTimeout:
            raise Unavailable(
                "too many requests are under way (max_streams); close some tabs and try again"
            ) from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise UpstreamUnreachable(
                f"the agent at {self._shown} cannot be reached; is it running (mesh up), is agent_url right?"
            ) from None
        except (httpx2.TimeoutException, TimeoutError):
            raise UpstreamUnreachable(
                f"the agent at {self._shown} did not answer within {self._timeout_s:g} s (timeout_s)"
            ) from None
        except httpx2.HTTPError:
            raise UpstreamUnreachable(
                f"the connection to the agent at {self._shown} broke; try again"
            ) from None


def _client(config: WebConfig, connections: int, silence_s: float) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(silence_s, connect=_CONNECT_S, pool=1.0),
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=20),
        # A proxy from the environment is meant for other hosts, and could not reach this one's loopback.
        trust_env=not is_loopback(httpx2.URL(config.agent_url).host),
        follow_redirects=False,
    )


def _media_type(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _visible_headers(response: httpx2.Response) -> dict[str, str]:
    names = ("X-Session-ID", "Location", "Retry-After")
    return {name: response.headers[name] for name in names if name in response.headers}
