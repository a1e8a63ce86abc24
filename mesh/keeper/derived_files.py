"""What is written beside the journals for people and for a quick start, and is never needed.

``conversation_{id}.json`` is the conversation as REST shows it, within a second of a turn's end or
pause; turns that follow fast share one write. The index is written seldom: so that all its writes
together take at most a hundredth of the time.
"""

import asyncio
import logging
import time

import msgspec

from mesh.core.conversation import Conversation
from mesh.core.view import view
from mesh.journal.index import Index
from mesh.journal.port import Journal, snapshot_name
from mesh.runtime.logs import fields

_DELAY_S = 0.7
_INDEX_EVERY_S = 30.0
_INDEX_SHARE = 100
_log = logging.getLogger("mesh.keeper")


class Snapshots:
    """Writes behind. `close` writes what is left. ``index`` is put into by the shard."""

    def __init__(self, journal: Journal, index_name: str, index: Index) -> None:
        self._journal = journal
        self._index_name = index_name
        self.index = index
        self._dirty: dict[str, Conversation] = {}
        self._writer: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._index_due = time.monotonic() + _INDEX_EVERY_S

    def mark(self, conversation: Conversation) -> None:
        """Notes a change. Only what has ended or paused is written."""
        if conversation.turn_open and not conversation.is_waiting:
            return
        self._dirty[conversation.id] = conversation
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_soon())

    async def forget(self, conversation_id: str) -> None:
        """Writes nothing more of a conversation; waits for a write that is under way."""
        self._dirty.pop(conversation_id, None)
        async with self._writing:
            return

    async def load_index(self, sizes: dict[str, int]) -> None:
        """Fills the index as far as it was saved and is still so."""
        try:
            saved = await self._journal.get_blob(self._index_name)
            if saved is not None:
                self.index.load(saved, sizes)
        except (OSError, ValueError) as problem:  # what decoding raises are ValueErrors
            _log.warning("event=index_unreadable file=%s %s", self._index_name, fields(message=problem))

    async def close(self) -> None:
        """Writes everything now."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        self._index_due = 0.0
        await self._write()

    async def _write_soon(self) -> None:
        while self._dirty:
            await asyncio.sleep(_DELAY_S)
            await self._write()

    async def _write(self) -> None:
        async with self._writing:
            await self._write_now()

    async def _write_now(self) -> None:
        dirty, self._dirty = self._dirty, {}
        blobs = {snapshot_name(i): msgspec.json.encode(view(c)) for i, c in dirty.items()}
        started = time.monotonic()
        if started >= self._index_due:
            blobs[self._index_name] = self.index.save()
        try:
            await self._journal.put_blobs(blobs)
        except OSError as problem:
            _log.error("event=snapshot_failed %s", fields(message=problem))
        if self._index_name in blobs:
            now = time.monotonic()
            self._index_due = now + max(_INDEX_EVERY_S, _INDEX_SHARE * (now - started))
