"""The events that watchers get: of one conversation from any event on, or of all conversations of a shard.

A watcher says what it has received: the last journaled event (``after``), and a position in the events that
are kept in memory (``cursor``). Events that are not in memory any more come from the journal, so that no
journaled event is missed, whichever process died meanwhile. A watcher that is too slow is cut off, and slows
nobody.
"""

import asyncio
from collections.abc import Iterable, Sequence

from mesh.core.conversation import Conversation
from mesh.core.errors import Conflict, NotFound
from mesh.core.events import AnyEvent, Completed, CutOff, Error, Paused, now
from mesh.journal.port import Journal
from mesh.keeper.loaded_conversation import LoadedConversation
from mesh.keeper.recent_events import FellBehind, Item, RecentEvents, size_of
from mesh.keeper.replies import FollowedEvent, FollowedEvents, WatchedEvents
from mesh.keeper.requests import Follow, Watch

WAIT_S = 15.0
"""How long a request for events waits for some."""
_FOLLOWED_FOR_S = 60.0
"""How long events of the whole shard are kept in memory after a follower asked last."""
_BATCH_BYTES = 256 * 1024
_SLOW = "this stream was read too slowly and is cut off here; come back with Last-Event-ID"


class EventFeeds:
    """See the module's text."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._all: RecentEvents | None = None
        self._followed_until = 0.0

    def appended(self, loaded: LoadedConversation, events: Sequence[AnyEvent]) -> None:
        """Events were journaled."""
        if self._all is None or not self._is_followed:
            self._all = None
            return
        for event in events:
            self._all.add(event, loaded.conversation.id, loaded.conversation.session_id)

    async def watch(self, loaded: LoadedConversation, request: Watch) -> WatchedEvents:
        """Returns the events that are new to a watcher of one conversation; waits a while for some. Raises
        `Conflict` if the exclusive place is taken."""
        if request.exclusive and not loaded.audience.hold(request.watcher):
            raise Conflict(
                f"the stream of conversation {request.id} is open elsewhere; there is one at a time"
            )
        seq = loaded.conversation.seq
        after = seq if request.after is None else _known(loaded.conversation, request.after)
        with loaded.audience.attended(seq, request.watcher, WAIT_S) as recent:
            cursor = request.cursor if recent.knows(request.cursor) else recent.after(after)
            if cursor is None:
                return await self._caught_up(loaded.conversation, request, after, recent.end)
            if request.wait:
                await recent.wait(cursor, WAIT_S)
            try:
                items = recent.since(cursor)
            except FellBehind:
                return _cut_off(loaded.conversation, after)
            after = max((item.event.seq for item in items), default=0) or after
            events = [item.event for item in items]
            return _watched(loaded.conversation, events, request.turn, after, cursor + len(items))

    async def follow(self, request: Follow) -> FollowedEvents:
        """Returns the events that are new to a follower of the whole shard; waits a while for some."""
        if self._all is None or not self._is_followed:
            self._all = RecentEvents()
        self._followed_until = asyncio.get_running_loop().time() + _FOLLOWED_FOR_S
        recent = self._all
        lost = request.cursor != 0 and not recent.knows(request.cursor)
        cursor = recent.end if request.cursor == 0 or lost else request.cursor
        if request.cursor and not lost:
            await recent.wait(cursor, WAIT_S)
        try:
            items = recent.since(cursor)
        except FellBehind:
            lost, items, cursor = True, [], recent.end
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
        """Events from the journal; those after its end are in the recent, from the cursor on."""
        until = conversation.seq
        journaled = await self._journal.read(conversation.id)
        if not journaled:
            raise NotFound(f"conversation {conversation.id} was deleted")
        events = list(_bounded(event for event in journaled if after < event.seq <= until))
        last = events[-1].seq
        return _watched(conversation, events, request.turn, last, cursor if last == until else 0)


def _known(conversation: Conversation, after: int) -> int:
    """The last event that a watcher knows, who has received event ``after``. One that is beyond the end had a
    part that the store has lost."""
    if after <= conversation.seq:
        return after
    loss = conversation.store_loss
    return loss.seq - 1 if loss else conversation.seq


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
