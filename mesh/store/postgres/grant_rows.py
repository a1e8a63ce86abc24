"""The book of grants in the database: a row an entry, numbered without gaps.

A writer reads what is there, and inserts the next number; of two that do so at once, one finds the number
taken, and reads again. A database that fails over may have lost entries, and gives their numbers anew:
whoever reads compares the last entry that it knows, and reads all of them again if it is not there.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from mesh.core.errors import BadRequest, JournalDamaged
from mesh.net.backoff import Backoff
from mesh.policy.book import Entries, Entry, WrittenBook
from mesh.runtime.logs import fields
from mesh.store.postgres.agent_rows import AgentRow
from mesh.store.postgres.database import WITHIN_S, Database

MAX_ENTRIES = 200_000
_COLLIDED = Backoff(first_s=0.01, longest_s=0.5, jitter=0.9)
_READ = "select number, entry from {schema}.grant_entry where agent = %s and number >= %s order by number"
_ADD = """
    insert into {schema}.grant_entry
    select new.* from (values (%s::int, %s::int, %s)) new (agent, number, entry)
    where new.number = (
        select coalesce(max(e.number), 0) + 1 from {schema}.grant_entry e where e.agent = new.agent
    )
    on conflict (agent, number) do nothing returning number
"""
_decode = msgspec.json.Decoder(Entry).decode
_log = logging.getLogger("mesh.policy")
_encode = msgspec.json.Encoder().encode


class PostgresGrantBook(WrittenBook):
    """A `GrantBook`. Each object keeps what it has read, and asks only for what is newer."""

    def __init__(self, database: Database, agent: AgentRow) -> None:
        self._database = database
        self._agent = agent
        self._known = Entries()
        self._count = 0
        self._last = ""  # the text of the entry with that number
        # One after the other: two reads at once would both take the same entries in.
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()

    async def _entries(self) -> Entries:
        await self._read_newer()
        return self._known

    async def _read_newer(self) -> list[Entry]:
        """Takes in what is newer than what was read, and returns it."""
        try:
            async with asyncio.timeout(WITHIN_S), self._reading:
                return await self._take_newer()
        except TimeoutError:
            raise self._database.silence() from None

    async def _take_newer(self) -> list[Entry]:
        newer: list[Entry] = []
        agent = await self._agent.get()
        rows = await self._database.rows(_READ, agent.id, self._count)
        if self._count and rows[:1] != [(self._count, self._last)]:
            _log.error(
                "event=grants_went_back %s", fields(message=f"entry {self._count} is not there any more")
            )
            self._known, self._count, self._last = Entries(), 0, ""
            rows = await self._database.rows(_READ, agent.id, 0)
        for number, text in rows[1:] if self._count else rows:
            if number != self._count + 1:
                raise JournalDamaged(f"{self._database.shown}: grant entry {self._count + 1} is missing")
            try:
                entry = _decode(str(text))
            except ValueError as problem:
                why = str(problem)[:200]
                raise JournalDamaged(
                    f"{self._database.shown}: grant entry {number} is damaged: {why}"
                ) from None
            self._known.take(entry)
            self._count, self._last = number, str(text)
            newer.append(entry)
        return newer

    async def _append(self, entry_for: Callable[[Entries], Entry | None]) -> None:
        try:
            async with asyncio.timeout(WITHIN_S), self._writing:
                await self._append_next(entry_for)
        except TimeoutError:
            raise self._database.silence(was_sent=True) from None

    async def _append_next(self, entry_for: Callable[[Entries], Entry | None]) -> None:
        entry = entry_for(await self._entries())
        for delay in _COLLIDED.delays():
            if entry is None or await self._add(entry):
                return
            await asyncio.sleep(delay)
            entry = entry_for(await self._entries())

    async def _add(self, entry: Entry) -> bool:
        """Adds an entry after those that were read. Returns whether it is there: its number may be taken, by
        another one or by this one, whose answer was lost."""
        if entry.granted and self._count >= MAX_ENTRIES:
            raise BadRequest(f"the book of grants has {MAX_ENTRIES:,} entries, and takes no more")
        agent, number = await self._agent.get(), self._count + 1
        if await self._database.rows(_ADD, agent.id, number, _encode(entry).decode()):
            return True
        return entry in await self._read_newer()
