"""Shards move between keeper hosts: what waits there goes on, and nobody else notices."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from mesh.core.errors import JournalError, NotHeld, StoreAway, Unavailable
from mesh.core.events import ApprovalResolved
from mesh.core.ids import shard_of
from mesh.journal import shards
from mesh.journal.shards import GivenShard, HostRecord, ShardClaim, ShardMap
from mesh.journal.shards_in_memory import MemoryShards
from mesh.keeper.requests import Caller, SendMessage, Show
from mesh.local import keeper_host
from mesh.local.keeper_host import KeeperHost
from mesh.store.memory import MemoryStore
from tests.keeper.test_store_losses import Forgetful, losses_of
from tests.worlds.keeper_hosts import Hosts, approving
from tests.worlds.mesh import calls, says, until
from tests.worlds.stores import SHARDS

T = TypeVar("T")
LEASE_S = 0.6


class Outages(MemoryShards):
    """`MemoryShards` of a store that may be away. ``renewals`` counts what it answered."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.lease_s = LEASE_S
        self.is_away = False
        self.renewals = 0

    async def renew(self, host: HostRecord) -> ShardMap:
        if self.is_away:
            raise StoreAway("the store is away", was_sent=True)
        self.renewals += 1
        return await super().renew(host)


class MemoryHosts(Hosts):
    """Hosts of a store in memory, which may be away."""

    def __init__(self) -> None:
        store = MemoryStore(SHARDS)
        self.shards = store.shards = Outages(SHARDS)
        super().__init__(store)


@pytest.fixture
async def hosts(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryHosts]:
    monkeypatch.setattr(keeper_host, "RENEW_EVERY_S", LEASE_S / 10)
    monkeypatch.setattr(shards, "LEASE_S", LEASE_S)
    found = MemoryHosts()
    yield found
    await found.close()


def spread_is(hosts: MemoryHosts, *numbers: int) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return await hosts.spread() == list(numbers)

    return found


def has_open(host: KeeperHost, number: int) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return [held.is_open for held in host._held.values()] == [True] * number

    return found


