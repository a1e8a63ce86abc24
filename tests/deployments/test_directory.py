"""Callers find the keeper host of a shard, and the next one when that is gone, silent or has it no more."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from deployments import directory
from deployments.channel import Endpoint
from deployments.directory import KeeperDirectory
from deployments.services import KEEPER, KeeperService
from mesh.core.budget import OnLimit, Remaining, Scope
from mesh.core.errors import NotHeld, StoreAway, Unavailable
from mesh.journal.shards import HostRecord, ShardClaim, ShardMap
from mesh.journal.shards_in_memory import MemoryShards
from tests.worlds.mesh import until

SHARDS = 2


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Counted(MemoryShards):
    """``asked`` counts the maps; ``is_away``: the store does not answer."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(SHARDS, clock)
        self.asked = 0
        self.is_away = False

    async def map(self) -> ShardMap:
        self.asked += 1
        if self.is_away:
            raise StoreAway("the store is away", was_sent=True)
        return await super().map()


class Host:
    """A host that says its number, unless it is silent or has lost its shards."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_silent = False
        self.has_shards = True
        self.begun = asyncio.Event()
        self.endpoint = Endpoint(KEEPER.methods_of(cast(KeeperService, self)))
        self.record = HostRecord(id=f"host {number}", name=f"host {number}")

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        self.begun.set()
        if self.is_silent:
            await asyncio.Event().wait()
        if not self.has_shards:
            raise NotHeld("it is elsewhere")
        return Remaining(left={"max_llm_calls": self.number})

    def __getattr__(self, name: str) -> Any:
        return self.remaining  # nothing else is called


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.shards = Counted(self.clock)
        self.directory = KeeperDirectory(self.shards)
        self.hosts: list[Host] = []

    async def add(self) -> Host:
        """A host that listens and has renewed."""
        self.hosts.append(host := Host(len(self.hosts)))
        address = await host.endpoint.listen("127.0.0.1")
        host.record = replace(host.record, address=address.host, port=address.port, secret=address.secret)
        await self.shards.renew(host.record)
        return host

    async def give(self, host: Host, of: str = "") -> None:
        claims = [ShardClaim(shard, of) for shard in range(SHARDS)]
        assert await self.shards.claim(claims, host.record.id) == [*range(SHARDS)]

    async def ask(self, shard: int = 0) -> float:
        """The number of the host that answers."""
        async with asyncio.timeout(20):
            reply = await self.directory.stubs(SHARDS)[shard].remaining("c", (), "ask")
        return reply.left["max_llm_calls"]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(directory, "RENEW_EVERY_S", 0.05)
    found = World()
    yield found
    for host in found.hosts:
        found.directory.channel(host.record).close()
        host.endpoint.close()


async def test_the_store_is_asked_once_for_all_shards(world: World) -> None:
    await world.give(await world.add())
    assert [await world.ask(shard % SHARDS) for shard in range(20)] == [0] * 20
    assert world.shards.asked == 1


async def test_a_host_that_has_lost_the_shard_is_followed_by_the_one_that_has_it(world: World) -> None:
    first, second = await world.add(), await world.add()
    await world.give(first)
    assert await world.ask() == 0
    await world.give(second, first.record.id)
    first.has_shards = False
    assert [await world.ask(), await world.ask(1)] == [1, 1]
    assert world.shards.asked == 2


async def test_a_call_that_a_silent_host_has_is_made_again_at_the_one_that_takes_over(world: World) -> None:
    first, second = await world.add(), await world.add()
    await world.give(first)
    first.is_silent = True
    asked = asyncio.create_task(world.ask())
    await first.begun.wait()
    world.clock.now += 11  # the lease of the first one is over
    await world.shards.renew(second.record)
    await world.give(second, first.record.id)
    assert await asked == 1


async def test_a_call_of_a_host_that_lives_may_take_long(world: World) -> None:
    host = await world.add()
    await world.give(host)
    host.is_silent = True
    asked = asyncio.create_task(world.ask())
    await until(lambda: _true(world.shards.asked > 3))
    assert not asked.done()
    asked.cancel()


async def test_a_shard_that_nobody_has_is_waited_for(world: World) -> None:
    host = await world.add()
    asked = asyncio.create_task(world.ask())
    await until(lambda: _true(world.shards.asked > 1))
    await world.give(host)
    assert await asked == 0


async def test_a_store_that_does_not_answer_is_said_at_once_and_only_where_it_is_needed(world: World) -> None:
    await world.give(await world.add())
    world.shards.is_away = True
    with pytest.raises(Unavailable, match="nobody knows which keeper to ask: the store is away"):
        await world.ask()
    world.shards.is_away = False
    assert await world.ask() == 0
    world.shards.is_away = True
    assert await world.ask() == 0


async def test_the_address_of_a_host_shows_no_secret(world: World) -> None:
    host = await world.add()
    assert host.record.secret not in repr(host.record).encode()
    assert repr(host.record.secret) not in repr(await world.shards.map())


async def _true(value: bool) -> bool:
    return value
