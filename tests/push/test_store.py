"""What every store of webhooks promises, asked of each; and what only the files have to."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.core.errors import JournalError, StaleEpoch
from mesh.core.ids import new_id
from mesh.push.files import FilePushStore
from mesh.push.memory import MemoryPushStore
from mesh.push.port import PushStore
from mesh.push.webhook import Webhook
from tests.worlds.full_disk import files_of_at_most, names

FULL = Webhook("w", "https://example.com/s3cret", "s3cret", "Bearer", "s3cret", "0.3", "2026-01-01", 7, 1)
OTHER = Webhook("o", "https://example.org/")


@pytest.fixture(params=["memory", "files"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PushStore]:
    made: PushStore = MemoryPushStore() if request.param == "memory" else FilePushStore(tmp_path / "push")
    yield made
    await made.close()


def all_of_them(_: str) -> bool:
    return True


async def test_what_was_put_last_is_found_at_the_next_opening(store: PushStore) -> None:
    one, two = new_id(), new_id()
    assert await store.open(0, 1, all_of_them) == {}
    await store.put(0, 1, one, [FULL])
    await store.put(0, 1, two, [OTHER])
    await store.put(0, 1, one, [OTHER, FULL])
    assert await store.open(0, 2, all_of_them) == {one: (OTHER, FULL), two: (OTHER,)}


async def test_an_opening_finds_what_its_shard_owns_and_nothing_else(store: PushStore) -> None:
    mine, other = new_id(), new_id()
    await store.open(0, 1, all_of_them)
    await store.open(1, 1, all_of_them)
    await store.put(0, 1, mine, [FULL])
    await store.put(1, 1, other, [OTHER])
    assert await store.open(0, 2, lambda i: i == mine) == {mine: (FULL,)}


async def test_a_conversation_without_webhooks_leaves_nothing(store: PushStore) -> None:
    one = new_id()
    await store.open(0, 1, all_of_them)
    await store.put(0, 1, one, [FULL])
    for _ in range(2):
        await store.put(0, 1, one, [])
    assert await store.open(0, 2, all_of_them) == {}


async def test_of_two_puts_at_once_the_later_call_counts(store: PushStore) -> None:
    one = new_id()
    await store.open(0, 1, all_of_them)
    await asyncio.gather(*(store.put(0, 1, one, [Webhook("w", f"https://{i}/")]) for i in range(20)))
    assert await store.open(0, 2, all_of_them) == {one: (Webhook("w", "https://19/"),)}


async def test_each_opening_fences_the_ones_before_it_in_its_shard_only(store: PushStore) -> None:
    one = new_id()
    await store.open(0, 1, all_of_them)
    await store.open(1, 1, all_of_them)
    await store.put(0, 1, one, [FULL])
    await store.open(0, 2, all_of_them)
    with pytest.raises(StaleEpoch):
        await store.put(0, 1, one, [])
    with pytest.raises(StaleEpoch):
        await store.open(0, 1, all_of_them)
    await store.put(1, 1, new_id(), [OTHER])
    assert (await store.open(0, 3, all_of_them))[one] == (FULL,)


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
