"""What every listing promises, asked of each: an index in memory, and the tables of a database."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from mesh.core.errors import StaleEpoch, WrongSequence
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    Completed,
    ConversationCompleted,
    Error,
    Paused,
    UserMessage,
)
from mesh.core.ids import approval_id, id_suffix, new_id
from mesh.core.view import ConversationSummary
from mesh.journal.listing import Listing, Selection
from tests.worlds.stores import DATABASES, Listed, Stores, created, fixture_of, following, turn

stores = fixture_of("memory", *DATABASES)
databases = fixture_of(*DATABASES)
ANY = Selection()


@pytest.fixture
def listed(stores: Stores) -> Listed:
    return Listed(stores.one, 0)


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}.000Z"


def new_ids(count: int) -> list[str]:
    """In the order of the ids."""
    return sorted(new_id() for _ in range(count))


def asked(seq: int, second: int = 30, **more: object) -> list[AnyEvent]:
    """A turn that waits for a person."""
    question = {"uuid": new_id(), "call_id": "c", "tool_name": "t", "tool_args": {}, "description": "d"}
    return [
        UserMessage(seq=seq, turn=1, text="hi", time=at(second)),
        ApprovalRequired(seq=seq + 1, turn=1, step="/tool/0.0", time=at(second), **{**question, **more}),
        Paused(seq=seq + 2, turn=1, run=1, time=at(second)),
    ]


def message(seq: int, second: int = 30) -> UserMessage:
    """Opens a turn."""
    return UserMessage(seq=seq, turn=1, text="hi", time=at(second))


def ids_of(found: Sequence[ConversationSummary]) -> list[str]:
    return [each.id for each in found]


async def counts(listing: Listing) -> dict[str, int]:
    """Without those of which there is none."""
    return {status: count for status, count in (await listing.counts()).items() if count}


async def test_a_listing_without_conversations_is_empty(listed: Listed) -> None:
    listing = listed.listing
    assert not await listing.has(new_id())
    assert await listing.page(10, "", "") == []
    assert await counts(listing) == {}
    assert await listing.recent(ANY, 10, "") == ([], 0)
    assert list(await listing.with_suffix(new_id())) == []
    assert list(await listing.open_turns()) == []
    assert list(await listing.turns_under_way(10)) == []
    assert list(await listing.deadlines()) == []
    assert dict(await listing.asking()) == {}


async def test_it_has_what_was_appended_and_nothing_else(listed: Listed) -> None:
    i = new_id()
    await listed.append(i, created(i))
    assert await listed.listing.has(i)
    for other in (new_id(), i.upper(), i[:-1], "", "no id", "\0", "%"):
        assert not await listed.listing.has(other)


async def test_what_is_erased_is_in_no_list_and_what_is_like_it_stays(listed: Listed) -> None:
    kept, *gone = new_ids(3)
    for i in (kept, *gone):
        await listed.append(i, created(i, at(1)))
        await listed.append(i, *asked(2, expires_at=at(50)))
    listing = listed.listing
    before = await counts(listing)
    await listed.erase(*gone, new_id())
    assert [await listing.has(i) for i in (kept, *gone)] == [True, False, False]
    assert ids_of(await listing.page(10, "", "")) == [kept]
    assert {status: 3 * count for status, count in (await counts(listing)).items()} == before
    found, total = await listing.recent(ANY, 10, "")
    assert (ids_of(found), total) == ([kept], 1)
    assert list(await listing.turns_under_way(10)) == [kept]
    assert [i for _, i in await listing.deadlines()] == [kept]
    assert {i for waiting in (await listing.asking()).values() for i in waiting} <= {kept}
    for i in gone:
        assert i not in await listing.with_suffix(i)
        await listed.append(i, created(i, at(1)))
    assert len(await listing.page(10, "", "")) == 3


async def test_what_did_not_change_for_long_and_has_no_open_turn_is_found_the_oldest_first(
    listed: Listed,
) -> None:
    ids = new_ids(6)
    ended = [message(2, 10), Completed(seq=3, turn=1, response="ok", time=at(11))]
    for i, events in zip(ids, ([], ended, asked(2, 12), [*ended], [], []), strict=True):
        await listed.append(i, created(i, at(9)), *events)
    await listed.append(ids[3], ConversationCompleted(seq=4, turn=1, time=at(13)))
    await listed.append(ids[5], message(2, 40), Completed(seq=3, turn=1, response="late", time=at(41)))
    listing, waiting = listed.listing, ids[2]
    old = await listing.unchanged(at(40), "", "", 10)
    assert ids_of(old) == [ids[0], ids[4], ids[1], ids[3]] and waiting not in ids_of(old)
    assert ids_of(await listing.unchanged(at(40), "completed", "", 10)) == [ids[3]]
    assert await listing.unchanged(at(9), "", "", 10) == []
    after, found = "", []
    while page := await listing.unchanged(at(40), "", after, 1):
        found += ids_of(page)
        after = page[-1].updated_cursor
    assert found == ids_of(old)


async def test_a_page_has_the_newest_conversations_first_and_the_next_one_those_before(
    listed: Listed,
) -> None:
    ids = new_ids(7)
    for second, i in enumerate(ids):
        await listed.append(i, created(i, at(second // 2)))  # two have the same moment, and go by their id
    newest, listing = ids[::-1], listed.listing
    assert ids_of(await listing.page(10, "", "")) == newest
    before, found = "", []
    for _ in range(4):
        page = await listing.page(2, before, "")
        found += ids_of(page)
        before = page[-1].created_cursor
    assert found == newest
    assert await listing.page(2, before, "") == []


async def test_a_page_may_begin_at_a_moment_or_an_id_that_no_conversation_has(listed: Listed) -> None:
    ids = new_ids(4)
    for second, i in zip((1, 2, 2, 4), ids, strict=True):
        await listed.append(i, created(i, at(second)))
    nothing, everything = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
    for before, expected in (
        (f"{at(3)}|{nothing}", ids[2::-1]),
        (f"{at(2)}|{everything}", ids[2::-1]),
        (f"{at(2)}|{nothing}", ids[:1]),
        (f"{at(2)}|{ids[2]}", ids[1::-1]),
        (f"{at(0)}|{everything}", []),
        (f"{at(59)}|{nothing}", ids[::-1]),
    ):
        assert ids_of(await listed.listing.page(10, before, "")) == expected


async def test_a_page_shows_each_conversation_as_it_is_now(listed: Listed) -> None:
    i = new_id()
    await listed.append(i, created(i, at(1), session_id="s1", context_id="ctx"))
    assert await listed.listing.page(10, "", "") == [
        ConversationSummary(i, "s1", "active", at(1), at(1), context_id="ctx", version="d")
    ]
    await listed.append(i, UserMessage(seq=2, turn=1, text="größer\0𝄞", time=at(2)))
    expected = ConversationSummary(i, "s1", "active", at(1), at(2), "größer\0𝄞", None, "working", "ctx", "d")
    assert await listed.listing.page(10, "", "") == [expected]
    assert await listed.listing.recent(ANY, 10, "") == ([expected], 1)


async def test_conversations_are_listed_and_counted_by_the_version_of_their_newest_turn(
    listed: Listed,
) -> None:
    ids, listing = new_ids(4), listed.listing
    for second, i in enumerate(ids):
        await listed.append(i, created(i, at(second), digest="a1"))
    tricky = '\\ \0 "version":"c3"} ' * 2  # as a field would be written, and what a database may stumble over
    moved = UserMessage(seq=2, turn=1, text=tricky, time=at(7), digest="b2")
    await listed.append(ids[1], moved)
    _, *waits = asked(2, 5, tool_args={"version": "c3", "created_at": tricky})
    await listed.append(ids[2], replace(moved, nonce="n"), *waits)
    assert await listing.counts_by_version() == {
        "a1": {"active": 2},
        "b2": {"active": 1, "waiting_approval": 1},
    }
    assert ids_of(await listing.page(10, "", "", "b2")) == ids[2:0:-1]
    assert ids_of(await listing.page(10, "", "waiting_approval", "b2")) == [ids[2]]
    assert ids_of(await listing.page(1, f"{at(3)}|{ids[3]}", "active", "a1")) == [ids[0]]
    assert await listing.page(10, "", "", "c3") == []
    assert await listing.waiting_since() == at(5)
    await listed.append(ids[1], Completed(seq=3, turn=1, response="", time=at(8)))
    await listed.append(ids[1], replace(moved, seq=4, turn=2, digest="a1", nonce="m"))
    assert await listing.counts_by_version() == {"a1": {"active": 3}, "b2": {"waiting_approval": 1}}


async def test_a_page_of_one_status_leaves_out_the_others(listed: Listed) -> None:
    ids = new_ids(6)
    for second, i in enumerate(ids):
        await listed.append(i, created(i, at(second)))
    for i in ids[:2]:
        await listed.append(i, *asked(2))
    await listed.append(ids[2], ConversationCompleted(seq=2))
    listing = listed.listing
    assert ids_of(await listing.page(10, "", "waiting_approval")) == ids[1::-1]
    assert ids_of(await listing.page(1, f"{at(1)}|{ids[1]}", "waiting_approval")) == [ids[0]]
    assert ids_of(await listing.page(10, "", "completed")) == [ids[2]]
    assert ids_of(await listing.page(2, "", "active")) == ids[:3:-1]
    assert await listing.page(10, "", "unheard of") == []


async def test_the_counts_follow_every_change_of_a_status(listed: Listed) -> None:
    one, two = new_id(), new_id()
    await listed.append(one, created(one))
    await listed.append(two, created(two), *asked(2))
    assert await counts(listed.listing) == {"active": 1, "waiting_approval": 1}
    await listed.append(one, *asked(2))
    assert await counts(listed.listing) == {"waiting_approval": 2}
    await listed.append(one, Completed(seq=5, turn=1, response=""))
    assert await counts(listed.listing) == {"active": 1, "waiting_approval": 1}
    await listed.append(two, Error(seq=5, turn=1, message=""), ConversationCompleted(seq=6))
    assert await counts(listed.listing) == {"active": 1, "completed": 1}


async def test_the_recent_ones_are_those_that_changed_last(listed: Listed) -> None:
    ids = new_ids(4)
    for second, i in enumerate(ids):
        await listed.append(i, created(i, at(second)))
    await listed.append(ids[0], message(2, 20))
    await listed.append(ids[2], message(2, 10))
    expected = [ids[0], ids[2], ids[3], ids[1]]
    listing = listed.listing
    found, total = await listing.recent(ANY, 10, "")
    assert (ids_of(found), total) == (expected, 4)
    before, walked = "", []
    for _ in range(2):
        page, total = await listing.recent(ANY, 2, before)
        walked += ids_of(page)
        before = page[-1].updated_cursor
        assert total == 4
    assert walked == expected
    assert await listing.recent(ANY, 2, before) == ([], 4)


async def test_those_that_changed_at_the_same_moment_go_by_their_id(listed: Listed) -> None:
    ids = new_ids(4)
    for i in ids:
        await listed.append(i, created(i, at(1)))
    found, _ = await listed.listing.recent(ANY, 10, f"{at(1)}|{ids[3]}")
    assert ids_of(found) == ids[2::-1]


async def test_what_is_selected_fits_in_everything(listed: Listed) -> None:
    ids = new_ids(5)
    contexts = (("ctx", ""), ("s1", "ctx"), ("s1", ""), ("ctx", "other"), ("s1", "ctx"))
    for second, (i, (session, context)) in enumerate(zip(ids, contexts, strict=True)):
        await listed.append(i, created(i, at(second), session_id=session, context_id=context))
    await listed.append(ids[1], message(2, 30))
    await listed.append(ids[2], *asked(2, 40))
    for selection, expected in (
        (Selection(context_id="ctx"), [ids[1], ids[4], ids[0]]),
        (Selection(context_id="s1"), [ids[2]]),  # of the others it is not the context
        (Selection(context_id="no\0body's"), []),
        (Selection(states=("working",)), [ids[1]]),
        (Selection(states=("",)), [ids[4], ids[3], ids[0]]),
        (Selection(states=("working", "waiting_approval")), [ids[2], ids[1]]),
        (Selection(states=()), []),
        (Selection(since=at(3)), [ids[2], ids[1], ids[4], ids[3]]),
        (Selection(since=at(50)), []),
        (Selection(context_id="ctx", states=("",), since=at(1)), [ids[4]]),
    ):
        found, total = await listed.listing.recent(selection, 10, "")
        assert (ids_of(found), total) == (expected, len(expected)), selection
        first, total = await listed.listing.recent(selection, 1, "")
        assert (ids_of(first), total) == (expected[:1], len(expected)), selection


async def test_an_approval_leads_to_the_conversations_to_which_it_may_belong(listed: Listed) -> None:
    one, other = new_id(), new_id()
    namesake = new_id()[:-8] + id_suffix(one)
    for i in (one, other, namesake):
        await listed.append(i, created(i))
    listing = listed.listing
    assert {*await listing.with_suffix(approval_id(one))} == {one, namesake}
    assert list(await listing.with_suffix(other)) == [other]
    await listed.append(other, *turn(2))
    assert list(await listing.with_suffix(other)) == [other]
    assert list(await listing.with_suffix(new_id())) == []


async def test_turns_that_go_on_without_a_person_are_open_and_those_that_have_not_ended_under_way(
    listed: Listed,
) -> None:
    ids = new_ids(5)
    for second, i in enumerate(ids):
        await listed.append(i, created(i, at(second)))
    for i in ids[1:3]:
        await listed.append(i, message(2))
    await listed.append(ids[3], *asked(2))
    await listed.append(ids[4], *turn(2))
    listing = listed.listing
    assert {*await listing.open_turns()} == {*ids[1:3]}
    assert list(await listing.turns_under_way(10)) == ids[3:0:-1]
    assert list(await listing.turns_under_way(2)) == ids[3:1:-1]
    await listed.append(ids[2], Completed(seq=3, turn=1, response=""))
    assert {*await listing.open_turns()} == {ids[1]}
    assert list(await listing.turns_under_way(10)) == [ids[3], ids[1]]


async def test_the_first_deadline_of_each_conversation_is_known_until_it_is_decided(listed: Listed) -> None:
    one, two, never = new_id(), new_id(), new_id()
    late, soon = asked(2, expires_at=at(50)), asked(2, expires_at=at(40))
    await listed.append(one, created(one), late[0], late[1])
    second = ApprovalRequired(
        seq=4, turn=1, step="/tool/0.1", uuid=new_id(), call_id="c", tool_name="t", tool_args={},
        description="d", expires_at=at(45),
    )  # fmt: skip
    await listed.append(one, second, Paused(seq=5, turn=1, run=1))
    await listed.append(two, created(two), *soon)
    await listed.append(never, created(never), *asked(2))
    assert {*await listed.listing.deadlines()} == {(at(45), one), (at(40), two)}
    await listed.append(two, Completed(seq=5, turn=1, response=""))
    assert list(await listed.listing.deadlines()) == [(at(45), one)]


async def test_it_is_known_since_when_an_approval_waits_until_it_is_decided(listed: Listed) -> None:
    assert await listed.listing.waiting_since() == ""
    first, second = new_ids(2)
    for id, when in ((first, 20), (second, 10)):
        await listed.append(id, created(id), *asked(2, second=when))
    assert await listed.listing.waiting_since() == at(10)
    await listed.append(second, Completed(seq=5, turn=1, response="done", time=at(40)))
    assert await listed.listing.waiting_since() == at(20)


async def test_agents_that_ask_for_what_may_be_remembered_for_good_are_known_with_their_conversations(
    listed: Listed,
) -> None:
    root, called, odd, once = new_id(), new_id(), new_id(), new_id()
    await listed.append(root, created(root), *asked(2, remember="always"))
    await listed.append(called, created(called), *asked(2, remember="always", agent_path=("a", "größer")))
    await listed.append(odd, created(odd), *asked(2, remember="always", agent_path=('{"},NULL',)))
    await listed.append(once, created(once), *asked(2, remember="conversation"))
    assert dict(await listed.listing.asking()) == {"": [root], "größer": [called], '{"},NULL': [odd]}
    await listed.append(root, Completed(seq=5, turn=1, response=""))
    await listed.append(called, Completed(seq=5, turn=1, response=""))
    assert dict(await listed.listing.asking()) == {'{"},NULL': [odd]}


async def test_several_agents_of_a_conversation_that_ask_are_all_known(listed: Listed) -> None:
    one, two = new_ids(2)
    for i in (one, two):
        question, first, _ = asked(2, remember="always")
        more = [
            ApprovalRequired(
                seq=seq, turn=1, step=f"/tool/0.{seq}", uuid=new_id(), call_id="c", tool_name="t",
                tool_args={}, description="d", remember="always", agent_path=path,
            )
            for seq, path in ((4, ("b",)), (5, ("b",)), (6, ("c",)))
        ]  # fmt: skip
        await listed.append(i, created(i), question, first, *more, Paused(seq=7, turn=1, run=1))
    found = await listed.listing.asking()
    assert {agent: sorted(ids) for agent, ids in found.items()} == {
        "": [one, two],
        "b": [one, two],
        "c": [one, two],
    }


async def test_an_append_that_is_refused_moves_nothing(databases: Stores) -> None:
    journal, i, other = databases.one.journal, new_id(), new_id()
    listed = Listed(databases.one, 0)
    await listed.append(i, created(i))
    before = await listed.listing.page(10, "", "")
    stale, epoch = await journal.open(0), await journal.open(0)
    with pytest.raises(WrongSequence):
        await journal.append(0, epoch, following([created(i), *turn(2)], [message(4)]))
    for append in (following([created(i)], asked(2)), following([], [created(other)])):
        with pytest.raises(StaleEpoch):
            await journal.append(0, stale, append)
    assert await listed.listing.page(10, "", "") == before
    assert await counts(listed.listing) == {"active": 1}
    assert not await listed.listing.has(other)


async def test_each_shard_has_its_own_listing_and_all_together_one(databases: Stores) -> None:
    ids = new_ids(9)
    shards = [Listed(databases.one, number) for number in range(3)]
    for n, i in enumerate(ids):
        await shards[n % 3].append(i, created(i, at(n)), *asked(2, n, expires_at=at(50)))
    for n, shard in enumerate(shards):
        assert ids_of(await shard.listing.page(10, "", "")) == ids[n::3][::-1]
        assert await counts(shard.listing) == {"waiting_approval": 3}
        assert {i for _, i in await shard.listing.deadlines()} == {*ids[n::3]}
        assert [await shard.listing.has(i) for i in ids[:3]] == [n == each for each in range(3)]
    everything = databases.another().listing()
    assert everything is not None
    assert ids_of(await everything.page(10, "", "")) == ids[::-1]
    assert await counts(everything) == {"waiting_approval": 9}
    found, total = await everything.recent(ANY, 4, "")
    assert (ids_of(found), total) == (ids[:4:-1], 9)
    assert list(await everything.turns_under_way(4)) == ids[:4:-1]


async def test_another_process_sees_every_append_that_was_acknowledged(databases: Stores) -> None:
    listed, other = Listed(databases.one, 0), databases.another().listing(0)
    assert other is not None
    ids = new_ids(20)
    await asyncio.gather(*(listed.append(i, created(i)) for i in ids))
    assert await counts(other) == {"active": 20}
    await asyncio.gather(*(listed.append(i, *asked(2)) for i in ids))
    assert await counts(other) == {"waiting_approval": 20}
    assert {*ids_of(await other.page(30, "", "waiting_approval"))} == {*ids}


async def test_agents_of_one_database_do_not_see_each_other(databases: Stores) -> None:
    one = Listed(databases.one, 0)
    others = [Listed(databases.another(agent="other"), 0)]
    i, secrets = new_id(), {await databases.one.secret()}
    await one.append(i, created(i), *asked(2, remember="always", expires_at=at(50)))
    for other in others:
        assert not await other.listing.has(i)
        assert await other.listing.page(10, "", "") == []
        assert await counts(other.listing) == {}
        assert await other.listing.recent(ANY, 10, "") == ([], 0)
        assert [*await other.listing.with_suffix(i), *await other.listing.deadlines()] == []
        await other.append(i, created(i))  # the same id is another conversation
        assert await counts(other.listing) == {"active": 1}
    secrets.add(await databases.another(agent="other").secret())
    assert len(secrets) == 2
    assert await counts(one.listing) == {"waiting_approval": 1}
