"""The HTTP client under the three SDKs: httpx2 on the outside, aiohttp inside.

Every SDK takes an `httpx2.AsyncClient`; what httpx2 does per request (parsing URLs, merging headers
three times, cookies, auth flows, redirects) costs more CPU than the rest of a model call together.
So the two methods that the SDKs call, ``build_request`` and ``send``, are answered here directly.

It knows no provider and no retry. Deliberately absent: cookies, redirects (an API that redirects a
POST is misconfigured, and keys must not follow), client-level headers and parameters.
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Any

import aiohttp
import httpx2

MOST_CONNECTIONS = 4096
CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 30.0
MOST_RESPONSE_BYTES = 32 * 1024 * 1024

_parse_url = lru_cache(256)(httpx2.URL)


class _Body(httpx2.AsyncByteStream):
    """A response's body as it comes. The connection goes back when it was read to its end."""

    def __init__(self, response: aiohttp.ClientResponse, request: httpx2.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in _bounded(self._response):
                yield chunk
        except _FAILURES as error:
            raise _translated(error, self._request) from error

    async def aclose(self) -> None:
        self._response.close()


class LlmHttp(httpx2.AsyncClient):
    """One connection pool of one event loop. Bounds: `MOST_CONNECTIONS` at a time, connecting
    `CONNECT_TIMEOUT_S`, a request the read timeout that its SDK set, in total, and
    `MOST_RESPONSE_BYTES`. Proxies are those of the environment (``HTTPS_PROXY``, ``NO_PROXY``).
    """

    def __init__(self) -> None:
        super().__init__(transport=_NoTransport())
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[str, str | None] = {}

    def build_request(  # type: ignore[override]  # what the SDKs pass, of what httpx2 offers
        self,
        method: str,
        url: httpx2.URL | str,
        *,
        content: bytes | None = None,
        headers: Any = None,
        timeout: Any = None,
        **unused: Any,
    ) -> httpx2.Request:
        if wanted := [name for name in ("data", "files", "json", "params") if unused.get(name)]:
            raise TypeError(f"LlmHttp sends bodies as content, and no {wanted[0]}")
        parsed = _parse_url(url) if isinstance(url, str) else url
        request = httpx2.Request(method, parsed, headers=headers, stream=httpx2.ByteStream(b""))
        request.extensions = {"timeout": timeout, "content": content}
        return request

    async def send(self, request: httpx2.Request, *, stream: bool = False, **_: Any) -> httpx2.Response:
        timeout = request.extensions["timeout"]
        seconds = timeout.read if isinstance(timeout, httpx2.Timeout) else timeout
        try:
            response = await self._sessioned().request(
                request.method,
                str(request.url),
                data=request.extensions["content"],
                headers=[
                    (key.decode("ascii"), value.decode("latin-1")) for key, value in request.headers.raw
                ],
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_TIMEOUT_S),
                proxy=self._proxy_for(request.url),
            )
            if stream and response.status < 400:
                return _response(response, request, stream=_Body(response, request))
            return _response(response, request, content=await _read(response))
        except _FAILURES as error:
            raise _translated(error, request) from error

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
        await super().aclose()

    def _sessioned(self) -> aiohttp.ClientSession:
        # Made on first use: aiohttp wants the running loop. Not `trust_env`: that starts a thread
        # for each request, to look for a .netrc.
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=KEEPALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    def _proxy_for(self, url: httpx2.URL) -> str | None:
        if url.host not in self._proxies:
            bypassed = urllib.request.proxy_bypass(url.host)
            self._proxies[url.host] = None if bypassed else urllib.request.getproxies().get(url.scheme)
        return self._proxies[url.host]


async def _read(response: aiohttp.ClientResponse) -> bytes:
    try:
        return b"".join([chunk async for chunk in _bounded(response)])
    finally:
        # Nothing to do after the whole body; what broke off is not to be used again.
        response.close()


async def _bounded(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MOST_RESPONSE_BYTES:
            response.close()
            raise aiohttp.ClientPayloadError(f"the answer is larger than {MOST_RESPONSE_BYTES} bytes")
        yield chunk


class _NoTransport(httpx2.AsyncBaseTransport):
    """Keeps httpx2 from building a pool and an SSL context that nobody would use."""


_FAILURES = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


def _translated(error: BaseException, request: httpx2.Request) -> httpx2.TransportError:
    message = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx2.ConnectError(message, request=request)
    if isinstance(error, TimeoutError):
        return httpx2.ReadTimeout(message, request=request)
    return httpx2.ReadError(message, request=request)


def _response(response: aiohttp.ClientResponse, request: httpx2.Request, **body: Any) -> httpx2.Response:
    # aiohttp has undone any content encoding already.
    headers = [pair for pair in response.raw_headers if pair[0].lower() not in _CODED]
    return httpx2.Response(response.status, headers=headers, request=request, **body)


_CODED = (b"content-encoding", b"transfer-encoding", b"content-length")
