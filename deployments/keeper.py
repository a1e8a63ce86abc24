"""A keeper host as an actor: the keepers of some of the shards, in one process."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from deployments import cluster
from deployments.actor import Actor
from deployments.blueprint import Blueprint
from deployments.channel import Address
from deployments.directory import channel_to
from deployments.ray_metrics import RayMetrics
from deployments.remote import RemoteTree
from deployments.services import KEEPER, KeeperService
from mesh.core.budget import CallRequest, OnLimit, Remaining, Scope
from mesh.core.events import AnyEvent
from mesh.core.ids import shard_of
from mesh.core.verdict import Verdict
from mesh.journal.shards import GivenShard, HostRecord
from mesh.keeper.replies import FollowReply, Reply, WatchReply
from mesh.keeper.requests import Follow, FollowAgents, Request, Watch
from mesh.local.keeper_host import LEAVE_WITHIN_S, KeeperHost, OpenShard, kept_when_there
from mesh.metrics.meters import Meters, Series
from mesh.metrics.table import OPEN_TURNS
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.push.sender import WebhookSender
from mesh.runtime.logs import fields
from mesh.store.chosen import store_of
from mesh.tree.turn import (
    Ack,
    Activation,
    ReserveReply,
    Restarted,
    SlotReply,
    SlotRequest,
    StartReply,
)

T = TypeVar("T")
_log = logging.getLogger("mesh.keeper_actor")
_SHOWN_EVERY_S = 10.0
"""How often Ray is told the gauges: as often as it collects them."""


class KeeperActor(Actor):
    """A host of shards of the conversations; a `KeeperService`."""

    async def __init__(self, blueprint: Blueprint, number: int) -> None:  # type: ignore[misc]  # Ray awaits it
        await self._begin()
        self._blueprint = blueprint
        config = blueprint.config()
        self._shards = blueprint.shards
        self._store = store_of(config, blueprint.data_dir)
        # Before the journal is open: no conversation may begin on a version that cannot be read again.
        await kept_when_there(self._store.versions, blueprint.digest, blueprint.source, blueprint.files)
        self._sender = WebhookSender(config.card.push_hosts)
        tree = RemoteTree(blueprint, self._store.versions)
        self._serve(KEEPER, self, blueprint)
        me = _record(blueprint, number, await self.address())
        self._measured = RayMetrics(config.name)
        self._keepers = KeeperHost(
            config, self._store, tree, self._sender, me, _ReachedHosts(), meters=Meters(self._measured)
        )
        self._finding = asyncio.create_task(tree.find())
        await self._keepers.start()
        self._showing = asyncio.create_task(self._show_gauges())

    async def ask(self, shard: int, request: Request) -> Reply:
        return await self._keepers.call(shard, lambda opened: opened.keeper.handle(request))

    async def watch(self, request: Watch) -> WatchReply:
        return await self._of(request.id, lambda opened: opened.keeper.watch(request))

    async def follow(self, shard: int, request: Follow | FollowAgents) -> FollowReply:
        return await self._keepers.call(shard, lambda opened: opened.keeper.follow(request))

    async def metrics(self) -> list[Series]:
        return await self._keepers.metrics()

    async def turns(self) -> int:
        """How many turns it is driving."""
        return self._keepers.gauges()[OPEN_TURNS]

    async def alive(self) -> None:
        """See `KeeperService`."""

    async def receive(self, given: GivenShard) -> bool:
        return await self._keepers.receive(given)

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        id = activation.conversation_id
        return await self._of(id, lambda opened: opened.recorder.append(activation, events))

    async def reserve(
        self, activation: Activation, events: Sequence[AnyEvent], request: CallRequest
    ) -> ReserveReply:
        id = activation.conversation_id
        return await self._of(id, lambda opened: opened.recorder.reserve(activation, events, request))

    async def start(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        id = activation.conversation_id
        return await self._of(id, lambda opened: opened.recorder.start(activation, events, scopes, asker))

    async def slots(self, activation: Activation, request: SlotRequest) -> SlotReply | None:
        id = activation.conversation_id
        return await self._of(id, lambda opened: opened.recorder.slots(activation, request))

    async def restart(self, lost: Activation) -> Restarted:
        return await self._of(lost.conversation_id, lambda opened: opened.recorder.restart(lost))

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        return await self._of(
            conversation_id, lambda opened: opened.recorder.remaining(conversation_id, scopes, on_limit)
        )

    async def grants(self, conversation_id: str, agent: str) -> Sequence[Grant]:
        return await self._of(conversation_id, lambda opened: opened.recorder.grants(conversation_id, agent))

    async def denial(self, conversation_id: str, call: PolicyCall) -> Verdict | None:
        return await self._of(conversation_id, lambda opened: opened.recorder.denial(conversation_id, call))

    async def blueprint(self) -> Blueprint:
        """What it was made from."""
        return self._blueprint

    async def machine(self) -> str:
        """The id that Ray gives its machine."""
        return cluster.this_machine()

    async def ready(self) -> None:
        """Returns once its share of the shards is open."""

    async def leave(self, within_s: float = LEAVE_WITHIN_S) -> None:
        """Gives the shards to other keepers, because the machine is about to go, or there are more keepers
        than are needed, which leaves more time."""
        self._finding.cancel()
        self._showing.cancel()
        await self._keepers.leave(within_s=within_s)
        self._measured.show(await self._keepers.metrics())

    async def close(self) -> None:
        """Gives the shards to another deployment, if there is one, and writes what is only derived."""
        self._finding.cancel()
        self._showing.cancel()
        await self._keepers.leave(whole_generation=True)
        await self._sender.close()
        await self._store.close()

    async def _show_gauges(self) -> None:
        while True:
            try:
                self._measured.show(await self._keepers.metrics())
            except Exception as problem:  # noqa: BLE001 - a defect; the next time may be without
                _log.warning("event=not_measured %s", fields(message=problem))
            await asyncio.sleep(_SHOWN_EVERY_S)

    async def _of(self, owner: str, work: Callable[[OpenShard], Awaitable[T]]) -> T:
        """Has the keeper of a conversation do something."""
        return await self._keepers.call(shard_of(owner, self._shards), work)


def _record(blueprint: Blueprint, number: int, address: Address) -> HostRecord:
    """The host, as others see it. An actor has one name for all its processes."""
    return HostRecord(
        id=secrets.token_hex(8),
        name=f"{number} of deployment {blueprint.generation}",
        generation=blueprint.generation,
        address=address.host,
        port=address.port,
        secret=address.secret,
    )


class _ReachedHosts:
    """`OtherHosts` that are reached over the network. They are called seldom: each time on a channel of its
    own."""

    async def answers(self, host: HostRecord) -> None:
        async with _reached(host) as keeper:
            await keeper.alive()

    async def give(self, to: HostRecord, given: GivenShard) -> bool:
        async with _reached(to) as keeper:
            return await keeper.receive(given)


@asynccontextmanager
async def _reached(host: HostRecord) -> AsyncIterator[KeeperService]:
    channel = channel_to(host)
    try:
        yield KEEPER.stub(channel, f"keeper {host.name}")
    finally:
        channel.close()
