"""A keeper as an actor."""

import logging
import os

from deployments import actors
from deployments.blueprint import Blueprint
from deployments.line import Address, Desk
from deployments.recorder import RecorderDesk
from deployments.tree import RemoteTree, keep_source
from mesh.journal.files import FileJournal
from mesh.keeper.keeper import Keeper, KeeperSettings
from mesh.keeper.requests import pack, unpack_follow, unpack_request, unpack_watch
from mesh.push.files import FilePushStore
from mesh.push.post import Post
from mesh.push.push import Push
from mesh.runtime.logs import set_up
from mesh.tree.plan import tree_of

_log = logging.getLogger("mesh.keeper")


class KeeperActor:
    """Owner of one shard of the conversations."""

    async def __init__(self, blueprint: Blueprint, shard: int) -> None:  # type: ignore[misc]  # Ray awaits it
        set_up()
        await actors.note_restart()
        config = blueprint.config()
        keep_source(blueprint)
        journal, hosts = FileJournal(blueprint.data_dir), config.card.push_hosts
        self._post, self._push_store = Post(hosts), FilePushStore(blueprint.data_dir / "push")
        self._keeper = Keeper(
            shard,
            blueprint.keepers,
            journal,
            RemoteTree(blueprint),
            KeeperSettings(
                agent=blueprint.agent,
                digest=blueprint.digest,
                system_prompt=tree_of(config).prompt or config.prompt,
                turn_timeout_s=config.limits.turn_timeout_s,
                max_queue_per_conversation=config.limits.max_queue_per_conversation,
            ),
            Push(shard, self._push_store, journal, self._post, hosts, on_fenced=_leave),
            on_fenced=_leave,
        )
        recorder = RecorderDesk(self._keeper)
        self._desk = Desk(
            {
                "ask": self._answer,  # packed `Request`s and `Reply`s
                "watch": self._watch,  # packed `Watch`es and `Seen`s
                "follow": self._follow,  # packed `Follow`s and `Seen`s
                "append": recorder.append,
                "decisions": recorder.decisions,
            }
        )
        self._host = actors.host_of_lines(blueprint)
        await self._keeper.start()

    async def address(self) -> Address:
        """Where it takes calls."""
        return await self._desk.listen(self._host)

    async def _answer(self, packed: bytes) -> bytes:
        return pack(await self._keeper.handle(unpack_request(packed)))

    async def _watch(self, packed: bytes) -> bytes:
        return pack(await self._keeper.watch(unpack_watch(packed)))

    async def _follow(self, packed: bytes) -> bytes:
        return pack(await self._keeper.follow(unpack_follow(packed)))

    async def ready(self) -> None:
        """Returns once the shard is open."""

    async def close(self) -> None:
        """Writes what is only derived."""
        await self._keeper.close()
        await self._post.close()
        await self._push_store.close()


def _leave() -> None:
    """Another keeper owns the shard. Nothing in this process may answer any more."""
    _log.error('event=fenced why="another keeper has opened the shard; this one ends"')
    os._exit(1)
