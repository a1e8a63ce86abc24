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
from mesh.tree.turn import Ack, Decisions, ReserveReply


class KeeperRecorder:
    """`Recorder`: ``keeper_of`` returns the keeper of a conversation."""

    def __init__(self, keeper_of: Callable[[str], Keeper]) -> None:
        self._keeper_of = keeper_of

    async def append(self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]) -> Ack:
        with _unavailable():
            return await self._keeper_of(conversation_id).append(conversation_id, turn, run, events)

    async def reserve(
        self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent], request: CallRequest
    ) -> ReserveReply:
        with _unavailable():
            keeper = self._keeper_of(conversation_id)
            return await keeper.reserve(conversation_id, turn, run, events, request)

    async def lose(self, conversation_id: str, turn: int, run: int, at: str) -> Ack:
        with _unavailable():
            return await self._keeper_of(conversation_id).lose(conversation_id, turn, run, at)

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        with _unavailable():
            return await self._keeper_of(conversation_id).remaining(conversation_id, scopes, on_limit)

    async def grants(self, conversation_id: str, agent: str) -> Sequence[Grant]:
        with _unavailable():
            return await self._keeper_of(conversation_id).grants(conversation_id, agent)

    async def denial(self, conversation_id: str, call: PolicyCall) -> Verdict | None:
        with _unavailable():
            return await self._keeper_of(conversation_id).denial(conversation_id, call)

    async def decisions(self, conversation_id: str, turn: int, run: int, after: int) -> Decisions | None:
        with _unavailable():
            return await self._keeper_of(conversation_id).decisions(conversation_id, turn, run, after)


@contextmanager
def _unavailable() -> Iterator[None]:
    """A pass is interrupted by any trouble with its journal, and another one follows. So all of it is
    `Unavailable` to a node, as `Recorder` says."""
    try:
        yield
    except (JournalError, NotFound) as problem:
        raise Unavailable(str(problem)) from problem
