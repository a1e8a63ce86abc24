"""What the actor of a tool session answers: a `ToolSession`, as calls from other processes see it.

A listener cannot travel. So a caller that wants to know how far its call has come gives the call an id, and
asks under this id for the next progress, again and again. It is told the newest: what came before it, and was
not asked for, is gone.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from mesh.core.execution import ExecutionContext
from mesh.mcp.port import Catalogue, Claim, ToolOutcome, ToolSession
from mesh.mcp.progress import OnProgress, Progress
from mesh.runtime.failpoints import failpoint


class _Feed:
    """The progress of one call."""

    def __init__(self) -> None:
        self._newest: Progress | None = None
        self._has_news = asyncio.Event()
        self._has_ended = False

    def tell(self, progress: Progress) -> None:
        self._newest = progress
        self._has_news.set()

    def end(self) -> None:
        self._has_ended = True
        self._has_news.set()

    async def next(self) -> Progress | None:
        await self._has_news.wait()
        if not self._has_ended:
            self._has_news.clear()
        newest, self._newest = self._newest, None
        return newest


class ServedSession:
    """A `ToolSessionService`. ``idle`` is entered around each use that keeps the actor from leaving: around
    calls only, because every toolbox waits in `changed` all the time."""

    def __init__(self, session: ToolSession, idle: AbstractContextManager[None]) -> None:
        self._session = session
        self._idle = idle
        self._feeds: dict[str, _Feed] = {}

    async def catalogue(self) -> Catalogue:
        return await self._session.catalogue()

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        return await self._session.changed(version, timeout_s)

    async def identity(self) -> str:
        return await self._session.identity()

    async def backlog(self) -> int:
        return await self._session.backlog()

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
        progress_id: str = "",
    ) -> ToolOutcome:
        failpoint("mcp.before_call")
        with self._idle, self._feed(progress_id) as on_progress:
            outcome = await self._session.call(name, arguments, timeout_s, claim, context, on_progress)
        failpoint("mcp.after_call")
        return outcome

    async def progress(self, progress_id: str) -> Progress | None:
        feed = self._feeds.get(progress_id)
        return None if feed is None else await feed.next()

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        with self._idle:
            return await self._session.settle(claim)

    async def stop(self, claim: Claim) -> None:
        with self._idle:
            await self._session.stop(claim)

    @contextmanager
    def _feed(self, progress_id: str) -> Iterator[OnProgress | None]:
        """What is told of a call's progress while it runs; None if nobody wants to know."""
        if not progress_id:
            yield None
            return
        feed = self._feeds[progress_id] = _Feed()
        try:
            yield feed.tell
        finally:
            del self._feeds[progress_id]
            feed.end()
