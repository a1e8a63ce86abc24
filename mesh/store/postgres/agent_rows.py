"""The agent in the database: its number, its shards, and who holds each in this process."""

import asyncio
import secrets
from typing import NamedTuple, cast

from mesh.core.errors import JournalError, StaleEpoch
from mesh.store.postgres.database import Database, StatementRefused
from mesh.store.postgres.migrate import UNDEFINED, missing_schema

_SECRET_BYTES = 32
_CREATE = """
    insert into {schema}.agent (name, shards, secret) values (%s, %s, %s) on conflict (name) do nothing
"""
_FIND = "select id, shards, secret from {schema}.agent where name = %s"
_REPLACE_SECRET = "update {schema}.agent set secret = %s where id = %s"
_OPEN = """
    insert into {schema}.shard as s values (%s, %s, %s, %s) on conflict (agent, number) do update
    set epoch = case
            when s.holder = excluded.holder then s.epoch
            else greatest(s.epoch + 1, excluded.epoch)
        end,
        holder = excluded.holder
    returning s.epoch
"""


class StoredAgent(NamedTuple):
    """The row of an agent. ``id`` is its number in this database."""

    id: int
    secret: bytes


class HeldShard(NamedTuple):
    """A shard that was opened by this process."""

    epoch: int
    holder: str


class AgentRow:
    """The row of the agent ``name``, which is created on first use. ``shards`` is their number, which stays
    the one that it was then."""

    def __init__(self, database: Database, name: str, shards: int) -> None:
        self._database = database
        self.name = name
        self._shards = shards
        self._finding: asyncio.Task[StoredAgent] | None = None
        self._held: dict[int, HeldShard] = {}

    async def get(self) -> StoredAgent:
        """The row. Raises `JournalError`, also if the database is not prepared."""
        # All who ask at the same time share one answer, also one that is an error.
        if self._finding is None or (self._finding.done() and _has_failed(self._finding)):
            self._finding = asyncio.create_task(self._find())
        return await asyncio.shield(self._finding)

    async def replace_secret(self, secret: bytes) -> None:
        """Makes this the secret of the mesh."""
        agent = await self.get()
        await self._database.rows(_REPLACE_SECRET, secret, agent.id)
        self._finding = None

    async def open(self, shard: int) -> int:
        """Takes a shard over. Returns its epoch: greater than those of this process so far, also where the
        database has lost one of them."""
        agent, holder = await self.get(), secrets.token_hex(8)
        before = self._held.get(shard)
        least = before.epoch + 1 if before else 1
        rows = await self._database.rows(_OPEN, agent.id, shard, least, holder)
        epoch = cast(int, rows[0][0])
        self._held[shard] = HeldShard(epoch, holder)
        return epoch

    def held(self, shard: int, epoch: int) -> HeldShard:
        """The shard as it was opened by this process with this epoch. Raises `StaleEpoch`."""
        held = self._held.get(shard)
        if held is None or held.epoch != epoch:
            raise held_elsewhere(shard, epoch)
        return held

    async def _find(self) -> StoredAgent:
        try:
            rows = await self._database.rows(_FIND, self.name)
            if not rows:
                secret = secrets.token_bytes(_SECRET_BYTES)
                await self._database.rows(_CREATE, self.name, self._shards, secret)
                rows = await self._database.rows(_FIND, self.name)
        except StatementRefused as problem:
            if problem.sqlstate in UNDEFINED:
                raise JournalError(missing_schema(self._database)) from None
            raise
        id, shards, found = rows[0]
        if shards != self._shards:
            what = f"has {shards} shards in {self._database.shown}, and this release makes {self._shards}"
            raise JournalError(f"agent {self.name} {what}")
        return StoredAgent(cast(int, id), bytes(cast(bytes, found)))


def held_elsewhere(shard: int, epoch: int) -> StaleEpoch:
    """The error of a writer whose shard another process has opened."""
    return StaleEpoch(f"shard {shard} was opened again after epoch {epoch}")


def _has_failed(task: "asyncio.Task[StoredAgent]") -> bool:
    return task.cancelled() or task.exception() is not None
