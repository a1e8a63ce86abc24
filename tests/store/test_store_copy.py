"""What an agent keeps is copied from any store to any other, whole, and a copy may be broken off."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.core.errors import JournalError, MeshError
from mesh.core.events import AnyEvent
from mesh.core.ids import new_id, shard_of
from mesh.journal.port import Append
from mesh.journal.shards import HostRecord
from mesh.policy.grants import Grant
from mesh.policy.rules import PolicyRule
from mesh.push.webhook import Webhook
from mesh.store.files import FileStore
from mesh.store.port import Store
from mesh.store.store_copy import CopyEnd, CopyReport, copy_store
from tests.worlds.stores import SHARDS, Stores, created, entry_after, fixture_of, turn

sources = fixture_of("memory", "files", "postgres")
targets = fixture_of("memory", "files", "postgres")
FEW = 3
RULE = PolicyRule(name="add", decide="allow", tools=("add",))


@pytest.fixture
async def source(sources: Stores) -> Store:
    return sources.one


@pytest.fixture
async def target(sources: Stores, targets: Stores) -> AsyncIterator[Store]:
    if isinstance(sources.one, FileStore) and isinstance(targets.one, FileStore):
        pytest.skip("both fixtures have one folder, and a folder is copied by other means")
    yield targets.one


async def write(store: Store, id: str, events: list[AnyEvent], after: int = 0) -> None:
    shard = shard_of(id, SHARDS)
    epoch = await store.journal.open(shard)
    await store.journal.append(shard, epoch, Append(id, after, events[after:], entry_after(*events)))


async def filled(store: Store) -> dict[str, list[AnyEvent]]:
    """The conversations that it has then, beside a webhook, a grant and a version."""
    await store.versions.keep("d1", "name: agent", {})
    ids = [new_id() for _ in range(FEW)]
    written = {id: [created(id, digest="d1"), *(turn(2) if n else [])] for n, id in enumerate(ids)}
    for id, events in written.items():
        await write(store, id, events)
    shard = shard_of(ids[0], SHARDS)
    epoch = await store.journal.open(shard)
    await store.push.open(shard, epoch, lambda _: True)
    await store.push.put(shard, epoch, ids[0], [Webhook("w", "http://there/hook", token="secret")])
    at = "2026-11-23T12:00:00.000Z"
    await store.grants.add(
        Grant(id=new_id(), agent="agent", rule=RULE, by="ann", at=at, approval="a", remember="always")
    )
    return written


async def copy(source: Store, target: Store) -> CopyReport:
    return await copy_store(CopyEnd(source, SHARDS), CopyEnd(target, SHARDS), lambda _: None)


async def test_all_that_is_kept_is_there_afterwards_and_the_same(source: Store, target: Store) -> None:
    written = await filled(source)
    report = await copy(source, target)
    assert report == CopyReport(FEW, FEW, 1, 1, [])
    for id, events in written.items():
        assert await target.journal.read(id) == events
    listing = target.listing()
    if listing is not None:
        assert {each.id for each in await listing.page(10, "", "")} == written.keys()
    assert await target.secret() == await source.secret()
    assert (await target.versions.kept("d1")).source == "name: agent"
    assert await target.grants.listed() == await source.grants.listed()
    (id, *_) = written
    shard = shard_of(id, SHARDS)
    kept = await target.push.open(shard, await target.journal.open(shard), lambda _: True)
    assert kept[id][0].token == "secret"


async def test_what_was_copied_before_is_compared_and_the_rest_is_copied(
    source: Store, target: Store
) -> None:
    written = await filled(source)
    await copy(source, target)
    first, second, third = written
    longer = [*written[second], *turn(len(written[second]) + 1)]
    await write(source, second, longer, after=len(written[second]))
    assert await copy(source, target) == CopyReport(FEW, 1, 1, 1, [])
    assert await target.journal.read(second) == longer
    assert await copy(source, target) == CopyReport(FEW, 0, 1, 1, [])
    assert first and third


async def test_a_conversation_that_is_another_one_there_stays_as_it_is_and_is_told(
    source: Store, target: Store
) -> None:
    written = await filled(source)
    await copy(source, target)
    (id, *_) = written
    other = [*written[id], *turn(len(written[id]) + 1)]
    await write(target, id, other, after=len(written[id]))
    report = await copy(source, target)
    assert len(report.problems) == 1 and id in report.problems[0]
    assert await target.journal.read(id) == other


async def test_what_was_deleted_or_revoked_in_the_source_does_not_come_back(
    source: Store, target: Store
) -> None:
    written = await filled(source)
    await copy(source, target)
    (id, *_), ((_, grant),) = written, (await source.grants.listed()).items()
    shard = shard_of(id, SHARDS)
    epoch = await source.journal.open(shard)
    await source.push.open(shard, epoch, lambda _: True)
    await source.push.put(shard, epoch, id, [])
    await source.journal.erase(shard, epoch, id, len(written[id]))
    await source.grants.revoke(grant.id, "ann")
    report = await copy(source, target)
    assert report == CopyReport(FEW - 1, 0, 0, 0, report.problems)
    (told,) = report.problems
    assert f"conversation {id} is only in {target.name}" in told
    assert await target.grants.listed() == {}
    assert await target.push.open(shard, await target.journal.open(shard), lambda _: True) == {}


async def test_a_file_that_is_no_journal_is_left_alone(
    sources: Stores, targets: Stores, tmp_path: Path
) -> None:
    if not isinstance(sources.one, FileStore) or isinstance(targets.one, FileStore):
        pytest.skip("only folders have files")
    await filled(sources.one)
    (tmp_path / "store" / "conversation_backup.jsonl").write_bytes(b"")
    assert await copy(sources.one, targets.one) == CopyReport(FEW, FEW, 1, 1, [])


async def test_a_store_with_conversations_of_another_mesh_is_refused(source: Store, target: Store) -> None:
    await filled(source)
    id = new_id()
    await write(target, id, [created(id)])
    with pytest.raises(MeshError, match="of another mesh"):
        await copy(source, target)


@pytest.mark.parametrize("is_source", [True, False], ids=["source", "target"])
async def test_nothing_is_copied_while_a_mesh_is_at_work(
    source: Store, target: Store, is_source: bool
) -> None:
    await filled(source)
    await (source if is_source else target).shards.renew(HostRecord(id="a", name="a"))
    with pytest.raises(MeshError, match="at work"):
        await copy(source, target)


async def test_a_copy_that_was_broken_off_goes_on(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await filled(source)
    append: Callable[..., Any] = target.journal.append
    left = [1]

    async def failing(*given: Any) -> int:
        if not left:
            raise JournalError("the disk is full")
        left.pop()
        size: int = await append(*given)
        return size

    monkeypatch.setattr(target.journal, "append", failing)
    with pytest.raises(JournalError):
        await copy(source, target)
    monkeypatch.undo()
    report = await copy(source, target)
    assert (report.conversations, report.added, report.problems) == (FEW, FEW - 1, [])
    for id, events in written.items():
        assert await target.journal.read(id) == events