async def test_a_host_that_joins_gets_its_share_while_people_talk_and_each_message_is_answered_once(
    hosts: MemoryHosts,
) -> None:
    first = await hosts.add("first")
    assert await hosts.spread() == [SHARDS]
    ids = [(await hosts.create())[0] for _ in range(3 * SHARDS)]

    async def talk(id: str) -> None:
        for number in range(20):
            # A gateway gives each message a key: it may be sent again.
            caller = Caller(session_id="s", idempotency_key=f"{number}", body_hash="same")
            status, body = await hosts.ask(id, SendMessage(id, caller, f"message {number}"))
            assert (status, body["result"]["response"]) == (200, "done")

    talks = asyncio.gather(*map(talk, ids))
    await hosts.add("second")
    await until(spread_is(hosts, SHARDS // 2, SHARDS // 2))
    await talks
    for id in ids:
        _, body = await hosts.ask(id, Show(id))
        assert body["conversation"]["turn"]["number"] == 20
    await first.leave()
    assert await hosts.spread() == [0, SHARDS]


async def test_hosts_that_start_at_the_same_time_share_the_shards(hosts: MemoryHosts) -> None:
    await asyncio.gather(*(hosts.add(name) for name in ("first", "second", "third", "fourth")))
    await until(spread_is(hosts, 2, 2, 2, 2))


async def test_a_host_that_gives_a_shard_away_while_it_opens_it_starts_all_the_same(
    hosts: MemoryHosts,
) -> None:
    is_slow, gone_on = asyncio.Event(), asyncio.Event()
    open_journal = hosts.store.journal.open

    async def slow_open(shard: int) -> int:
        if not is_slow.is_set():
            await gone_on.wait()
        return await open_journal(shard)

    hosts.store.journal.open = slow_open  # type: ignore[method-assign]
    first = asyncio.create_task(hosts.add("first"))
    await until(lambda: _true(bool(hosts.hosts)))
    is_slow.set()
    await hosts.add("second")
    await until(spread_is(hosts, 4, 4))
    gone_on.set()
    await first


async def test_an_approval_that_waits_is_decided_at_the_host_that_has_it_now(hosts: MemoryHosts) -> None:
    first = await hosts.add("first")
    hosts.llm.answers = [calls(("add", {"n": 1})), says("added")]
    waiting = [(await hosts.create("please add"))[1]["result"]["approval"]["uuid"] for _ in range(1)]
    await hosts.add("second")
    await first.leave()
    for uuid in waiting:
        status, body = await hosts.ask(uuid, approving(uuid))
        assert (status, body["result"]["response"]) == (200, "added")
    assert hosts.ledger.lines == ["add 1"]


async def test_a_turn_that_acts_for_somebody_keeps_the_token_when_its_shard_moves(hosts: MemoryHosts) -> None:
    first = await hosts.add("first")
    hosts.llm.answers = [calls(("add", {"n": 1})), says("added")]
    id, _ = await hosts.create("please add", token="secret-token")
    shard = shard_of(id, SHARDS)
    assert first.keeper(shard).tokens() == {id: "secret-token"}
    second = await hosts.add("second")
    await first.leave()
    await until(has_open(second, SHARDS))
    assert second.keeper(shard).tokens() == {id: "secret-token"}


async def test_what_a_dead_host_had_is_claimed_when_its_lease_is_over(hosts: MemoryHosts) -> None:
    first, _ = await hosts.add("first"), await hosts.add("second")
    await until(spread_is(hosts, 4, 4))
    ids = [(await hosts.create())[0] for _ in range(2 * SHARDS)]
    hosts.die(first)
    for id in ids:
        status, _ = await hosts.ask(id, SendMessage(id, Caller(session_id="s"), "go on"))
        assert status == 200
    assert await hosts.spread() == [SHARDS]


async def test_the_successor_of_a_process_takes_its_shards_without_waiting_for_the_lease(
    hosts: MemoryHosts,
) -> None:
    first, _ = await hosts.add("first"), await hosts.add("second")
    await until(spread_is(hosts, 4, 4))
    had = (await hosts.shards.map()).shards_of(first._me.id)
    hosts.die(first)
    again = await hosts.add("first")
    assert (await hosts.shards.map()).shards_of(again._me.id) == had


async def test_a_host_that_the_store_does_not_answer_answers_nobody_and_goes_on_when_it_does(
    hosts: MemoryHosts,
) -> None:
    host = await hosts.add("only")
    id, _ = await hosts.create()
    shard = shard_of(id, SHARDS)
    keeper = host.keeper(shard)
    hosts.shards.is_away = True

    async def is_silent() -> bool:
        try:
            await host.call(shard, lambda opened: opened.keeper.handle(Show(id)))
        except NotHeld:
            return True
        return False

    await until(is_silent)
    hosts.shards.is_away = False
    assert (await hosts.ask(id, Show(id)))[0] == 200
    assert host.keeper(shard) is keeper  # nobody has taken it meanwhile, so it was not opened again


async def test_after_an_outage_of_the_store_nobody_takes_anything(hosts: MemoryHosts) -> None:
    for name in ("first", "second"):
        await hosts.add(name)
    await until(spread_is(hosts, 4, 4))
    before = (await hosts.shards.map()).held_by
    hosts.shards.is_away = True
    await asyncio.sleep(2 * LEASE_S)  # every lease is over
    hosts.shards.is_away = False
    answered = hosts.shards.renewals
    await until(lambda: _true(hosts.shards.renewals > answered + 40))
    assert (await hosts.shards.map()).held_by == before


async def test_the_newest_deployment_has_all_shards_and_an_older_one_takes_them_back(
    hosts: MemoryHosts,
) -> None:
    older = await hosts.add("1/0", generation=1)
    id, _ = await hosts.create()
    newer = await hosts.add("2/0", generation=2)
    await until(spread_is(hosts, 0, SHARDS))
    assert (await hosts.ask(id, Show(id)))[0] == 200
    with pytest.raises(NotHeld):
        await older.call(shard_of(id, SHARDS), lambda opened: opened.keeper.handle(Show(id)))
    await newer.leave(whole_generation=True)
    await until(spread_is(hosts, SHARDS, 0))
    assert (await hosts.ask(id, Show(id)))[0] == 200


async def test_a_newer_deployment_does_not_wait_for_an_older_one_that_died(hosts: MemoryHosts) -> None:
    hosts.die(await hosts.add("1/0", generation=1))
    await hosts.add("2/0", generation=2)
    await until(spread_is(hosts, SHARDS))


async def test_a_host_that_renews_and_answers_nobody_costs_the_others_nothing(hosts: MemoryHosts) -> None:
    first = await hosts.add("first")
    ids = [(await hosts.create())[0] for _ in range(2 * SHARDS)]
    keepers = [first.keeper(shard) for shard in range(SHARDS)]
    await hosts.shards.renew(HostRecord(id="cut off", name="cut off", generation=1))
    await until(lambda: _true("cut off" in first._silent.ids()))
    for id in ids:
        assert (await hosts.ask(id, Show(id)))[0] == 200
    assert [first.keeper(shard) for shard in range(SHARDS)] == keepers and hosts.gives == 0


async def test_a_host_that_takes_no_shard_is_given_no_second_one_and_the_first_comes_back(
    hosts: MemoryHosts,
) -> None:
    first = await hosts.add("first")
    id, _ = await hosts.create()
    hosts.stuck = asyncio.Event()
    await hosts.add("second")
    await until(lambda: _true(hosts.gives == 1))
    renewed = hosts.shards.renewals
    await until(lambda: _true(hosts.shards.renewals > renewed + 20))  # the giver renews while it waits
    hosts.stuck.set()
    renewed = hosts.shards.renewals
    await until(lambda: _true(hosts.shards.renewals > renewed + 20))
    assert hosts.gives == 1 and await hosts.spread() == [SHARDS, 0]
    assert (await hosts.ask(id, Show(id)))[0] == 200
    await until(has_open(first, SHARDS))


async def test_a_host_that_leaves_while_it_gives_a_shard_away_gives_the_others_and_is_gone(
    hosts: MemoryHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of it within its lease, which is shorter than usual, and longer than in the other tests.
    hosts.shards.lease_s = 10 * LEASE_S
    monkeypatch.setattr(shards, "LEASE_S", 10 * LEASE_S)
    for bound in ("LEAVE_WITHIN_S", "_CLOSE_WITHIN_S", "_RECEIVED_WITHIN_S"):
        monkeypatch.setattr(keeper_host, bound, 1.0)
    first = await hosts.add("first")
    hosts.llm.answers = [calls(("add", {"n": 1}))] * 2 * SHARDS
    ids = [(await hosts.create("please add", token=f"token {n}"))[0] for n in range(2 * SHARDS)]
    hosts.stuck = asyncio.Event()
    second = await hosts.add("second")
    await until(lambda: _true(hosts.gives == 1))
    hosts.stuck = None
    await first.leave(within_s=1.0)
    assert first._me.id not in {host.id for host in (await hosts.shards.map()).hosts}
    await until(has_open(second, SHARDS))
    kept = [second.keeper(shard_of(id, SHARDS)).tokens().get(id) for id in ids]
    # But for those of the shard whose receiver was silent.
    assert {shard_of(id, SHARDS) for id, token in zip(ids, kept, strict=True) if not token} <= {SHARDS - 1}


async def test_a_host_that_leaves_begins_no_more_handovers_in_the_background(
    hosts: MemoryHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await hosts.add("first")
    hosts.llm.answers = [calls(("add", {"n": 1}))] * 2 * SHARDS
    ids = [(await hosts.create("please add", token=f"token {n}"))[0] for n in range(2 * SHARDS)]
    give = hosts.give

    async def slowly(to: HostRecord, given: GivenShard) -> bool:
        await asyncio.sleep(0.05)
        return await give(to, given)

    monkeypatch.setattr(hosts, "give", slowly)
    second = await hosts.add("second")
    await until(lambda: _true(hosts.gives == 1))
    await first.leave()
    await until(has_open(second, SHARDS))
    kept = [second.keeper(shard_of(id, SHARDS)).tokens().get(id) for id in ids]
    assert kept == [f"token {n}" for n in range(2 * SHARDS)]


async def test_a_host_that_was_fenced_and_has_the_shard_still_keeps_its_tokens(hosts: MemoryHosts) -> None:
    host = await hosts.add("only")
    hosts.llm.answers = [calls(("add", {"n": 1}))]
    id, _ = await hosts.create("please add", token="secret-token")
    shard = shard_of(id, SHARDS)
    host._fenced(shard, host._held[shard])
    await until(lambda: _true(shard in host._held and host._held[shard].is_open))
    assert host.keeper(shard).tokens() == {id: "secret-token"}


async def test_a_host_that_leaves_receives_nothing(hosts: MemoryHosts) -> None:
    first, second = await hosts.add("first"), await hosts.add("second")
    await until(spread_is(hosts, 4, 4))
    (shard, *_) = (await hosts.shards.map()).shards_of(first._me.id)
    claim = hosts.shards.claim

    async def claimed_when_it_leaves(wanted: Sequence[ShardClaim], host: str) -> list[int]:
        found = await claim(wanted, host)
        second._is_leaving.set()
        return found

    hosts.shards.claim = claimed_when_it_leaves  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await second.receive(GivenShard(shard, first._me.id, {}))
    hosts.shards.claim = claim  # type: ignore[method-assign]
    await second.close()
    await until(lambda: _true(len(first._held) == SHARDS))


async def test_a_shard_that_is_received_twice_is_opened_once(hosts: MemoryHosts) -> None:
    first, second = await hosts.add("first"), await hosts.add("second")
    await until(spread_is(hosts, 4, 4))
    (shard, *_) = (await hosts.shards.map()).shards_of(second._me.id)
    await until(has_open(second, 4))
    keeper = second.keeper(shard)
    assert await second.receive(GivenShard(shard, first._me.id, {}))
    assert second.keeper(shard) is keeper


async def test_what_is_fenced_late_takes_nothing_from_the_one_that_was_opened_since(
    hosts: MemoryHosts,
) -> None:
    host = await hosts.add("only")
    before = host._held[0]
    host._drop(0)
    await host._renew()
    await host._held[0].opened()
    host._fenced(0, before)
    assert host._held[0].is_open


async def test_tokens_stay_with_a_shard_that_is_given_away_before_it_is_open_or_cannot_be_opened(
    hosts: MemoryHosts,
) -> None:
    first = await hosts.add("first")
    hosts.llm.answers = [calls(("add", {"n": 1})), says("added")]
    id, _ = await hosts.create("please add", token="secret-token")
    shard = shard_of(id, SHARDS)
    open_journal = hosts.store.journal.open
    failures = iter([JournalError("the disk is full")] * 3)

    async def failing(number: int) -> int:
        if number == shard and (failure := next(failures, None)):
            raise failure
        return await open_journal(number)

    hosts.store.journal.open = failing  # type: ignore[method-assign]
    second = await hosts.add("second")
    await first.leave()
    await until(lambda: _true(second._held[shard].is_open))
    assert second.keeper(shard).tokens() == {id: "secret-token"}


async def test_a_receiver_that_the_store_does_not_answer_says_so_and_a_host_leaves_all_the_same(
    hosts: MemoryHosts,
) -> None:
    first, second = await hosts.add("first"), await hosts.add("second")
    await until(spread_is(hosts, 4, 4))
    claim = hosts.shards.claim

    async def away(*_: object) -> list[int]:
        raise StoreAway("the store is away", was_sent=True)

    hosts.shards.claim = away  # type: ignore[assignment]
    (shard, *_) = (await hosts.shards.map()).shards_of(first._me.id)
    with pytest.raises(Unavailable):
        await second.receive(GivenShard(shard, first._me.id, {}))
    await first.leave()
    hosts.shards.claim = claim  # type: ignore[method-assign]
    await until(spread_is(hosts, 0, SHARDS))


async def test_a_call_does_not_wait_for_ever_for_a_shard_that_does_not_open(
    hosts: MemoryHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_host, "_OPEN_WITHIN_S", 0.1)
    host = await hosts.add("only")
    never = asyncio.Event()

    async def silent(shard: int) -> int:
        await never.wait()
        return 1

    hosts.store.journal.open = silent  # type: ignore[method-assign]
    host._drop(0)
    await host._renew()
    with pytest.raises(NotHeld, match="not open"):
        await asyncio.wait_for(host.call(0, lambda opened: opened.keeper.handle(Show("x"))), 30)


async def test_a_host_whose_shard_was_opened_elsewhere_lets_go_of_it(hosts: MemoryHosts) -> None:
    host = await hosts.add("only")
    id, _ = await hosts.create()
    shard = shard_of(id, SHARDS)
    await hosts.store.journal.open(shard)
    with pytest.raises(NotHeld):
        request = SendMessage(id, Caller(session_id="s"), "too late")
        await host.call(shard, lambda opened: opened.keeper.handle(request))
    assert (await hosts.ask(id, SendMessage(id, Caller(session_id="s"), "again")))[0] == 200


async def _true(value: bool) -> bool:
    return value


async def approved(hosts: MemoryHosts) -> tuple[Forgetful, str, str, int]:
    """A conversation in which something was approved and done: the journals, its id, the approval, and its
    last event before the decision."""
    journal = hosts.store.journal = Forgetful()
    await hosts.add("first")
    hosts.llm.answers = [calls(("add", {"n": 1}))]
    id, body = await hosts.create("please add")
    uuid = body["result"]["approval"]["uuid"]
    asked = len(await journal.read(id))
    hosts.llm.answers = [says("added")]
    await hosts.ask(id, approving(uuid))
    return journal, id, uuid, asked


async def test_what_is_lost_after_a_handover_is_told_by_whoever_has_the_shard(hosts: MemoryHosts) -> None:
    journal, id, uuid, asked = await approved(hosts)
    second = await hosts.add("second", 2)  # of a newer deployment, which gets all of them
    await until(spread_is(hosts, 0, SHARDS))
    journal.forget_after(id, asked)
    await second.keeper(shard_of(id, SHARDS)).look_for_losses()
    status, _ = await hosts.ask(id, approving(uuid))
    assert (status, hosts.ledger.lines) == (409, ["add 1"])
    assert not any(isinstance(event, ApprovalResolved) for event in await journal.read(id))
    assert len(await losses_of(journal, id)) == 1


async def test_a_turn_whose_loss_is_found_by_whoever_reads_it_ends(hosts: MemoryHosts) -> None:
    journal, id, _, asked = await approved(hosts)
    journal.forget_after(id, asked)  # and nobody has looked before the shards move
    await hosts.add("second", 2)
    await until(spread_is(hosts, 0, SHARDS))

    async def has_failed() -> bool:
        _, body = await hosts.ask(id, Show(id))
        return bool(body["conversation"]["turn"]["state"] == "failed")

    await until(has_failed)
    assert len(await losses_of(journal, id)) == 1


async def test_what_is_known_goes_along_with_a_shard_also_if_the_answer_of_the_store_is_lost(
    hosts: MemoryHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, id, uuid, asked = await approved(hosts)
    claim, shard, lost = hosts.shards.claim, shard_of(id, SHARDS), list[int]()

    async def losing(claims: Sequence[ShardClaim], host: str) -> list[int]:
        claimed = await claim(claims, host)
        if claims[0].shard == shard and not lost:
            lost.append(shard)
            raise StoreAway("its answer was lost", was_sent=True)
        return claimed

    monkeypatch.setattr(hosts.shards, "claim", losing)
    await hosts.add("second", 2)
    await until(spread_is(hosts, 0, SHARDS))
    journal.forget_after(id, asked)
    status, _ = await hosts.ask(id, approving(uuid))
    assert (lost, status, hosts.ledger.lines) == ([shard], 409, ["add 1"])
    assert len(await losses_of(journal, id)) == 1
