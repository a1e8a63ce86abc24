"""An index in memory and the tables of a database show the same of any conversations."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.core.conversation import fold
from mesh.core.events import AnyEvent, ApprovalRequired, ConversationCreated
from mesh.core.ids import id_suffix, new_id
from mesh.journal.index import Index
from mesh.journal.listing import Listing, Selection
from mesh.store.postgres.postgres_store import PostgresStore
from tests.core.test_conversation_properties import EVENTS
from tests.worlds.postgres import PostgresServer
from tests.worlds.stores import created, following, migrated, postgres_store

SHARDS = 2
MOMENTS = tuple(f"2026-01-01T00:00:0{second}.000Z" for second in range(4))
NAMES = ("", "s", "ctx", "größer", "x" * 200)
STATUSES = ("", "active", "waiting_approval", "completed")
STATES = (None, (), ("",), ("working", "paused"), ("waiting_approval",), ("completed", "failed", "cancelled"))
STEPS = ("/tool/0.0", "/tool/0.1", "0.0/tool/0.0")
LIMITS = (1, 100)
Compare = Callable[[Index, Listing, list[str]], Awaitable[None]]

approvals = st.builds(
    ApprovalRequired,
    seq=st.just(0),
    turn=st.integers(1, 2),
    step=st.sampled_from(STEPS),
    uuid=st.sampled_from(["u1", "u2"]),
    call_id=st.just("c"),
    tool_name=st.just("t"),
    tool_args=st.just({}),
    description=st.just("d"),
    kind=st.sampled_from(["tool_call", "question", "auth_required"]),
    expires_at=st.sampled_from(["", *MOMENTS]),
    agent_path=st.sampled_from([(), ("a",), ("a", "b"), ('"{},NULL',)]),
    remember=st.sampled_from(["none", "conversation", "always"]),
)
later = st.sampled_from([event for event in EVENTS if not isinstance(event, ConversationCreated)]) | approvals
first = st.builds(
    created,
    st.just(""),
    st.sampled_from(MOMENTS),
    session_id=st.sampled_from(NAMES[1:3]),
    context_id=st.sampled_from(NAMES),
)
tails = st.lists(st.tuples(later, st.sampled_from(MOMENTS)), max_size=10)
conversations = st.lists(st.tuples(first, tails, st.lists(st.integers(1, 4), max_size=4)), max_size=6)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Hypothesis calls a test without a loop again and again; connections live in one."""
    with asyncio.Runner() as runner:
        yield runner


async def compare_asking(index: Index, table: Listing, _: list[str]) -> None:
    assert _sorted(await table.asking()) == _sorted(await index.asking())


async def compare_all_else(index: Index, table: Listing, ids: list[str]) -> None:
    everything = await index.page(100, "", "")
    created_cursors = ["", *(each.created_cursor for each in everything)]
    updated_cursors = ["", *(each.updated_cursor for each in everything)]
    assert await table.page(100, "", "") == everything
    for before, status in itertools.product(created_cursors, STATUSES):
        assert await table.page(2, before, status) == await index.page(2, before, status)
    assert await table.waiting_since() == await index.waiting_since()
    assert dict(await table.counts()) == {k: n for k, n in (await index.counts()).items() if n}
    for selection in _selections():
        before = updated_cursors[len(everything) // 2]
        found = await table.recent(selection, 2, before)
        assert found == await index.recent(selection, 2, before), (selection, before)
    for before in updated_cursors:
        assert await table.recent(Selection(), 3, before) == await index.recent(Selection(), 3, before)
    for i in [*ids, new_id()]:
        assert await table.has(i) == await index.has(i)
        approval = new_id()[:-8] + id_suffix(i)
        assert sorted(await table.with_suffix(approval)) == sorted(await index.with_suffix(approval))
    assert sorted(await table.open_turns()) == sorted(await index.open_turns())
    for limit in LIMITS:
        assert list(await table.turns_under_way(limit)) == list(await index.turns_under_way(limit))
    assert sorted(await table.deadlines()) == sorted(await index.deadlines())


@pytest.mark.parametrize(
    "compare",
    [
        compare_all_else,
        compare_asking,
    ],
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversations)
def test_both_listings_agree_about_any_conversations(
    postgres_server: PostgresServer,
    runner: asyncio.Runner,
    compare: Compare,
    drawn: list[tuple[ConversationCreated, list[tuple[AnyEvent, str]], list[int]]],
) -> None:
    async def agree() -> None:
        async with migrated(postgres_server) as url:
            store = postgres_store(url)
            try:
                journals = [(numbered(head, tail), sizes) for head, tail, sizes in drawn]
                await _append_all_and(compare, store, journals)
            finally:
                await store.close()

    runner.run(agree())


def numbered(head: ConversationCreated, tail: list[tuple[AnyEvent, str]]) -> list[AnyEvent]:
    """The events of a journal: with an id, in their order."""
    events: list[AnyEvent] = [msgspec.structs.replace(head, conversation_id=new_id())]
    for seq, (event, time) in enumerate(tail, 2):
        events.append(msgspec.structs.replace(event, seq=seq, time=time))
    return events


async def _append_all_and(
    compare: Compare, store: PostgresStore, journals: list[tuple[list[AnyEvent], list[int]]]
) -> None:
    of_shard = [Index() for _ in range(SHARDS)]
    of_all = Index()
    epochs = [await store.journal.open(shard) for shard in range(SHARDS)]
    await asyncio.gather(
        *(_append(store, n % SHARDS, epochs[n % SHARDS], *each) for n, each in enumerate(journals))
    )
    for n, (events, _) in enumerate(journals):
        for index in (of_shard[n % SHARDS], of_all):
            index.put(fold(events[:1]), 1)
            index.put(fold(events), len(events))
    ids = [events[0].conversation_id for events, _ in journals if isinstance(events[0], ConversationCreated)]
    for index, table in ((of_shard[0], store.listing(0)), (of_all, store.listing())):
        assert table is not None
        await compare(index, table, ids)


async def _append(
    store: PostgresStore, shard: int, epoch: int, events: list[AnyEvent], sizes: list[int]
) -> None:
    """Appends the events of a conversation, so many at a time."""
    ends = [*itertools.takewhile(lambda end: end < len(events), itertools.accumulate(sizes)), len(events)]
    for begin, end in itertools.pairwise((0, *ends)):
        await store.journal.append(shard, epoch, following(events[:begin], events[begin:end]))


def _selections() -> list[Selection]:
    return [
        *(Selection(context_id=name) for name in NAMES),
        *(Selection(states=states) for states in STATES),
        *(Selection(since=since) for since in MOMENTS),
        Selection(context_id="ctx", states=("", "working"), since=MOMENTS[1]),
    ]


def _sorted(asking: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {agent: sorted(found) for agent, found in asking.items()}
