"""A database is backed up beside the mesh that uses it, and another mesh goes on from there."""

from mesh.keeper.requests import Caller, SendMessage, Show
from mesh.store.postgres.migrate import migrate
from tests.worlds.keeper_hosts import Hosts, approving
from tests.worlds.mesh import calls, says
from tests.worlds.postgres import PostgresServer
from tests.worlds.stores import NAMESPACE, postgres_store

CALLER = Caller(session_id="s")


async def test_what_waited_when_the_backup_was_made_goes_on_where_it_is_restored(
    postgres_server: PostgresServer, database_url: str
) -> None:
    await migrate(database_url, NAMESPACE)
    store = postgres_store(database_url)
    before = Hosts(store)
    await before.add("before")
    talks, _ = await before.create("one")
    before.llm.answers = [calls(("add", {"n": 1}))]
    waits, asked = await before.create("please add")
    uuid = asked["result"]["approval"]["uuid"]
    shown = {id: await before.ask(id, Show(id)) for id in (talks, waits)}
    postgres_server.dump(database_url, "backup")
    assert (await before.ask(talks, SendMessage(talks, CALLER, "after the backup")))[0] == 200
    await before.close()
    await store.close()

    url = postgres_server.create_database()
    postgres_server.restore(url, "backup")
    store = postgres_store(url)
    after = Hosts(store)
    await after.add("after")
    assert {id: await after.ask(id, Show(id)) for id in shown} == shown
    after.llm.answers = [says("added"), says("two")]
    status, body = await after.ask(uuid, approving(uuid))
    assert (status, body["result"]["response"], after.ledger.lines) == (200, "added", ["add 1"])
    assert (await after.ask(talks, SendMessage(talks, CALLER, "two")))[0] == 200
    listing = store.listing()
    assert listing is not None and {each.id for each in await listing.page(9, "", "")} == shown.keys()
    await after.close()
    await store.close()
    postgres_server.drop_database(url)
