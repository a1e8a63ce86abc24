"""A database fails over to its standby: what that has not got is lost, and each conversation says so."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from mesh.core.events import StoreWentBack, decode
from mesh.keeper.requests import Caller, SendMessage, Show
from mesh.store.postgres.migrate import migrate
from tests.worlds.keeper_hosts import Hosts, approving
from tests.worlds.mesh import calls, says, until
from tests.worlds.postgres import PostgresServer
from tests.worlds.stores import NAMESPACE, postgres_store

CALLER = Caller(session_id="s")
ADDS = calls(("add", {"n": 1}))


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with primary.standby() as standby:
        yield standby


@pytest.fixture
async def hosts(primary: PostgresServer, standby: PostgresServer) -> AsyncIterator[Hosts]:
    """Hosts whose store is on whichever of the two servers takes writes."""
    await migrate(primary.url, NAMESPACE)
    url = urlsplit(primary.url)
    login = url.netloc.rpartition("@")[0]
    both = f"{login}@127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    store = postgres_store(url._replace(netloc=both).geturl())
    hosts = Hosts(store)
    yield hosts
    await hosts.close()
    await store.close()


async def test_what_a_standby_does_not_have_is_missed_and_told_and_nothing_of_it_is_done_again(
    primary: PostgresServer, standby: PostgresServer, hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    await hosts.add("only")
    talks, _ = await hosts.create("one")
    rests, _ = await hosts.create("one")
    hosts.llm.answers = [ADDS, ADDS, ADDS]
    waits, asked = await hosts.create("please add")
    paused, asked_last = await hosts.create("please add")
    uuid, last = (each["result"]["approval"]["uuid"] for each in (asked, asked_last))
    await until(lambda: _true(standby.has_all_of(primary)))
    standby.stop_following()

    hosts.llm.answers = [says("added"), says("two")]
    assert (await hosts.ask(uuid, approving(uuid)))[1]["result"]["response"] == "added"
    assert (await hosts.ask(talks, SendMessage(talks, CALLER, "two")))[0] == 200
    lost, _ = await hosts.create("nobody will know of this")
    primary.kill()
    standby.promote()

    async def is_told(id: str) -> bool:
        _, body = await hosts.ask(id, Show(id))
        return tells_loss(body)

    # Nobody writes: it is the renewals that notice it.
    for id in (talks, waits):
        await until(lambda id=id: is_told(id))
        assert f"event=store_went_back conversation={id}" in caplog.text
    assert f"event=store_went_back conversation={lost}" in caplog.text
    assert (await hosts.ask(lost, Show(lost)))[0] == 404

    # What was decided may have happened, as it has: nobody may decide it anew.
    status, body = await hosts.ask(uuid, approving(uuid))
    assert (status, hosts.ledger.lines) == (409, ["add 1"]), body
    _, body = await hosts.ask(waits, Show(waits))
    assert body["conversation"]["status"] == "active"
    messages = (await hosts.ask(talks, Show(talks)))[1]["conversation"]["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["one"]

    # Everything else goes on.
    for id in (talks, waits, rests):
        assert (await hosts.ask(id, SendMessage(id, CALLER, "again")))[0] == 200
    assert (await hosts.ask(last, approving(last)))[0] == 200
    assert hosts.ledger.lines == ["add 1", "add 1"]
    _, body = await hosts.ask(rests, Show(rests))
    assert not tells_loss(body)
    for id in (talks, waits, rests, paused):
        check_journal(standby, id, losses=id in (talks, waits))


async def test_nothing_is_lost_with_a_synchronous_standby(
    primary: PostgresServer, standby: PostgresServer, hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    primary.execute(primary.url, "alter system set synchronous_standby_names = '*'")
    primary.execute(primary.url, "select pg_reload_conf()")
    synchronous = "select 1 from pg_stat_replication where sync_state = 'sync'"
    await until(lambda: _true(bool(primary.execute(primary.url, synchronous))))
    await hosts.add("only")
    ids = [(await hosts.create("one"))[0] for _ in range(5)]
    hosts.llm.answers = [ADDS]
    waits, asked = await hosts.create("please add")
    uuid = asked["result"]["approval"]["uuid"]
    for id in ids:
        assert (await hosts.ask(id, SendMessage(id, CALLER, "two")))[0] == 200
    primary.kill()
    standby.promote()
    await until(lambda: _true("event=store_failed_over" in caplog.text))
    hosts.llm.answers = [says("added")]
    assert (await hosts.ask(uuid, approving(uuid)))[1]["result"]["response"] == "added"
    for id in ids:
        _, body = await hosts.ask(id, Show(id))
        assert [m["content"] for m in body["conversation"]["messages"] if m["role"] == "user"] == [
            "one",
            "two",
        ]
    assert hosts.ledger.lines == ["add 1"]
    assert "store_went_back" not in caplog.text
    for id in (*ids, waits):
        check_journal(standby, id, losses=False)


def check_journal(server: PostgresServer, id: str, *, losses: bool) -> None:
    """The journal has no gap, and no number twice."""
    select = f"select line from {NAMESPACE}.event where conversation = '{id}' order by seq"
    events = [decode(line) for (line,) in server.execute(server.url, select)]
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    assert any(isinstance(event, StoreWentBack) for event in events) is losses


def tells_loss(body: dict[str, Any]) -> bool:
    return any("The store has lost" in message["content"] for message in body["conversation"]["messages"])


async def _true(value: bool) -> bool:
    return value
