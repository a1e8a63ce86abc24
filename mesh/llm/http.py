"""The HTTP client under the providers: an httpx2 client whose transport is aiohttp.

The SDKs take an `httpx2.AsyncClient`, and httpx2's own transport costs about twice the CPU of aiohttp's for
a model call (``docs/decisions/llm-clients.md``). The OpenAI and Anthropic SDKs have such a transport as well;
it bounds the time between two chunks only, and neither the whole time nor the size of an answer.

This module knows no provider and does not retry. Deliberately absent are cookies and redirects: an API that
redirects a POST is misconfigured, and keys must not follow.
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator

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


def http_client() -> httpx2.AsyncClient:
    """A client with one pool of connections, for one event loop."""
    # aiohttp decodes the body, so that only what aiohttp can decode must be asked for.
    return httpx2.AsyncClient(
        transport=AiohttpTransport(),
        headers={"Accept-Encoding": "gzip, deflate"},
        follow_redirects=False,
        trust_env=False,
    )


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Sends requests with aiohttp.

    Bounds: `MAX_CONNECTIONS` at a time; `CONNECT_TIMEOUT_S` for a connection; the request's read timeout for
    the whole exchange, the body included; `MAX_RESPONSE_BYTES`. Proxies are those of the environment
    (``HTTPS_PROXY``, ``NO_PROXY``).
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[str, str | None] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._opened_session().request(
                request.method,
                str(request.url),
                data=await request.aread(),
                headers=[
                    (key.decode("ascii"), value.decode("latin-1")) for key, value in request.headers.raw
                ],
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=request.extensions["timeout"]["read"], sock_connect=CONNECT_TIMEOUT_S
                ),
                proxy=self._proxy_for(request.url),
            )
        except _FAILURES as error:
            raise _translated(error) from error
        headers = [pair for pair in response.raw_headers if pair[0].lower() not in _NOT_PASSED_ON]
        return httpx2.Response(response.status, headers=headers, stream=_Body(response))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

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
# aiohttp has undone the content encoding. Cookies would be kept by the client and sent again.
_NOT_PASSED_ON = (b"content-encoding", b"transfer-encoding", b"content-length", b"set-cookie")


def _translated(error: BaseException) -> httpx2.TransportError:
    message = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx2.ConnectError(message)
    if isinstance(error, TimeoutError):
        return httpx2.ReadTimeout(message)
    return httpx2.ReadError(message)


def read_failure(error: Exception) -> Failure | None:
    """What an exception means that sending a request or reading its answer raised; None: it is a defect."""
    if isinstance(error, httpx2.SSEError | msgspec.DecodeError | UnicodeDecodeError | RecursionError):
        return Failure(f"the answer cannot be read: {error}", transient=True)
    if isinstance(error, httpx2.TimeoutException):
        return Failure("no answer in time", transient=True)
    if isinstance(error, httpx2.TransportError):
        return Failure(f"connection lost: {error}", transient=True)
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
