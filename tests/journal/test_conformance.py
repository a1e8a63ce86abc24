"""What every store promises, asked of each."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.core.errors import StaleEpoch, WrongSequence
from mesh.core.events import AnyEvent, Completed, ConversationCreated, UserMessage
from mesh.core.ids import new_id
from mesh.journal.files import FileJournal
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append, Journal


@pytest.fixture(params=["memory", "files"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    store: Journal = MemoryJournal() if request.param == "memory" else FileJournal(tmp_path)
    yield store
    await store.close()


def created(conversation_id: str) -> ConversationCreated:
    return ConversationCreated(
        seq=1,
        conversation_id=conversation_id,
        session_id="s",
        agent="a",
        digest="d",
        time="2026-01-01T00:00:00.000Z",
    )


def turn(seq: int) -> list[AnyEvent]:
    return [UserMessage(seq=seq, turn=1, text="hi"), Completed(seq=seq + 1, turn=1, response="hö")]


async def test_what_was_appended_is_read_back_in_order(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    await journal.append(0, epoch, Append(i, 0, [created(i)]))
    await journal.append(0, epoch, Append(i, 1, turn(2)))
    assert await journal.read(i) == [created(i), *turn(2)]


async def test_a_conversation_that_is_not_there_reads_empty(journal: Journal) -> None:
    assert await journal.read(new_id()) == []


async def test_each_opening_takes_a_greater_epoch_and_fences_the_one_before(journal: Journal) -> None:
    first, i = await journal.open(0), new_id()
    await journal.append(0, first, Append(i, 0, [created(i)]))
    second = await journal.open(0)
    assert second > first
    with pytest.raises(StaleEpoch):
        await journal.append(0, first, Append(i, 1, turn(2)))
    await journal.append(0, second, Append(i, 1, turn(2)))
    assert len(await journal.read(i)) == 3


async def test_shards_do_not_fence_one_another(journal: Journal) -> None:
    first = await journal.open(0)
    await journal.open(1)
    i = new_id()
    await journal.append(0, first, Append(i, 0, [created(i)]))


async def test_an_append_that_does_not_follow_the_last_event_is_refused(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    await journal.append(0, epoch, Append(i, 0, [created(i)]))
    for after in (0, 2):
        with pytest.raises(WrongSequence):
            await journal.append(0, epoch, Append(i, after, turn(after + 1)))
    assert await journal.read(i) == [created(i)]


async def test_appends_that_are_made_at_once_are_taken_in_their_order_and_a_wrong_one_spares_the_others(
    journal: Journal,
) -> None:
    epoch, i, other = await journal.open(0), new_id(), new_id()
    appends = [
        Append(i, 0, [created(i)]),
        Append(i, 1, turn(2)),
        Append(i, 1, turn(2)),
        Append(i, 3, turn(4)),
    ]
    appends.append(Append(other, 0, [created(other)]))
    outcomes = await asyncio.gather(
        *(journal.append(0, epoch, append) for append in appends), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [int, int, WrongSequence, int, int]
    assert await journal.read(i) == [created(i), *turn(2), *turn(4)]
    assert await journal.sizes() == {i: outcomes[3], other: outcomes[4]}


async def test_sizes_grow_with_every_append_and_an_append_tells_the_size(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    assert await journal.sizes() == {}
    first = await journal.append(0, epoch, Append(i, 0, [created(i)]))
    assert await journal.sizes() == {i: first}
    second = await journal.append(0, epoch, Append(i, 1, turn(2)))
    assert await journal.sizes() == {i: second}
    assert second > first


async def test_a_blob_is_what_was_put_last(journal: Journal) -> None:
    assert await journal.get_blob("b.json") is None
    await journal.put_blobs({"b.json": b"1", "c.json": b"2"})
    await journal.put_blobs({"b.json": b"3"})
    assert (await journal.get_blob("b.json"), await journal.get_blob("c.json")) == (b"3", b"2")


async def test_many_conversations_are_written_side_by_side(journal: Journal) -> None:
    epoch = await journal.open(0)
    ids = [new_id() for _ in range(600)]
    await asyncio.gather(*(journal.append(0, epoch, Append(i, 0, [created(i)])) for i in ids))
    await asyncio.gather(*(journal.append(0, epoch, Append(i, 1, turn(2))) for i in ids))
    assert len(await journal.sizes()) == 600
    assert len(await journal.read(ids[0])) == 3
