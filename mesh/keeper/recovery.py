"""Recovery: goes on with turns that were left open, when a keeper starts and when a conversation is read
anew."""

import asyncio
import logging

from mesh.core.errors import Conflict, JournalDamaged, JournalError, NotFound, StaleEpoch
from mesh.keeper.driver import Driver
from mesh.keeper.kept_grants import Grants
from mesh.keeper.shard import Shard
from mesh.net.backoff import Backoff
from mesh.runtime.logs import fields

_RECOVERY = Backoff(first_s=0.1, longest_s=10.0)
_log = logging.getLogger("mesh.keeper")


class Recovery:
    """``places`` bounds how many turns are recovered beside each other: after a crash all of them would want
    to run their passes in the same moment. The shards of a process share them."""

    def __init__(self, shard: Shard, driver: Driver, grants: Grants, places: asyncio.Semaphore) -> None:
        self._shard = shard
        self._driver = driver
        self._grants = grants
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False
        self._places = places

    def start(self, conversation_id: str) -> None:
        """Goes on with the open turn of a conversation, if there is one, in the background."""
        if conversation_id not in self._tasks and not self._is_closed:
            task = asyncio.create_task(self._recover(conversation_id))
            self._tasks[conversation_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(conversation_id))

    async def close(self) -> None:
        """Stops; the turns stay open."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _recover(self, conversation_id: str) -> None:
        """Ends when the turn is over, when it waits for a person, or when it can certainly not go on here."""
        async with self._places:
            for delay in _RECOVERY.delays():
                try:
                    loaded = await self._shard.get(conversation_id)
                    _log.info("event=recover %s", loaded.label)
                    await self._grants.keep(loaded.conversation)
                    await self._driver.run_to_completion(loaded)
                    break
                except (JournalDamaged, StaleEpoch, NotFound) as problem:
                    # Trying again changes none of these.
                    _log.error(
                        "event=recover_failed conversation=%s %s", conversation_id, fields(message=problem)
                    )
                    break
                except (JournalError, Conflict) as problem:  # a conflict: it is being deleted
                    _log.warning(
                        "event=recover_later conversation=%s %s", conversation_id, fields(message=problem)
                    )
                    await asyncio.sleep(delay)
