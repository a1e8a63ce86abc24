"""The time that one pass of a node may take. What a person has paused takes none."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OutOfTime(Exception):
    """A pass took longer than it may. ``limit_s`` is how long that is."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.limit_s = limit_s


class PassClock:
    """See the module. ``limit_s`` is in seconds; None: there is no limit. It may change on the way."""

    def __init__(self) -> None:
        self._bound: asyncio.Timeout | None = None  # while something runs
        self._limit_s: float | None = None
        self._used_s = 0.0
        self._running_since: float | None = None  # None: it is held

    async def run(self, work: Coroutine[Any, Any, T], limit_s: float | None, *, is_held: bool) -> T:
        """What the work comes to. Raises `OutOfTime`, once the work has ended by that."""
        try:
            async with asyncio.timeout(None) as bound:
                self._bound, self._limit_s = bound, limit_s
                self.hold(is_held)
                return await work
        except TimeoutError:
            if not bound.expired() or self._limit_s is None:
                raise
            raise OutOfTime(self._limit_s) from None
        finally:
            self._bound = None

    def limit(self, limit_s: float) -> None:
        """Sets another limit, which counts from the beginning of the pass."""
        self._limit_s = limit_s
        self._set()

    def hold(self, is_held: bool) -> None:
        """No time runs from here on; or it runs on."""
        now = asyncio.get_running_loop().time()
        if self._running_since is not None:
            self._used_s += now - self._running_since
        self._running_since = None if is_held else now
        self._set()

    def _set(self) -> None:
        if self._bound is None or self._bound.expired():
            return
        if self._limit_s is None or self._running_since is None:
            self._bound.reschedule(None)
        else:
            self._bound.reschedule(self._running_since + self._limit_s - self._used_s)
