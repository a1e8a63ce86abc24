"""The journals in the database: one row for each event; appends that wait go in one statement.

Appends of all shards of this process that arrive while a statement runs go with the next one: one commit for
all. Each has a name of its own, by which the database knows one that is sent again after its answer was lost.
"""

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from mesh.core.errors import JournalDamaged, JournalError, JournalRefused, StoreAway, WrongSequence
from mesh.core.events import AnyEvent, decode, encode
from mesh.core.ids import id_suffix, is_id
from mesh.journal.append_queue import AppendQueue, QueuedAppend
from mesh.journal.listing import ListingEntry
from mesh.journal.port import Append, check_end
from mesh.store.postgres.agent_rows import AgentRow, HeldShard, held_elsewhere
from mesh.store.postgres.database import WITHIN_S, Database

_READ = """select conversation, line from {schema}.event
    where agent = %s and conversation = any(%s::uuid[]) order by conversation, seq"""
_ENDS = "select id, seq from {schema}.conversation where agent = %s and id = any(%s::uuid[])"
_TYPES = (
    "int",
    *("int[]", "bigint[]", "text[]", "uuid[]", "int[]", "text[]", "int[]", "text[]", "text[]", "text[]"),
    *("text[]", "text[]", "text[]", "text[]", "text[]", "boolean[]", "text[]", "text[]"),
)
# Texts go in binary: in a literal, psycopg escapes each quote of a line in Python, which takes longer than
# anything else.
_APPEND = f"""select * from {{schema}}.append_2({
    ", ".join(f"{'%b' if each == 'text[]' else '%s'}::{each}" for each in _TYPES)
})"""
_ERASE = "select {schema}.erase_1(%s, %s, %s, %s, %s::uuid, %s)"
_MOST_CONTEXT = 128
_READ_AT_ONCE = 8
_STATEMENTS_THAT_READ = 4
_PART_SIZE = 16 * 1024 * 1024
"""How many characters of events one statement has, unless a single append has more."""


class _Waiting(QueuedAppend):
    """An append with what the statement needs of it. Nobody waits for it after ``deadline``, of the monotonic
    clock."""

    deadline: float
    shard: int
    held: HeldShard
    append: Append
    name: str
    lines: list[str]
    entry: ListingEntry


class _Reads:
    """Reads of journals: those that arrive while others run go together with the next ones."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[str, asyncio.Future[list[str]]] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def lines(self, agent: int, conversation_id: str, within_s: float) -> list[str]:
        """The lines of a journal, read from now on. Raises as `Database.run` does."""
        found = self._waiting.get(conversation_id)
        if found is None:
            found = self._waiting[conversation_id] = asyncio.get_running_loop().create_future()
            if len(self._readers) < _STATEMENTS_THAT_READ:
                self._readers.add(asyncio.create_task(self._read_waiting(agent)))
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(found)  # others may wait for it, too
        except TimeoutError:
            raise self._database.silence() from None

    async def close(self) -> None:
        """Returns when no statement runs any more."""
        if self._readers:
            await asyncio.wait({*self._readers})

    async def _read_waiting(self, agent: int) -> None:
        while self._waiting:
            ids = [*self._waiting][:_READ_AT_ONCE]
            await self._read(agent, {id: self._waiting.pop(id) for id in ids})
        # No await between the last look at what waits and this: a read that comes next has a reader.
        self._readers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _read(self, agent: int, batch: Mapping[str, "asyncio.Future[list[str]]"]) -> None:
        lines: dict[str, list[str]] = {id: [] for id in batch}
        try:
            for id, line in await self._database.rows(_READ, agent, [*batch]):
                lines[str(id)].append(str(line))
        except Exception as problem:  # noqa: BLE001 - a defect, too; without it, callers would wait for ever
            if len(batch) > 1:  # one that cannot be read keeps no other from it
                for id, each in batch.items():
                    await self._read(agent, {id: each})
                return
            for each in batch.values():
                each.set_exception(problem)
                each.exception()  # its caller may have gone: asyncio would report it once more
        else:
            for id, each in batch.items():
                each.set_result(lines[id])


class PostgresJournal:
    """A `Journal`. One object in a process; any number of processes on one database."""

    def __init__(self, database: Database, appends: Database, agent: AgentRow) -> None:
        self._database = database
        self._appends = appends
        self._agent = agent
        self._queue: AppendQueue[_Waiting] = AppendQueue(self._write)
        self._reads = _Reads(database)

    async def open(self, shard: int) -> int:
        return await self._agent.open(shard)

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        assert append.entry is not None, "the listing moves with the journal"
        lines = [encode(event).decode() for event in append.events]
        held = self._agent.held(shard, epoch)
        waiting = _Waiting(
            key=append.conversation_id,
            deadline=time.monotonic() + WITHIN_S,
            shard=shard,
            held=held,
            append=append,
            name=secrets.token_hex(8),
            lines=lines,
            entry=append.entry,
        )
        await self._queue.put(waiting)
        return append.after + len(append.events)

    async def read(self, conversation_id: str, *, durably: bool = True) -> list[AnyEvent]:
        if not is_id(conversation_id):
            return []
        deadline = time.monotonic() + WITHIN_S
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._queue.settled(conversation_id)
                agent = await self._agent.get()
        except TimeoutError:
            raise self._database.silence() from None
        lines = await self._reads.lines(agent.id, conversation_id, max(0.1, deadline - time.monotonic()))
        events: list[AnyEvent] = []
        for number, line in enumerate(lines, 1):
            try:
                event = decode(line.encode())
            except ValueError as problem:
                raise _damaged(conversation_id, number, str(problem)[:200]) from None
            if event.seq != number:
                raise _damaged(conversation_id, number, f"it has the number {event.seq}")
            events.append(event)
        return events

    async def ends(self, conversation_ids: Sequence[str]) -> dict[str, int]:
        agent = await self._agent.get()
        rows = await self._database.rows(_ENDS, agent.id, [*conversation_ids])
        return {str(id): cast(int, seq) for id, seq in rows}

    async def erase(self, shard: int, epoch: int, conversation_id: str, seq: int) -> None:
        await self._queue.settled(conversation_id)
        held, agent = self._agent.held(shard, epoch), await self._agent.get()
        parameters = (agent.id, shard, held.epoch, held.holder, conversation_id, seq)
        ((last,),) = await self._database.rows(_ERASE, *parameters)
        if last is None:
            raise held_elsewhere(shard, epoch)
        if last:
            check_end(conversation_id, cast(int, last), seq)

    async def sizes(self) -> dict[str, int]:
        """None: the listing of a database is not derived from its journals."""
        return {}

    async def entries_at_rest(self, conversation_ids: Sequence[str]) -> dict[str, ListingEntry]:
        """None, for the same reason."""
        return {}

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Nothing: what other stores keep in blobs is in the listing."""

    async def get_blob(self, name: str) -> bytes | None:
        return None

    async def close(self) -> None:
        await self._queue.close()
        await self._reads.close()

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        """Gives each append of a batch its outcome."""
        for part in _parts(batch):
            await self._write_part(part)

    async def _write_part(self, batch: Sequence[_Waiting]) -> None:
        try:
            await self._send(batch)
        except JournalRefused as problem:
            if len(batch) == 1:
                batch[0].outcome = JournalRefused(f"conversation {_id(batch[0])}: {problem}")
                return
            for each in batch:  # one that is refused keeps no other from it
                await self._write_part([each])
        except StoreAway as problem:
            for each in batch:
                each.outcome = _unknown(each, problem) if problem.was_sent else _away(each, problem)
        except JournalError as problem:
            for each in batch:
                each.outcome = problem

    async def _send(self, batch: Sequence[_Waiting]) -> None:
        agent = await self._agent.get()
        within_s = max(each.deadline for each in batch) - time.monotonic()
        if within_s <= 0:  # they waited for others, which the database did not answer either
            raise self._database.silence()
        parameters = _parameters(agent.id, batch)
        rows = await self._appends.rows(_APPEND, *parameters, within_s=within_s)
        for each, (outcome,) in zip(batch, rows, strict=True):
            if outcome == "stale":
                each.outcome = held_elsewhere(each.shard, each.held.epoch)
            elif outcome != "done":
                each.outcome = WrongSequence(
                    f"conversation {_id(each)}: its journal is at event {outcome}, "
                    f"the writer believed {each.append.after}"
                )


