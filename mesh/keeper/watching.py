"""What watchers are told: one conversation from any event on, or all that happens in a shard.

A watcher says what it has read: the last journaled event (``after``), and the place in what is kept in memory
(``cursor``). What memory does not have any more comes from the journal, so that nothing journaled is missed,
whatever died in between. Who is too slow for that is cut off, and slows nobody.
"""

import asyncio
from collections.abc import Iterable, Sequence

from mesh.core.conversation import Conversation
from mesh.core.events import AnyEvent, Completed, CutOff, Error, Paused, frame, now
from mesh.journal.port import Journal
from mesh.keeper.cell import Cell
from mesh.keeper.requests import Follow, Seen, Watch, refusal
from mesh.keeper.tail import FellBehind, Item, Tail

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
            framed = frame(event, cell.conversation.id, numbered=False)
            self._all.add(event, framed, cell.conversation.session_id)

    async def watch(self, cell: Cell, request: Watch) -> Seen:
        """What is new to a watcher of one conversation; waits a while for something."""
        if request.exclusive and not cell.audience.hold(request.watcher):
            message = f"the stream of conversation {request.id} is open elsewhere; there is one at a time"
            return Seen(refusal=refusal(409, message))
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
            framed = [(item.event, item.frame) for item in items]
            return _seen(cell.conversation, framed, request.turn, after, cursor + len(items))

    async def follow(self, request: Follow) -> Seen:
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
        frames = [item.frame for item in items if _is_wanted(item, request)]
        if lost:
            frames.insert(0, frame(CutOff(time=now(), message="some events before here were missed"), ""))
        return Seen(b"".join(frames), cursor=cursor + len(items))

    @property
    def _is_followed(self) -> bool:
        return asyncio.get_running_loop().time() < self._followed_until

    async def _caught_up(self, conversation: Conversation, request: Watch, after: int, cursor: int) -> Seen:
        """What the journal has up to now; later events are in the tail, at the cursor."""
        until = conversation.seq
        events = [e for e in await self._journal.read(conversation.id) if after < e.seq <= until]
        framed = list(_bounded((event, frame(event, conversation.id)) for event in events))
        last = framed[-1][0].seq
        return _seen(conversation, framed, request.turn, last, cursor if last == until else 0)


def _seen(
    conversation: Conversation, framed: Sequence[tuple[AnyEvent, bytes]], turn: int, after: int, cursor: int
) -> Seen:
    if not turn:
        return Seen(b"".join(each for _, each in framed), after=after, cursor=cursor)
    mine = [(event, each) for event, each in framed if event.turn == turn]
    # A pause ends the stream only if nobody has decided meanwhile: else the turn goes on.
    waits = conversation.turn == turn and conversation.turn_open and not conversation.can_go_on
    ends = Completed | Error | Paused if waits else Completed | Error
    ended = any(isinstance(event, ends) for event, _ in mine)
    return Seen(b"".join(each for _, each in mine), after=after, cursor=cursor, ended=ended)


def _is_wanted(item: Item, request: Follow) -> bool:
    return (not request.types or item.event.wire_name in request.types) and (
        not request.session_id or item.session_id == request.session_id
    )


def _cut_off(conversation: Conversation, after: int) -> Seen:
    event = CutOff(time=now(), turn=conversation.turn, message=_SLOW, after=after)
    return Seen(frame(event, conversation.id), after=after, ended=True)


def _bounded(framed: Iterable[tuple[AnyEvent, bytes]]) -> Iterable[tuple[AnyEvent, bytes]]:
    size = 0
    for event, each in framed:
        if size > _BATCH_BYTES:
            return
        size += len(each)
        yield event, each
