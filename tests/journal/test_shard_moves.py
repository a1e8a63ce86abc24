"""How shards move between hosts, as a machine of states: one writer, progress, and an end of it."""

from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mesh.core.errors import StaleEpoch
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.journal.shards import (
    LEASE_S,
    RENEW_EVERY_S,
    SILENT_AT,
    HostRecord,
    ShardClaim,
    ShardMap,
    after,
    claims,
    fair_share,
    handover,
)
from mesh.journal.shards_in_memory import MemoryShards
from tests.worlds.long import as_often_as
from tests.worlds.stores import created

T = TypeVar("T")
SHARDS = 5
NAMES = ("1/0", "1/1", "1/2", "2/0", "2/1")
"""Of hosts, each with its generation."""


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs what never waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(T, ended.value)
    raise AssertionError("it waits")


class Host:
    """A host as `KeeperHost` is one, without its keepers: it believes in the epochs of what it has opened."""

    def __init__(self, number: int, name: str) -> None:
        self.record = HostRecord(id=f"h{number}", name=name, generation=int(name[0]))
        self.epochs: dict[int, int] = {}


class MovingShards(RuleBasedStateMachine):
    """Any number of hosts, whose processes are paused, die and are started again; the store may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.shards = MemoryShards(SHARDS, lambda: self.time)
        self.journal = MemoryJournal()
        self.hosts: list[Host] = []
        self.made = 0
        self.is_away = False
        self.back_at = float("-inf")
        self.written: list[int] = [0] * SHARDS  # the epoch of the newest append to each shard
        self.writers: dict[tuple[int, int], str] = {}
        self.renewed: dict[str, float] = {}
        self.moves = 0

    @rule(name=st.sampled_from(NAMES))
    def start(self, name: str) -> None:
        self.made += 1
        self.hosts.append(host := Host(self.made, name))
        self._tick(host)

    @rule(data=st.data())
    @precondition(lambda self: self.hosts)
    def tick(self, data: st.DataObject) -> None:
        """One round of any host, also of one that was paused for long."""
        self._tick(data.draw(st.sampled_from(self.hosts)))

    @rule(data=st.data())
    @precondition(lambda self: self.hosts)
    def die(self, data: st.DataObject) -> None:
        self.hosts.remove(data.draw(st.sampled_from(self.hosts)))

    @rule(data=st.data())
    @precondition(lambda self: self.hosts and not self.is_away)
    def leave(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from(self.hosts))
        self.hosts.remove(host)
        now(self.shards.release(host.record.id))

    @rule(seconds=st.floats(0, 3 * LEASE_S))
    def time_passes(self, seconds: float) -> None:
        self.time += seconds

    @rule(is_away=st.booleans())
    def store_goes_or_comes(self, is_away: bool) -> None:
        if self.is_away and not is_away:
            self.back_at = self.time
        self.is_away = is_away

    @rule(data=st.data(), shard=st.integers(0, SHARDS - 1))
    @precondition(lambda self: self.hosts and not self.is_away)
    def append(self, data: st.DataObject, shard: int) -> None:
        host = data.draw(st.sampled_from(self.hosts))
        if shard not in host.epochs:
            return
        epoch = host.epochs[shard]
        event = created(f"{self.made}-{self.time}-{len(self.writers)}-{shard}-{host.record.id}")
        known = len(now(self.journal.read(event.conversation_id)))
        if known:
            return
        try:
            now(self.journal.append(shard, epoch, Append(event.conversation_id, 0, [event])))
        except StaleEpoch:
            del host.epochs[shard]
            return
        assert epoch >= self.written[shard], "an epoch falls"
        self.written[shard] = epoch
        writer = self.writers.setdefault((shard, epoch), host.record.id)
        assert writer == host.record.id, "two hosts write in one epoch"

    @invariant()
    def every_shard_has_one_host_or_none(self) -> None:
        held_by = now(self.shards.map()).held_by
        assert len(held_by) == SHARDS

    def teardown(self) -> None:
        """Everybody who lives goes on: soon all is spread evenly, and then nothing moves."""
        if not self.hosts:
            return
        self.is_away = False
        self._settle()
        map = now(self.shards.map())
        newest = max(host.record.generation for host in self.hosts)
        living = {host.record.id for host in self.hosts}
        joined = sorted((each.joined, each.name, each.id) for each in map.hosts if each.id in living)
        last = {name: id for _, name, id in joined}  # of processes with one name
        expected = {host.record.id for host in self.hosts if host.record.generation == newest} & {
            *last.values()
        }
        counts = Counter(map.held_by)
        assert set(counts) <= expected and sum(counts.values()) == SHARDS, (map, expected)
        spread = [counts[id] for id in expected]
        assert max(spread) - min(spread) <= 1, spread
        for host in self.hosts:
            assert {*map.shards_of(host.record.id)} == host.epochs.keys(), "a host believes something else"
        self.moves = 0  # counted, because a shard may go and come back in one round
        self._settle(rounds=3)
        assert self.moves == 0, "shards move for ever"

    def _settle(self, rounds: int = 30) -> None:
        for _ in range(rounds):
            self.time += RENEW_EVERY_S
            for host in self.hosts:
                self._tick(host)

    def _tick(self, host: Host) -> None:
        if self.is_away:
            return
        id = host.record.id
        map = now(self.shards.renew(host.record))
        self.renewed[id] = self.time
        for shard in host.epochs.keys() - {*map.shards_of(id)}:
            del host.epochs[shard]
        for shard in {*map.shards_of(id)} - host.epochs.keys():
            host.epochs[shard] = now(self.journal.open(shard))
        wanted = claims(map, id)
        for claim in wanted:
            self._check(map, claim, host)
        for shard in now(self.shards.claim(wanted, id)):
            self.moves += 1
            host.epochs[shard] = now(self.journal.open(shard))
        move = handover(map, id, host.epochs)
        if move is not None and move.shard in host.epochs:
            receiver = next((each for each in self.hosts if each.record.id == move.to.id), None)
            self.moves += 1
            del host.epochs[move.shard]
            if receiver is not None:  # one that died says nothing, and the shard comes back
                for shard in now(self.shards.claim([ShardClaim(move.shard, id)], move.to.id)):
                    receiver.epochs[shard] = now(self.journal.open(shard))

    def _check(self, map: ShardMap, claim: ShardClaim, host: Host) -> None:
        """Whether a host may take this shard from the one that has it."""
        other = map.host(claim.of)
        if other is None or other.name == host.record.name:
            return
        if other.generation < host.record.generation:
            assert self.time - self.renewed[other.id] >= LEASE_S * (1 - SILENT_AT) - 1e-6, (
                "taken from one that gives"
            )
            return
        assert self.time - self.renewed[other.id] >= LEASE_S, "taken from a host that has renewed"
        assert self.time - self.back_at >= LEASE_S, "taken right after the store was away"


TestMovingShards = MovingShards.TestCase
TestMovingShards.settings = settings(
    max_examples=as_often_as(150),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def record(id: str, name: str = "", joined: int = 0, **more: Any) -> HostRecord:
    return HostRecord(id=id, name=name or id, joined=joined or ord(id), **more)


def test_a_host_alone_claims_everything() -> None:
    map = ShardMap(("",) * 4, (record("a"),))
    assert sorted(claim.shard for claim in claims(map, "a")) == [0, 1, 2, 3]


def test_each_of_two_hosts_claims_half_of_what_nobody_has_and_not_the_same() -> None:
    map = ShardMap(("",) * 4, (record("a"), record("b")))
    a, b = ({claim.shard for claim in claims(map, id)} for id in "ab")
    assert (len(a), len(b), a & b) == (2, 2, set())


def test_a_host_that_has_its_share_leaves_the_rest_to_the_others() -> None:
    map = ShardMap(("a", "a", "", ""), (record("a"), record("b")))
    assert claims(map, "a") == [] and fair_share(map) == 2


def test_a_replaced_process_neither_claims_nor_keeps() -> None:
    old, new = record("a", "n", 1), record("b", "n", 2)
    map = ShardMap(("a", "a", ""), (old, new))
    assert claims(map, "a") == []
    assert {claim.shard for claim in claims(map, "b")} == {0, 1, 2}
    move = handover(map, "a", {0, 1})
    assert move is not None and move.to == new


@pytest.mark.parametrize(
    ("expires_in_s", "is_steady", "claimed"), [(1, True, 0), (0, False, 0), (0, True, 2)]
)
def test_what_a_silent_host_has_is_claimed_once_its_lease_is_over_and_the_store_was_there(
    expires_in_s: float, is_steady: bool, claimed: int
) -> None:
    map = ShardMap(("a", "a"), (record("a", expires_in_s=expires_in_s), record("b")), is_steady)
    assert len(claims(map, "b")) == claimed


def test_shards_that_differ_by_one_stay_where_they_are() -> None:
    map = ShardMap(("a", "a", "b"), (record("a"), record("b")))
    assert handover(map, "a", {0, 1}) is handover(map, "b", {2}) is None


def test_an_older_deployment_gives_all_to_the_newest_and_claims_nothing() -> None:
    map = ShardMap(("a", ""), (record("a", generation=1), record("b", generation=2)))
    assert claims(map, "a") == []
    move = handover(map, "a", {0})
    assert move is not None and (move.shard, move.to.id) == (0, "b")
    assert handover(ShardMap(("b", "b"), map.hosts), "b", {0, 1}) is None


@pytest.mark.parametrize(
    ("expires_in_s", "claimed"), [(LEASE_S * SILENT_AT + 1, 0), (LEASE_S * SILENT_AT, 1)]
)
def test_a_newer_deployment_takes_only_from_an_older_host_that_was_silent_for_a_while(
    expires_in_s: float, claimed: int
) -> None:
    hosts = record("a", generation=1, expires_in_s=expires_in_s), record("b", generation=2)
    assert len(claims(ShardMap(("a",), hosts), "b")) == claimed


def test_a_host_with_two_more_than_another_gives_one_away() -> None:
    map = ShardMap(("a", "a", "a", "b"), (record("a"), record("b")))
    move = handover(map, "a", {0, 1, 2})
    assert move is not None and move.to.id == "b" and handover(map, "b", {3}) is None


def test_a_host_that_joins_many_is_given_its_share_and_no_more() -> None:
    """Each of the others acts on the same map, as if it were alone."""
    hosts = tuple(record(id) for id in "abcdefgh")
    map = ShardMap(("a", *"abcdefg" * 9), hosts)
    given = 0
    for giver in "abcdefg":
        its_map = map
        while move := handover(its_map, giver, its_map.shards_of(giver)):
            its_map, given = after(its_map, move), given + 1
    assert 1 <= given <= fair_share(map)


def test_a_host_that_took_nothing_is_left_out_and_a_shard_that_is_not_open_is_kept() -> None:
    map = ShardMap(("a",) * 6, (record("a"), record("b"), record("c")))
    move = handover(map, "a", {4}, silent={"b"})
    assert move is not None and (move.shard, move.to.id) == (4, "c")
    assert handover(map, "a", {4}, silent={"b", "c"}) is handover(map, "a", set()) is None


@pytest.mark.parametrize(
    ("address", "expires_in_s", "claimed"),
    [
        ("here", LEASE_S, 2),
        ("elsewhere", LEASE_S * SILENT_AT + 0.1, 0),
        ("elsewhere", LEASE_S * SILENT_AT, 2),
    ],
)
def test_a_successor_on_another_machine_waits_until_its_predecessor_is_silent(
    address: str, expires_in_s: float, claimed: int
) -> None:
    """Ray may think that a machine is gone which is cut off, and whose process answers reads."""
    old = record("a", "n", 1, expires_in_s=expires_in_s, address=address)
    map = ShardMap(("a", "a"), (old, record("b", "n", 2, address="here")))
    assert len(claims(map, "b")) == claimed


def test_a_host_that_leaves_with_nobody_else_there_keeps_what_it_has() -> None:
    map = ShardMap(("a", "a"), (record("a", is_leaving=True),))
    assert claims(map, "a") == [] and handover(map, "a", {0, 1}) is None
