"""What every store promises, asked of each."""

import asyncio
import itertools

import pytest

from mesh.core.conversation import fold
from mesh.core.errors import StaleEpoch, WrongSequence
from mesh.core.events import AnyEvent, Completed, UserMessage
from mesh.core.ids import new_id
from mesh.journal.listing import entry_of
from mesh.journal.port import Append, Journal, snapshot_name
from tests.worlds.stores import (
    DATABASES,
    DERIVING,
    STORES,
    Stores,
    created,
    entry_after,
    fixture_of,
    following,
    turn,
)

WITHIN_S = 60
stores = fixture_of(*STORES)
deriving = fixture_of(*DERIVING)
databases = fixture_of(*DATABASES)


@pytest.fixture
def journal(stores: Stores) -> Journal:
    return stores.one.journal


async def test_what_was_appended_is_read_back_in_order(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    await journal.append(0, epoch, following([], [created(i)]))
    await journal.append(0, epoch, following([created(i)], turn(2)))
    assert await journal.read(i) == [created(i), *turn(2)]


async def test_a_conversation_that_is_not_there_reads_empty(journal: Journal) -> None:
    assert await journal.read(new_id()) == []


async def test_each_opening_takes_a_greater_epoch_and_fences_the_one_before(journal: Journal) -> None:
    first, i = await journal.open(0), new_id()
    await journal.append(0, first, following([], [created(i)]))
    second = await journal.open(0)
    assert second > first
    with pytest.raises(StaleEpoch):
        await journal.append(0, first, following([created(i)], turn(2)))
    await journal.append(0, second, following([created(i)], turn(2)))
    assert len(await journal.read(i)) == 3


async def test_shards_do_not_fence_one_another(journal: Journal) -> None:
    first = await journal.open(0)
    await journal.open(1)
    i = new_id()
    await journal.append(0, first, following([], [created(i)]))


async def test_nobody_writes_to_a_shard_that_was_not_opened(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    for shard, never_given in ((1, epoch), (0, epoch + 1), (0, 0)):
        with pytest.raises(StaleEpoch):
            await journal.append(shard, never_given, following([], [created(i)]))
    assert await journal.read(i) == []


async def test_an_append_that_does_not_follow_the_last_event_is_refused(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    await journal.append(0, epoch, following([], [created(i)]))
    for after in (0, 2):
        with pytest.raises(WrongSequence):
            entry = entry_after(created(i), *turn(after + 1))
            await journal.append(0, epoch, Append(i, after, turn(after + 1), entry))
    assert await journal.read(i) == [created(i)]


async def test_an_append_to_a_conversation_that_is_not_there_is_refused(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    with pytest.raises(WrongSequence):
        await journal.append(0, epoch, following([created(i)], turn(2)))
    assert await journal.read(i) == []


async def test_appends_that_are_made_at_once_are_taken_in_their_order_and_a_wrong_one_spares_the_others(
    journal: Journal,
) -> None:
    epoch, i, other = await journal.open(0), new_id(), new_id()
    before = [created(i), *turn(2)]
    appends = [
        following([], before[:1]),
        following(before[:1], turn(2)),
        following(before[:1], turn(2)),
        following(before, turn(4)),
        following([], [created(other)]),
    ]
    outcomes = await asyncio.gather(
        *(journal.append(0, epoch, append) for append in appends), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [int, int, WrongSequence, int, int]
    assert await journal.read(i) == [created(i), *turn(2), *turn(4)]
    assert await journal.read(other) == [created(other)]


async def test_appends_of_several_shards_that_are_made_at_once_are_fenced_each_by_its_own(
    journal: Journal,
) -> None:
    epochs = [await journal.open(shard) for shard in range(4)]
    stale = await journal.open(2)
    ids = [new_id() for _ in range(12)]
    outcomes = await asyncio.gather(
        *(journal.append(n % 4, epochs[n % 4], following([], [created(i)])) for n, i in enumerate(ids)),
        return_exceptions=True,
    )
    assert stale > epochs[2]
    assert [type(outcome) is StaleEpoch for outcome in outcomes] == [n % 4 == 2 for n in range(12)]
    assert [len(await journal.read(i)) for i in ids] == [int(n % 4 != 2) for n in range(12)]


async def test_the_end_of_each_journal_is_known(journal: Journal) -> None:
    epoch, ids = await journal.open(0), [new_id() for _ in range(3)]
    for i in ids[:2]:
        await journal.append(0, epoch, following([], [created(i)]))
    await journal.append(0, epoch, following([created(ids[0])], turn(2)))
    assert await journal.ends(ids) == {ids[0]: 1 + len(turn(2)), ids[1]: 1}
    assert await journal.ends([]) == {}


async def test_any_text_is_read_back_as_it_was(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    texts = ["", "\0", "a\0b\n\r\u2028\\u0000", "'; drop table event; --", "{} %s $1 \\", "𝄞ß" * 500_000]
    events: list[AnyEvent] = [created(i)]
    events += [UserMessage(seq=n, turn=n - 1, text=text) for n, text in enumerate(texts, 2)]
    await journal.append(0, epoch, following([], events))
    assert await journal.read(i) == events


async def test_a_context_of_any_length_and_text_is_taken(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    event = created(i, context_id="\0ß" * 10_000)
    await journal.append(0, epoch, following([], [event]))
    assert await journal.read(i) == [event]


async def test_many_events_of_one_append_keep_their_order(journal: Journal) -> None:
    epoch, i = await journal.open(0), new_id()
    events = [created(i), *itertools.chain.from_iterable(turn(seq) for seq in range(2, 600, 2))]
    await journal.append(0, epoch, following([], events))
    assert await journal.read(i) == events


async def test_many_conversations_are_written_side_by_side(journal: Journal) -> None:
    epoch = await journal.open(0)
    ids = [new_id() for _ in range(600)]
    await asyncio.gather(*(journal.append(0, epoch, following([], [created(i)])) for i in ids))
    await asyncio.gather(*(journal.append(0, epoch, following([created(i)], turn(2))) for i in ids))
    assert {len(await journal.read(i)) for i in ids[:: 600 // 12]} == {3}


async def test_whoever_no_longer_waits_for_an_append_leaves_the_others_as_they_are(journal: Journal) -> None:
    epoch, i, cancelled = await journal.open(0), new_id(), new_id()
    waits = asyncio.create_task(journal.append(0, epoch, following([], [created(cancelled)])))
    other = asyncio.create_task(journal.append(0, epoch, following([], [created(i)])))
    await asyncio.sleep(0)
    waits.cancel()
    await other
    await asyncio.wait([waits])
    assert await journal.read(i) == [created(i)]
    assert await journal.read(cancelled) in ([], [created(cancelled)])


async def test_another_process_reads_what_was_acknowledged(stores: Stores) -> None:
    journal, other = stores.one.journal, stores.another().journal
    epoch, i = await journal.open(0), new_id()
    assert await other.read(i) == []
    await journal.append(0, epoch, following([], [created(i)]))
    assert await other.read(i) == [created(i)]
    await journal.append(0, epoch, following([created(i)], turn(2)))
    assert await other.read(i) == [created(i), *turn(2)]


async def test_a_process_goes_on_where_the_one_before_was_and_fences_it(stores: Stores) -> None:
    first, second = stores.one.journal, stores.another().journal
    epoch, i = await first.open(0), new_id()
    await first.append(0, epoch, following([], [created(i)]))
    newer = await second.open(0)
    assert newer > epoch
    await second.append(0, newer, following([created(i)], turn(2)))
    for append in (following([created(i), *turn(2)], turn(4)), following([], [created(new_id())])):
        with pytest.raises(StaleEpoch):
            await first.append(0, epoch, append)
    again = await first.open(0)
    await first.append(0, again, following([created(i), *turn(2)], turn(4)))
    assert await second.read(i) == [created(i), *turn(2), *turn(4)]


async def test_a_process_that_takes_a_shard_over_finds_all_that_was_acknowledged_and_nothing_follows(
    stores: Stores,
) -> None:
    first, second = stores.one.journal, stores.another().journal
    epoch = await first.open(0)
    ids = [new_id() for _ in range(8)]
    acknowledged: dict[str, int] = {}
    all_write = asyncio.Event()

    async def write_until_fenced(i: str) -> None:
        events: list[AnyEvent] = [created(i)]
        await first.append(0, epoch, following([], events))
        acknowledged[i] = 1
        while True:
            new = turn(len(events) + 1)
            await first.append(0, epoch, following(events, new))
            events += new
            acknowledged[i] = len(events)
            if len(acknowledged) == len(ids):
                all_write.set()
            await asyncio.sleep(0)  # memory does not wait for anything

    async with asyncio.timeout(WITHIN_S):
        writers = [asyncio.create_task(write_until_fenced(i)) for i in ids]
        await all_write.wait()
        before = dict(acknowledged)
        await second.open(0)
        found = {i: await second.read(i) for i in ids}
        outcomes = await asyncio.gather(*writers, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {StaleEpoch}
    assert all(len(found[i]) >= acknowledged[i] >= before[i] for i in ids)
    assert {i: await second.read(i) for i in ids} == found
    assert all([event.seq for event in found[i]] == [*range(1, len(found[i]) + 1)] for i in ids)


async def test_of_processes_that_open_a_shard_at_once_one_writes(stores: Stores) -> None:
    journals = [stores.one.journal, *(stores.another().journal for _ in range(3))]
    i = new_id()
    async with asyncio.timeout(WITHIN_S):
        epochs = await asyncio.gather(*(journal.open(0) for journal in journals))
        assert len(set(epochs)) == len(epochs)
        outcomes = await asyncio.gather(
            *(
                journal.append(0, epoch, following([], [created(i)]))
                for journal, epoch in zip(journals, epochs, strict=True)
            ),
            return_exceptions=True,
        )
    newest = epochs.index(max(epochs))
    assert [type(outcome) for n, outcome in enumerate(outcomes) if n != newest] == [StaleEpoch] * 3
    assert isinstance(outcomes[newest], int)


async def test_sizes_grow_with_every_append_and_an_append_tells_the_size(deriving: Stores) -> None:
    journal = deriving.one.journal
    epoch, i, other = await journal.open(0), new_id(), new_id()
    assert await journal.sizes() == {}
    first = await journal.append(0, epoch, following([], [created(i)]))
    assert await journal.sizes() == {i: first}
    second, third = await asyncio.gather(
        journal.append(0, epoch, following([created(i)], turn(2))),
        journal.append(0, epoch, following([], [created(other)])),
    )
    assert await journal.sizes() == {i: second, other: third}
    assert second > first


async def test_the_entry_of_a_conversation_at_rest_is_found_without_the_middle_of_its_journal(
    deriving: Stores,
) -> None:
    journal = deriving.one.journal
    epoch, at_rest, under_way, absent = await journal.open(0), new_id(), new_id(), new_id()
    told: list[AnyEvent] = [created(at_rest)]
    for turn_number in range(1, 50):
        time = f"2026-01-01T00:00:{turn_number:02}.000Z"
        text = f"{turn_number} " + "ö" * 1000
        told += [
            UserMessage(seq=2 * turn_number, turn=turn_number, text=text, time=time),
            Completed(seq=2 * turn_number + 1, turn=turn_number, response=text, time=time),
        ]
    await journal.append(0, epoch, following([], told))
    await journal.append(0, epoch, following([], [created(under_way), *turn(2)]))
    found = await journal.entries_at_rest([at_rest, under_way, absent])
    assert found == {at_rest: entry_of(fold(told))}


async def test_a_blob_is_what_was_put_last(deriving: Stores) -> None:
    journal = deriving.one.journal
    assert await journal.get_blob("b.json") is None
    await journal.put_blobs({"b.json": b"1", "c.json": b"2"})
    await journal.put_blobs({"b.json": b"3"})
    assert (await journal.get_blob("b.json"), await journal.get_blob("c.json")) == (b"3", b"2")


async def test_a_store_with_a_listing_of_its_own_has_nothing_of_which_one_is_derived(
    databases: Stores,
) -> None:
    journal = databases.one.journal
    epoch, i = await journal.open(0), new_id()
    await journal.append(0, epoch, following([], [created(i)]))
    await journal.put_blobs({"b.json": b"1"})
    assert (await journal.sizes(), await journal.get_blob("b.json")) == ({}, None)
    assert await journal.entries_at_rest([i]) == {}
    assert databases.one.listing() is not None and databases.one.listing(0) is not None


async def test_what_was_erased_is_gone_for_all_and_the_others_are_there(stores: Stores) -> None:
    journal = stores.one.journal
    epoch, kept, *erased = await journal.open(0), new_id(), new_id(), new_id()
    for i in (kept, *erased):
        await journal.append(0, epoch, following([], [created(i)]))
        await journal.put_blobs({snapshot_name(i): b"{}"})
    late = asyncio.create_task(journal.append(0, epoch, following([created(erased[0])], turn(2))))
    await asyncio.sleep(0)  # it is on its way
    await journal.erase(0, epoch, erased[0], 3)
    assert await late
    await journal.erase(0, epoch, erased[1], 1)
    for i in (*erased, new_id()):  # what is not there does not matter
        await journal.erase(0, epoch, i, 1)
    for reader in (journal, stores.another().journal):
        assert [await reader.read(i) for i in erased] == [[], []]
        assert await reader.read(kept) == [created(kept)]
        assert set(await reader.sizes()) <= {kept}
        assert [await reader.get_blob(snapshot_name(i)) for i in erased] == [None, None]


async def test_a_conversation_may_begin_anew_where_one_was_erased(stores: Stores) -> None:
    journal, i = stores.one.journal, new_id()
    epoch = await journal.open(0)
    await journal.append(0, epoch, following([], [created(i)]))
    await journal.append(0, epoch, following([created(i)], turn(2)))
    await journal.erase(0, epoch, i, 3)
    with pytest.raises(WrongSequence):
        await journal.append(0, epoch, following([created(i)], turn(2)))
    await journal.append(0, epoch, following([], [created(i)]))
    assert await stores.another().journal.read(i) == [created(i)]


async def test_a_journal_that_has_more_than_was_seen_is_not_erased(stores: Stores) -> None:
    journal, i = stores.one.journal, new_id()
    epoch = await journal.open(0)
    await journal.append(0, epoch, following([], [created(i)]))
    await journal.append(0, epoch, following([created(i)], turn(2)))
    for seq in (0, 1, 2, 4):
        with pytest.raises(WrongSequence):
            await journal.erase(0, epoch, i, seq)
    assert len(await journal.read(i)) == 3


async def test_appends_and_an_erasure_at_once_leave_all_or_nothing(stores: Stores) -> None:
    journal, other = stores.one.journal, stores.another().journal
    epoch = await journal.open(0)
    for _ in range(10):
        i = new_id()
        await journal.append(0, epoch, following([], [created(i)]))
        await asyncio.gather(
            journal.append(0, epoch, following([created(i)], turn(2))),
            journal.erase(0, epoch, i, 1),
            return_exceptions=True,
        )
        assert len(await other.read(i)) in (0, 3)


async def test_who_has_the_shard_no_more_erases_nothing(stores: Stores) -> None:
    journal, i = stores.one.journal, new_id()
    epoch = await journal.open(0)
    await journal.append(0, epoch, following([], [created(i)]))
    other = stores.another().journal
    newer = await other.open(0)
    with pytest.raises(StaleEpoch):
        await journal.erase(0, epoch, i, 1)
    assert await other.read(i) == [created(i)]
    await other.erase(0, newer, i, 1)
    assert await stores.another().journal.read(i) == []


async def test_what_was_sent_when_a_store_is_closed_is_there_afterwards(stores: Stores) -> None:
    journal, i = stores.one.journal, new_id()
    epoch = await journal.open(0)
    sent = asyncio.create_task(journal.append(0, epoch, following([], [created(i)])))
    await asyncio.sleep(0)
    await stores.close()
    await sent
    assert await stores.another().journal.read(i) == [created(i)]
