"""The listing in the database: a row a conversation, moved by every append."""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from mesh.core.ids import id_suffix, is_id
from mesh.core.view import ConversationSummary
from mesh.journal.listing import TURN_UNDER_WAY, Selection
from mesh.store.postgres.agent_rows import AgentRow
from mesh.store.postgres.database import Database
from mesh.store.postgres.event_rows import column

_decode = msgspec.json.Decoder(ConversationSummary).decode


class PostgresListing:
    """A `Listing` of one shard; with None, of all shards of the agent."""

    def __init__(self, database: Database, agent: AgentRow, shard: int | None) -> None:
        self._database = database
        self._agent = agent
        self._shard = shard

    async def has(self, conversation_id: str) -> bool:
        return is_id(conversation_id) and bool(await self._ids("id = %s", conversation_id))

    async def page(
        self, limit: int, before: str, status: str, version: str = ""
    ) -> list[ConversationSummary]:
        created_at, _, id = before.partition("|")
        wheres = [
            *([("(created_at, id) < (%s, %s)", created_at, id)] if before else []),
            *([("status = %s", status)] if status else []),
            *([("version = %s", version)] if version else []),
        ]
        return await self._entries(wheres, "created_at desc, id desc", limit)

    async def counts(self) -> Mapping[str, int]:
        where, parameters = await self._where([])
        text = f"select status, sum(count)::bigint from {{schema}}.tally where {where} group by status"
        rows = await self._database.rows(text, *parameters)
        return {str(status): cast(int, count) for status, count in rows if count}

    async def counts_by_version(self) -> Mapping[str, Mapping[str, int]]:
        """Reads a row of an index for each conversation."""
        where, parameters = await self._where([])
        text = f"select version, status, count(*) from {{schema}}.conversation where {where} group by 1, 2"
        found: dict[str, dict[str, int]] = {}
        for version, status, count in await self._database.rows(text, *parameters):
            found.setdefault(str(version), {})[str(status)] = cast(int, count)
        return found

    async def recent(
        self, selection: Selection, limit: int, before: str
    ) -> tuple[list[ConversationSummary], int]:
        wheres: list[tuple[object, ...]] = []
        if selection.context_id:
            wheres.append(("context = %s", column(selection.context_id)))
        if selection.states is not None:
            wheres.append(("turn_state = any(%s)", list(selection.states)))
        if selection.since:
            wheres.append(("updated_at >= %s", selection.since))
        where, parameters = await self._where(wheres)
        if wheres:
            text = f"select count(*) from {{schema}}.conversation where {where}"
            ((total,),) = await self._database.rows(text, *parameters)
        else:
            total = sum((await self.counts()).values())
        updated_at, _, id = before.partition("|")
        if before:
            wheres.append(("(updated_at, id) < (%s, %s)", updated_at, id))
        return await self._entries(wheres, "updated_at desc, id desc", limit), cast(int, total)

    async def unchanged(self, before: str, status: str, after: str, limit: int) -> list[ConversationSummary]:
        updated_at, _, id = after.partition("|")
        wheres: list[tuple[object, ...]] = [
            ("updated_at < %s", before),
            ("turn_state <> all(%s)", list(TURN_UNDER_WAY)),
            *([("(updated_at, id) > (%s, %s)", updated_at, id)] if after else []),
            *([("status = %s", status)] if status else []),
        ]
        return await self._entries(wheres, "updated_at, id", limit)

    async def with_suffix(self, some_id: str) -> Sequence[str]:
        return await self._ids("suffix = %s", id_suffix(some_id)) if is_id(some_id) else []

    async def open_turns(self) -> Sequence[str]:
        return await self._ids("needs_pass")

    async def turns_under_way(self, limit: int) -> Sequence[str]:
        states = ", ".join(f"'{state}'" for state in TURN_UNDER_WAY)  # as the index has them
        where, parameters = await self._where([(f"turn_state in ({states})",)])
        text = f"select id::text from {{schema}}.conversation where {where} order by created_at desc, id desc"
        rows = await self._database.rows(f"{text} limit %s", *parameters, limit)
        return [str(id) for (id,) in rows]

    async def deadlines(self) -> Sequence[tuple[str, str]]:
        where, parameters = await self._where([("expires_at <> ''",)])
        text = f"select expires_at, id::text from {{schema}}.conversation where {where}"
        return [(str(when), str(id)) for when, id in await self._database.rows(text, *parameters)]

    async def waiting_since(self) -> str:
        where, parameters = await self._where([("status = %s", "waiting_approval")])
        # PostgreSQL reads no JSON that has this character.
        readable = "regexp_replace(entry, '(?<!\\\\)((?:\\\\\\\\)*)\\\\u0000', '\\1', 'g')"
        oldest = f"min(({readable}::json -> 'pending_approval' ->> 'created_at') collate \"C\")"
        text = f"select {oldest} from {{schema}}.conversation where {where}"
        ((since,),) = await self._database.rows(text, *parameters)
        return str(since or "")

    async def asking(self) -> Mapping[str, Sequence[str]]:
        where, parameters = await self._where([("asking <> '{}'",)])
        text = f"select unnest(asking), id::text from {{schema}}.conversation where {where}"
        found: dict[str, list[str]] = {}
        for agent, id in await self._database.rows(text, *parameters):
            found.setdefault(str(agent)[1:], []).append(str(id))
        return found

    async def _entries(
        self, wheres: Sequence[tuple[object, ...]], order: str, limit: int
    ) -> list[ConversationSummary]:
        where, parameters = await self._where(wheres)
        text = f"select entry from {{schema}}.conversation where {where} order by {order} limit %s"
        rows = await self._database.rows(text, *parameters, limit)
        return [_decode(str(entry)) for (entry,) in rows]

    async def _ids(self, condition: str, *values: object) -> list[str]:
        where, parameters = await self._where([(condition, *values)])
        text = f"select id::text from {{schema}}.conversation where {where}"
        return [str(id) for (id,) in await self._database.rows(text, *parameters)]

    async def _where(self, wheres: Sequence[tuple[object, ...]]) -> tuple[str, list[object]]:
        """The conditions of a statement, each with its values, after those of the agent and the shard."""
        agent = await self._agent.get()
        of_shard = [] if self._shard is None else [("shard = %s", self._shard)]
        every = [("agent = %s", agent.id), *of_shard, *wheres]
        return " and ".join(str(text) for text, *_ in every), [
            value for _, *values in every for value in values
        ]
