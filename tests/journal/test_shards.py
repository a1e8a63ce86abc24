"""What every store promises about hosts and shards; and what the files do when somebody harms them."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.core.errors import JournalError
from mesh.journal.shards import HostRecord, ShardClaim, ShardMap, claims
from mesh.journal.shards_in_files import FILE, FileShards, stored_count
from mesh.journal.shards_in_memory import MemoryShards
from tests.worlds.postgres import PostgresServer
from tests.worlds.stores import DATABASES, SHARDS, STORES, Stores, fixture_of

stores = fixture_of(*STORES)
databases = fixture_of(*DATABASES)


def host(id: str, name: str = "", **more: object) -> HostRecord:
    return HostRecord(id=id, name=name or id, address="10.0.0.1", port=4711, secret=b"\0secret\xff", **more)


def wanted(*shards: int, of: str = "") -> list[ShardClaim]:
    return [ShardClaim(shard, of) for shard in shards]


async def test_a_store_that_was_not_used_has_shards_that_nobody_has(stores: Stores) -> None:
    map = await stores.one.shards.map()
    assert map.hosts == ()
    assert map.held_by in (("",) * SHARDS, ())  # a database knows an agent from its first use on
    assert await stores.one.shards.newest_generation() == (0, "")


async def test_a_host_is_seen_by_others_as_it_is_and_its_secret_in_no_text(stores: Stores) -> None:
    me = host("a", "first", generation=3)
    await stores.one.shards.renew(me)
    map = await stores.another().shards.map()
    (seen,) = map.hosts
    assert (seen.id, seen.name, seen.generation) == ("a", "first", 3)
    assert (seen.address, seen.port, seen.secret) == ("10.0.0.1", 4711, me.secret)
    assert seen.is_live and not seen.is_leaving
    assert map.held_by == ("",) * SHARDS and "secret" not in repr(map)


async def test_a_secret_of_any_length_is_seen_as_it_is(stores: Stores) -> None:
    secret = bytes(range(256))
    await stores.one.shards.renew(HostRecord(id="a", name="a", secret=secret))
    (seen,) = (await stores.another().shards.map()).hosts
    assert seen.secret == secret


async def test_a_host_may_renew_with_what_a_map_says_of_it(stores: Stores) -> None:
    (seen,) = (await stores.one.shards.renew(host("a"))).hosts
    (again,) = (await stores.one.shards.renew(seen)).hosts
    assert again.is_live and again.joined == seen.joined
    assert (await stores.another().shards.map()).host("a") is not None


async def test_a_host_that_leaves_says_so(stores: Stores) -> None:
    await stores.one.shards.renew(host("a"))
    map = await stores.one.shards.renew(host("a", is_leaving=True))
    assert [each.is_leaving for each in map.hosts] == [True]


async def test_hosts_are_numbered_in_the_order_in_which_they_joined(stores: Stores) -> None:
    for id in ("c", "a", "b", "c", "a"):
        map = await stores.one.shards.renew(host(id))
    assert [each.id for each in sorted(map.hosts, key=lambda each: each.joined)] == ["c", "a", "b"]


async def test_of_two_claims_of_a_shard_one_succeeds(stores: Stores) -> None:
    one, other = stores.one.shards, stores.another().shards
    await one.renew(host("a"))
    await other.renew(host("b"))
    found = await asyncio.gather(one.claim(wanted(0, 1, 2), "a"), other.claim(wanted(2, 1, 0), "b"))
    assert sorted([*found[0], *found[1]]) == [0, 1, 2]
    map = await one.map()
    assert sorted(map.shards_of("a")) == sorted(found[0]) and sorted(map.shards_of("b")) == sorted(found[1])


async def test_a_claim_names_who_has_the_shard_and_may_be_repeated(stores: Stores) -> None:
    shards = stores.one.shards
    for id in ("a", "b"):
        await shards.renew(host(id))
    assert await shards.claim(wanted(3), "a") == [3]
    assert await shards.claim(wanted(3), "a") == [3]
    assert await shards.claim(wanted(3), "b") == []
    assert await shards.claim(wanted(3, of="nobody"), "b") == []
    assert await shards.claim(wanted(3, of="a"), "b") == [3]
    assert (await shards.map()).held_by[3] == "b"


async def test_a_host_that_was_released_has_nothing_and_claims_nothing(stores: Stores) -> None:
    shards = stores.one.shards
    await shards.renew(host("a"))
    await shards.claim(wanted(*range(SHARDS)), "a")
    await shards.release("a")
    await shards.release("a")
    map = await shards.map()
    assert (map.hosts, map.held_by) == ((), ("",) * SHARDS)
    assert await shards.claim(wanted(0), "a") == []


async def test_generations_grow_for_all_who_ask(stores: Stores) -> None:
    one, other = stores.one.shards, stores.another().shards
    first, second, third = [
        await each.begin_generation(digest) for each, digest in ((one, "d1"), (other, "d2"), (one, "d3"))
    ]
    assert 0 < first < second < third
    assert await other.newest_generation() == (third, "d3")


async def test_a_shard_that_was_claimed_is_opened_and_written_as_any_other(stores: Stores) -> None:
    await stores.one.shards.renew(host("a"))
    await stores.one.shards.claim(wanted(0), "a")
    first = await stores.one.journal.open(0)
    assert await stores.another().journal.open(0) > first > 0
    assert (await stores.one.shards.map()).held_by[0] == "a"  # who has it is not who has opened it


async def test_who_is_no_host_sees_no_steady_map_where_leases_end(stores: Stores) -> None:
    await stores.one.shards.renew(host("a"))
    has_leases = stores.one.shards.lease_s < 1000
    assert (await stores.one.shards.map()).is_steady is not has_leases


async def test_in_a_database_a_lease_is_over_after_ten_seconds_and_its_host_is_forgotten_with_its_last_shard(
    databases: Stores, postgres_server: PostgresServer
) -> None:
    shards = databases.one.shards
    for id in ("a", "b"):
        await shards.renew(host(id))
    await shards.claim(wanted(*range(SHARDS)), "a")

    def pass_seconds(number: float, id: str) -> None:
        moved = f"renewed_at = renewed_at - interval '{number} s'"
        postgres_server.execute(databases.url, f"update mesh.host set {moved} where id = '{id}'")

    def live(map: ShardMap) -> set[str]:
        return {each.id for each in map.hosts if each.is_live}

    pass_seconds(9, "a")
    assert live(await shards.renew(host("b"))) == {"a", "b"}
    pass_seconds(2, "a")
    map = await shards.renew(host("b"))
    assert live(map) == {"b"} and not map.is_steady and claims(map, "b") == []
    steady = "steady_since = steady_since - interval '11 s'"
    postgres_server.execute(databases.url, f"update mesh.host set {steady} where id = 'b'")
    map = await shards.renew(host("b"))
    assert map.is_steady
    assert await shards.claim(claims(map, "b"), "b") == [*range(SHARDS)]
    assert {each.id for each in (await shards.renew(host("b"))).hosts} == {"b"}
    pass_seconds(6, "b")  # the database did not answer for so long
    assert not (await shards.renew(host("b"))).is_steady


async def test_when_the_clock_of_a_database_goes_back_leases_end_as_they_would_and_maps_get_steady(
    databases: Stores, postgres_server: PostgresServer
) -> None:
    shards = databases.one.shards
    for id in ("a", "b"):
        await shards.renew(host(id))
    await shards.claim(wanted(0), "a")
    future = "renewed_at = renewed_at + interval '1 h', steady_since = steady_since + interval '1 h'"
    postgres_server.execute(databases.url, f"update mesh.host set {future}")
    map = await shards.renew(host("b"))
    assert not map.is_steady
    assert all(each.expires_in_s <= shards.lease_s for each in map.hosts)
    past = "renewed_at = renewed_at - interval '4 s', steady_since = steady_since - interval '11 s'"
    postgres_server.execute(databases.url, f"update mesh.host set {past} where id = 'b'")
    assert (await shards.renew(host("b"))).is_steady


async def test_in_memory_a_clock_that_goes_back_makes_no_lease_longer() -> None:
    times = [100.0]
    shards = MemoryShards(SHARDS, lambda: times[-1])
    for id in ("a", "b"):
        await shards.renew(host(id))
    await shards.claim(wanted(0), "a")
    seen = []
    for time in (0, 4, 8, 12):
        times.append(time)
        map = await shards.renew(host("b"))
        a = map.host("a")
        assert a is not None
        seen.append((map.is_steady, a.is_live))
    assert seen == [(False, True), (False, True), (False, True), (True, False)]


async def test_in_memory_a_host_is_steady_after_a_lease_without_a_gap() -> None:
    times = [0.0]
    shards = MemoryShards(SHARDS, lambda: times[-1])
    seen = []
    for time in (0, 4, 8, 12, 18, 22, 26, 30):
        times.append(time)
        seen.append((await shards.renew(host("a"))).is_steady)
    assert seen == [False, False, False, True, False, False, False, True]


OTHER_HOST = """
import asyncio, sys
from pathlib import Path
from mesh.journal.shards import HostRecord, ShardClaim
from mesh.journal.shards_in_files import FileShards

