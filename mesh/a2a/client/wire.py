"""One HTTP exchange with another agent: bounded, and careful with whom it tells what.

Above: `mesh.a2a.client.dialects` says what is asked, `mesh.a2a.client.agent` when. Below:
`mesh.net.addresses`. It knows nothing of tasks; what it knows is whether a request may have arrived.

    Unreachable   nothing was sent: no such host, refused, not allowed to connect
    RemoteLost    it was sent, and what came back is not the agent's word: cut off, or a gateway's 502-504
    RemoteFailed  what came back cannot be used: too large, a redirect to another host

The SDK's client is not used for this: it has no bound on the size of an answer, follows the redirects and
proxies that its HTTP client follows, and does not tell a request that never left from one whose answer was
lost.
"""

import asyncio
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from mesh.a2a.client.port import ForwardedHeaders, RemoteFailed, RemoteLost
from mesh.a2a.extensions import HITL, MESH
from mesh.net.addresses import guarded_session, host_and_port

MOST_BYTES = 4 * 1024 * 1024
MOST_REDIRECTS = 3
MOST_SAID = 500
_SHORTEST_SECRET = 8
_MASK = "***"
_KEEPS_METHOD = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)
_REDIRECTS = (HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND, HTTPStatus.SEE_OTHER, *_KEEPS_METHOD)
_GATEWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


class Unreachable(RemoteFailed):
    """Nothing was sent: the same may be sent again without a thought."""


class Request(msgspec.Struct, frozen=True):
    """``version`` is what `A2A-Version` says. ``id`` is the JSON-RPC id that the answer must have, if any."""

    method: str
    url: str
    version: str = ""
    body: bytes = b""
    id: str = ""


class Response(msgspec.Struct, frozen=True):
    """An answer. Whoever echoes a token or a key would have it written into journals and logs: ``secret`` and
    ``key`` are not in what is read of it."""

    status: int
    body: bytes
    content_type: str
    secret: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"Response({self.status}, {self.content_type})"

    def json(self) -> Any:
        """The body. Raises `ValueError` when it is no JSON, or nested too deeply to be somebody's answer."""
        try:
            return masked(masked(msgspec.json.decode(self.body), self.secret), self.key)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from None

    def text(self, limit: int) -> str:
        """The body's first ``limit`` characters, if it is meant to be read as it is."""
        if self.content_type != "text/plain":
            return ""
        told: str = masked(masked(self.body.decode("utf-8", "replace"), self.secret), self.key)
        return told[:limit]


def masked(value: Any, secret: str) -> Any:
    """JSON without a secret: in no string or key of it, nor in the JSON that a string of it is. What is
    shorter than a secret ever is may be a word, and stays."""
    if len(secret) < _SHORTEST_SECRET:
        return value
    if isinstance(value, dict):
        return {masked(key, secret): masked(inner, secret) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(inner, secret) for inner in value]
    return _masked_text(value, secret) if isinstance(value, str) else value


def _masked_text(text: str, secret: str) -> str:
    text = text.replace(secret, _MASK)
    if "\\" not in text or text.lstrip()[:1] not in ("{", "[", '"'):
        return text
    try:
        inner = json.loads(text)
    except ValueError:
        return text
    clean = masked(inner, secret)
    return text if clean == inner else json.dumps(clean)


def _unsaid(text: str, *secrets: str) -> str:
    """A host or media type without secrets: case says nothing there, and may be lost."""
    for secret in secrets:
        text = str(masked(masked(text, secret), secret.lower()))
    return text


def said(text: str) -> str:
    """What another agent said, in one line and short, to be part of a message of ours."""
    short = " ".join(text[: 4 * MOST_SAID].split())
    return short if len(short) <= MOST_SAID else short[: MOST_SAID - 1] + "…"


def shown(url: str) -> str:
    """A URL as it may be shown: without user, password, query and fragment."""
    return str(URL(url).with_user(None).with_query(None).with_fragment(None))


