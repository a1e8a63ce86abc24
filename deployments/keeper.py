"""A keeper as an actor."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from deployments.actor import Actor
from deployments.blueprint import Blueprint
from deployments.remote import RemoteTree, keep_source
from deployments.services import KEEPER
from mesh.core.budget import CallRequest, OnLimit, Remaining, Scope
from mesh.core.errors import JournalError, NotFound, Unavailable
from mesh.core.events import AnyEvent
from mesh.journal.files import FileJournal
from mesh.keeper.keeper import Keeper, KeeperSettings
from mesh.keeper.replies import FollowedEvents, Reply, WatchReply
from mesh.keeper.requests import Follow, Request, Watch
from mesh.policy.grants import Grant
from mesh.push.files import FilePushStore
from mesh.push.port import EventNotifications
from mesh.push.sender import WebhookSender
from mesh.push.service import PushNotifications
from mesh.push.webhook import A2aVersion
from mesh.tree.plan import tree_of
from mesh.tree.turn import Ack, Decisions, ReserveReply

_log = logging.getLogger("mesh.keeper")


class KeeperActor(Actor):
    """Owner of one shard of the conversations; a `KeeperService`."""

    async def __init__(self, blueprint: Blueprint, shard: int) -> None:  # type: ignore[misc]  # Ray awaits it
        await self._begin()
        config = blueprint.config()
        # Before the journal is open: no conversation may begin on a version that cannot be read again.
        keep_source(blueprint)
        journal, hosts = FileJournal(blueprint.data_dir), config.card.push_hosts
        self._sender, self._push_store = WebhookSender(hosts), FilePushStore(blueprint.data_dir / "push")
        self._keeper = Keeper(
            shard,
            blueprint.keepers,
            journal,
            RemoteTree(blueprint),
            KeeperSettings(
                agent=blueprint.agent,
                digest=blueprint.digest,
                root=config.tree.name,
                system_prompt=tree_of(config).prompt or config.prompt,
                turn_timeout_s=config.limits.turn_timeout_s,
                max_queue_per_conversation=config.limits.max_queue_per_conversation,
            ),
            PushNotifications(
                shard, self._push_store, journal, self._sender, _render, hosts, on_fenced=_exit
            ),
            on_fenced=_exit,
        )
        await self._keeper.start()
        self._serve(KEEPER, self, blueprint)

    async def ask(self, request: Request) -> Reply:
        return await self._keeper.handle(request)

    async def watch(self, request: Watch) -> WatchReply:
        return await self._keeper.watch(request)

    async def follow(self, request: Follow) -> FollowedEvents:
        return await self._keeper.follow(request)

    async def append(self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]) -> Ack:
        with _unavailable():
            return await self._keeper.append(conversation_id, turn, run, events)

    async def reserve(
        self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent], request: CallRequest
    ) -> ReserveReply:
        with _unavailable():
            return await self._keeper.reserve(conversation_id, turn, run, events, request)

    async def lose(self, conversation_id: str, turn: int, run: int, at: str) -> Ack:
        with _unavailable():
            return await self._keeper.lose(conversation_id, turn, run, at)

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        with _unavailable():
            return await self._keeper.remaining(conversation_id, scopes, on_limit)

    async def grants(self, conversation_id: str, agent: str) -> Sequence[Grant]:
        with _unavailable():
            return await self._keeper.grants(conversation_id, agent)

    async def decisions(self, conversation_id: str, turn: int, run: int, after: int) -> Decisions | None:
        with _unavailable():
            return await self._keeper.decisions(conversation_id, turn, run, after)

    async def ready(self) -> None:
        """Returns once the shard is open."""

    async def close(self) -> None:
        """Writes what is only derived."""
        await self._keeper.close()
        await self._sender.close()
        await self._push_store.close()


@contextmanager
def _unavailable() -> Iterator[None]:
    """A pass is interrupted by any trouble with its journal, and another one follows. So all of it is
    `Unavailable` to a node, as `Recorder` says."""
    try:
        yield
    except (JournalError, NotFound) as problem:
        raise Unavailable(str(problem)) from problem


def _render(events: Iterable[AnyEvent], after: int, version: A2aVersion) -> Iterator[EventNotifications]:
    # Imported on first use: a keeper serves every protocol, and the types of A2A are a tenth of a second and
    # several MB that keepers without webhooks are spared.
    from mesh.a2a.server.notifications import notifications

    return notifications(events, after, version)


def _exit() -> None:
    """Another keeper owns the shard. Nothing in this process may answer any more, not even calls that have
    begun: hence no orderly end."""
    _log.error('event=fenced why="another keeper has opened the shard; this one ends"')
    os._exit(1)
