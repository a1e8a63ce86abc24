"""S17: a million conversations in PostgreSQL, many in files without an index, and a copy from files into the
database. No mesh: a keeper host in this process.

How much later a host is ready than on an empty store, how long lists take, how much memory that costs, and
how long an old approval takes to resume. What is in the database comes by COPY: appends would take hours.
"""

import asyncio
import gc
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import psutil
import psycopg
import uvloop

from bench.figures import Bench
from mesh.core.conversation import fold
from mesh.core.events import AnyEvent, Completed, ConversationCreated, LlmCall, UserMessage, encode
from mesh.core.ids import id_suffix, new_id, shard_of
from mesh.journal.files import FileJournal
from mesh.journal.listing import Listing, Selection, entry_of
from mesh.journal.port import Append
from mesh.keeper.requests import Caller, Create, SendMessage, Show
from mesh.llm.port import LlmRequest
from mesh.store.files import FileStore
from mesh.store.postgres.migrate import migrate
from mesh.store.postgres.postgres_store import PostgresStore
from mesh.store.store_copy import CopyEnd, copy_store
from tests.worlds.keeper_hosts import Hosts, approving
from tests.worlds.mesh import calls, says, until
from tests.worlds.postgres import PostgresServer

CONVERSATIONS = 1_000_000
FEWER = 50_000
COPIED = 20_000
STARTED = 100_000
OPEN_TURNS = 1_000
PEOPLE = 16
SHARDS = 64
_SAMPLES = 200
_SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB"}


def large_stores(bench: Bench, scratch: Path, conversations: int = CONVERSATIONS) -> None:
    """Measures, and notes rows."""
    with PostgresServer(settings=_SETTINGS) as server:
        uvloop.run(_lists(bench, server, conversations))
        for folder in ("copied", "started"):
            (scratch / folder).mkdir()
        uvloop.run(_taken_over(bench, server))
        uvloop.run(_handed_over(bench, server))
        uvloop.run(_started(bench, scratch / "started"))
        uvloop.run(_copy(bench, server, scratch / "copied"))


async def _lists(bench: Bench, server: PostgresServer, conversations: int) -> None:
    url = server.create_database()
    await migrate(url, "mesh")
    empty_s, empty_mib, uuid = await _ready(url, asks=True)
    await asyncio.to_thread(_fill, url, conversations)
    full_s, full_mib, _ = await _ready(url)
    target = "host ready ≤ 5 s later, ≤ 100 MB more"
    added = {"later_s": round(full_s - empty_s, 2), "more_mib": round(full_mib - empty_mib, 1)}
    bench.add("S17", f"{conversations:,} conversations in PostgreSQL", target, **added)
    async with _store(url) as store:
        listing = store.listing()
        assert listing is not None
        middle = (await listing.page(1, f"2026-01-06|{new_id()}", ""))[0]
        pages: dict[str, Callable[[], Awaitable[Any]]] = {
            "first": lambda: listing.page(50, "", ""),
            "middle": lambda: listing.page(50, f"{middle.created_at}|{middle.id}", ""),
            "completed": lambda: listing.page(50, "", "completed"),
            "counts": listing.counts,
            "recent": lambda: listing.recent(Selection(), 50, ""),
            "of_context": lambda: listing.recent(Selection(context_id="context 77"), 50, ""),
        }
        figures = {f"{name}_p99_ms": await _p99_ms(work) for name, work in pages.items()}
        bench.add("S17", "lists of them", "each ≤ 50 ms", **figures)
    bench.add("S17", "an old approval that is decided", "≤ 150 ms", ms=await _resumed_ms(url, uuid))


@asynccontextmanager
async def _store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, "mesh", "agent", SHARDS)
    yield store
    await store.close()


async def _ready(url: str, *, asks: bool = False) -> tuple[float, float, str]:
    """Seconds until a host is ready, its memory then, and, if it ``asks``, the uuid of an approval that waits
    from then on."""
    async with _store(url) as store:
        hosts, begun = Hosts(store, SHARDS), time.perf_counter()
        await hosts.add("only")
        ready_s = time.perf_counter() - begun
        gc.collect()
        mib = psutil.Process().memory_info().rss / 2**20
        uuid = ""
        if asks:
            hosts.llm.answers = [calls(("add", {"n": 1}))]
            _, body = await hosts.create("please add")
            uuid = body["result"]["approval"]["uuid"]
        await hosts.close()
    return ready_s, mib, uuid


