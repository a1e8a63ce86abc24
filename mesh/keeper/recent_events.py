"""The latest events in memory, for watchers: bounded, and each watcher reads at its own pace.

A reader keeps a cursor: the position of the event that it reads next. Positions begin at the present
nanosecond, so that a cursor of an earlier one, or of a keeper that died, is never taken for one of these
events.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from mesh.core.events import AnyEvent, encode

MOST_ITEMS = 4_000
MOST_BYTES = 4 * 1024 * 1024
_BATCH_BYTES = 256 * 1024


class FellBehind(Exception):
    """The event that the reader would read next is not kept any more."""


class Item(NamedTuple):
    """An event of a conversation. ``size`` is that of its JSON."""

    position: int
    event: AnyEvent
    size: int
    conversation_id: str
    session_id: str


class RecentEvents:
    """``base``: the ``seq`` of the last journaled event before all that is kept."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self._begun = self._next = time.time_ns()
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._more = asyncio.Event()

    @property
    def end(self) -> int:
        """The cursor of a reader that has read everything."""
        return self._next

    def add(self, event: AnyEvent, conversation_id: str = "", session_id: str = "") -> None:
        """Keeps an event, drops the oldest ones over the bounds, and wakes the readers that wait."""
        item = Item(self._next, event, size_of(event), conversation_id, session_id)
        self._items.append(item)
        self._next += 1
        self._bytes += item.size
        while len(self._items) > MOST_ITEMS or self._bytes > MOST_BYTES:
            dropped = self._items.popleft()
            self._bytes -= dropped.size
            self.base = dropped.event.seq or self.base
        self._more.set()
        self._more = asyncio.Event()

    def knows(self, cursor: int) -> bool:
        """Whether it is a cursor of these events."""
        return self._begun <= cursor <= self._next

    def after(self, seq: int) -> int | None:
        """The cursor of a reader that has read up to event ``seq``; None if that was before all this."""
        for item in reversed(self._items):
            if item.event.seq and item.event.seq <= seq:
                return item.position + 1
        return self._next - len(self._items) if self.base <= seq else None

    def since(self, cursor: int) -> list[Item]:
        """The next events for a reader, a bounded amount of them. Raises `FellBehind`."""
        if cursor < self._next - len(self._items):
            raise FellBehind
        found: list[Item] = []
        for item in reversed(self._items):
            if item.position < cursor:
                break
            found.append(item)
        found.reverse()
        return _bounded(found)

    async def wait(self, cursor: int, within_s: float) -> None:
        """Returns when there is something to read at the cursor, or after that time."""
        if cursor == self._next:
            # Not `wait_for`: it swallows a cancellation that comes at the same moment as an event.
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._more.wait()


def size_of(event: AnyEvent) -> int:
    """How many bytes an event has on its way to a watcher, nearly."""
    return len(encode(event))


def _bounded(items: list[Item]) -> list[Item]:
    size = 0
    for index, item in enumerate(items):
        size += item.size
        if size > _BATCH_BYTES and index:
            return items[:index]
    return items
