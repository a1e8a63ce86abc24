"""Keepers of this process as nodes see them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mesh.core.budget import CallRequest, OnLimit, Remaining, Scope
from mesh.core.errors import JournalError, NotFound, Unavailable
from mesh.core.events import AnyEvent
from mesh.core.verdict import Verdict
from mesh.keeper.keeper import Keeper
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.tree.turn import (
    Ack,
    Activation,
    ReserveReply,
    Restarted,
    SlotReply,
    SlotRequest,
    StartReply,
)


class KeeperRecorder:
    """`Recorder`: ``keeper_of`` returns the keeper of a conversation."""

    def __init__(self, keeper_of: Callable[[str], Keeper]) -> None:
        self._keeper_of = keeper_of

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        with _unavailable():
            return await self._keeper_of(activation.conversation_id).append(activation, events)

    async def reserve(
        self, activation: Activation, events: Sequence[AnyEvent], request: CallRequest
    ) -> ReserveReply:
        with _unavailable():
            keeper = self._keeper_of(activation.conversation_id)
            return await keeper.reserve(activation, events, request)

    async def start(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        with _unavailable():
            keeper = self._keeper_of(activation.conversation_id)
            return await keeper.start_agents(activation, events, scopes, asker)

    async def slots(self, activation: Activation, request: SlotRequest) -> SlotReply | None:
        with _unavailable():
            return await self._keeper_of(activation.conversation_id).slots(activation, request)

    async def restart(self, lost: Activation) -> Restarted:
        with _unavailable():
            return await self._keeper_of(lost.conversation_id).restart(lost)

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        with _unavailable():
            return await self._keeper_of(conversation_id).remaining(conversation_id, scopes, on_limit)

    async def grants(self, conversation_id: str, agent: str) -> Sequence[Grant]:
        with _unavailable():
            return await self._keeper_of(conversation_id).grants(conversation_id, agent)

    async def denial(self, conversation_id: str, call: PolicyCall) -> Verdict | None:
        with _unavailable():
            return await self._keeper_of(conversation_id).denial(conversation_id, call)


@contextmanager
def _unavailable() -> Iterator[None]:
    """A pass is interrupted by any trouble with its journal, and another one follows. So all of it is
    `Unavailable` to a node, as `Recorder` says."""
    try:
        yield
    except (JournalError, NotFound) as problem:
        raise Unavailable(str(problem)) from problem
