"""A keeper as an actor."""

import logging
import os
from collections.abc import Sequence

from deployments.actor import Actor
from deployments.blueprint import Blueprint
from deployments.remote import RemoteTree
from deployments.services import KEEPER
from mesh.core.budget import CallRequest, OnLimit, Remaining, Scope
from mesh.core.events import AnyEvent
from mesh.core.verdict import Verdict
from mesh.keeper.recorder import KeeperRecorder
from mesh.keeper.replies import FollowReply, Reply, WatchReply
from mesh.keeper.requests import Follow, FollowAgents, Request, Watch
from mesh.local.keeper_host import KeeperHost, kept_when_there
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.push.sender import WebhookSender
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

_log = logging.getLogger("mesh.keeper")


class KeeperActor(Actor):
    """Owner of some shards of the conversations; a `KeeperService`."""

    async def __init__(self, blueprint: Blueprint, number: int) -> None:  # type: ignore[misc]  # Ray awaits it
        await self._begin()
        config = blueprint.config()
        self._store = store_of(config, blueprint.data_dir)
        # Before the journal is open: no conversation may begin on a version that cannot be read again.
        await kept_when_there(self._store.versions, blueprint.digest, blueprint.source, blueprint.files)
        self._sender = WebhookSender(config.card.push_hosts)
        tree = RemoteTree(blueprint, self._store.versions)
        shards = blueprint.shards_of(number)
        self._host_of_shards = KeeperHost(config, shards, self._store, tree, self._sender, on_fenced=_exit)
        self._recorder = KeeperRecorder(self._host_of_shards.of)
        await self._host_of_shards.start()
        self._serve(KEEPER, self, blueprint)

    async def ask(self, shard: int, request: Request) -> Reply:
        return await self._host_of_shards.shard(shard).handle(request)

    async def watch(self, request: Watch) -> WatchReply:
        return await self._host_of_shards.of(request.id).watch(request)

    async def follow(self, shard: int, request: Follow | FollowAgents) -> FollowReply:
        return await self._host_of_shards.shard(shard).follow(request)

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        return await self._recorder.append(activation, events)

    async def reserve(
        self, activation: Activation, events: Sequence[AnyEvent], request: CallRequest
    ) -> ReserveReply:
        return await self._recorder.reserve(activation, events, request)

    async def start(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        return await self._recorder.start(activation, events, scopes, asker)

    async def slots(self, activation: Activation, request: SlotRequest) -> SlotReply | None:
        return await self._recorder.slots(activation, request)

    async def restart(self, lost: Activation) -> Restarted:
        return await self._recorder.restart(lost)

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        return await self._recorder.remaining(conversation_id, scopes, on_limit)

    async def grants(self, conversation_id: str, agent: str) -> Sequence[Grant]:
        return await self._recorder.grants(conversation_id, agent)

    async def denial(self, conversation_id: str, call: PolicyCall) -> Verdict | None:
        return await self._recorder.denial(conversation_id, call)

    async def ready(self) -> None:
        """Returns once the shards are open."""

    async def close(self) -> None:
        """Writes what is only derived."""
        await self._host_of_shards.close()
        await self._sender.close()
        await self._store.close()


def _exit() -> None:
    """Another keeper owns a shard. Nothing in this process may answer any more, not even calls that have
    begun: hence no orderly end."""
    _log.error('event=fenced why="another keeper has opened a shard of this; this one ends"')
    os._exit(1)
