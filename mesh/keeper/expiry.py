"""Approvals that expire: one timer for all of a keeper's conversations.

Each conversation is dealt with in a task of its own, so that neither one that fails nor one that takes long
holds the others up. One that fails is tried again after pauses that grow.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush

from mesh.core.errors import MeshError, NotFound
from mesh.core.events import moment, now
from mesh.net.backoff import Backoff
from mesh.runtime.logs import fields

# Without jitter: what fails here is the journal, and this timer alone tries again.
_RETRIES = Backoff(first_s=5.0, longest_s=300.0, jitter=0)
_AT_ONCE = 32
_log = logging.getLogger("mesh.keeper")


class Expiry:
    """Calls ``expire`` with a conversation once a moment noted for it has come, perhaps more than once, but
    never twice at once: what is due there by then is for it to find out. Nothing is kept: after a restart
    it is told again."""

    def __init__(self, expire: Callable[[str], Awaitable[None]]) -> None:
        self._expire = expire
        self._due: list[tuple[str, str]] = []
        self._known: set[tuple[str, str]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._earlier = asyncio.Event()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._at_work: dict[str, asyncio.Task[None]] = {}
        self._due_again: set[str] = set()  # became due while it was at work
        self._failures: dict[str, int] = {}  # how many in a row

    def note(self, when: str, conversation_id: str) -> None:
        """Something of this conversation expires then (a moment as events write it)."""
        due = (when, conversation_id)
        if due in self._known:
            return
        self._known.add(due)
        heappush(self._due, due)
        if self._due[0] == due:
            self._earlier.set()
        if self._timer is None or self._timer.done():
            self._timer = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stops the timer, and what it began."""
        tasks = [*self._at_work.values(), *((self._timer,) if self._timer else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while self._due:
            when, conversation_id = self._due[0]
            left = (datetime.fromisoformat(when) - datetime.now(UTC)).total_seconds()
            if left > 0:
                self._earlier.clear()
                try:
                    async with asyncio.timeout(left):
                        await self._earlier.wait()
                except TimeoutError:
                    pass
                continue
            self._known.discard(heappop(self._due))
            if conversation_id in self._at_work:
                self._due_again.add(conversation_id)
                continue
            await self._room.acquire()
            self._at_work[conversation_id] = asyncio.create_task(self._work(conversation_id))

    async def _work(self, conversation_id: str) -> None:
        try:
            is_done = await self._is_done(conversation_id)
            if is_done and conversation_id in self._due_again:
                self.note(now(), conversation_id)
        finally:
            self._due_again.discard(conversation_id)
            del self._at_work[conversation_id]
            self._room.release()

    async def _is_done(self, conversation_id: str) -> bool:
        """Does it; False if that has to be tried again, which has been seen to."""
        try:
            await self._expire(conversation_id)
        except NotFound:
            pass  # and with the conversation, what was to expire in it
        except Exception as problem:  # noqa: BLE001 - told to the log; the others' approvals have to expire
            self._try_later(conversation_id, problem)
            return False
        self._failures.pop(conversation_id, None)
        return True

    def _try_later(self, conversation_id: str, problem: Exception) -> None:
        failures = self._failures[conversation_id] = self._failures.get(conversation_id, 0) + 1
        if failures == 1:
            _log.warning(
                "event=not_expired conversation=%s %s",
                conversation_id,
                fields(message=problem),
                exc_info=None if isinstance(problem, MeshError) else problem,
            )
        self.note(moment(timedelta(seconds=_RETRIES.delay(failures))), conversation_id)
