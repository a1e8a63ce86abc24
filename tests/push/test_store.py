"""What every store of webhooks promises, asked of each; and what only the files have to."""

import asyncio
import itertools
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.core.errors import JournalError, StaleEpoch
from mesh.core.ids import new_id
from mesh.push.files import FilePushStore
from mesh.push.webhook import Webhook
from mesh.store.port import Store
from tests.worlds.full_disk import files_of_at_most, names
from tests.worlds.postgres import PostgresServer
from tests.worlds.stores import DATABASES, STORES, Stores, fixture_of

FULL = Webhook("w", "https://example.com/s3cret", "s3cret", "Bearer", "s3cret", "0.3", "2026-01-01", 7, 1)
OTHER = Webhook("o", "https://example.org/")


stores = fixture_of(*STORES)
databases = fixture_of(*DATABASES)


def all_of_them(_: str) -> bool:
    return True


class Shard:
    """The webhooks of a shard, which the journal of the same process opens before."""

    def __init__(self, store: Store, number: int = 0) -> None:
        self._store = store
        self._number = number
        self.epoch = 0

    async def open(self, owns: Callable[[str], bool] = all_of_them) -> dict[str, tuple[Webhook, ...]]:
        """Takes the shard over."""
        self.epoch = await self._store.journal.open(self._number)
        return await self._store.push.open(self._number, self.epoch, owns)

    async def put(self, conversation_id: str, *webhooks: Webhook) -> None:
        """Replaces the webhooks of a conversation."""
        await self._store.push.put(self._number, self.epoch, conversation_id, webhooks)


@pytest.fixture
def shard(stores: Stores) -> Shard:
    return Shard(stores.one)


async def test_what_was_put_last_is_found_at_the_next_opening(shard: Shard) -> None:
    one, two = new_id(), new_id()
    assert await shard.open() == {}
    await shard.put(one, FULL)
    await shard.put(two, OTHER)
    await shard.put(one, OTHER, FULL)
    assert await shard.open() == {one: (OTHER, FULL), two: (OTHER,)}


async def test_an_opening_finds_what_its_shard_owns_and_nothing_else(stores: Stores) -> None:
    shards, mine, other = [Shard(stores.one, 0), Shard(stores.one, 1)], new_id(), new_id()
    for shard in shards:
        await shard.open()
    await shards[0].put(mine, FULL)
    await shards[1].put(other, OTHER)
    assert await shards[0].open(lambda i: i == mine) == {mine: (FULL,)}


async def test_a_conversation_without_webhooks_leaves_nothing(shard: Shard) -> None:
    one = new_id()
    await shard.open()
    await shard.put(one, FULL)
    for _ in range(2):
        await shard.put(one)
    assert await shard.open() == {}
    await shard.put(one, OTHER)
    assert await shard.open() == {one: (OTHER,)}


async def test_of_puts_at_once_the_latest_call_counts(shard: Shard) -> None:
    one = new_id()
    await shard.open()
    await asyncio.gather(*(shard.put(one, Webhook("w", f"https://{i}/")) for i in range(20)))
    assert await shard.open() == {one: (Webhook("w", "https://19/"),)}


async def test_each_opening_fences_the_ones_before_it_in_its_shard_only(stores: Stores) -> None:
    one, shard, other = new_id(), Shard(stores.one, 0), Shard(stores.one, 1)
    await shard.open()
    await other.open()
    await shard.put(one, FULL)
    before = shard.epoch
    await shard.open()
    with pytest.raises(StaleEpoch):
        await stores.one.push.put(0, before, one, [])
    with pytest.raises(StaleEpoch):
        await stores.one.push.open(0, before, all_of_them)
    await other.put(new_id(), OTHER)
    assert (await shard.open())[one] == (FULL,)


async def test_a_process_that_takes_a_shard_over_finds_its_webhooks_and_fences_the_one_before(
    stores: Stores,
) -> None:
    one, two, first, second = new_id(), new_id(), Shard(stores.one), Shard(stores.another())
    await first.open()
    await first.put(one, FULL)
    await first.put(two, OTHER)
    assert await second.open() == {one: (FULL,), two: (OTHER,)}
    for webhooks in ((), (OTHER,)):
        with pytest.raises(StaleEpoch):
            await first.put(one, *webhooks)
    await second.put(two)
    assert await first.open() == {one: (FULL,)}
    await first.put(two, FULL)
    assert await second.open() == {one: (FULL,), two: (FULL,)}


