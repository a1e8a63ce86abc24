"""Old conversations are deleted by themselves, where a config says after how long.

Nothing that waits for a person, or runs, is deleted. A keeper looks now and then for what is old enough, some
at a time, and deletes one after the other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from mesh.core.errors import MeshError
from mesh.core.events import moment
from mesh.journal.listing import Listing
from mesh.net.backoff import jittered
from mesh.runtime.logs import fields

_FIRST_AFTER_S = 60.0
_EVERY_S = 3600.0
_BATCH = 100
_log = logging.getLogger("mesh.keeper")


class RetentionDays(msgspec.Struct, frozen=True):
    """For how many days nothing must have happened in a conversation before it is deleted: in one that is
    completed, and in any other. None: it is kept."""

    completed: float | None = None
    idle: float | None = None


Delete = Callable[[str, str], Awaitable[None]]
"""Deletes a conversation if nothing has happened there since a moment. Raises `MeshError`."""


class Retention:
    """Deletes those conversations of ``listing`` that are older than ``days`` say."""

    def __init__(self, listing: Listing, days: RetentionDays, delete: Delete) -> None:
        self._listing = listing
        self._rules = [
            (status, timedelta(days=limit))
            for status, limit in (("completed", days.completed), ("", days.idle))
            if limit is not None
        ]
        self._delete = delete
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to look for old conversations, again and again."""
        if self._rules:
            self._sweeping = asyncio.create_task(self._sweep_again_and_again())

    async def close(self) -> None:
        """Stops."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    async def sweep(self, later: timedelta = timedelta()) -> None:
        """Deletes what is old enough; with ``later``, what will be then. What cannot be deleted is left for
        the next time. Raises `JournalError` if nobody knows what is old."""
        for status, age in self._rules:
            before, after = moment(later - age), ""
            while old := await self._listing.unchanged(before, status, after, _BATCH):
                for summary in old:
                    await self._delete_one(summary.id, before)
                after = old[-1].updated_cursor

    async def _delete_one(self, conversation_id: str, before: str) -> None:
        try:
            await self._delete(conversation_id, before)
        except MeshError as problem:
            _log.warning(
                "event=old_conversation_kept %s", fields(conversation=conversation_id, message=problem)
            )

    async def _sweep_again_and_again(self) -> None:
        # Not all keepers at once.
        await asyncio.sleep(jittered(_FIRST_AFTER_S))
        while True:
            try:
                await self.sweep()
            except MeshError as problem:
                _log.warning("event=not_swept %s", fields(message=problem))
            except Exception:  # noqa: BLE001 - a defect in one round must not end all of them
                _log.exception("event=sweep_failed")
            await asyncio.sleep(jittered(_EVERY_S))
