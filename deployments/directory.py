"""Which keeper host has a shard, for whoever calls keepers: the store says it, and it is remembered.

    stub of a shard ──► directory ──► channel to the host that has the shard ──► KeeperActor

A host that says that it has not got a shard, or whose connection breaks, makes the directory ask the store
again; the call is then repeated as its terms say (`deployments.rpc`). A host that is silent is found out by
its lease: while calls wait for longer than usual, the directory asks the store now and then, and gives up the
connections to hosts that are gone. No call needs Ray's control store.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable

from deployments.channel import Address, Channel, ConnectionLost
from deployments.services import KEEPER, KeeperService
from deployments.tls import client_tls
from mesh.core.errors import JournalError, Unavailable
from mesh.journal.shards import RENEW_EVERY_S, HostRecord, ShardMap, Shards
from mesh.metrics.meters import Series
from mesh.runtime.logs import fields

_ASKS_EVERY_S = 0.2
"""At most this often, however many calls are to be repeated."""
_RETRY_AFTER_S = 5
_log = logging.getLogger("mesh.directory")


class KeeperDirectory:
    """The keepers of an agent's shards. Used by one event loop."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._map: ShardMap | None = None
        self._asking: asyncio.Task[ShardMap] | None = None
        self._asked_at = float("-inf")
        self._channels: dict[str, Channel] = {}
        self._calls: dict[int, float] = {}
        self._numbers = 0
        self._watching: asyncio.Task[None] | None = None

    def stubs(self, shards: int) -> list[KeeperService]:
        """The keeper of each of so many shards, wherever it is."""
        return [
            KEEPER.stub(_CallsOfShard(shard, self), f"keeper of shard {shard}") for shard in range(shards)
        ]

    async def host_of(self, shard: int) -> HostRecord:
        """The host that has a shard. Raises `ConnectionLost` if nobody has it, and `Unavailable` if the store
        does not answer."""
        map = self._map or await self._ask()
        host = map.host_of(shard)
        if host is None:
            self._map = None
            raise ConnectionLost(f"no keeper has shard {shard} now")
        return host

    async def alive(self, host: HostRecord) -> None:
        """Returns if a host answers. Raises `Unavailable`."""
        await self._stub(host).alive()

    async def metrics(self, host: HostRecord) -> list[Series]:
        """What a host has measured. Raises `MeshError`."""
        return await self._stub(host).metrics()

    def _stub(self, host: HostRecord) -> KeeperService:
        return KEEPER.stub(self.channel(host), f"keeper {host.name}")

    async def newest(self) -> ShardMap:
        """The map as it is now. Raises `Unavailable` if the store does not answer."""
        return await self._ask()

    def outdated(self, shard: int, host: HostRecord) -> None:
        """Notes that a host did not answer for a shard."""
        if self._map is not None and self._map.host_of(shard) == host:
            self._map = None

    def channel(self, host: HostRecord) -> Channel:
        """The channel to a host."""
        if host.id not in self._channels:
            self._channels[host.id] = channel_to(host)
        return self._channels[host.id]

    def close(self) -> None:
        """Closes the channels. Calls on them fail."""
        for id in [*self._channels]:
            self._channels.pop(id).close()

    async def timed(self, call: Awaitable[bytes]) -> bytes:
        """Waits for a call, and sees to it that its host is not silent meanwhile."""
        self._numbers = number = self._numbers + 1
        self._calls[number] = time.monotonic()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            return await call
        finally:
            del self._calls[number]

    async def _ask(self) -> ShardMap:
        # All who ask at the same time share one answer.
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._asked())
        return await asyncio.shield(self._asking)

    async def _asked(self) -> ShardMap:
        await asyncio.sleep(self._asked_at + _ASKS_EVERY_S - time.monotonic())
        self._asked_at = time.monotonic()
        try:
            map = self._map = await self._shards.map()
        except JournalError as problem:
            raise Unavailable(f"nobody knows which keeper to ask: {problem}", _RETRY_AFTER_S) from None
        live = {host.id for host in map.hosts if host.is_live}
        for id in self._channels.keys() - live:
            self._channels.pop(id).close()
        return map

    async def _watch(self) -> None:
        """Ends when no call waits any more."""
        while self._calls:
            await asyncio.sleep(RENEW_EVERY_S)
            if any(time.monotonic() - begun > RENEW_EVERY_S for begun in self._calls.values()):
                try:
                    await self._ask()
                except Unavailable as problem:  # the calls wait on: who answers them may be there
                    _log.warning("event=directory_unknown %s", fields(message=problem))


class _CallsOfShard:
    """`Calls` to the keeper of one shard."""

    def __init__(self, shard: int, directory: KeeperDirectory) -> None:
        self._shard = shard
        self._directory = directory

    async def call(
        self, method: str, content: bytes = b"", *, cancels: bool = False, end_within_s: float | None = None
    ) -> bytes:
        directory = self._directory
        host = await directory.host_of(self._shard)
        channel = directory.channel(host)
        try:
            return await directory.timed(
                channel.call(method, content, cancels=cancels, end_within_s=end_within_s)
            )
        except ConnectionLost:
            directory.outdated(self._shard, host)
            raise


def channel_to(host: HostRecord) -> Channel:
    """A channel to a host that is where its record says."""

    async def locate() -> Address:
        return Address(host.address, host.port, host.secret)

    return Channel(locate, client_tls())
