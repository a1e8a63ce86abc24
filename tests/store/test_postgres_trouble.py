"""A database that is killed, frozen, cut off or refuses: nothing that was acknowledged is lost, nothing is
there twice, and nobody waits for ever."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from mesh.core.errors import (
    JournalError,
    JournalRefused,
    MeshError,
    NotFound,
    StaleEpoch,
    StoreAway,
    WrongSequence,
)
from mesh.core.events import AnyEvent, ApprovalRequired, Paused, UserMessage
from mesh.core.ids import new_id
from mesh.push.webhook import Webhook
from mesh.store.postgres import database, event_rows, grant_rows
from mesh.store.postgres import migrate as migrate_module
from mesh.store.postgres.database import Database
from mesh.store.postgres.migrate import migrate, migrations
from mesh.store.postgres.postgres_store import PostgresStore
from tests.policy.test_book import granted
from tests.worlds.cut_proxy import CutProxy
from tests.worlds.full_disk import filled, small_disk
from tests.worlds.mesh import until
from tests.worlds.postgres import PostgresServer
from tests.worlds.stores import NAMESPACE, created, following, migrated, postgres_store, turn

WITHIN_S = 60
ANSWERS_WITHIN_S = 16
"""How long a caller waits for a store that does not answer, with some time for a busy machine."""
WRITERS = 20


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def url(server: PostgresServer) -> AsyncIterator[str]:
    async with migrated(server) as url:
        yield url


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[CutProxy]:
    with CutProxy(server.port) as proxy:
        yield proxy
        proxy.release()


@pytest.fixture
async def store(url: str, proxy: CutProxy) -> AsyncIterator[PostgresStore]:
    """A store behind the proxy."""
    store = postgres_store(proxy.url_of(url))
    yield store
    await store.close()


@pytest.fixture
async def direct(url: str) -> AsyncIterator[PostgresStore]:
    """The store of another process, which reaches the database."""
    store = postgres_store(url)
    yield store
    await store.close()


class Writer:
    """Appends turns to a conversation of its own, as a keeper does: when nobody knows whether an append was
    made, it reads the journal and goes on from there."""

    def __init__(self, store: PostgresStore, epoch: int, progress: asyncio.Condition) -> None:
        self.id = new_id()
        self._progress = progress
        self.acknowledged: list[AnyEvent] = []
        self._store = store
        self._epoch = epoch
        self._events: list[AnyEvent] = []

    async def write(self, until: asyncio.Event) -> None:
        """Appends until then, and at least once more."""
        is_last = False
        while not is_last:
            is_last = until.is_set()
            await self._append()

    async def _append(self) -> None:
        new = turn(len(self._events) + 1) if self._events else [created(self.id)]
        try:
            await self._store.journal.append(0, self._epoch, following(self._events, new))
        except WrongSequence:
            await self._read()
        except StaleEpoch:
            raise
        except JournalError:
            return  # nothing was written
        else:
            self._events += new
            self.acknowledged = [*self._events]
            async with self._progress:
                self._progress.notify_all()

    async def _read(self) -> None:
        while True:
            try:
                self._events = await self._store.journal.read(self.id)
                return
            except JournalError:
                continue

    async def check(self, store: PostgresStore) -> None:
        """All that was acknowledged is there once, in its order."""
        found = await store.journal.read(self.id)
        assert found[: len(self.acknowledged)] == self.acknowledged
        assert [event.seq for event in found] == [*range(1, len(found) + 1)]
        assert len(self.acknowledged) > 1


async def write_through(store: PostgresStore, trouble: Callable[[], None], times: int) -> list[Writer]:
    """Many write while there is trouble again and again, and until all is well."""
    epoch = await store.journal.open(0)
    progress, is_over = asyncio.Condition(), asyncio.Event()
    writers = [Writer(store, epoch, progress) for _ in range(WRITERS)]
    async with asyncio.timeout(WITHIN_S):
        tasks = [asyncio.create_task(writer.write(is_over)) for writer in writers]
        for _ in range(times):
            await _half_go_on(writers, progress)
            await asyncio.to_thread(trouble)
        await _half_go_on(writers, progress)
        is_over.set()
        await asyncio.gather(*tasks)
    return writers


async def _half_go_on(writers: list[Writer], progress: asyncio.Condition) -> None:
    """Returns when half of them have had something acknowledged from now on."""
    before = [len(writer.acknowledged) for writer in writers]

    def have_gone_on() -> bool:
        pairs = zip(writers, before, strict=True)
        return sum(len(writer.acknowledged) > number for writer, number in pairs) >= WRITERS // 2

    async with progress:
        await progress.wait_for(have_gone_on)


async def check_all(writers: list[Writer], store: PostgresStore) -> None:
    for writer in writers:
        await writer.check(store)
    listing = store.listing(0)
    assert listing is not None
    assert dict(await listing.counts()) == {"active": WRITERS}
    assert {each.id for each in await listing.page(100, "", "")} == {writer.id for writer in writers}


async def test_a_server_that_is_killed_and_started_again_loses_nothing(
    server: PostgresServer, url: str, direct: PostgresStore
) -> None:
    def kill_and_start() -> None:
        server.kill()
        server.start()

    store = postgres_store(url)
    await check_all(await write_through(store, kill_and_start, 2), direct)
    await store.close()


async def test_connections_that_are_cut_lose_nothing_and_repeat_nothing(
    store: PostgresStore, proxy: CutProxy, direct: PostgresStore
) -> None:
    await check_all(await write_through(store, proxy.cut, 10), direct)


async def test_answers_that_are_lost_lose_nothing_and_repeat_nothing(
    store: PostgresStore, proxy: CutProxy, direct: PostgresStore
) -> None:
    await check_all(await write_through(store, lambda: proxy.drop_answers(1), 10), direct)
    assert proxy.dropped > 5


async def test_with_a_full_disk_what_is_there_is_read_and_writers_go_on_when_there_is_room() -> None:
    with small_disk(64 * 1024 * 1024) as disk, PostgresServer() as server:
        url = server.create_database_on(disk)
        await migrate(url, NAMESPACE)
        store = postgres_store(url)
        epoch, i = await store.journal.open(0), new_id()
        await store.journal.append(0, epoch, following([], [created(i)]))
        large = UserMessage(seq=2, turn=1, text=secrets.token_hex(500_000))
        with filled(disk):
            with pytest.raises(JournalError, match="No space left on device"):
                await store.journal.append(0, epoch, following([created(i)], [large]))
            assert await store.journal.read(i) == [created(i)]
            listing = store.listing(0)
            assert listing is not None and [each.id for each in await listing.page(9, "", "")] == [i]
            appended = asyncio.create_task(store.journal.append(0, epoch, following([created(i)], [large])))
            await asyncio.wait({appended}, timeout=2)
            assert not appended.done()  # it is tried again for a while
        await appended
        assert await store.journal.read(i) == [created(i), large]
        await store.close()


async def test_an_append_whose_answer_is_lost_is_made_once_and_acknowledged(
    store: PostgresStore, proxy: CutProxy
) -> None:
    epoch, i = await store.journal.open(0), new_id()
    await store.journal.append(0, epoch, following([], [created(i)]))
    proxy.drop_answers(1)
    await store.journal.append(0, epoch, following([created(i)], turn(2)))
    assert proxy.dropped == 1
    assert await store.journal.read(i) == [created(i), *turn(2)]


async def test_appends_to_one_conversation_at_once_whose_answer_is_lost_are_made_once(
    store: PostgresStore, proxy: CutProxy
) -> None:
    epoch, i = await store.journal.open(0), new_id()
    await store.journal.append(0, epoch, following([], [created(new_id())]))
    before = [created(i), *turn(2)]
    proxy.drop_answers(1)
    outcomes = await asyncio.gather(
        store.journal.append(0, epoch, following([], before[:1])),
        store.journal.append(0, epoch, following(before[:1], before[1:])),
        store.journal.append(0, epoch, following(before, turn(4))),
        return_exceptions=True,
    )
    assert proxy.dropped == 1
    # Only the name of the last one is known: nobody can tell of those before it whose they are.
    assert all(isinstance(outcome, int | WrongSequence) for outcome in outcomes)
    assert isinstance(outcomes[-1], int)
    assert await store.journal.read(i) == [*before, *turn(4)]


async def test_a_process_that_was_fenced_while_it_was_cut_off_writes_nothing_any_more(
    store: PostgresStore, proxy: CutProxy, direct: PostgresStore
) -> None:
    epoch, i = await store.journal.open(0), new_id()
    await store.push.open(0, epoch, lambda _: True)
    await store.journal.append(0, epoch, following([], [created(i)]))
    proxy.refuse()
    proxy.cut()
    held_up = asyncio.create_task(store.journal.append(0, epoch, following([created(i)], turn(2))))
    newer = await direct.journal.open(0)
    await direct.push.open(0, newer, lambda _: True)
    proxy.accept()
    with pytest.raises(StaleEpoch):
        await held_up
    with pytest.raises(StaleEpoch):
        await store.push.put(0, epoch, i, [Webhook("w", "https://example.org/")])
    assert await direct.journal.read(i) == [created(i)]
    await direct.journal.append(0, newer, following([created(i)], turn(2)))
    assert await direct.push.open(0, newer, lambda _: True) == {}


async def everything_fails(store: PostgresStore, epoch: int, i: str) -> None:
    """Each call gets an error within a bound, also if many wait for one connection."""
    began = time.monotonic()
    listing = store.listing()
    assert listing is not None
    outcomes = await asyncio.wait_for(
        asyncio.gather(
            store.journal.append(0, epoch, following([created(i)], turn(2))),
            store.journal.open(1),
            store.push.put(0, epoch, i, []),
            store.versions.keep("d", "", {}),
            store.grants.add(granted("1")),
            *(store.journal.read(new_id()) for _ in range(8)),
            *(listing.page(10, "", "") for _ in range(4)),
            return_exceptions=True,
        ),
        WITHIN_S,
    )
    took = time.monotonic() - began
    assert all(isinstance(outcome, JournalError) for outcome in outcomes), outcomes
    assert isinstance(outcomes[0], WrongSequence)  # nobody knows
    assert took < ANSWERS_WITHIN_S


@pytest.mark.parametrize("trouble", ["black hole", "frozen"])
async def test_a_database_that_does_not_answer_is_an_error_within_a_bound_and_all_goes_on_afterwards(
    server: PostgresServer,
    store: PostgresStore,
    proxy: CutProxy,
    direct: PostgresStore,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    epoch, i = await store.journal.open(0), new_id()
    await store.push.open(0, epoch, lambda _: True)
    await store.journal.append(0, epoch, following([], [created(i)]))
    if trouble == "frozen":  # the other one shows how long it takes in earnest
        monkeypatch.setattr(event_rows, "WITHIN_S", 3.0)
        monkeypatch.setitem(Database.rows.__kwdefaults__, "within_s", 3.0)
        monkeypatch.setattr(database, "_TRY_WITHIN_S", 1.0)
    begin, end = (proxy.hold, proxy.release) if trouble == "black hole" else (server.freeze, server.thaw)
    begin()
    try:
        await everything_fails(store, epoch, i)
    finally:
        end()
    async with asyncio.timeout(WITHIN_S):
        found = await store.journal.read(i)
        # What was held back may come through, but never after a later append.
        events = found
        while len(events) < 9:
            try:
                await store.journal.append(0, epoch, following(events, turn(len(events) + 1)))
                events = [*events, *turn(len(events) + 1)]
            except WrongSequence:
                events = await store.journal.read(i)
        assert [event.seq for event in await direct.journal.read(i)] == [*range(1, len(events) + 1)]
        await store.grants.add(granted("1"))
        assert [each.id for each in await direct.grants.grants("coder")] == ["1"]


async def test_the_waits_of_many_who_write_grants_do_not_add_up_while_a_database_is_silent(
    store: PostgresStore, proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.grants.listed()
    monkeypatch.setattr(grant_rows, "WITHIN_S", 2.0)
    proxy.hold()
    began = time.monotonic()
    failed = await asyncio.gather(
        *(store.grants.add(granted(str(n))) for n in range(7)), return_exceptions=True
    )
    assert [type(problem) for problem in failed] == [StoreAway] * 7
    assert time.monotonic() - began < 8
    proxy.release()
    await store.grants.add(granted("later"))


async def test_an_epoch_that_a_database_gave_twice_lets_the_newest_holder_write_alone(
    server: PostgresServer, url: str, store: PostgresStore, direct: PostgresStore
) -> None:
    i, hook = new_id(), Webhook("w", "https://example.org/")
    first = await store.journal.open(0)
    await store.push.open(0, first, lambda _: True)
    await store.journal.append(0, first, following([], [created(i)]))
    server.execute(url, f"update {NAMESPACE}.shard set epoch = epoch - 1")
    second = await direct.journal.open(0)
    assert second == first
    await direct.push.open(0, second, lambda _: True)
    with pytest.raises(StaleEpoch):
        await store.journal.append(0, first, following([created(i)], turn(2)))
    with pytest.raises(StaleEpoch):
        await store.push.put(0, first, i, [hook])
    with pytest.raises(StaleEpoch):
        await store.push.open(0, first, lambda _: True)
    await direct.journal.append(0, second, following([created(i)], turn(2)))
    await direct.push.put(0, second, i, [hook])
    assert await store.journal.read(i) == [created(i), *turn(2)]
    assert await direct.push.open(0, second, lambda _: True) == {i: (hook,)}
    server.execute(url, f"update {NAMESPACE}.shard set epoch = epoch - 1")
    third = await direct.journal.open(0)  # by a process that knows that epoch
    assert third > second
    with pytest.raises(StaleEpoch):
        await direct.journal.append(0, second, following([created(i), *turn(2)], turn(4)))


async def test_an_append_that_the_database_refuses_keeps_no_other_of_its_batch_from_it(
    direct: PostgresStore,
) -> None:
    epoch = await direct.journal.open(0)
    ids = [new_id() for _ in range(9)]
    refused = [
        UserMessage(seq=2, turn=1, text="hi"),
        ApprovalRequired(
            seq=3, turn=1, step="/tool/0.0", uuid=new_id(), call_id="c", tool_name="t", tool_args={},
            description="d", expires_at="2026\0",
        ),
        Paused(seq=4, turn=1, run=1),
    ]  # fmt: skip
    outcomes = await asyncio.gather(
        *(
            direct.journal.append(0, epoch, following([], [created(i), *(refused if n == 4 else [])]))
            for n, i in enumerate(ids)
        ),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [int] * 4 + [JournalRefused] + [int] * 4
    assert ids[4] in str(outcomes[4])
    assert [await direct.journal.read(i) for i in ids] == [
        [] if n == 4 else [created(i)] for n, i in enumerate(ids)
    ]
    await direct.journal.append(0, epoch, following([], [created(ids[4])]))


async def test_webhooks_grants_and_versions_whose_answers_are_lost_are_there_once(
    store: PostgresStore, proxy: CutProxy, direct: PostgresStore
) -> None:
    epoch, i, hook = await store.journal.open(0), new_id(), Webhook("w", "https://example.org/")
    await store.push.open(0, epoch, lambda _: True)
    proxy.drop_answers(1)
    await store.push.put(0, epoch, i, [hook])
    for answer in (1, 2):
        proxy.drop_answers(answer)
        await store.grants.add(granted(str(answer)))
    proxy.drop_answers(2)
    assert await store.grants.revoke("1", "bob") == granted("1")
    proxy.drop_answers(1)
    await store.versions.keep("d", "name: a", {})
    proxy.drop_answers(1)
    newer = await store.journal.open(0)
    assert (proxy.dropped, newer) == (6, epoch + 1)
    assert await store.push.open(0, newer, lambda _: True) == {i: (hook,)}
    assert [*await direct.grants.listed()] == [2]
    assert (await direct.versions.kept("d")).source == "name: a"


async def test_a_revocation_whose_answer_is_lost_is_told_to_whoever_made_it_also_if_another_grant_follows(
    store: PostgresStore, direct: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.grants.add(granted("1"))
    rows, has_interfered = store._database.rows, False

    async def answer_is_lost(text: str, *parameters: object) -> list[tuple[object, ...]]:
        nonlocal has_interfered
        found = await rows(text, *parameters)
        if "insert into {schema}.grant_entry" in text and not has_interfered:
            has_interfered = True
            await direct.grants.add(granted("2"))
            return await rows(text, *parameters)  # sent again, as after a lost answer
        return found

    monkeypatch.setattr(store._database, "rows", answer_is_lost)
    assert await store.grants.revoke("1", "bob") == granted("1")


PASSWORDS = ("p@ss", "p/ss", "12/ss", "p#ss", "p?ss", "p:ss", "p ss", "p%ss", "p@ss@x", "s3cret")


@pytest.mark.parametrize("escaped", [True, False])
async def test_no_error_shows_a_password(
    server: PostgresServer, escaped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Database.rows.__kwdefaults__, "within_s", 1.0)
    port = urlsplit(server.url).port
    secrets = [f"QQ{password}QQ" for password in PASSWORDS]
    urls = [
        f"postgres://mesh:{quote(secret, safe='') if escaped else secret}@{host}/postgres"
        for secret in secrets
        for host in (f"127.0.0.1:{port}", "127.0.0.1:1")
    ]
    told = [*map(error_of, urls), *map(error_of_migrate, urls)]
    assert [error for error in await asyncio.gather(*told) if "QQ" in error] == []


async def error_of(url: str) -> str:
    store = postgres_store(url)
    try:
        await store.secret()
    except MeshError as problem:
        return str(problem)
    finally:
        await store.close()
    raise AssertionError("the database answered")


async def error_of_migrate(url: str) -> str:
    try:
        await migrate(url, NAMESPACE)
    except MeshError as problem:
        return str(problem)
    raise AssertionError("the database answered")


async def test_a_database_without_the_tables_says_what_to_do(server: PostgresServer) -> None:
    url = server.create_database()
    store = postgres_store(url)
    listing = store.listing()
    assert listing is not None
    works = (
        store.journal.open(0), store.journal.read(new_id()), store.secret(), store.grants.listed(),
        store.grants.add(granted("1")), store.versions.kept("d"), listing.page(1, "", ""),
    )  # fmt: skip
    for work in works:
        with pytest.raises(MeshError, match="mesh store migrate"):
            await work
    assert list(await store.grants.grants("coder")) == []
    await migrate(url, NAMESPACE)
    assert await store.journal.open(0) == 1  # the process need not start again
    await store.close()


async def test_a_migration_is_applied_once_by_however_many_apply_it_at_once(server: PostgresServer) -> None:
    url = server.create_database()
    applied = await asyncio.gather(*(migrate(url, NAMESPACE) for _ in range(5)))
    assert sorted(applied) == [[], [], [], [], [*migrations()]]
    assert await migrate(url, NAMESPACE) == []


async def test_an_agent_in_another_namespace_is_another_agent(server: PostgresServer, url: str) -> None:
    names = ("other", 'odd "name"; drop schema mesh; --', "{schema}")
    one = postgres_store(url)
    others = [postgres_store(url, namespace=name) for name in names]
    for name in names:
        assert await migrate(url, name) == [*migrations()]
    i = new_id()
    epoch = await one.journal.open(0)
    await one.journal.append(0, epoch, following([], [created(i)]))
    await one.grants.add(granted("1"))
    await one.versions.keep("d", "", {})
    for other in others:
        listing = other.listing()
        assert listing is not None
        assert (await other.journal.read(i), await listing.page(10, "", "")) == ([], [])
        assert list(await other.grants.grants("coder")) == []
        with pytest.raises(MeshError, match="not known"):
            await other.versions.kept("d")
        newer = await other.journal.open(0)
        assert newer == 1  # and the other one goes on
        await other.journal.append(0, newer, following([], [created(i)]))
        assert await other.secret() != await one.secret()
    await one.journal.append(0, epoch, following([created(i)], turn(2)))
    for each in (one, *others):
        await each.close()


async def test_two_agents_of_a_namespace_share_nothing(url: str) -> None:
    one, other = postgres_store(url), postgres_store(url, agent="other")
    i = new_id()
    epoch = await one.journal.open(0)
    await one.push.open(0, epoch, lambda _: True)
    await one.journal.append(0, epoch, following([], [created(i)]))
    await one.push.put(0, epoch, i, [Webhook("w", "https://example.org/")])
    await one.grants.add(granted("1"))
    await one.versions.keep("d", "", {})
    newer = await other.journal.open(0)
    assert await other.push.open(0, newer, lambda _: True) == {}
    assert await other.journal.read(i) == []
    assert list(await other.grants.grants("coder")) == []
    with pytest.raises(NotFound):
        await other.grants.revoke("1", "bob")
    with pytest.raises(MeshError, match="not known"):
        await other.versions.kept("d")
    await other.journal.append(0, newer, following([], [created(i)]))
    await one.journal.append(0, epoch, following([created(i)], turn(2)))
    assert await other.journal.read(i) == [created(i)]
    for each in (one, other):
        await each.close()


async def test_a_journal_that_cannot_be_read_keeps_no_other_from_it_that_is_asked_for_at_the_same_time(
    server: PostgresServer, url: str, direct: PostgresStore
) -> None:
    epoch, ids = await direct.journal.open(0), [new_id() for _ in range(20)]
    for i in ids:
        await direct.journal.append(0, epoch, following([], [created(i)]))
    fails = f"case when conversation = '{ids[7]}' then (1 / (seq - seq))::text else line end line"
    server.execute(url, f"alter table {NAMESPACE}.event rename to kept")
    server.execute(
        url,
        f"create view {NAMESPACE}.event as select agent, conversation, seq, {fails} from {NAMESPACE}.kept",
    )
    found = await asyncio.gather(*map(direct.journal.read, ids), return_exceptions=True)
    server.execute(url, f"drop view {NAMESPACE}.event")
    server.execute(url, f"alter table {NAMESPACE}.kept rename to event")
    refused = found.pop(7)
    assert isinstance(refused, JournalError) and "division by zero" in str(refused)
    assert found == [[created(i)] for n, i in enumerate(ids) if n != 7]


async def test_an_append_to_a_database_without_statistics_looks_at_its_own_conversation_alone(
    server: PostgresServer,
) -> None:
    await migrate(url := server.create_database(), NAMESPACE)
    store, number = postgres_store(url), 300
    epoch = await store.journal.open(0)
    for _ in range(number):
        await store.journal.append(0, epoch, following([], [created(new_id())]))
    await store.close()  # its connections tell the server then what they have read
    inserted = "select n_tup_ins from pg_stat_user_tables where relname = 'conversation'"

    async def is_told() -> bool:
        return server.execute(url, inserted) == [(number,)]

    await until(is_told)
    read = "select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'conversation'"
    ((rows,),) = server.execute(url, read)
    assert rows <= 3 * number


async def test_connections_that_nobody_uses_for_a_while_are_closed(
    server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_IDLE_S", 0.3)
    store = postgres_store(url)
    name = urlsplit(url).path.removeprefix("/")
    open_ones = (
        f"select count(*) from pg_stat_activity where datname = '{name}' and application_name = 'mesh'"
    )
    await store.shards.map()

    async def are_closed() -> bool:
        return server.execute(url, open_ones) == [(0,)]

    assert not await are_closed()
    await until(are_closed)
    assert (await store.shards.map()).hosts == ()
    await store.close()


async def test_the_server_is_to_notice_soon_that_a_machine_is_lost(url: str) -> None:
    """By its own defaults it keeps a connection of that machine for two hours, and has 100."""
    asked = Database(url, NAMESPACE)
    try:
        names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
        settings = ", ".join(f"current_setting('{name}')" for name in names)
        ((*found,),) = await asked.rows(f"select {settings}", within_s=WITHIN_S)
    finally:
        await asked.close()
    assert found == ["4", "2", "2", "8000"]


async def test_an_append_looks_its_conversation_up_by_the_key(
    server: PostgresServer, url: str, direct: PostgresStore
) -> None:
    """Also while the database knows nothing of the sizes of its tables yet, and keeps plans made then."""
    epoch = await direct.journal.open(0)
    for _ in range(10):
        await asyncio.gather(
            *(direct.journal.append(0, epoch, following([], [created(new_id())])) for _ in range(50))
        )
    await direct.close()  # a session tells these figures when it ends, at the latest
    scans = "select indexrelname, idx_scan from pg_stat_user_indexes where idx_scan > 0"

    async def used() -> set[object]:
        return {name for name, _ in server.execute(url, f"{scans} and relname = 'conversation'")}

    assert await until(used) == {"conversation_pkey"}


async def test_what_the_release_before_listed_has_the_version_on_which_it_began(
    server: PostgresServer, url: str, direct: PostgresStore
) -> None:
    epoch, ids = await direct.journal.open(0), [new_id(), new_id()]
    for i in ids:
        await direct.journal.append(0, epoch, following([], [created(i, digest="a1", system_prompt="\0")]))
    server.execute(
        url,
        f"""alter table {NAMESPACE}.conversation drop column version;
        update {NAMESPACE}.conversation set entry = replace(entry, ',"version":"a1"', '');
        delete from {NAMESPACE}.migration where number = 7""",
    )
    listing = direct.listing(0)
    assert listing is not None
    assert {each.version for each in await listing.page(9, "", "")} == {""}
    assert await migrate(url, NAMESPACE) == [7]
    assert await listing.counts_by_version() == {"a1": {"active": 2}}
    assert {each.version for each in await listing.page(9, "", "", "a1")} == {"a1"}


async def test_the_listing_is_migrated_while_the_release_before_writes(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, every = server.create_database(), migrations()

    async def migrate_to(last: int) -> list[int]:
        some = {number: text for number, text in every.items() if number <= last}
        monkeypatch.setattr(migrate_module, "migrations", lambda: some)
        return await migrate(url, NAMESPACE)

    await migrate_to(6)
    ids = "('00000000-0000-4000-8000-' || lpad(to_hex(i), 12, '0'))::uuid"
    entry = """'{"id":"x"}', 's', 'c', 'u', 'active', '', 'c', false, '', '{}'"""
    server.execute(
        url,
        f"""insert into {NAMESPACE}.agent (name, shards, secret) values ('a', 1, 'x');
        insert into {NAMESPACE}.conversation (agent, id, shard, seq, append, entry, suffix, created_at,
            updated_at, status, turn_state, context, needs_pass, expires_at, asking)
            select 1, {ids}, 0, 3, 'a', {entry} from generate_series(1, 20000) i;
        insert into {NAMESPACE}.event
            select 1, {ids}, 1, '{{"digest":"0f5c2a4be8d1"}}' from generate_series(1, 20000) i""",
    )
    written = 0

    async def write() -> None:
        nonlocal written
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as writer:
            while True:
                one = f"update {NAMESPACE}.conversation set seq = seq + 1 where id::text like '%000001'"
                await writer.execute(one.encode())
                written += 1

    writing = asyncio.create_task(write())
    await until(lambda: _is_true(written))
    assert await migrate_to(7) == [7]
    before = written
    await until(lambda: _is_true(written > before))  # it only waited
    writing.cancel()
    await asyncio.wait({writing})
    ((versions,),) = server.execute(url, f"select count(*) from {NAMESPACE}.conversation where version <> ''")
    assert versions == 20_000


async def _is_true(found: object) -> bool:
    return bool(found)
