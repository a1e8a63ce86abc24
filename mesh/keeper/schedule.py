"""What is to be done about conversations at some moment, as for approvals that expire: one timer for all of
them.

Each conversation is handled in a task of its own, so that one that fails or takes long does not delay the
others. One that fails is retried after pauses that grow.
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
# A keeper that starts may find thousands of approvals whose time ran out while it was away. Each reads a
# journal from the disk, and the turns of people who wait must get through.
_MAX_CONCURRENT = 32
_log = logging.getLogger("mesh.keeper")


class Schedule:
    """Calls ``act`` with a conversation when a deadline of it has passed. ``event`` is what the log calls it
    if that fails.

    It may be called more often than there are deadlines, but never concurrently for one conversation, and has
    to find out itself what is due. Deadlines are kept in memory only: they are noted anew after a restart.
    """

    def __init__(self, act: Callable[[str], Awaitable[None]], event: str) -> None:
        self._act = act
        self._event = event
        self._deadlines: list[tuple[str, str]] = []  # a heap, and the same as a set
        self._known: set[tuple[str, str]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._earlier = asyncio.Event()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._due_again: set[str] = set()  # a deadline passed while it was running
        self._failures: dict[str, int] = {}  # in a row, by conversation

    def note(self, when: str, conversation_id: str) -> None:
        """Remembers that something of a conversation is due at ``when`` (a moment as events write it)."""
        due = (when, conversation_id)
        if due in self._known:
            return
        self._known.add(due)
        heappush(self._deadlines, due)
        if self._deadlines[0] == due:
            self._earlier.set()  # the timer sleeps until the deadline that was the first so far
        if self._timer is None or self._timer.done():
            self._timer = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Cancels the timer and the tasks that it started."""
        tasks = [*self._running.values(), *((self._timer,) if self._timer else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while self._deadlines:
            when, conversation_id = self._deadlines[0]
            left = (datetime.fromisoformat(when) - datetime.now(UTC)).total_seconds()
            if left > 0:
                # Cleared before the wait and not after it: a deadline that is noted meanwhile is looked at.
                self._earlier.clear()
                try:
                    async with asyncio.timeout(left):
                        await self._earlier.wait()
                except TimeoutError:
                    pass  # the deadline has passed, which the loop finds next
                continue
            self._known.discard(heappop(self._deadlines))
            if conversation_id in self._running:
                # That task may have looked at its approvals already: it is run again when it ends.
                self._due_again.add(conversation_id)
                continue
            await self._slots.acquire()
            self._running[conversation_id] = asyncio.create_task(self._run(conversation_id))

    async def _run(self, conversation_id: str) -> None:
        try:
            succeeded = await self._try(conversation_id)
            if succeeded and conversation_id in self._due_again:
                self.note(now(), conversation_id)
        finally:
            self._due_again.discard(conversation_id)
            del self._running[conversation_id]
            self._slots.release()

    async def _try(self, conversation_id: str) -> bool:
        """Calls ``act``. False if it failed: then it is noted to be tried later."""
        try:
            await self._act(conversation_id)
        except NotFound:
            pass  # the conversation is gone, and its approvals with it
        except Exception as problem:  # noqa: BLE001 - whatever it is, the others must still get their turn
            self._try_later(conversation_id, problem)
            return False
        self._failures.pop(conversation_id, None)
        return True

    def _try_later(self, conversation_id: str, problem: Exception) -> None:
        failures = self._failures[conversation_id] = self._failures.get(conversation_id, 0) + 1
        if failures == 1:  # a disk that stays full fails every time: one line says it
            _log.warning(
                "event=%s conversation=%s %s",
                self._event,
                conversation_id,
                fields(message=problem),
                exc_info=None if isinstance(problem, MeshError) else problem,
            )
        self.note(moment(timedelta(seconds=_RETRIES.delay(failures))), conversation_id)
