"""The HTTP client under the providers: httpx2 on the outside, aiohttp inside.

The SDKs take an `httpx2.AsyncClient`, and every call of theirs goes through two of its methods,
``build_request`` and ``send``. They are overridden here, because what httpx2 does in them for each request
(it parses URLs, merges headers three times, keeps cookies, runs auth flows and redirects) costs more CPU than
the rest of a model call together, and so does its transport: see ``docs/decisions/llm-clients.md``. The
aiohttp clients of the OpenAI and Anthropic SDKs are no replacement: they bound the time between two chunks
only, and neither the whole time nor the size of an answer.

This module knows no provider and does not retry. Deliberately absent are cookies and redirects (an API that
redirects a POST is misconfigured, and keys must not follow), and headers and parameters of the client.
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Any

import aiohttp
import httpx2
import msgspec

from mesh.llm.retry import Failure
from mesh.net.bodies import BodyTooLarge, at_most

MAX_CONNECTIONS = 4096
CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 30.0
MAX_RESPONSE_BYTES = 32 * 1024 * 1024
_MAX_MESSAGE = 2000

_parse_url = lru_cache(256)(httpx2.URL)


class LlmHttp(httpx2.AsyncClient):
    """An HTTP client with one pool of connections, for one event loop.

    Bounds: `MAX_CONNECTIONS` at a time; `CONNECT_TIMEOUT_S` for a connection; the request's read timeout for
    the whole exchange, the body included; `MAX_RESPONSE_BYTES`. Proxies are those of the environment
    (``HTTPS_PROXY``, ``NO_PROXY``).
    """

    def __init__(self) -> None:
        # A transport of its own keeps httpx2 from building a pool and an SSL context that nobody would use.
        super().__init__(transport=httpx2.AsyncBaseTransport())
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[str, str | None] = {}

    def build_request(  # type: ignore[override]  # of httpx2's parameters, those that are used here
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
            response = await self._opened_session().request(
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
        except _FAILURES as error:
            raise _translated(error) from error
        # aiohttp has undone the content encoding, so what describes it does not fit any more.
        headers = [pair for pair in response.raw_headers if pair[0].lower() not in _CODED]
        body = _Body(response)
        if stream:
            return httpx2.Response(response.status, headers=headers, request=request, stream=body)
        try:
            content = b"".join([chunk async for chunk in body])
        finally:
            await body.aclose()
        return httpx2.Response(response.status, headers=headers, request=request, content=content)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
        await super().aclose()

    def _opened_session(self) -> aiohttp.ClientSession:
        # Made on first use, because aiohttp wants the running loop. Not `trust_env`: that starts a thread
        # for each request, to look for a .netrc.
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    def _proxy_for(self, url: httpx2.URL) -> str | None:
        if url.host not in self._proxies:
            bypassed = urllib.request.proxy_bypass(url.host)
            self._proxies[url.host] = None if bypassed else urllib.request.getproxies().get(url.scheme)
        return self._proxies[url.host]


class _Body(httpx2.AsyncByteStream):
    """A response's body as it arrives."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in at_most(MAX_RESPONSE_BYTES, self._response.content.iter_any()):
                yield chunk
        except BodyTooLarge as error:
            raise httpx2.ReadError(str(error)) from None
        except _FAILURES as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        # A connection whose body was read to its end is back in the pool by now; any other one must not be
        # used again, since the rest of this body would be read as the next answer.
        self._response.close()


_FAILURES = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
_CODED = (b"content-encoding", b"transfer-encoding", b"content-length")


def _translated(error: BaseException) -> httpx2.TransportError:
    message = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx2.ConnectError(message)
    if isinstance(error, TimeoutError):
        return httpx2.ReadTimeout(message)
    return httpx2.ReadError(message)


def was_never_sent(error: BaseException | None) -> bool:
    """Whether no connection was made, so that the provider knows nothing of the request."""
    return isinstance(error, httpx2.ConnectError)


def read_failure(error: Exception) -> Failure | None:
    """What an exception means that sending a request or reading its answer raised; None: it is a defect."""
    if isinstance(error, httpx2.SSEError | msgspec.DecodeError | UnicodeDecodeError | RecursionError):
        return Failure(f"the answer cannot be read: {error}", transient=True)
    if isinstance(error, httpx2.TimeoutException):
        return Failure("no answer in time", transient=True)
    if isinstance(error, httpx2.TransportError):
        return Failure(f"connection lost: {error}", transient=True, never_sent=was_never_sent(error))
    return None


class _ErrorDetail(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail | str = ""
    message: str = ""


def message_of(response: httpx2.Response) -> str:
    """What a provider says is wrong: the message of its error, or what it sent in place of one."""
    try:
        body = msgspec.json.decode(response.content, type=_ErrorBody)
    except msgspec.DecodeError:
        return response.text[:_MAX_MESSAGE] or "no message"
    detail = body.error if isinstance(body.error, str) else body.error.message
    return detail or body.message or response.text[:_MAX_MESSAGE]
