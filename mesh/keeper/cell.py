"""One conversation in its keeper: the folded state, and the one way to write to it.

A cell keeps apart what is durable (``conversation``) from what is only held (``held``: the message
that opened the turn, until the first append carries it). Appends go one at a time; each is
deduplicated by event key, numbered, made durable, and only then applied.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from mesh.core.conversation import Conversation
from mesh.core.errors import JournalError
from mesh.core.events import (
    AnyEvent,
    ApprovalResolved,
    Live,
    Paused,
    ToolIntent,
    ToolResult,
    UserMessage,
    now,
)
from mesh.journal.port import Append, Journal
from mesh.keeper.audience import Audience
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields, log_events
from mesh.tree.steps import SEND_AHEAD_S
from mesh.tree.turn import Decisions, TurnInput, TurnOutput

_log = logging.getLogger("mesh.keeper")


class Cell:
    """See the module's text. ``runs`` gives the numbers of passes: each is greater than those of all passes
    before, also of those that began before the conversation was read anew. ``on_change`` is told after every
    append what is new, with the journal's size; ``on_trouble`` when one failed."""

    def __init__(
        self,
        conversation: Conversation,
        journal: Journal,
        shard: int,
        epoch: int,
        runs: Iterator[int],
        on_change: Callable[["Cell", Sequence[AnyEvent], int], None],
        on_trouble: Callable[["Cell", JournalError], None],
    ) -> None:
        self.conversation = conversation
        self.turns = asyncio.Lock()
        self.queued = 0
        self.driver: asyncio.Task[None] | None = None
        self.work: asyncio.Task[TurnOutput] | None = None
        self.cancelled = 0  # the turn that somebody wants to end
        self.audience = Audience()
        self.token = ""
        self.traceparent = ""
        self.run = 0  # the newest pass that this cell began
        self.held: UserMessage | None = None
        self.is_failing = False  # whether the last write to the journal failed
        self._users = 0
        self._runs = runs
        self._begun_at = 0  # the last event before the newest pass
        self._late_at = 0  # the newest result of a pass that was older
        self._journal = journal
        self._shard = shard
        self._epoch = epoch
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def about(self) -> str:
        """Which conversation it is, for the log."""
        return f"sid={self.conversation.session_id} conversation={self.conversation.id}"

    @property
    def turn(self) -> int:
        """The number of the newest turn."""
        return self.held.turn if self.held else self.conversation.turn

    @property
    def is_idle(self) -> bool:
        """Whether it can be forgotten: everything about it is in its journal."""
        is_used = self.queued or self._users or self.held or self.turns.locked() or self._writing.locked()
        return not (is_used or self.audience.is_there) and (self.driver is None or self.driver.done())

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keeps it in memory for somebody who is about to change it: a second cell would not know of that."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    @property
    def needs_pass(self) -> bool:
        """Whether the open turn can go on without a person."""
        return self.held is not None or self.conversation.needs_pass

    def hold(self, message: UserMessage) -> None:
        """Opens a turn; the message becomes durable with the first append, or shortly."""
        self.held = message
        wait = 0 if self.audience.is_there else SEND_AHEAD_S
        asyncio.get_running_loop().call_later(wait, self._flush_soon)

    async def begin_pass(self) -> TurnInput:
        """The next pass over the tree. From here on, no older pass can claim or record anything; what one
        of them is just writing is waited for, so that this one knows it."""
        if self.audience.is_there:  # who watches sees the message before what it leads to
            await self.append(())
        async with self._writing:
            self.run = next(self._runs)
            self._begun_at = self.conversation.seq
            self._tell()
            return self._input()

    def _input(self) -> TurnInput:
        conversation, held = self.conversation, self.held
        return TurnInput(
            conversation_id=conversation.id,
            session_id=held.session_id or conversation.session_id if held else conversation.turn_session_id,
            digest=conversation.digest,
            turn=self.turn,
            run=self.run,
            user_message=held.text if held else conversation.user_message,
            message_id=held.message_id if held else conversation.message_id,
            history=conversation.history,
            state=conversation.state,
            known=() if held else conversation.outcomes,
            llm_calls=0 if held else conversation.llm_calls,
            token=self.token,
            lost_token=(held.had_token if held else conversation.had_token) and not self.token,
            traceparent=self.traceparent,
            watched=self.audience.is_there,
        )

    async def append(self, events: Sequence[AnyEvent], *, only_if: Callable[[], bool] = lambda: True) -> bool:
        """Makes events durable and applies them; with them, before them, what is held.

        False, and nothing happened: ``only_if`` did not hold when it was this append's turn.
        """
        async with self._writing:
            if not only_if():
                return False
            happened = self._happened(events)
            fresh = [event for event in happened if event.seq]
            if fresh:
                failpoint("journal.before_append")
                append = Append(self.conversation.id or _id_of(fresh), self.conversation.seq, fresh)
                size = await self._durably(append)
                failpoint("journal.after_append")
                self.held = None
                for event in fresh:
                    self.conversation.apply(event)
                if not self.conversation.turn_open:
                    self.token = self.traceparent = ""
                log_events(fresh, self.conversation.id, self.conversation.session_id)
                self._on_change(self, fresh, size)
                self._tell()
            for event in happened:
                self.audience.show(event)
            return True

    async def append_of_run(self, turn: int, run: int, events: Sequence[AnyEvent]) -> bool:
        """An append by a pass. False when a newer pass runs, the turn is over, or another pass holds a claim
        that this one makes.

        The result of a tool that an older pass claimed is taken all the same: it is the truth about
        something that happened, and nobody else can tell it.
        """
        if await self.append(events, only_if=lambda: self._may_append(turn, run, events)):
            return True
        late = [event for event in events if self._is_late_result(event, turn, run)]
        if late and await self.append(late, only_if=lambda: self.conversation.turn == turn):
            self._late_at = self.conversation.seq
        return False

    async def decisions(self, turn: int, run: int, after: int) -> Decisions | None:
        """What was decided since event ``after``, once there is something; None when the pass is over."""
        while self.is_current(turn, run):
            steps = self.conversation.steps
            news = [e for e in steps if isinstance(e, ApprovalResolved) and e.seq > after]
            if news:
                return Decisions(news, self.token)
            await self._changed.wait()
        return None

    def _tell(self) -> None:
        """Wakes whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _may_append(self, turn: int, run: int, events: Sequence[AnyEvent]) -> bool:
        claims = [event for event in events if isinstance(event, ToolIntent)]
        keys, steps = {event.key for event in claims}, {event.step for event in claims}
        return self.is_current(turn, run) and not any(
            (isinstance(known, ToolIntent) and known.key in keys and known.run != run)
            or (isinstance(known, ToolResult) and known.step in steps and known.seq > self._begun_at)
            for known in (self.conversation.steps if claims else ())
        )

    def is_open(self, turn: int) -> bool:
        """Whether this turn is open."""
        return self.turn == turn and (self.held is not None or self.conversation.turn_open)

    def is_current(self, turn: int, run: int) -> bool:
        """Whether this pass is the newest of the turn that is open."""
        return self.is_open(turn) and self.run == run

    def _is_late_result(self, event: AnyEvent, turn: int, run: int) -> bool:
        """Whether it is the result of the newest attempt: another one follows only when it is known, or was
        decided, what became of those before."""
        if not (
            isinstance(event, ToolResult) and self.conversation.turn_open and self.conversation.turn == turn
        ):
            return False
        claims = (
            e for e in reversed(self.conversation.steps) if isinstance(e, ToolIntent) and e.step == event.step
        )
        newest = next(claims, None)
        return newest is not None and newest.run == run

    def _has_news(self, more: Sequence[AnyEvent]) -> bool:
        """Whether something came since the pass began that it may not have gone on with: a decision, or a
        result of an older pass."""
        return self._late_at > self._begun_at or self.conversation.has_news(self._begun_at, more)

    async def _durably(self, append: Append) -> int:
        try:
            size = await self._journal.append(self._shard, self._epoch, append)
        except JournalError as problem:
            self.is_failing = True
            self._on_trouble(self, problem)
            raise
        self.is_failing = False
        return size

    def _happened(self, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        """What is new among these, numbered and dated, after what was held; what is only for watchers in its
        place, as it is."""
        happened: list[AnyEvent] = []
        keys: set[str] = set()
        for event in (*((self.held,) if self.held else ()), *events):
            if isinstance(event, Paused) and self._has_news(events):
                continue  # came while the pass ended, and is not known to it: another pass follows
            if isinstance(event, Live):
                happened.append(event)
            elif event.key not in keys and not self.conversation.has(event):
                keys.add(event.key)
                seq = self.conversation.seq + len(keys)
                happened.append(msgspec.structs.replace(event, seq=seq, time=event.time or now()))
        return happened

    async def drop_held(self) -> bool:
        """Forgets a message that could not be made durable, so that whoever sent it can be refused; False: it
        is durable by now."""
        async with self._writing:
            dropped, self.held = self.held is not None, None
            if dropped:  # a pass for it may still run, and the next message opens a turn of the same number
                self.run = next(self._runs)
            return dropped

    def _flush_soon(self) -> None:
        if self.held is not None:
            self._flushing = asyncio.create_task(self.flush())

    async def flush(self) -> None:
        """Makes the message that is held durable, so that every view of the conversation has it."""
        if self.held is None:
            return
        try:
            await self.append(())
        except JournalError as problem:
            # The turn's own append will meet the same problem, and tell the client.
            _log.warning("event=not_durable_yet %s %s", self.about, fields(message=problem))


def _id_of(events: Sequence[AnyEvent]) -> str:
    """The id of a conversation that is being created by these events."""
    return str(getattr(events[0], "conversation_id"))  # noqa: B009