class Wire:
    """The connections to one agent. ``urls`` are those of the config: their hosts may be anywhere, and they
    alone are sent the token. ``key`` is sent to the origin of the first of them alone. A ``session`` that is
    given must be a `guarded_session` that names them; it is not closed here."""

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        max_bytes: int,
        session: aiohttp.ClientSession | None,
        key: str = "",
    ) -> None:
        self.name = name
        self._trusted = frozenset(map(_origin, urls))
        self._home = _origin(urls[0])
        self._key = key
        self._named = frozenset(map(host_and_port, urls))
        self._max_bytes = max_bytes
        self._session = session
        self._is_own = session is None

    def trusts(self, url: str) -> bool:
        """Whether a URL is on a host that the config names."""
        return _origin(url) in self._trusted

    async def exchange(self, request: Request, hop: ForwardedHeaders) -> Response:
        """Asks, with redirects on the same host. Waits as long as the caller lets it."""
        url, method = request.url, request.method
        for _ in range(MOST_REDIRECTS + 1):
            try:
                answer = await self._once(request, method, url, hop)
            except (
                aiohttp.ClientConnectorError,
                aiohttp.ConnectionTimeoutError,
                aiohttp.InvalidURL,
            ) as error:
                raise Unreachable(f"{self._at(url)} cannot be reached: {_why(error)}") from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise RemoteLost(f"{self._at(url)}: the connection was lost: {_why(error)}") from None
            if isinstance(answer, Response):
                return self._worded(answer, url, hop)
            url = self._next(method, url, answer, hop)
        raise RemoteFailed(f"{self._at(request.url)} redirects more than {MOST_REDIRECTS} times")

    async def close(self) -> None:
        if self._is_own and self._session is not None:
            await self._session.close()
            self._session = None

    async def _once(
        self, request: Request, method: str, url: str, hop: ForwardedHeaders
    ) -> "Response | tuple[int, str]":
        """The answer, or where it redirects to, with its status."""
        if self._session is None:
            self._session = guarded_session(self._named)
        target = URL(url)
        headers = self._headers(request, url, hop)
        if "Authorization" in headers:
            target = target.with_user(None)  # the caller's token stands for them, not the one in a URL
        data = request.body or None
        async with self._session.request(
            method, target, data=data, headers=headers, allow_redirects=False
        ) as answer:
            if answer.status in _REDIRECTS and "Location" in answer.headers:
                return answer.status, answer.headers["Location"]
            body = await self._read(answer, url)
            return Response(answer.status, body, answer.content_type)

    async def _read(self, answer: aiohttp.ClientResponse, url: str) -> bytes:
        size, parts = 0, []
        async for part in answer.content.iter_any():
            size += len(part)
            if size > self._max_bytes:
                answer.close()  # the rest is not wanted, and the connection is not to be used again
                raise RemoteFailed(f"{self._at(url)} answered more than {self._max_bytes} bytes")
            parts.append(part)
        return b"".join(parts)

    def _headers(self, request: Request, url: str, hop: ForwardedHeaders) -> dict[str, str]:
        # Not compressed: what is bounded is then what is sent, and few answers are worth it.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        headers["A2A-Extensions"] = f"{HITL}, {MESH}"
        if request.version:
            headers["A2A-Version"] = request.version
            headers["X-A2A-Extensions"] = headers["A2A-Extensions"]  # its name in 0.3
        if request.body:
            headers["Content-Type"] = "application/json"
        if hop.session_id:
            headers["X-Session-ID"] = hop.session_id
        if hop.traceparent:
            headers["traceparent"] = hop.traceparent
        if hop.token and self.trusts(url):
            headers["Authorization"] = f"Bearer {hop.token}"
        if self._key and _origin(url) == self._home:
            headers["X-API-Key"] = self._key
        if wrong := [name for name, value in headers.items() if not value.isprintable()]:
            raise Unreachable(f"{self._at(url)}: {wrong[0]} has characters that no header may have")
        return headers

    def _next(self, method: str, url: str, redirect: tuple[int, str], hop: ForwardedHeaders) -> str:
        (status, location), secrets = redirect, (hop.token, self._key)
        try:
            target = str(URL(url).join(URL(location)))
        except ValueError:
            raise RemoteFailed(f"{self._at(url)} redirects to what is no URL") from None
        if _origin(target) != _origin(url):
            raise RemoteFailed(
                f"{self._at(url)} redirects to another host, {_unsaid(_origin(target), *secrets)}: not "
                "followed. If that is where the agent is, name it in the config"
            )
        if method != "GET" and status not in _KEEPS_METHOD:
            raise RemoteFailed(
                f"{self._at(url)} redirects to {_unsaid(shown(target), *secrets)} and would lose the message "
                f"(HTTP {status}): name that URL in the config"
            )
        return target

    def _worded(self, answer: Response, url: str, hop: ForwardedHeaders) -> Response:
        """An answer that is fit to be read, or not the agent's at all."""
        if answer.status in _GATEWAY:
            raise RemoteLost(f"{self._at(url)} answered HTTP {answer.status}: nobody knows what came of it")
        kind = _unsaid(answer.content_type, hop.token, self._key)
        return msgspec.structs.replace(answer, content_type=kind, secret=hop.token, key=self._key)

    def _at(self, url: str) -> str:
        return f"agent {self.name} at {shown(url)}"


def _origin(url: str) -> str:
    return f"{URL(url).scheme}://{host_and_port(url)}"


def _why(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {error.host} cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return error.os_error.strerror or said(str(error.os_error))
    if isinstance(error, asyncio.TimeoutError):
        return "no connection in time"
    # What aiohttp says of what it cannot take has that in it: a value of ours, or what the agent sent.
    is_told = isinstance(error, OSError) or type(error) is aiohttp.ServerDisconnectedError
    return said(str(error)) if is_told and str(error) else type(error).__name__
