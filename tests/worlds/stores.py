"""The stores that an agent may have, each with data of its own, for tests of what all of them promise.

A test module asks for those that it is about: ``stores = fixture_of(*STORES)``.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mesh.core.conversation import fold
from mesh.core.events import AnyEvent, Completed, ConversationCreated, UserMessage
from mesh.journal.index import Index
from mesh.journal.listing import Listing, ListingEntry, entry_of
from mesh.journal.port import Append
from mesh.store.files import FileStore
from mesh.store.memory import MemoryStore
from mesh.store.port import Store
from mesh.store.postgres.migrate import migrate
from mesh.store.postgres.postgres_store import PostgresStore
from tests.worlds.postgres import Pooler, PostgresServer, has_pgbouncer

DATABASES = ("postgres", "pooled")
"""A database, and one behind pgbouncer."""
DERIVING = ("memory", "files")
"""The stores whose listing a keeper derives from the journals."""
STORES = (*DERIVING, *DATABASES)
NAMESPACE = "mesh"
SHARDS = 8
TIME = "2026-01-01T00:00:00.000Z"

_templates: dict[PostgresServer, str] = {}
_emptied: dict[PostgresServer, list[str]] = {}
_poolers: dict[PostgresServer, Pooler] = {}


class Stores:
    """Stores with the same data. ``one`` is that of a process. ``url`` is that of their database, not through
    a pooler."""

    def __init__(self, make: Callable[..., Store], url: str = "") -> None:
        self._make = make
        self._made: list[Store] = []
        self.url = url
        self.one = self.another()

    def another(self, **named: str) -> Store:
        """The store of another process. In a database it may be that of another ``agent``, or in another
        ``namespace``."""
        made = self._make(**named)
        if made not in self._made:
            self._made.append(made)
        return made

    async def close(self) -> None:
        """Closes all of them; more may be made afterwards."""
        while self._made:
            await self._made.pop().close()


def fixture_of(*kinds: str) -> Any:
    """A fixture: `Stores` of each kind, without data."""

    @pytest.fixture(params=kinds)
    async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
        async with _stores(request.param, request, tmp_path) as found:
            yield found

    return stores


@asynccontextmanager
async def _stores(kind: str, request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Stores]:
    if kind in DERIVING:
        memory = MemoryStore(SHARDS)
        stores = Stores(lambda: memory if kind == "memory" else FileStore(folder / "store", "agent", SHARDS))
        try:
            yield stores
        finally:
            await stores.close()
        return
    if kind == "pooled" and not has_pgbouncer():
        pytest.skip("pgbouncer is not installed")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    async with migrated(server) as url:
        reached = _pooler(server, request.config).url_of(url) if kind == "pooled" else url
        stores = Stores(lambda **named: postgres_store(reached, **named), url)
        try:
            yield stores
        finally:
            await stores.close()


def postgres_store(url: str, agent: str = "agent", namespace: str = NAMESPACE) -> PostgresStore:
    """The store of a process in a database."""
    return PostgresStore(url, namespace, agent, SHARDS)


@asynccontextmanager
async def migrated(server: PostgresServer) -> AsyncIterator[str]:
    """The URL of a database of the newest schema without data, which nobody else uses meanwhile."""
    # To create a database takes long, and to drop one longer: that of an earlier test is emptied.
    unused = _emptied.setdefault(server, [])
    url = unused.pop() if unused else await _create(server)
    yield url
    tables = server.execute(url, f"select tablename from pg_tables where schemaname = '{NAMESPACE}'")
    emptied = (name for (name,) in tables if name not in ("migration", "agent"))
    server.execute(url, "; ".join(f"delete from {NAMESPACE}.{name}" for name in (*emptied, "agent")))
    unused.append(url)


async def _create(server: PostgresServer) -> str:
    if server not in _templates:
        template = server.create_database()
        await migrate(template, NAMESPACE)
        _templates[server] = template
    template = urlsplit(_templates[server]).path.lstrip("/")
    name = f"test_{secrets.token_hex(6)}"
    server.execute(server.url, f"create database {name} template {template}")
    return urlsplit(_templates[server])._replace(path=f"/{name}").geturl()


def _pooler(server: PostgresServer, config: pytest.Config) -> Pooler:
    """One for all tests of this process."""
    if server not in _poolers:
        _poolers[server] = pooler = Pooler(server)
        config.add_cleanup(pooler.close)
        pooler.start()
    return _poolers[server]


def created(conversation_id: str, time: str = TIME, **more: str) -> ConversationCreated:
    """The first event of a conversation."""
    named = {"session_id": "s", "agent": "agent", "digest": "d", **more}
    return ConversationCreated(seq=1, conversation_id=conversation_id, time=time, **named)


def turn(seq: int) -> list[AnyEvent]:
    """A turn with an answer."""
    return [UserMessage(seq=seq, turn=1, text="hi"), Completed(seq=seq + 1, turn=1, response="hö")]


def entry_after(*events: AnyEvent) -> ListingEntry:
    """The entry of a conversation after its events."""
    return entry_of(fold(events))


def following(before: Sequence[AnyEvent], events: Iterable[AnyEvent]) -> Append:
    """The append of events to a conversation that has those ``before``."""
    all_events = [*before, *events]
    first = all_events[0]
    assert isinstance(first, ConversationCreated)
    return Append(first.conversation_id, len(before), all_events[len(before) :], entry_after(*all_events))


class Listed:
    """Conversations of a shard with their listing, which is moved with every append: by the store, or as the
    keeper does it, where the store has none."""

    def __init__(self, store: Store, shard: int) -> None:
        self._journal = store.journal
        self._shard = shard
        self._opening = asyncio.Lock()
        self._epoch = 0
        self._index = Index()
        self._events: dict[str, list[AnyEvent]] = {}
        self.listing: Listing = store.listing(shard) or self._index

    async def append(self, conversation_id: str, *events: AnyEvent) -> None:
        """Appends events."""
        before = self._events.get(conversation_id, [])
        async with self._opening:
            self._epoch = self._epoch or await self._journal.open(self._shard)
        size = await self._journal.append(self._shard, self._epoch, following(before, events))
        self._events[conversation_id] = [*before, *events]
        self._index.put(fold(self._events[conversation_id]), size)

    async def erase(self, *conversation_ids: str) -> None:
        """Deletes conversations."""
        for conversation_id in conversation_ids:
            seq = len(self._events.pop(conversation_id, ()))
            await self._journal.erase(self._shard, self._epoch, conversation_id, seq)
            self._index.remove(conversation_id)
