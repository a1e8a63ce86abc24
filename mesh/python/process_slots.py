"""A bound on processes that cannot lock up: one that waits makes room for one that works.

The code of a call may wait for forks that run code themselves. If each that waits kept its slot, all slots
could be taken by those who wait for somebody without one. A process that waits has nothing to lose: see
`mesh.python`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class ProcessSlot:
    """The right to have one process."""

    def __init__(self, slots: "ProcessSlots") -> None:
        self._slots = slots
        self.is_to_leave = asyncio.Event()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The process only waits meanwhile: it is to leave if others need the room."""
        self._slots._begin_to_wait(self)
        try:
            yield
        finally:
            self._slots._end_waiting(self)


class ProcessSlots:
    """``most`` of them. Whoever asks first gets one first."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._asking: deque[asyncio.Future[None]] = deque()
        self._waiting: dict[ProcessSlot, None] = {}
        self._leaving = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[ProcessSlot]:
        """A slot, once one is free."""
        await self._take()
        slot = ProcessSlot(self)
        try:
            yield slot
        finally:
            self._leaving -= slot.is_to_leave.is_set()
            self._give()

    async def _take(self) -> None:
        if self._free > 0:
            self._free -= 1
            return
        asking = asyncio.get_running_loop().create_future()
        self._asking.append(asking)
        self._make_room()
        try:
            await asking
        except asyncio.CancelledError:
            if asking in self._asking:
                self._asking.remove(asking)
            elif not asking.cancelled():
                self._give()  # it was given, and nobody takes it
            raise

    def _give(self) -> None:
        while self._asking:
            asking = self._asking.popleft()
            if not asking.done():
                asking.set_result(None)
                return
        self._free += 1

    def _begin_to_wait(self, slot: ProcessSlot) -> None:
        # One that was told to leave, and got its answer in that moment, leaves now. It is counted already.
        if not slot.is_to_leave.is_set():
            self._waiting[slot] = None
            self._make_room()

    def _end_waiting(self, slot: ProcessSlot) -> None:
        self._waiting.pop(slot, None)

    def _make_room(self) -> None:
        """Tells those that wait to leave, the longest first, as many as are needed."""
        while self._leaving < len(self._asking) and self._waiting:
            slot = next(iter(self._waiting))
            del self._waiting[slot]
            slot.is_to_leave.set()
            self._leaving += 1
