"""Keeper hosts of one store in this process, and what a gateway is to them."""

import asyncio
from typing import Any

from mesh.config.model import parse
from mesh.core.approvals import Decision
from mesh.core.errors import NotHeld, Unavailable
from mesh.core.ids import new_id, shard_of
from mesh.journal.shards import GivenShard, HostRecord
from mesh.keeper.keeper import Keeper
from mesh.keeper.recorder import KeeperRecorder
from mesh.keeper.replies import Reply
from mesh.keeper.requests import Caller, Create, Decide
from mesh.local.keeper_host import KeeperHost
from mesh.push.sender import WebhookSender
from mesh.store.port import Store
from mesh.tree.build import reach
from mesh.tree.local import LocalTree
from tests.worlds.mesh import Ledger, ScriptedLlm, as_rest, says
from tests.worlds.stores import SHARDS

CONFIG = "name: test\nprompt: Be kind.\nllm: {model: scripted}\n"


class Hosts:
    """Hosts of one store in this process, and what a gateway is to them: it asks whoever has the shard."""

    def __init__(self, store: Store, shards: int = SHARDS) -> None:
        self._shards = shards
        self.config = parse(CONFIG, "test.yaml", {})
        self.store = store
        self.ledger = Ledger()
        self.llm = ScriptedLlm(says("done"))
        self.hosts: dict[str, KeeperHost] = {}
        self.sender = WebhookSender(self.config.card.push_hosts)
        self.trees: list[LocalTree] = []
        self.gives = 0
        self.stuck: asyncio.Event | None = None
        """No host receives anything, and says so when the event is set."""

    async def add(self, name: str, generation: int = 1) -> KeeperHost:
        """Starts a host."""
        record = HostRecord(id=f"{name}-{new_id()[:6]}", name=name, generation=generation)

        def keeper_of(owner: str) -> Keeper:
            return host.keeper(shard_of(owner, self._shards))

        tree = LocalTree(
            self.config, [self.ledger.session()], lambda _: self.llm, KeeperRecorder(keeper_of), reach
        )
        await tree.start()
        self.trees.append(tree)
        host = KeeperHost(self.config, self.store, tree, self.sender, record, self)
        self.hosts[record.id] = host
        await host.start()
        return host

    async def answers(self, host: HostRecord) -> None:
        if host.id not in self.hosts:
            raise Unavailable("nobody answers there")

    async def give(self, to: HostRecord, given: GivenShard) -> bool:
        self.gives += 1
        if self.stuck is not None:
            await self.stuck.wait()
            raise Unavailable("it does not answer any more")
        return await self.hosts[to.id].receive(given)

    def die(self, host: KeeperHost) -> None:
        """Its process is gone: it renews no more, and nobody reaches it."""
        del self.hosts[host._me.id]
        assert host._renewing is not None
        host._renewing.cancel()

    async def ask(self, owner: str, request: Any) -> tuple[int, dict[str, Any]]:
        """What a client sees, who waits while the shard moves."""
        shard = shard_of(owner, self._shards)
        async with asyncio.timeout(20):
            while True:
                host = self.hosts.get((await self.store.shards.map()).held_by[shard])
                try:
                    if host is not None:
                        reply: Reply = await host.call(shard, lambda opened: opened.keeper.handle(request))
                        return as_rest(request, reply)
                except NotHeld:
                    pass
                await asyncio.sleep(0.005)

    async def create(self, message: str | None = None, **caller: str) -> tuple[str, dict[str, Any]]:
        id = new_id()
        _, body = await self.ask(id, Create(id, Caller(session_id="s", **caller), message))
        return id, body

    async def spread(self) -> list[int]:
        """How many shards each host of this process has."""
        held_by = (await self.store.shards.map()).held_by
        return [held_by.count(id) for id in self.hosts]

    async def close(self) -> None:
        for host in self.hosts.values():
            await host.close()
        for tree in self.trees:
            await tree.close()
        await self.sender.close()


def approving(uuid: str) -> Decide:
    return Decide(caller=Caller(session_id="s"), decisions=(Decision(uuid, "approve"),))