async def main():
    shards = FileShards(Path(sys.argv[1]), 4)
    await shards.renew(HostRecord(id="x", name="x"))
    await shards.claim([ShardClaim(number, "") for number in range(4)], "x")
    print("there", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_in_files_a_host_is_gone_when_its_process_is(tmp_path: Path) -> None:
    shards = FileShards(tmp_path, 4)

    def renewed() -> ShardMap:
        return asyncio.run(shards.renew(host("a")))

    with subprocess.Popen([sys.executable, "-c", OTHER_HOST, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"there\n"
        map = renewed()
        assert {each.id: each.is_live for each in map.hosts} == {"x": True, "a": True}
        assert claims(map, "a") == []
        other.kill()
        other.wait(30)
    map = renewed()
    assert {each.id: each.is_live for each in map.hosts} == {"x": False, "a": True}
    assert asyncio.run(shards.claim(claims(map, "a"), "a")) == [0, 1, 2, 3]
    assert [each.id for each in renewed().hosts] == ["a"]
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "hosts.lock", "host_a.lock"}
    asyncio.run(shards.close())


async def test_in_files_a_host_is_gone_when_its_store_is_closed(tmp_path: Path) -> None:
    one, other = FileShards(tmp_path, 2), FileShards(tmp_path, 2)
    await one.renew(host("a"))
    await one.claim(wanted(0), "a")
    assert [each.is_live for each in (await other.map()).hosts] == [True]
    await one.close()
    assert [each.is_live for each in (await other.map()).hosts] == [False]


async def test_in_files_a_host_whose_id_another_process_has_is_refused(tmp_path: Path) -> None:
    one, other = FileShards(tmp_path, 2), FileShards(tmp_path, 2)
    await one.renew(host("a"))
    with pytest.raises(JournalError, match=r"host_a.lock is held"):
        await other.renew(host("a"))
    await one.close()


async def test_in_files_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"hosts.json: Not a directory"):
        stored_count(tmp_path / "file")
    with pytest.raises(JournalError, match=r"hosts.json: Not a directory"):
        await FileShards(tmp_path / "file", 1).map()


async def test_in_files_the_number_of_shards_is_that_of_the_first_use(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert stored_count(folder) is None
    await FileShards(folder, 3).begin_generation("d")
    assert stored_count(folder) == 3
    assert len((await FileShards(folder, 5).map()).held_by) == 3


async def test_in_files_nobody_else_can_read_the_secrets(tmp_path: Path) -> None:
    shards = FileShards(tmp_path, 1)
    await shards.renew(host("a"))
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    await shards.close()


async def test_a_renewal_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    shards = FileShards(tmp_path, 1)
    await shards.renew(host("a"))
    before = (tmp_path / FILE).stat()
    await shards.renew(host("a"))
    assert (tmp_path / FILE).stat().st_ino == before.st_ino
    await shards.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"held_by": 3}'])
async def test_a_damaged_file_is_said_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    for asked in (FileShards(tmp_path, 1).map(), FileShards(tmp_path, 1).renew(host("a"))):
        with pytest.raises(JournalError, match=r"hosts.json is damaged; stop the mesh and delete it"):
            await asked


def test_in_files_a_host_that_joins_removes_what_killed_processes_left(tmp_path: Path) -> None:
    for name in ("hosts.json.4711.tmp", "host_gone.lock", "host_none.txt"):
        (tmp_path / name).touch()
    one, other = FileShards(tmp_path, 4), FileShards(tmp_path, 4)
    asyncio.run(one.renew(host("a")))
    asyncio.run(other.renew(host("b")))
    map = asyncio.run(one.map())
    assert {each.id: each.is_live for each in map.hosts} == {"a": True, "b": True}
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"hosts.json", "hosts.lock", "host_a.lock", "host_b.lock", "host_none.txt"}
