"""Who has which shard, in memory: for tests, and as the simplest statement of what the port means."""

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mesh.journal.shards import LEASE_S, STEADY_GAP, HostRecord, ShardClaim, ShardMap


class MemoryShards:
    """`Shards` that live as long as the object, for any number of hosts. ``clock``: in seconds."""

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = LEASE_S
        self._clock = clock
        self._held_by = [""] * count
        self._hosts: dict[str, HostRecord] = {}
        self._renewed_at: dict[str, float] = {}
        self._steady_since: dict[str, float] = {}
        self._generation = (0, "")
        self._joined = 0

    async def renew(self, host: HostRecord) -> ShardMap:
        now, last = self._clock(), self._renewed_at.get(host.id)
        # A clock that goes back: what was done in the future counts as done now.
        self._renewed_at = {id: min(now, then) for id, then in self._renewed_at.items()}
        if last is None or not last <= now <= last + self.lease_s * STEADY_GAP:
            self._steady_since[host.id] = now
        self._steady_since[host.id] = min(now, self._steady_since[host.id])
        known = self._hosts.get(host.id)
        if known is None:
            self._joined += 1
        self._hosts[host.id] = replace(host, joined=known.joined if known else self._joined)
        self._renewed_at[host.id] = now
        self._forget_the_gone()
        return self._map(is_steady=now - self._steady_since[host.id] >= self.lease_s)

    async def map(self) -> ShardMap:
        return self._map(is_steady=False)

    async def claim(self, claims: Sequence[ShardClaim], host: str) -> list[int]:
        return claimed(self._held_by, claims, host) if host in self._hosts else []

    async def release(self, host: str) -> None:
        self._hosts.pop(host, None)
        self._held_by = ["" if id == host else id for id in self._held_by]

    async def begin_generation(self, digest: str) -> int:
        self._generation = self._generation[0] + 1, digest
        return self._generation[0]

    async def newest_generation(self) -> tuple[int, str]:
        return self._generation

    async def close(self) -> None:
        return None

    def _forget_the_gone(self) -> None:
        now = self._clock()
        for id in self._hosts.keys() - set(self._held_by):
            if now - self._renewed_at[id] > self.lease_s:
                del self._hosts[id]

    def _map(self, *, is_steady: bool) -> ShardMap:
        now = self._clock()
        hosts = (
            replace(host, expires_in_s=self._renewed_at[id] + self.lease_s - now)
            for id, host in self._hosts.items()
        )
        return ShardMap(tuple(self._held_by), tuple(hosts), is_steady)


def claimed(held_by: list[str], claims: Sequence[ShardClaim], host: str) -> list[int]:
    """Gives shards to a host in a list of the hosts of all shards. Returns those that it has then."""
    has = [claim.shard for claim in claims if held_by[claim.shard] in (claim.of, host)]
    for shard in has:
        held_by[shard] = host
    return has
