"""The webhooks in the database: a row a conversation, with all of its webhooks."""

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from mesh.core.errors import JournalError
from mesh.push.webhook import Webhook
from mesh.runtime.logs import fields
from mesh.store.postgres.agent_rows import AgentRow, held_elsewhere
from mesh.store.postgres.database import Database

_HOLDS = """
    select 1 from {schema}.shard s
    where s.agent = %s and s.number = %s and s.epoch = %s and s.holder = %s for share
"""
_LOAD = """
    select conversation::text, content from {schema}.webhooks
    where agent = %s and shard = %s and content <> '[]' order by conversation
"""
# Not while a statement of this epoch may still be on its way: what it would undo would be gone.
_TIDY = "delete from {schema}.webhooks where agent = %s and shard = %s and epoch < %s and content = '[]'"
_PUT = """
    insert into {schema}.webhooks as w (agent, conversation, shard, epoch, version, content)
    select s.agent, %s::uuid, s.number, s.epoch, %s::bigint, %s::text from {schema}.shard s
    where s.agent = %s and s.number = %s and s.epoch = %s and s.holder = %s for share
    on conflict (agent, conversation) do update
    set shard = excluded.shard, epoch = excluded.epoch, version = excluded.version, content = excluded.content
    where (w.epoch, w.version) < (excluded.epoch, excluded.version)
    returning 1
"""
_log = logging.getLogger("mesh.push")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Webhook, ...]).decode


class PostgresPushStore:
    """A `PushStore`. The shard is opened by the journal of the same process before."""

    def __init__(self, database: Database, agent: AgentRow) -> None:
        self._database = database
        self._agent = agent
        self._version = 0

    async def open(
        self, shard: int, epoch: int, owns: Callable[[str], bool]
    ) -> dict[str, tuple[Webhook, ...]]:
        await self._check_holds(shard, epoch)
        agent = await self._agent.get()
        await self._database.rows(_TIDY, agent.id, shard, epoch)
        found: dict[str, tuple[Webhook, ...]] = {}
        for conversation_id, content in await self._database.rows(_LOAD, agent.id, shard):
            try:
                webhooks = _decode(str(content))
            except ValueError:
                # The other conversations are served. The error is not logged: it may quote a secret.
                _log.error("event=webhooks_damaged %s", fields(conversation=str(conversation_id)))
                continue
            if owns(str(conversation_id)):
                found[str(conversation_id)] = webhooks
        return found

    async def put(self, shard: int, epoch: int, conversation_id: str, webhooks: Sequence[Webhook]) -> None:
        held, agent = self._agent.held(shard, epoch), await self._agent.get()
        # Greater than before, also if the clock was set back: the one that was called later counts.
        self._version = version = max(self._version + 1, time.time_ns())
        content = _encode(webhooks).decode()
        parameters = (conversation_id, version, content, agent.id, shard, held.epoch, held.holder)
        try:
            is_written = await self._database.rows(_PUT, *parameters)
        except JournalError as problem:
            what = f"the webhooks of conversation {conversation_id} cannot be written"
            raise JournalError(f"{what}: {problem}") from None
        if not is_written:  # by a stale holder, or after a later one
            await self._check_holds(shard, epoch)

    async def close(self) -> None:
        return None

    async def _check_holds(self, shard: int, epoch: int) -> None:
        held, agent = self._agent.held(shard, epoch), await self._agent.get()
        if not await self._database.rows(_HOLDS, agent.id, shard, held.epoch, held.holder):
            raise held_elsewhere(shard, epoch)
