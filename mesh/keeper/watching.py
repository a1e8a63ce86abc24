"""What watchers are told: one conversation from any event on, or all that happens in a shard.

A watcher says what it has read: the last journaled event (``after``), and the place in what is kept in memory
(``cursor``). What memory does not have any more comes from the journal, so that nothing journaled is missed,
whatever died in between. Who is too slow for that is cut off, and slows nobody.
"""

import asyncio
from collections.abc import Iterable, Sequence

from mesh.core.conversation import Conversation
from mesh.core.errors import Conflict
from mesh.core.events import AnyEvent, Completed, CutOff, Error, Paused, now
from mesh.journal.port import Journal
from mesh.keeper.cell import Cell
from mesh.keeper.replies import FollowedEvent, FollowedEvents, WatchedEvents
from mesh.keeper.requests import Follow, Watch
from mesh.keeper.tail import FellBehind, Item, Tail, size_of

WAIT_S = 15.0
"""How long a question for news waits for some."""
_FOLLOWED_FOR_S = 60.0
_BATCH_BYTES = 256 * 1024
_SLOW = "this stream was read too slowly and is cut off here; come back with Last-Event-ID"


class Watching:
    """See the module's text."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._all: Tail | None = None
        self._followed_until = 0.0

    def happened(self, cell: Cell, events: Sequence[AnyEvent]) -> None:
        """Events were journaled."""
        if self._all is None or not self._is_followed:
            self._all = None
            return
        for event in events:
            self._all.add(event, cell.conversation.id, cell.conversation.session_id)

    async def watch(self, cell: Cell, request: Watch) -> WatchedEvents:
        """What is new to a watcher of one conversation; waits a while for something. Raises `Conflict`."""
        if request.exclusive and not cell.audience.hold(request.watcher):
            raise Conflict(
                f"the stream of conversation {request.id} is open elsewhere; there is one at a time"
            )
        seq = cell.conversation.seq
        after = seq if request.after is None else min(request.after, seq)
        with cell.audience.attended(seq, request.watcher, WAIT_S) as tail:
            cursor = request.cursor if tail.knows(request.cursor) else tail.after(after)
            if cursor is None:
                return await self._caught_up(cell.conversation, request, after, tail.end)
            if request.wait:
                await tail.wait(cursor, WAIT_S)
            try:
                items = tail.since(cursor)
            except FellBehind:
                return _cut_off(cell.conversation, after)
            after = max((item.event.seq for item in items), default=0) or after
            events = [item.event for item in items]
            return _watched(cell.conversation, events, request.turn, after, cursor + len(items))

    async def follow(self, request: Follow) -> FollowedEvents:
        """What is new to a follower of the whole shard; waits a while for something."""
        if self._all is None or not self._is_followed:
            self._all = Tail()
        self._followed_until = asyncio.get_running_loop().time() + _FOLLOWED_FOR_S
        tail = self._all
        lost = request.cursor != 0 and not tail.knows(request.cursor)
        cursor = tail.end if request.cursor == 0 or lost else request.cursor
        if request.wait and not lost:
            await tail.wait(cursor, WAIT_S)
        try:
            items = tail.since(cursor)
        except FellBehind:
            lost, items, cursor = True, [], tail.end
        events = [
            FollowedEvent(item.conversation_id, item.event) for item in items if _is_wanted(item, request)
        ]
        if lost:
            missed = CutOff(time=now(), message="some events before here were missed")
            events.insert(0, FollowedEvent("", missed))
        return FollowedEvents(events, cursor + len(items))

    @property
    def _is_followed(self) -> bool:
        return asyncio.get_running_loop().time() < self._followed_until

    async def _caught_up(
        self, conversation: Conversation, request: Watch, after: int, cursor: int
    ) -> WatchedEvents:
        """What the journal has up to now; later events are in the tail, at the cursor."""
        until = conversation.seq
        journaled = await self._journal.read(conversation.id)
        events = list(_bounded(event for event in journaled if after < event.seq <= until))
        last = events[-1].seq
        return _watched(conversation, events, request.turn, last, cursor if last == until else 0)


def _watched(
    conversation: Conversation, events: Sequence[AnyEvent], turn: int, after: int, cursor: int
) -> WatchedEvents:
    if not turn:
        return WatchedEvents(events, after, cursor)
    of_turn = [event for event in events if event.turn == turn]
    # A pause ends the stream only if nobody has decided meanwhile: else the turn goes on.
    waits = conversation.turn == turn and conversation.turn_open and not conversation.needs_pass
    ends = Completed | Error | Paused if waits else Completed | Error
    ended = any(isinstance(event, ends) for event in of_turn)
    return WatchedEvents(of_turn, after, cursor, ended)


def _is_wanted(item: Item, request: Follow) -> bool:
    return (not request.types or item.event.wire_name in request.types) and (
        not request.session_id or item.session_id == request.session_id
    )


def _cut_off(conversation: Conversation, after: int) -> WatchedEvents:
    event = CutOff(time=now(), turn=conversation.turn, message=_SLOW, after=after)
    return WatchedEvents([event], after, ended=True)


def _bounded(events: Iterable[AnyEvent]) -> Iterable[AnyEvent]:
    """The first of these events, about `_BATCH_BYTES` of them, and at least one."""
    size = 0
    for event in events:
        if size > _BATCH_BYTES:
            return
        size += size_of(event)
        yield event
