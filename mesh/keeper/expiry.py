"""Approvals that expire: one timer for all of a keeper's conversations."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from heapq import heappop, heappush

from mesh.errors import MeshError

_RETRY_S = 5.0
_log = logging.getLogger("mesh.keeper")


class Expiry:
    """Calls ``expire`` with a conversation once a moment noted for it has come, perhaps more than once:
    what is due there by then is for it to find out. Nothing is kept: after a restart it is told again."""

    def __init__(self, expire: Callable[[str], Awaitable[None]]) -> None:
        self._expire = expire
        self._due: list[tuple[str, str]] = []
        self._known: set[tuple[str, str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._earlier = asyncio.Event()

    def note(self, when: str, conversation_id: str) -> None:
        """Something of this conversation expires then (a moment as events write it)."""
        due = (when, conversation_id)
        if due in self._known:
            return
        self._known.add(due)
        heappush(self._due, due)
        if self._due[0] == due:
            self._earlier.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stops the timer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

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
            try:
                await self._expire(conversation_id)
            except MeshError as problem:
                _log.warning("event=not_expired conversation=%s message=%r", conversation_id, str(problem))
                heappush(self._due, (when, conversation_id))
                await asyncio.sleep(_RETRY_S)
