"""When a model call is tried again, and when it ends. No other place retries: the SDKs' own retries are off,
because only one of the three honours Retry-After correctly.

Tried again are 408, 409, 429, 5xx, lost connections, timeouts and streams that broke off: at most `ATTEMPTS`
requests, with the delays of `MODEL_CALLS` between them unless the server says when it can be asked again.
Everything else ends at once.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing

from mesh.core.errors import LlmError
from mesh.core.events import Event, Trace
from mesh.net.backoff import Backoff, retry_after

ATTEMPTS = 4
MODEL_CALLS = Backoff(first_s=0.5, longest_s=8.0)
# A turn waits for this call: a server that asks for more than a minute is one that does not answer.
MOST_RETRY_AFTER_S = 60.0
BAD_REQUEST = 400
FAILURE = "failure"
"""The key of what failed in the data of a `Trace`: see `kind_of`."""
_MOST_MESSAGE = 500
_TRANSIENT = (408, 409, 429)
_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|key)-[\w*.-]{6,}|\bAIza[\w*-]{6,}|\bBearer\s+\S+", re.IGNORECASE)

log = logging.getLogger(__name__)


class Failure(Exception):
    """One request failed. ``transient``: the same request may succeed later. ``never_sent``: no connection
    was made."""

    def __init__(
        self,
        message: str,
        *,
        transient: bool,
        status: int | None = None,
        retry_after_s: float | None = None,
        never_sent: bool = False,
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.status = status
        self.retry_after_s = retry_after_s
        self.never_sent = never_sent

    @property
    def was_free(self) -> bool:
        """Whether the provider charges nothing: it was not reached, or refused the request."""
        return self.never_sent or (self.status is not None and self.status < 500)


def status_failure(status: int, message: str, headers: Mapping[str, str]) -> Failure:
    """The failure that an HTTP status means. ``x-should-retry: false`` overrules the status: it is what the
    servers of OpenAI and Anthropic send when another attempt would be in vain."""
    transient = is_transient(status) and headers.get("x-should-retry") != "false"
    asked = retry_after(headers, MOST_RETRY_AFTER_S)
    return Failure(message, transient=transient, status=status, retry_after_s=asked)


def is_transient(status: int) -> bool:
    """Whether a request that was answered with this status may succeed later."""
    return status in _TRANSIENT or status >= 500


def kind_of(status: int | None) -> str:
    """A failure without the words of the provider, which may quote what it was sent."""
    return f"HTTP {status}" if status else "the request failed"


async def retried(
    attempt: Callable[[], AsyncGenerator[Event, None]],
    failure_of: Callable[[Exception], Failure | None],
    who: str,
    secret: str = "",
    *,
    is_reserved: bool = False,
) -> AsyncIterator[Event]:
    """Yields the events of the attempt that succeeds, after those of the attempts that broke off and a
    `Trace` for each of these.

    ``failure_of`` translates the provider's exceptions. An exception that it does not know is a defect and is
    raised as it is. ``who`` names the provider and the model in the `LlmError`; ``secret`` is removed from
    the provider's message, because some providers repeat the key that they refuse. ``is_reserved``: a request
    that may be charged is not repeated here, because another one has to be reserved first.
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
        # Raised outside the handler, so that no traceback leads to an SDK's error with the key in its text.
        if not failure.transient:
            raise LlmError(message, was_free=failure.was_free, status=failure.status)
        if is_reserved and not failure.was_free:
            raise LlmError(message, is_final=False, status=failure.status)
        if number == ATTEMPTS:
            tried = f"{message} (tried {ATTEMPTS} times)"
            raise LlmError(tried, was_free=failure.was_free, status=failure.status)
        delay = MODEL_CALLS.delay(number, failure.retry_after_s)
        follows = f"{message}; attempt {number + 1} of {ATTEMPTS} follows in {delay:.1f} s"
        log.info(follows)
        yield Trace(message=follows, data={FAILURE: kind_of(failure.status)})
        await asyncio.sleep(delay)


def _describe(who: str, failure: Failure, secret: str) -> str:
    message = " ".join(str(failure).split())
    if secret:
        message = message.replace(secret, "[key removed]")
    message = _KEY_LIKE.sub("[key removed]", message)
    if len(message) > _MOST_MESSAGE:
        message = message[:_MOST_MESSAGE] + "…"
    status = f"HTTP {failure.status}: " if failure.status else ""
    return f"{who}: {status}{message}"
