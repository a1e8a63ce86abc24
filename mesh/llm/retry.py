"""When a model call is tried again, and when it ends: the only place that retries (the SDKs' own
retries are off, because only one of the three honours Retry-After as it should).

Tried again: 408, 409, 429, 5xx, lost connections, timeouts and streams that broke off. At most
`ATTEMPTS` requests; between them what Retry-After says (capped), else exponential back-off with
jitter. Everything else ends at once.
"""

import asyncio
import email.utils
import logging
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing

from mesh.core.errors import LlmError
from mesh.core.events import Event, Trace

ATTEMPTS = 4
FIRST_WAIT_S = 0.5
MOST_WAIT_S = 8.0
MOST_RETRY_AFTER_S = 60.0
_MOST_MESSAGE = 500
_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|key)-[\w*.-]{6,}|\bAIza[\w*-]{6,}|\bBearer\s+\S+", re.IGNORECASE)

log = logging.getLogger(__name__)


class Failure(Exception):
    """One request failed. ``transient``: the same request may succeed later."""

    def __init__(
        self, message: str, *, transient: bool, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.status = status
        self.retry_after_s = retry_after_s


def status_failure(status: int, message: str, headers: Mapping[str, str]) -> Failure:
    """The failure an HTTP status means. ``x-should-retry: false`` is believed."""
    transient = status in (408, 409, 429) or status >= 500
    if headers.get("x-should-retry") == "false":
        transient = False
    return Failure(message, transient=transient, status=status, retry_after_s=retry_after(headers))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of a Retry-After header (a number or an HTTP date), within 0 and the cap.

    >>> retry_after({"retry-after": "3"})
    3.0
    >>> retry_after({"retry-after": "soon"}) is None
    True
    """
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    # `not >=` also catches NaN.
    return 0.0 if not seconds >= 0 else min(seconds, MOST_RETRY_AFTER_S)


async def retried(
    attempt: Callable[[], AsyncGenerator[Event, None]],
    failure_of: Callable[[Exception], Failure | None],
    who: str,
    secret: str = "",
) -> AsyncIterator[Event]:
    """The events of the attempt that succeeds, after those of the ones that broke off and a `Trace` for each.

    ``failure_of`` understands the provider's exceptions; what it does not understand is a defect
    and is raised as it is. ``who`` names provider and model in the `LlmError`; ``secret`` is taken
    out of the provider's message.
    """
    for number in range(1, ATTEMPTS + 1):
        try:
            async with aclosing(attempt()) as events:
                async for event in events:
                    yield event
            return
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            message = _describe(who, failure, secret)
        if not failure.transient:
            raise LlmError(message)
        if number == ATTEMPTS:
            raise LlmError(f"{message} (tried {ATTEMPTS} times)")
        wait = _wait_s(number, failure.retry_after_s)
        follows = f"{message}; attempt {number + 1} of {ATTEMPTS} follows in {wait:.1f} s"
        log.info(follows)
        yield Trace(message=follows)
        await asyncio.sleep(wait)


def _wait_s(number: int, asked: float | None) -> float:
    # Jitter in both cases: clients that failed together must not come back together.
    if asked is not None:
        return asked * random.uniform(1.0, 1.1)
    return min(FIRST_WAIT_S * 2.0 ** (number - 1), MOST_WAIT_S) * random.uniform(0.5, 1.0)


def _describe(who: str, failure: Failure, secret: str) -> str:
    message = " ".join(str(failure).split())
    if secret:
        message = message.replace(secret, "[key removed]")
    message = _KEY_LIKE.sub("[key removed]", message)
    if len(message) > _MOST_MESSAGE:
        message = message[:_MOST_MESSAGE] + "…"
    status = f"HTTP {failure.status}: " if failure.status else ""
    return f"{who}: {status}{message}"