async def test_a_process_whose_clock_is_behind_replaces_what_the_one_before_put(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, first, second = new_id(), Shard(stores.one), Shard(stores.another())
    await first.open()
    await first.put(one, FULL)
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    await first.put(one, OTHER)
    assert await second.open() == {one: (OTHER,)}
    await second.put(one, FULL)
    await second.put(one, FULL, OTHER)
    assert await first.open() == {one: (FULL, OTHER)}


async def test_a_process_that_is_fenced_while_it_puts_loses_nothing_that_it_was_told_is_there(
    stores: Stores,
) -> None:
    one, first, second = new_id(), Shard(stores.one), Shard(stores.another())
    await first.open()
    told: list[int] = []
    has_begun = asyncio.Event()

    async def put_until_fenced() -> None:
        for number in itertools.count():
            await first.put(one, Webhook("w", f"https://{number}/"))
            told.append(number)
            has_begun.set()
            await asyncio.sleep(0)  # memory does not wait for anything

    async with asyncio.timeout(60):
        putting = asyncio.create_task(put_until_fenced())
        await has_begun.wait()
        found = await second.open()
        with pytest.raises(StaleEpoch):
            await putting
    assert found[one][0].url in (f"https://{told[-1]}/", f"https://{told[-1] + 1}/")
    assert await second.open() == found


async def test_damaged_webhooks_in_a_database_are_named_in_the_log_without_their_text(
    databases: Stores, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    one, damaged, shard = new_id(), new_id(), Shard(databases.one)
    await shard.open()
    await shard.put(one, FULL)
    await shard.put(damaged, FULL)
    text = """[{"id": "s3cret", "url": 7}]"""
    change = f"update mesh.webhooks set content = '{text}' where conversation = '{damaged}'"
    postgres_server.execute(databases.url, change)
    assert await shard.open() == {one: (FULL,)}
    assert damaged in caplog.text and "s3cret" not in caplog.text


async def test_files_are_for_their_owner_alone_and_no_draft_is_left(tmp_path: Path) -> None:
    folder, one = tmp_path / "push", new_id()
    store = FilePushStore(folder)
    await store.open(0, 1, all_of_them)
    await store.put(0, 1, one, [FULL])
    await store.close()
    assert sorted(path.name for path in folder.iterdir()) == sorted([f"{one}.json", "shard_0.epoch"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


async def test_what_a_crash_left_half_written_is_taken_away_and_what_was_there_stays(tmp_path: Path) -> None:
    one = new_id()
    store = FilePushStore(tmp_path)
    await store.open(0, 1, all_of_them)
    await store.put(0, 1, one, [FULL])
    draft = tmp_path / f"{one}.4711.tmp"
    draft.write_bytes(b'[{"id":"w","url":"htt')
    assert await store.open(0, 2, lambda i: i == one) == {one: (FULL,)}
    assert not draft.exists()
    await store.close()


async def test_a_damaged_file_is_named_in_the_log_without_its_text_and_the_others_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, damaged = new_id(), new_id()
    store = FilePushStore(tmp_path)
    await store.open(0, 1, all_of_them)
    await store.put(0, 1, one, [FULL])
    (tmp_path / f"{damaged}.json").write_text('[{"id": "s3cret", "url": 7}]')
    assert await store.open(0, 2, lambda i: i in (one, damaged)) == {one: (FULL,)}
    assert damaged in caplog.text and "s3cret" not in caplog.text
    await store.close()


async def test_a_disk_that_takes_nothing_is_an_error_that_shows_no_secret(tmp_path: Path) -> None:
    one = new_id()
    store = FilePushStore(tmp_path)
    await store.open(0, 1, all_of_them)
    (tmp_path / f"{one}.json").mkdir()
    with pytest.raises(JournalError, match=f"the webhooks of conversation {one} cannot be written") as caught:
        await store.put(0, 1, one, [FULL])
    assert "s3cret" not in str(caught.value)
    await store.close()


def test_a_webhook_shows_itself_by_its_id_alone() -> None:
    assert repr(FULL) == "Webhook('w')"


async def test_a_disk_that_is_full_leaves_what_was_kept_and_no_draft(tmp_path: Path) -> None:
    one = new_id()
    store = FilePushStore(tmp_path)
    await store.open(0, 1, all_of_them)
    await store.put(0, 1, one, [OTHER])
    with files_of_at_most(100), pytest.raises(JournalError, match="cannot be written: File too large"):
        await store.put(0, 1, one, [OTHER, FULL])
    assert await store.open(0, 2, lambda i: i == one) == {one: (OTHER,)}
    assert names(tmp_path) == {f"{one}.json", "shard_0.epoch"}
    await store.close()


async def test_a_file_that_cannot_be_read_is_named_in_the_log_and_the_others_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, unreadable, not_text = new_id(), new_id(), new_id()
    store = FilePushStore(tmp_path)
    await store.open(0, 1, all_of_them)
    await store.put(0, 1, one, [FULL])
    (tmp_path / f"{unreadable}.json").mkdir()
    (tmp_path / f"{not_text}.json").write_bytes(b'[{"id": "\xff"}]')
    assert await store.open(0, 2, lambda i: i in (one, unreadable, not_text)) == {one: (FULL,)}
    assert f'file={unreadable}.json message="Is a directory"' in caplog.text and not_text in caplog.text
    await store.close()


async def test_an_epoch_that_a_power_cut_left_empty_was_nobodys_and_a_damaged_one_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "shard_0.epoch").write_bytes(b"\0" * 21)
    store = FilePushStore(tmp_path)
    assert await store.open(0, 1, all_of_them) == {}
    (tmp_path / "shard_0.epoch").write_bytes(b"\xff" * 21)
    with pytest.raises(JournalError, match=r"shard_0\.epoch is damaged"):
        await store.open(0, 2, all_of_them)
    await store.close()
