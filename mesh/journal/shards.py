"""Which keeper host has which shard: the port, and the rules by which shards move.

A host renews its lease every `RENEW_EVERY_S` seconds, and learns the map of all shards from that. It claims
shards of hosts that are gone, up to its fair share, and gives one away when another host has too few:

    renew ──► map ──► claims: of nobody, of a host whose lease is over, of its own predecessor
                 └──► handover: to a host that has fewer, while both are there

Safety does not rest on any of this. Two hosts that both believe in a shard are kept apart by its epoch
(`mesh.journal.port`): the one that opened it last can append, and the other finds that out. A lease only
says who is asked, and when to stop waiting for one that is silent.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from math import ceil
from operator import attrgetter
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

LEASE_S = 10.0
RENEW_EVERY_S = 2.0
ANSWERS_FOR = 0.7
"""The part of its lease for which a host answers after it has renewed, by its own clock. It is over before
anybody else claims its shards, as long as clocks run equally fast."""
SILENT_AT = 0.2
"""The part of its lease that is left when a host answers nobody any more for certain: of one that would give
its shards away if it lived, they are claimed from then on."""
STEADY_GAP = 0.5
"""The part of a lease for which a host may fail to renew before it must wait a whole lease with claims of
shards that others have: the store was away, so the others could not renew either."""


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A keeper host, as the store shows it.

    ``id`` is that of the process, ``name`` what it has in common with the process that it replaces: of those
    with one name, only the last that joined counts. ``generation`` is that of the deployment that started
    it. ``address``, ``port`` and ``secret`` are where it takes calls. ``is_leaving``: it wants to give its
    shards away.

    The store says the rest. ``joined``: a number that grows with each host. ``expires_in_s``: what is left of
    its lease; not above 0 if that is over.
    """

    id: str
    name: str
    generation: int = 0
    address: str = ""
    port: int = 0
    secret: bytes = b""
    is_leaving: bool = False
    joined: int = 0
    expires_in_s: float = LEASE_S

    @property
    def is_live(self) -> bool:
        """Whether its lease is not over."""
        return self.expires_in_s > 0

    def __repr__(self) -> str:
        return f"HostRecord({self.name} {self.id})"


class ShardMap(msgspec.Struct, frozen=True):
    """All shards and hosts. ``held_by`` has the id of the host of each shard, by number; empty if nobody has
    it. ``is_steady``: the store has answered whoever asked for a whole lease. ``timeline`` changes when a
    database fails over to another one, or is set back; empty where neither is seen."""

    held_by: tuple[str, ...]
    hosts: tuple[HostRecord, ...]
    is_steady: bool = True
    timeline: str = ""

    def host(self, id: str) -> HostRecord | None:
        """The host with this id, if the store knows it."""
        return next((each for each in self.hosts if each.id == id), None)

    def host_of(self, shard: int) -> HostRecord | None:
        """The host that has a shard, live or not; None if nobody has it."""
        return self.host(self.held_by[shard])

    def shards_of(self, host: str) -> list[int]:
        """The shards that a host has."""
        return [shard for shard, id in enumerate(self.held_by) if id == host]


class ShardClaim(NamedTuple):
    """A shard to claim, and who has it now."""

    shard: int
    of: str


class Handover(NamedTuple):
    """A shard to give away, and to whom."""

    shard: int
    to: HostRecord


class AcknowledgedEnd(NamedTuple):
    """The number of the last event of a conversation that the store has acknowledged, and when that began in
    this mesh, as its events write times."""

    seq: int
    began_at: str


class GivenShard(msgspec.Struct, frozen=True):
    """A shard that the host ``giver`` gives away. ``tokens`` are the bearer tokens of its open turns, and
    ``ends`` what is known of its conversations, by conversation."""

    shard: int
    giver: str
    tokens: dict[str, str]
    ends: dict[str, AcknowledgedEnd] = {}

    def __repr__(self) -> str:
        return f"GivenShard({self.shard} of {self.giver}, {len(self.tokens)} tokens)"