async def _resumed_ms(url: str, uuid: str) -> float:
    """How long it takes to decide an approval, in a host that has just started, until that is answered."""
    async with _store(url) as store:
        hosts = Hosts(store, SHARDS)
        await hosts.add("only")
        hosts.llm.answers = [says("added")]
        id, _ = await hosts.create("warm")
        await hosts.ask(id, Show(id))
        begun = time.perf_counter()
        status, _ = await hosts.ask(uuid, approving(uuid))
        took = time.perf_counter() - begun
        assert status == 200, "the approval was not taken"
        await hosts.close()
    return round(1000 * took, 1)


async def _p99_ms(work: Callable[[], Awaitable[Any]]) -> float:
    times = []
    for _ in range(_SAMPLES):
        begun = time.perf_counter()
        await work()
        times.append(time.perf_counter() - begun)
    return round(1000 * sorted(times)[int(0.99 * _SAMPLES)], 1)


def _fill(url: str, conversations: int) -> None:
    """Writes conversations of two events each."""
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("select id from mesh.agent")
        row = cursor.fetchone()
        assert row is not None
        (agent,) = row
        for begin in range(0, conversations, 50_000):
            numbers = range(begin, min(begin + 50_000, conversations))
            made = [_conversation(number) for number in numbers]
            with cursor.copy("copy mesh.event (agent, conversation, seq, line) from stdin") as copy:
                for id, events in made:
                    for event in events:
                        copy.write_row((agent, id, event.seq, encode(event).decode()))
            with cursor.copy("copy mesh.conversation from stdin") as copy:
                for id, events in made:
                    copy.write_row(_row(agent, id, events))
        cursor.execute(
            "insert into mesh.tally select agent, shard, status, count(*) from mesh.conversation "
            "group by 1, 2, 3 on conflict (agent, shard, status) do update set count = excluded.count"
        )
        connection.commit()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")


def _conversation(number: int) -> tuple[str, list[AnyEvent]]:
    id = new_id()
    seconds, days = number % 86_400, number * 10 // CONVERSATIONS + 1
    time = f"2026-01-{days:02}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.000Z"
    context = f"context {number % 10_000}"
    named = {"session_id": "s", "agent": "test", "digest": "d", "context_id": context}
    return id, [
        ConversationCreated(seq=1, conversation_id=id, time=time, **named),
        UserMessage(seq=2, turn=1, text="hello", time=time),
        Completed(seq=3, turn=1, response="hello", time=time),
    ]


def _row(agent: int, id: str, events: list[AnyEvent]) -> tuple[object, ...]:
    entry = entry_of(fold(events))
    summary = entry.summary
    listed = msgspec.json.encode(summary).decode()
    times, states = (summary.created_at, summary.updated_at), (summary.status, summary.turn_state or "")
    keys = (agent, id, shard_of(id, SHARDS), len(events), secrets.token_hex(8), listed, id_suffix(id))
    return (*keys, *times, *states, summary.context_id, entry.needs_pass, entry.expires_at, [])


async def _taken_over(bench: Bench, server: PostgresServer) -> None:
    """How long it takes to open all shards, in which turns run, in another host, and until these have ended:
    from the moment that the shards are free."""
    url = server.create_database()
    await migrate(url, "mesh")
    async with _store(url) as store:
        lost = Hosts(store, SHARDS)
        await lost.add("lost")
        lost.llm.answers = [_never]
        ids = [new_id() for _ in range(OPEN_TURNS)]
        create = (Create(id, Caller(session_id="s"), "hello", wait=False) for id in ids)
        for request in create:
            await lost.ask(request.id, request)
        await lost.close()
    async with _store(url) as store:
        listing, hosts, begun = store.listing(), Hosts(store, SHARDS), time.perf_counter()
        assert listing is not None
        assert len(await listing.turns_under_way(2 * OPEN_TURNS)) == OPEN_TURNS
        await hosts.add("only")
        ready_s = time.perf_counter() - begun
        await until(lambda: _have_ended(listing))
        ended_s = time.perf_counter() - begun
        await hosts.close()
    what = f"{SHARDS} shards with {OPEN_TURNS:,} open turns, taken over"
    bench.add("S17", what, "≤ 5 s", ready_s=round(ready_s, 2), all_ended_s=round(ended_s, 2))


