"""HTTP requests to one other agent: bounded, and careful about who receives which secret.

Above: `mesh.a2a.client.dialects` says what to send, and `mesh.a2a.client.agent` when. Below: a session of
`mesh.net.address_guard`. This module does not know tasks. What it does know is whether a request may have
been received, and it tells that by the type of the error:

    Unreachable   nothing was sent: no such host, connection refused, address not allowed
    RemoteLost    the request was sent, and the answer is not the agent's: cut off, or a gateway's 502-504
    RemoteFailed  the answer cannot be used: too large, or a redirect to another host

The transports of the A2A SDK are not used: docs/decisions/a2a-client.md says what was measured.
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
from mesh.a2a.extensions import BUDGET, HITL, MESH
from mesh.net.address_guard import guarded_session, host_and_port
from mesh.net.bodies import BodyTooLarge, read_body

MAX_BYTES = 4 * 1024 * 1024
MAX_REDIRECTS = 3
MAX_EXCERPT = 500
_MIN_SECRET = 8
"""Shorter texts are not redacted: they may be ordinary words, and no token or key is that short."""
_MASK = "***"
_METHOD_PRESERVING = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)
_REDIRECTS = (HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND, HTTPStatus.SEE_OTHER, *_METHOD_PRESERVING)
_GATEWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


class Unreachable(RemoteFailed):
    """Nothing was sent, so the request can be repeated without any risk."""


class HttpRequest(msgspec.Struct, frozen=True):
    """A request. ``version`` is sent as `A2A-Version`. ``id`` is the JSON-RPC id that the answer must have,
    or empty if the request is not JSON-RPC."""

    method: str
    url: str
    version: str = ""
    body: bytes = b""
    id: str = ""


class HttpResponse(msgspec.Struct, frozen=True):
    """A response. What is read of it does not contain ``secrets``: an agent that echoes a token or a key
    would otherwise have it written into journals and logs."""

    status: int
    body: bytes
    content_type: str
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"HttpResponse({self.status}, {self.content_type})"

    def json(self) -> Any:
        """Returns the decoded body. Raises `ValueError` if it is not JSON, or nested too deeply."""
        try:
            value = msgspec.json.decode(self.body)
            for secret in self.secrets:
                value = redacted(value, secret)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from None
        return value

    def text(self, limit: int) -> str:
        """Returns the first ``limit`` characters of a plain-text body, and an empty text for any other."""
        if self.content_type != "text/plain":
            return ""
        text = self.body.decode("utf-8", "replace")
        for secret in self.secrets:
            text = str(redacted(text, secret))
        return text[:limit]


def redacted(value: Any, secret: str) -> Any:
    """Returns a JSON value in which the secret is replaced by asterisks, in strings, in the keys of objects,
    and in strings that are JSON themselves."""
    if len(secret) < _MIN_SECRET:
        return value
    if isinstance(value, dict):
        return {redacted(key, secret): redacted(inner, secret) for key, inner in value.items()}
    if isinstance(value, list):
        return [redacted(inner, secret) for inner in value]
    return _redacted_text(value, secret) if isinstance(value, str) else value


def _redacted_text(text: str, secret: str) -> str:
    text = text.replace(secret, _MASK)
    # In JSON within a string, the secret may be spelled with escapes.
    if "\\" not in text or text.lstrip()[:1] not in ("{", "[", '"'):
        return text
    try:
        inner = json.loads(text)
    except ValueError:
        return text
    clean = redacted(inner, secret)
    return text if clean == inner else json.dumps(clean)


def _redacted_name(text: str, secrets: Sequence[str]) -> str:
    """The same for a host or a media type, whose case does not matter and may have been lost."""
    for secret in secrets:
        text = str(redacted(redacted(text, secret), secret.lower()))
    return text


def excerpt(text: str) -> str:
    """Returns a text of another agent as one short line, to be part of a message of ours."""
    line = " ".join(text[: 4 * MAX_EXCERPT].split())
    return line if len(line) <= MAX_EXCERPT else line[: MAX_EXCERPT - 1] + "…"


def printable_url(url: str) -> str:
    """Returns a URL without the parts that may be secret: user, password, query and fragment."""
    return str(URL(url).with_user(None).with_query(None).with_fragment(None))


class A2aTransport:
    """The connections to one agent.

    ``urls`` are the agent's URLs in the config. Their hosts may have any address, and only they receive the
    caller's token. ``key`` is sent only to the origin of the first URL. A ``session`` that is passed must be
    a `guarded_session` that names the hosts of ``urls``, and it is closed by the caller.
    """

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
        self._key_origin = _origin(urls[0])
        self._key = key
        self._named = frozenset(map(host_and_port, urls))
        self._max_bytes = max_bytes
        self._session = session
        self._owns_session = session is None

    def trusts(self, url: str) -> bool:
        """Returns whether a URL is on a host that the config names."""
        return _origin(url) in self._trusted

    async def exchange(self, request: HttpRequest, forwarded: ForwardedHeaders) -> HttpResponse:
        """Sends a request and returns the response, following redirects on the same host. Has no deadline of
        its own."""
        url, method = request.url, request.method
        for _ in range(MAX_REDIRECTS + 1):
            try:
                answer = await self._send(request, method, url, forwarded)
            except (
                aiohttp.ClientConnectorError,
                aiohttp.ConnectionTimeoutError,
                aiohttp.InvalidURL,
            ) as error:
                raise Unreachable(f"{self._at(url)} cannot be reached: {_reason(error)}") from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                # Any other error may have happened after the request was written.
                raise RemoteLost(f"{self._at(url)}: the connection was lost: {_reason(error)}") from None
            if isinstance(answer, HttpResponse):
                return self._checked(answer, url)
            url = self._redirected(method, url, answer, self._secrets(forwarded))
        raise RemoteFailed(f"{self._at(request.url)} redirects more than {MAX_REDIRECTS} times")

    async def close(self) -> None:
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None

    async def _send(
        self, request: HttpRequest, method: str, url: str, forwarded: ForwardedHeaders
    ) -> "HttpResponse | tuple[int, str]":
        """Returns the response, or the status and location of a redirect."""
        if self._session is None:
            self._session = guarded_session(self._named)
        target = URL(url)
        headers = self._headers(request, url, forwarded)
        if "Authorization" in headers:
            # The caller's token takes the place of credentials in the URL, which aiohttp would send instead.
            target = target.with_user(None)
        data = request.body or None
        async with self._session.request(
            method, target, data=data, headers=headers, allow_redirects=False
        ) as answer:
            if answer.status in _REDIRECTS and "Location" in answer.headers:
                return answer.status, answer.headers["Location"]
            body = await self._read(answer, url)
            return HttpResponse(answer.status, body, answer.content_type, self._secrets(forwarded))

    async def _read(self, answer: aiohttp.ClientResponse, url: str) -> bytes:
        try:
            return await read_body(answer.content.iter_any(), self._max_bytes)
        except BodyTooLarge:
            # The connection must not be used again: the rest of the body would be read as the next response.
            answer.close()
            raise RemoteFailed(f"{self._at(url)} answered more than {self._max_bytes} bytes") from None

    def _headers(self, request: HttpRequest, url: str, forwarded: ForwardedHeaders) -> dict[str, str]:
        # Compression is declined because a few compressed bytes can become very many; few answers are large
        # enough to gain from it.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        headers["A2A-Extensions"] = f"{HITL}, {MESH}, {BUDGET}"
        if request.version:
            headers["A2A-Version"] = request.version
            headers["X-A2A-Extensions"] = headers["A2A-Extensions"]  # the name of the header in 0.3
        if request.body:
            headers["Content-Type"] = "application/json"
        if forwarded.session_id:
            headers["X-Session-ID"] = forwarded.session_id
        if forwarded.traceparent:
            headers["traceparent"] = forwarded.traceparent
        if forwarded.token and self.trusts(url):
            headers["Authorization"] = f"Bearer {forwarded.token}"
        if self._key and _origin(url) == self._key_origin:
            headers["X-API-Key"] = self._key
        if invalid := [name for name, value in headers.items() if not value.isprintable()]:
            raise Unreachable(f"{self._at(url)}: {invalid[0]} has characters that no header may have")
        return headers

    def _redirected(self, method: str, url: str, redirect: tuple[int, str], secrets: Sequence[str]) -> str:
        """Returns the URL to follow. Raises `RemoteFailed` if the redirect must not be followed."""
        status, location = redirect
        try:
            target = str(URL(url).join(URL(location)))
        except ValueError:
            raise RemoteFailed(f"{self._at(url)} redirects to what is no URL") from None
        if _origin(target) != _origin(url):
            raise RemoteFailed(
                f"{self._at(url)} redirects to another host, {_redacted_name(_origin(target), secrets)}: not "
                "followed. If that is where the agent is, name it in the config"
            )
        # After any other status a client repeats a POST as a GET, without its body.
        if method != "GET" and status not in _METHOD_PRESERVING:
            shown = _redacted_name(printable_url(target), secrets)
            raise RemoteFailed(
                f"{self._at(url)} redirects to {shown} and would lose the message "
                f"(HTTP {status}): name that URL in the config"
            )
        return target

    def _checked(self, answer: HttpResponse, url: str) -> HttpResponse:
        """Returns the response if it is the agent's. Raises `RemoteLost` for a gateway's."""
        if answer.status in _GATEWAY:
            raise RemoteLost(f"{self._at(url)} answered HTTP {answer.status}: nobody knows what came of it")
        content_type = _redacted_name(answer.content_type, answer.secrets)
        return msgspec.structs.replace(answer, content_type=content_type)

    def _secrets(self, forwarded: ForwardedHeaders) -> tuple[str, str]:
        return forwarded.token, self._key

    def _at(self, url: str) -> str:
        return f"agent {self.name} at {printable_url(url)}"


def _origin(url: str) -> str:
    return f"{URL(url).scheme}://{host_and_port(url)}"


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {error.host} cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return error.os_error.strerror or excerpt(str(error.os_error))
    if isinstance(error, asyncio.TimeoutError):
        return "no connection in time"
    # Only these texts are shown. aiohttp's other errors quote what they could not process: a header of ours,
    # or bytes of the agent, and either may contain a secret.
    has_safe_text = isinstance(error, OSError) or type(error) is aiohttp.ServerDisconnectedError
    return excerpt(str(error)) if has_safe_text and str(error) else type(error).__name__
