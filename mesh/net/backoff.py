"""How long to wait between the tries of something that keeps failing.

A `Backoff` is a policy: each caller defines its own next to the loop that uses it. Delays grow exponentially
up to a bound, and each is shortened by a random share of itself (jitter), because clients that failed
together must not come back together.

This module sleeps nowhere, counts nothing and catches nothing: a loop decides by itself what it tries again
and when its count of failures starts anew. `Patience` adds the one thing that several loops share, which is
a time after which they give up.
"""

import email.utils
import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class Backoff:
    """About ``first_s`` seconds after the first failure, then ``factor`` times as long after each further
    one, up to ``longest_s``. ``jitter`` is the greatest share that chance takes off a delay."""

    first_s: float
    longest_s: float
    factor: float = 2.0
    jitter: float = 0.5

    def delay(self, failures: int, retry_after_s: float | None = None) -> float:
        """Returns the seconds to wait after ``failures`` failures in a row.

        A server that says when it can be asked again knows better than a policy: ``retry_after_s`` replaces
        the delay. The jitter is then added, so that nobody comes before the time that the server gave.
        """
        if retry_after_s is not None:
            return retry_after_s * random.uniform(1.0, 1.1)
        return jittered(self.longest_delay(failures), self.jitter)

    def longest_delay(self, failures: int) -> float:
        """Returns the delay without its jitter."""
        if failures < 1:
            return 0.0
        # The exponent is bounded because a float overflows where an endless row of failures leads to.
        growth = math.pow(self.factor, min(failures - 1, 64))
        return min(self.first_s * growth, self.longest_s)

    def delays(self) -> Iterator[float]:
        """Yields the delays after the first failure in a row, the second, and so on, without end."""
        return (self.delay(failures) for failures in count(1))


class Patience:
    """How long something has been failing, and whether to give up: ``for_s`` seconds after this object was
    made. Make a new one when the row of failures is broken by a success."""

    def __init__(self, backoff: Backoff, for_s: float = math.inf) -> None:
        self._backoff = backoff
        self._for_s = for_s
        self._since = time.monotonic()
        self._failures = 0

    @property
    def lasted_s(self) -> float:
        return time.monotonic() - self._since

    @property
    def is_over(self) -> bool:
        return self.lasted_s >= self._for_s

    def next_delay(self, retry_after_s: float | None = None) -> float:
        """Counts a failure and returns the seconds to wait after it."""
        self._failures += 1
        return self._backoff.delay(self._failures, retry_after_s)


def jittered(seconds: float, share: float = 0.5) -> float:
    """Returns the time, shortened by a random share of it, at most ``share``."""
    return seconds * random.uniform(1.0 - share, 1.0)


def retry_after(headers: Mapping[str, str], longest_s: float) -> float | None:
    """The seconds of a Retry-After header (a number or an HTTP date), between 0 and ``longest_s``.

    ``headers`` find their values by lower-case names. None: there is no such header, or it means nothing.

    >>> retry_after({"retry-after": "3"}, 60)
    3.0
    >>> retry_after({"retry-after": "soon"}, 60) is None
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
    # `not >=` also catches NaN, which is neither more nor less than anything.
    return 0.0 if not seconds >= 0 else min(seconds, longest_s)