def _parts(batch: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
    """A batch in parts, in their order: each is no larger than a statement should be, and has one append to a
    conversation at most."""
    part: dict[str, _Waiting] = {}
    size = 0
    for each in batch:
        added = sum(map(len, each.lines))
        if part and (size + added > _PART_SIZE or _id(each) in part):
            yield [*part.values()]
            part, size = {}, 0
        part[_id(each)] = each
        size += added
    yield [*part.values()]


def _parameters(agent: int, batch: Sequence[_Waiting]) -> list[object]:
    summaries = [each.entry.summary for each in batch]
    return [
        agent,
        [each.shard for each in batch],
        [each.held.epoch for each in batch],
        [each.held.holder for each in batch],
        [_id(each) for each in batch],
        [each.append.after for each in batch],
        [each.name for each in batch],
        [len(each.lines) for each in batch],
        [line for each in batch for line in each.lines],
        [msgspec.json.encode(summary).decode() for summary in summaries],
        [id_suffix(_id(each)) for each in batch],
        [summary.created_at for summary in summaries],
        [summary.updated_at for summary in summaries],
        [summary.status for summary in summaries],
        [summary.turn_state or "" for summary in summaries],
        [column(summary.context_id or summary.session_id) for summary in summaries],
        [each.entry.needs_pass for each in batch],
        [each.entry.expires_at for each in batch],
        # A dot before each name, so that the empty name of the root agent differs from no name.
        ["\n".join(f".{agent}" for agent in each.entry.asking) for each in batch],
    ]


def column(text: str) -> str:
    """A text as a column that is looked for has it: PostgreSQL stores no NUL, and indexes no long text."""
    return text.replace("\0", "")[:_MOST_CONTEXT]


def _id(waiting: _Waiting) -> str:
    return waiting.append.conversation_id


def _unknown(waiting: _Waiting, problem: StoreAway) -> WrongSequence:
    return WrongSequence(f"conversation {_id(waiting)}: nobody knows whether it was journaled: {problem}")


def _away(waiting: _Waiting, problem: StoreAway) -> JournalError:
    return JournalError(f"conversation {_id(waiting)}: it was not journaled: {problem}")


def _damaged(conversation_id: str, number: int, why: str) -> JournalDamaged:
    return JournalDamaged(f"conversation {conversation_id}: event {number} is damaged: {why}")