class Shards(Protocol):
    """Where hosts and shards are written down, those of one agent.

    Promises: of two claims of one shard at once, one succeeds. Does not promise that a host which has a shard
    lives, nor that it knows of a shard that it has.
    """

    @property
    def lease_s(self) -> float:
        """For how long a host has its shards without renewing; infinite where its end is noticed at once."""
        ...

    async def renew(self, host: HostRecord) -> ShardMap:
        """Writes the host down, or that it still lives. Raises `JournalError`."""
        ...

    async def map(self) -> ShardMap:
        """The map, for whoever is no host. Raises `JournalError`."""
        ...

    async def claim(self, claims: Sequence[ShardClaim], host: str) -> list[int]:
        """Gives shards to a host, each unless somebody else has got it since. Returns those that it has then;
        none if the host was removed. Raises `JournalError`."""
        ...

    async def release(self, host: str) -> None:
        """Removes a host; nobody has its shards any more. Raises `JournalError`."""
        ...

    async def begin_generation(self, digest: str) -> int:
        """The number of a new deployment of the version ``digest``, greater than all before. Raises
        `JournalError`."""
        ...

    async def newest_generation(self) -> tuple[int, str]:
        """The number and the digest of the newest deployment; 0 if there was none. Raises `JournalError`."""
        ...

    async def close(self) -> None:
        """Ends what runs in the background. Hosts of this process count as dead, if their end is noticed."""
        ...


def claims(map: ShardMap, id: str) -> list[ShardClaim]:
    """The shards that a host should claim now, up to its fair share: what its predecessor had first."""
    me = map.host(id)
    if me is None or me not in _entitled(map):
        return []
    has, count = map.shards_of(id), len(map.held_by)
    free = [ShardClaim(shard, of) for shard, of in enumerate(map.held_by) if _is_free(map, of, me)]
    # From a place of its own on, so that hosts which claim at the same time seldom meet.
    start = me.joined * count // 2
    free.sort(key=lambda claim: (not _precedes(map, claim.of, me), (claim.shard - start) % count))
    return free[: max(0, fair_share(map) - len(has))]


def handover(map: ShardMap, id: str, open: Collection[int], silent: Collection[str] = ()) -> Handover | None:
    """The shard that a host should give away now, and to whom; None while shards are spread evenly. ``open``
    are those that it can give, ``silent`` the ids of hosts that did not take what they were given."""
    entitled = _entitled(map)
    has = [shard for shard in map.shards_of(id) if shard in open]
    others = [each for each in entitled if each.id != id and each.id not in silent]
    if not has or not others:
        return None
    counts = Counter(map.held_by)
    least = min(others, key=lambda each: (counts[each.id], each.id))
    if map.host(id) not in entitled:
        return Handover(has[-1], least)
    # Two apart at least: otherwise it would come back with the next map. And of many hosts which all have
    # their share only the fullest gives: together they would give more than they should.
    fullest = max(entitled, key=lambda each: (counts[each.id], each.id))
    is_too_full = counts[id] > fair_share(map) or fullest.id == id
    return Handover(has[-1], least) if is_too_full and counts[id] - counts[least.id] >= 2 else None


def after(map: ShardMap, move: Handover) -> ShardMap:
    """The map when a shard was given away."""
    held_by = (move.to.id if shard == move.shard else id for shard, id in enumerate(map.held_by))
    return replace(map, held_by=tuple(held_by))


def fair_share(map: ShardMap) -> int:
    """How many shards a host of the newest generation has at most when all have equally many."""
    return ceil(len(map.held_by) / max(1, len(_entitled(map))))


def _entitled(map: ShardMap) -> list[HostRecord]:
    """The hosts to which the shards belong: those of the newest generation that live, do not leave, and have
    not been replaced. An older generation is there for when that has gone."""
    live = sorted((each for each in map.hosts if each.is_live), key=attrgetter("joined"))
    last = {each.name: each for each in live}
    present = [each for each in last.values() if not each.is_leaving]
    newest = max((each.generation for each in present), default=0)
    return [each for each in present if each.generation == newest]


def _is_free(map: ShardMap, id: str, me: HostRecord) -> bool:
    """Whether what the host ``id`` has can be claimed."""
    host = map.host(id)
    if host is None:
        return True
    precedes = _precedes(map, id, me)
    if precedes and host.address == me.address:  # Ray starts a process again where it saw the other one die
        return True
    if precedes or host.generation < me.generation:
        return host.expires_in_s <= LEASE_S * SILENT_AT
    return not host.is_live and map.is_steady


def _precedes(map: ShardMap, id: str, me: HostRecord) -> bool:
    """Whether ``me`` has replaced the host ``id``."""
    host = map.host(id)
    return host is not None and host.name == me.name and host.joined < me.joined
