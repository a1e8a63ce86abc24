"""Appends that wait for a writer: those that arrive while it writes go together with its next write."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

_BATCH = 256
"""The most appends of one write: it bounds how long a successor waits for it."""


class QueuedAppend(msgspec.Struct, kw_only=True):
    """An append that waits, to the journal ``key``. ``outcome`` is what the writer gives it: why nothing was
    appended; or the size of the journal after it, as far as the store has one."""

    key: str
    outcome: int | Exception = 0
    done: asyncio.Future[int] | None = None


A = TypeVar("A", bound=QueuedAppend)


class AppendQueue(Generic[A]):
    """Calls ``write`` with what waits, one call at a time. ``write`` sets outcomes; what it raises is the
    outcome of the whole batch."""

    def __init__(self, write: Callable[[Sequence[A]], Awaitable[None]]) -> None:
        self._write = write
        self._waiting: list[A] = []
        self._writer: asyncio.Task[None] | None = None
        self._unsettled: dict[str, set[asyncio.Future[int]]] = {}

    async def put(self, append: A) -> int:
        """Waits for the outcome of an append, and raises it if it is an error. Whoever is cancelled meanwhile
        leaves the append in the queue."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        append.done = done
        self._unsettled.setdefault(append.key, set()).add(done)
        self._waiting.append(append)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_waiting())
        # A caller that is cancelled does not cancel the append: `settled` waits for it.
        return await asyncio.shield(done)

    async def settled(self, key: str) -> None:
        """Returns when each append to this journal that was put before has its outcome, also those whose
        callers were cancelled."""
        if unsettled := self._unsettled.get(key):
            await asyncio.wait(set(unsettled))

    async def close(self) -> None:
        """Returns when nothing waits any more."""
        if self._writer is not None:
            await asyncio.wait({self._writer})

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            try:
                await self._write(batch)
            except Exception as problem:  # noqa: BLE001 - a defect; without it, callers would wait for ever
                for waiting in batch:
                    waiting.outcome = problem
            for waiting in batch:
                self._tell(waiting)

    def _tell(self, waiting: A) -> None:
        done = waiting.done
        assert done is not None, "it was put"
        if isinstance(waiting.outcome, int):
            done.set_result(waiting.outcome)
        else:
            done.set_exception(waiting.outcome)
            done.exception()  # its caller may have been cancelled: asyncio would report it once more
        unsettled = self._unsettled[waiting.key]
        unsettled.discard(done)
        if not unsettled:
            del self._unsettled[waiting.key]
