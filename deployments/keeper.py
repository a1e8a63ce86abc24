"""A keeper as an actor."""

import os

from deployments import actors
from deployments.blueprint import Blueprint
from deployments.line import Address, Desk
from deployments.node import Ack, RemoteRoot, keep_source, unpack_ahead
from mesh.errors import JournalError, NotFound
from mesh.journal.files import FileJournal
from mesh.keeper.keeper import Keeper, KeeperSettings
from mesh.keeper.requests import pack, unpack_request
from mesh.logs import set_up


class KeeperActor:
    """Owner of one shard of the conversations."""

    async def __init__(self, blueprint: Blueprint, shard: int) -> None:  # type: ignore[misc]  # Ray awaits it
        set_up()
        config = blueprint.config()
        keep_source(blueprint)
        self._keeper = Keeper(
            shard,
            blueprint.keepers,
            FileJournal(blueprint.data_dir),
            RemoteRoot(blueprint),
            KeeperSettings(
                agent=blueprint.agent,
                digest=blueprint.digest,
                system_prompt=config.prompt,
                turn_timeout_s=config.limits.turn_timeout_s,
                max_queue_per_conversation=config.limits.max_queue_per_conversation,
            ),
            on_fenced=_leave,
        )
        # "ask": packed `Request`s of gateways; "append": events of passes that still run.
        self._desk = Desk({"ask": self._answer, "append": self._take})
        self._host = actors.host_of_lines(blueprint)
        await self._keeper.start()

    async def address(self) -> Address:
        """Where it takes calls."""
        return await self._desk.listen(self._host)

    async def _answer(self, packed: bytes) -> bytes:
        return pack(await self._keeper.handle(unpack_request(packed)))

    async def _take(self, packed: bytes) -> bytes:
        ahead = unpack_ahead(packed)
        try:
            taken = await self._keeper.append_ahead(
                ahead.conversation_id, ahead.turn, ahead.run, ahead.events
            )
        except (JournalError, NotFound) as problem:
            return pack(Ack(taken=False, problem=str(problem)))
        return pack(Ack(taken))

    async def ready(self) -> None:
        """Returns once the shard is open."""

    async def close(self) -> None:
        """Writes what is only derived."""
        await self._keeper.close()


def _leave() -> None:
    """Another keeper owns the shard. Nothing in this process may answer any more."""
    os._exit(1)
