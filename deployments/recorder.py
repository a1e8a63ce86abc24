"""The keepers, as a node sees them."""

from collections.abc import Sequence

from deployments.addresses import keeper_stub
from deployments.blueprint import Blueprint
from mesh.core.events import AnyEvent
from mesh.tree.turn import Ack, Decisions


class RemoteRecorder:
    """`Recorder` by calls to the keeper that owns the conversation."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._keepers = [keeper_stub(blueprint, shard) for shard in range(blueprint.keepers)]

    async def append(self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]) -> Ack:
        keeper = self._keepers[self._blueprint.shard_of(conversation_id)]
        return await keeper.append(conversation_id, turn, run, events)

    async def decisions(self, conversation_id: str, turn: int, run: int, after: int) -> Decisions | None:
        keeper = self._keepers[self._blueprint.shard_of(conversation_id)]
        return await keeper.decisions(conversation_id, turn, run, after)
