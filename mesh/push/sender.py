"""Sends one notification to one webhook: one POST to a guarded address, within a deadline, no redirects."""

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, NamedTuple

from mesh.net.backoff import retry_after
from mesh.push.webhook import Webhook

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

TOKEN_HEADER = "X-A2A-Notification-Token"
_MAX_RETRY_AFTER_S = 3600.0
_RETRYABLE = (408, 425, 429)
"""The client errors that say "not now". Any other 4xx would be answered again to the same request."""


class SendResult(NamedTuple):
    """What came of one attempt.

    ``failed``: a later attempt may succeed, after ``retry_after_s`` if the receiver asked for a pause.
    ``refused``: no later attempt would succeed. ``why`` contains no secret.
    """

    kind: Literal["delivered", "failed", "refused"]
    why: str = ""
    retry_after_s: float = 0.0


class WebhookSender:
    """The HTTP client for webhooks. Created in any event loop, used in one.

    ``named`` are hosts that may have private addresses, and ``resolver`` replaces the system's (see
    `mesh.net.address_guard`).
    """

    def __init__(
        self,
        named: Collection[str] = (),
        timeout_s: float = 10.0,
        resolver: "AbstractResolver | None" = None,
    ) -> None:
        self._named = named
        self._timeout_s = timeout_s
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def send(self, webhook: Webhook, body: bytes) -> SendResult:
        """Makes one attempt."""
        session = await self._open_session()
        import aiohttp

        try:
            # The body of the response is not read, so it needs no bound: leaving the context closes a
            # connection on which some of it is still to come.
            async with (
                asyncio.timeout(self._timeout_s),
                session.post(
                    webhook.url, data=body, headers=_headers(webhook), allow_redirects=False
                ) as response,
            ):
                return _result(response)
        except TimeoutError:
            return SendResult("failed", f"no answer within {self._timeout_s:g} s")
        except aiohttp.ClientConnectorDNSError:
            return SendResult("failed", "the name cannot be resolved")
        except aiohttp.ClientConnectorError as problem:
            return _not_connected(problem)
        except aiohttp.InvalidURL:
            return SendResult("refused", "its url names no host that can be asked")
        except (aiohttp.ClientError, OSError) as problem:
            # Only the type: the text of the error may contain the URL, which may be a secret.
            return SendResult("failed", f"the connection broke ({type(problem).__name__})")
        except ValueError as problem:
            return SendResult("refused", f"the request cannot be written ({type(problem).__name__})")

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _open_session(self) -> "aiohttp.ClientSession":
        if self._session is None:
            # In a thread, so that turns do not wait for the import (0.2 s); and not at the top of the module,
            # so that keepers without webhooks are spared it.
            await asyncio.to_thread(_import_client)
        if self._session is None:  # another task may have created it meanwhile
            from mesh.net.address_guard import guarded_session

            self._session = guarded_session(self._named, self._resolver)
        return self._session


def _import_client() -> None:
    import mesh.net.address_guard  # noqa: F401


def _headers(webhook: Webhook) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if webhook.token:
        headers[TOKEN_HEADER] = webhook.token
    if webhook.scheme and webhook.credentials:
        headers["Authorization"] = f"{webhook.scheme} {webhook.credentials}"
    return headers


def _result(response: "aiohttp.ClientResponse") -> SendResult:
    status, why = response.status, f"it answered {response.status}"
    if 200 <= status < 300:
        return SendResult("delivered")
    if 300 <= status < 400:
        return SendResult("refused", f"{why}: a redirect, which is not followed")
    if status < 500 and status not in _RETRYABLE:
        return SendResult("refused", why)
    return SendResult("failed", why, retry_after(response.headers, _MAX_RETRY_AFTER_S) or 0.0)


def _not_connected(problem: "aiohttp.ClientConnectorError") -> SendResult:
    from mesh.net.address_guard import AddressRefused

    if isinstance(problem.os_error, AddressRefused):
        return SendResult("refused", "its address is not public, and card.push_hosts does not name it")
    return SendResult("failed", f"no connection ({problem.os_error.strerror or 'it was refused'})")