async def _handed_over(bench: Bench, server: PostgresServer) -> None:
    """How long people wait at most, who talk while half of the shards move to a host that joins, and all the
    others when the first one leaves."""
    url = server.create_database()
    await migrate(url, "mesh")
    async with _store(url) as store:
        hosts = Hosts(store, SHARDS)
        first = await hosts.add("first")
        ids = [(await hosts.create())[0] for _ in range(PEOPLE)]
        waits: list[float] = []
        talking = [asyncio.create_task(_talk(hosts, id, waits)) for id in ids]
        await asyncio.sleep(2)
        before = sorted(waits)
        await hosts.add("second")
        await until(lambda: _is_spread(hosts))
        await first.leave()
        for each in talking:
            each.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        await hosts.close()
    what = f"{SHARDS} shards handed over to a host that joins, and the rest when the other leaves"
    figures = {"p50_ms": before[len(before) // 2], "before_ms": before[-1], "longest_ms": max(waits)}
    shown = {name: round(1000 * seconds, 1) for name, seconds in figures.items()}
    bench.add("S17", what, "longest < 1 s", turns=len(waits), **shown)


async def _talk(hosts: Hosts, id: str, waits: list[float]) -> None:
    for number in count():
        caller = Caller(session_id="s", idempotency_key=f"{number}", body_hash="same")
        begun = time.perf_counter()
        status, _ = await hosts.ask(id, SendMessage(id, caller, "hello"))
        assert status == 200
        waits.append(time.perf_counter() - begun)


async def _is_spread(hosts: Hosts) -> bool:
    return await hosts.spread() == [SHARDS // 2] * 2


async def _have_ended(listing: Listing) -> bool:
    return not await listing.turns_under_way(1)


async def _never(_: LlmRequest) -> LlmCall:
    """A model that has not answered when its host is gone."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets that event")


async def _started(bench: Bench, folder: Path) -> None:
    """How long a host takes to be ready that has to read all journals of a folder, for there is no index."""
    for number in range(STARTED):
        id, events = _conversation(number)
        lines = b"".join(encode(event) + b"\n" for event in events)
        (folder / f"conversation_{id}.jsonl").write_bytes(lines)
    store = FileStore(folder, "agent", 1)
    gc.collect()
    gc.freeze()  # as an actor does
    hosts, begun = Hosts(store, 1), time.perf_counter()
    await hosts.add("only")
    ready_s = time.perf_counter() - begun
    await hosts.close()
    await store.close()
    gc.unfreeze()
    bench.add("S17", f"a start with {STARTED:,} journals and no index", "≤ 5 s", s=round(ready_s, 2))


async def _copy(bench: Bench, server: PostgresServer, folder: Path) -> None:
    """How fast `mesh store copy` brings conversations from files into a database."""
    journal = FileJournal(folder)
    epoch = await journal.open(0)
    made = [_conversation(number) for number in range(COPIED)]
    await asyncio.gather(*(journal.append(0, epoch, Append(id, 0, events)) for id, events in made))
    await journal.close()
    url = server.create_database()
    await migrate(url, "mesh")
    source = FileStore(folder, "agent")
    async with _store(url) as target:
        begun = time.perf_counter()
        report = await copy_store(CopyEnd(source, 1), CopyEnd(target, SHARDS), lambda _: None)
        took = time.perf_counter() - begun
    assert (report.added, report.problems) == (COPIED, [])
    bench.add(
        "S17", "copied from files into PostgreSQL", "≥ 1,000/s", conversations_per_s=round(COPIED / took)
    )
    await source.close()
