"""One notification to one webhook: a POST that is guarded, short, and follows nobody anywhere else."""

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, NamedTuple

from mesh.net.backoff import retry_after
from mesh.push.webhook import Webhook

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

TOKEN_HEADER = "X-A2A-Notification-Token"
_MOST_WAIT_S = 3600.0
_LATER = (408, 425, 429)


class Outcome(NamedTuple):
    """``failed``: it may go well later, not before ``retry_after_s`` if the other said so. ``refused``: it
    would not. ``why`` holds no secret."""

    kind: Literal["delivered", "failed", "refused"]
    why: str = ""
    retry_after_s: float = 0.0


class Post:
    """``named``: hosts that may have private addresses; ``resolver`` None: the system's
    (`mesh.net.addresses`). Made in any loop, used in one."""

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

    async def send(self, webhook: Webhook, body: bytes) -> Outcome:
        """Sends it once."""
        session = await self._begun()
        import aiohttp

        try:
            async with (
                asyncio.timeout(self._timeout_s),
                session.post(
                    webhook.url, data=body, headers=_headers(webhook), allow_redirects=False
                ) as response,
            ):
                return _outcome(response)
        except TimeoutError:
            return Outcome("failed", f"no answer within {self._timeout_s:g} s")
        except aiohttp.ClientConnectorDNSError:
            return Outcome("failed", "the name cannot be resolved")
        except aiohttp.ClientConnectorError as problem:
            return _not_connected(problem)
        except aiohttp.InvalidURL:
            return Outcome("refused", "its url names no host that can be asked")
        except (aiohttp.ClientError, OSError) as problem:  # their texts may hold the URL
            return Outcome("failed", f"the connection broke ({type(problem).__name__})")
        except ValueError as problem:
            return Outcome("refused", f"the request cannot be written ({type(problem).__name__})")

    async def close(self) -> None:
        """Closes its connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _begun(self) -> "aiohttp.ClientSession":
        if self._session is None:
            await asyncio.to_thread(_import)
        if self._session is None:
            from mesh.net.addresses import guarded_session

            self._session = guarded_session(self._named, self._resolver)
        return self._session


def _import() -> None:
    """Takes a while, which turns need not wait for, and those who push nothing are spared."""
    import mesh.net.addresses  # noqa: F401


def _headers(webhook: Webhook) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if webhook.token:
        headers[TOKEN_HEADER] = webhook.token
    if webhook.scheme and webhook.credentials:
        headers["Authorization"] = f"{webhook.scheme} {webhook.credentials}"
    return headers


def _outcome(response: "aiohttp.ClientResponse") -> Outcome:
    status, why = response.status, f"it answered {response.status}"
    if 200 <= status < 300:
        return Outcome("delivered")
    if 300 <= status < 400:
        return Outcome("refused", f"{why}: a redirect, which is not followed")
    if status < 500 and status not in _LATER:
        return Outcome("refused", why)
    return Outcome("failed", why, retry_after(response.headers, _MOST_WAIT_S) or 0.0)


def _not_connected(problem: "aiohttp.ClientConnectorError") -> Outcome:
    from mesh.net.addresses import AddressRefused

    if isinstance(problem.os_error, AddressRefused):
        return Outcome("refused", "its address is not public, and card.push_hosts does not name it")
    return Outcome("failed", f"no connection ({problem.os_error.strerror or 'it was refused'})")
