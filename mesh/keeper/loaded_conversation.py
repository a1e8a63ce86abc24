"""One conversation in the memory of its keeper: its folded state, and the one way to write to it.

What is durable is in ``conversation``. The message that opens a turn may be only *held* for a moment
(``held_message``): it becomes durable with the first append of its turn, which saves a write and an fsync per
turn. A request that shows the conversation meanwhile calls `flush` first, so that no reply shows less than an
earlier one acknowledged.

Appends go one at a time; each is deduplicated by event key, numbered, made durable, and only then applied.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from mesh.core.budget import CallRequest, Scope, spend_of
from mesh.core.conversation import Conversation
from mesh.core.errors import JournalError
from mesh.core.events import (
    AnyEvent,
    Completed,
    ConversationCreated,
    Error,
    LimitReached,
    Live,
    LlmCall,
    LlmLost,
    LlmReserved,
    LlmSettled,
    Paused,
    ToolIntent,
    ToolResult,
    UserMessage,
    now,
)
from mesh.core.places import Place, StepKey
from mesh.journal.port import Append, Journal
from mesh.keeper.audience import Audience
from mesh.keeper.budgets import Admission, lost_calls, settled_late
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields, log_events
from mesh.tree.steps import SEND_AHEAD_S
from mesh.tree.turn import Ack, Decisions, PassInput, PassOutput, ReserveReply

_log = logging.getLogger("mesh.keeper")

More = Callable[[Sequence[AnyEvent]], Sequence[AnyEvent]]
"""From the events of an append that are new to those that are appended after them."""


def nothing_more(_: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
    """Appends nothing else."""
    return ()


class LoadedConversation:
    """See the module's text.

    ``run_numbers`` gives the numbers of passes. Each is greater than those of all passes before, also of
    those that began before the conversation was read anew. ``on_append`` is called after every append with
    the events that are new and the journal's size, ``on_failure`` when an append failed.
    """

    def __init__(
        self,
        conversation: Conversation,
        journal: Journal,
        shard: int,
        epoch: int,
        run_numbers: Iterator[int],
        on_append: Callable[["LoadedConversation", Sequence[AnyEvent], int], None],
        on_failure: Callable[["LoadedConversation", JournalError], None],
    ) -> None:
        self.conversation = conversation
        self.audience = Audience()
        # Messages take their turns in the order of this lock: the next one waits for the end of the turn
        # before.
        self.turn_lock = asyncio.Lock()
        self.waiting_messages = 0
        # Of the open turn: the task that drives it and the pass that runs now (both are the driver's), the
        # bearer token of whoever asked last, which is never written.
        self.driver: asyncio.Task[None] | None = None
        self.running_pass: asyncio.Task[PassOutput] | None = None
        self.turn_to_cancel = 0
        self.token = ""
        self.run = 0  # the number of the newest pass that began here
        self.held_message: UserMessage | None = None
        self.is_journal_failing = False  # whether the last append failed
        self._scopes: dict[str, Scope] = {}  # the budgets that calls of the newest turn were made under
        self._users = 0
        self._run_numbers = run_numbers
        self._seq_before_pass = 0  # the last event before the newest pass
        self._seq_of_late_result = 0  # the newest result that an older pass brought
        self._journal = journal
        self._shard = shard
        self._epoch = epoch
        self._on_append = on_append
        self._on_failure = on_failure
        # One append at a time: it numbers its events after those of the append before, and what it checks
        # (``only_if``) must still hold when it is written.
        self._append_lock = asyncio.Lock()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def label(self) -> str:
        """The fields of a log line that say which conversation it is."""
        return f"sid={self.conversation.session_id} conversation={self.conversation.id}"

    @property
    def turn(self) -> int:
        """The number of the newest turn."""
        return self.held_message.turn if self.held_message else self.conversation.turn

    @property
    def is_idle(self) -> bool:
        """Whether it can be unloaded: everything about it is in its journal, and nothing is about to use
        it."""
        is_used = (
            self.waiting_messages
            or self._users
            or self.held_message
            or self.turn_lock.locked()
            or self._append_lock.locked()
        )
        is_driven = self.driver is not None and not self.driver.done()
        return not (is_used or is_driven or self.audience.is_there)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps it loaded for a request that is about to change it: a second `LoadedConversation` of the same
        conversation would not know of that change."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    @property
    def needs_pass(self) -> bool:
        """Whether the open turn can go on without a person."""
        return self.held_message is not None or self.conversation.needs_pass

    @property
    def ends_now(self) -> bool:
        """Whether the open turn ends without another pass: it is to be cancelled, or an agent has returned to
        the user."""
        conversation = self.conversation
        is_returned = conversation.turn_open and conversation.returned is not None
        return is_returned or (self.turn_to_cancel != 0 and self.turn_to_cancel == self.turn)

    def cancel_pass(self) -> None:
        """Cancels the pass that runs, once: it waits for destructive tools that run, and another cancellation
        would break that off."""
        if self.running_pass is not None and not self.running_pass.cancelling():
            self.running_pass.cancel()

    def close(self) -> None:
        """Starts nothing more by itself."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()

    def hold(self, message: UserMessage) -> None:
        """Opens a turn. The message becomes durable with the first append, or after `SEND_AHEAD_S`; at once
        where there is a watcher, which is to see it first."""
        self.held_message = message
        self._scopes = {}
        delay = 0 if self.audience.is_there else SEND_AHEAD_S
        self._flush_timer = asyncio.get_running_loop().call_later(delay, self._flush_soon)

    async def begin_pass(self) -> PassInput:
        """The input of the next pass over the tree. From here on, no older pass can claim or record anything;
        an append that one of them is just making is waited for, so that the new pass knows it."""
        if self.audience.is_there:  # a watcher sees the message before what it leads to
            await self.append(())
        async with self._append_lock:
            self.run = next(self._run_numbers)
            self._seq_before_pass = self.conversation.seq
            self._wake_listeners()
            return self._turn_input()

    def _turn_input(self) -> PassInput:
        conversation, held = self.conversation, self.held_message
        return PassInput(
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
            traceparent=held.traceparent if held else conversation.traceparent,
            watched=self.audience.is_there,
            started_at=held.time if held else conversation.turn_started_at,
            depth_above=held.depth if held else conversation.depth,
            called_by=held.called_by if held else conversation.called_by,
            by=held.by if held else conversation.by,
            budget=held.budget if held else conversation.budget,
        )

    async def append(
        self,
        events: Sequence[AnyEvent],
        *,
        only_if: Callable[[], bool] = lambda: True,
        more: More = nothing_more,
    ) -> bool:
        """Makes events durable and applies them, after the message that is held.

        ``more`` decides, from those events that are new, what is appended after them, in the same write.
        Returns False, and nothing happened, if ``only_if`` does not hold when it is this append's turn.
        Raises `JournalError`.
        """
        async with self._append_lock:
            if not only_if():
                return False
            numbered = self._numbered(events)
            if added := more(numbered):
                numbered = self._numbered([*events, *added])
            journaled = [event for event in numbered if event.seq]
            if journaled:
                failpoint("journal.before_append")
                append = Append(
                    self.conversation.id or _created_id(journaled), self.conversation.seq, journaled
                )
                # Durable first: what is applied is shown to clients, and must not be lost any more.
                size = await self._write(append)
                failpoint("journal.after_append")
                self.held_message = None
                for event in journaled:
                    self.conversation.apply(event)
                if not self.conversation.turn_open:
                    self.token = ""
                log_events(journaled, self.conversation.id, self.conversation.session_id)
                self._on_append(self, journaled, size)
                self._wake_listeners()
            for event in self._with_spend(numbered):
                self.audience.show(event)
            return True

    def _with_spend(self, events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
        """The events for watchers, with what the runs with budgets have used after them: before the end of
        the turn, after which a watcher may leave."""
        spending = [event for event in events if _is_spending(event)]
        if not self._scopes or not spending or not self.audience.is_there:
            return events
        places = {place.text for event in spending for place in event.place.scopes}
        scopes = [scope for place, scope in self._scopes.items() if place in places]
        use, at = self.conversation.budget_use, now()
        shown = (spend_of(use, scope, self.run, at) for scope in scopes)
        spends = [msgspec.structs.replace(spend, turn=self.turn, time=at) for spend in shown]
        end = next((i for i, e in enumerate(events) if isinstance(e, Completed | Error)), len(events))
        return [*events[:end], *spends, *events[end:]]

    async def append_from_pass(self, turn: int, run: int, events: Sequence[AnyEvent]) -> bool:
        """An append by a pass. Returns False when a newer pass runs, when the turn is over, or when another
        pass holds a claim that this one makes.

        The result of a tool that an older pass claimed is taken all the same: it is the truth about
        something that happened, and nobody else can tell it.
        """
        return await self._append_if_current(turn, run, events)

    async def _append_if_current(
        self, turn: int, run: int, events: Sequence[AnyEvent], more: More = nothing_more
    ) -> bool:
        if await self.append(events, only_if=lambda: self._may_append(turn, run, events), more=more):
            return True
        late = [event for event in events if self._is_late_result(event, turn, run)]
        if late and await self.append(late, only_if=lambda: self.conversation.turn == turn):
            self._seq_of_late_result = self.conversation.seq
        # An answer that comes too late is not used, but it was paid for: what it cost is no longer a guess.
        if any(isinstance(event, LlmCall) for event in events):
            settle = partial(settled_late, self.conversation)
            await self.append((), only_if=lambda: self.is_open(turn), more=lambda _: settle(events))
        return False

    async def reserve(
        self, turn: int, run: int, events: Sequence[AnyEvent], request: CallRequest, within_s: float
    ) -> ReserveReply:
        """Appends events of a pass, and admits a model call if it fits into its budgets. A call that fits
        only if calls in flight turn out cheaper waits for them, at most ``within_s``: then the grant has no
        event, and the node asks again, so that no call between processes is open for ever."""
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            changed = self._changed  # before the decision: what comes after it must wake us
            self._scopes |= {scope.place: scope for scope in request.scopes}
            admission = Admission(self.conversation, turn, run, request)
            if not await self._append_if_current(turn, run, events, admission):
                return ReserveReply(Ack(False))
            ack = Ack(True, self.audience.is_there, self.conversation.llm_calls)
            grant = admission.grant(ack)
            if grant is not None:
                if isinstance(grant.event, LimitReached):
                    failpoint("limit.recorded")
                return grant
            events = ()  # they are durable
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                return ReserveReply(ack)
            if self.conversation.has_ended(StepKey(request.step).place):  # nobody waits for this any more
                return ReserveReply(Ack(False))

    async def lose(self, turn: int, run: int, place: Place) -> bool:
        """Gives up what the pass has reserved at a place. Returns as `append_from_pass`."""
        lost = partial(lost_calls, self.conversation, turn, run, place)
        return await self._append_if_current(turn, run, (), lambda _: lost())

    async def decisions(self, turn: int, run: int, after: int) -> Decisions | None:
        """Waits for decisions after event ``after`` and returns them; None when the pass is over."""
        while self.is_current(turn, run):
            resolved = [e for e in self.conversation.decisions if e.seq > after]
            if resolved:
                return Decisions(resolved, self.token)
            await self._changed.wait()
        return None

    def _wake_listeners(self) -> None:
        """Wakes what waits in `decisions` for a person, and in `reserve` for calls in flight."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _may_append(self, turn: int, run: int, events: Sequence[AnyEvent]) -> bool:
        claims = [event for event in events if isinstance(event, ToolIntent)]
        if claims and self.ends_now:
            return False  # no destructive tool starts in a turn that is about to end
        return self.is_current(turn, run) and not any(self._is_taken(claim) for claim in claims)

    def _is_taken(self, claim: ToolIntent) -> bool:
        """Whether another pass has made this claim, or its step got a result since the newest pass began."""
        conversation = self.conversation
        result = conversation.results.get(claim.step)
        if result is not None and result.seq > self._seq_before_pass:
            return True
        return any(
            known.key == claim.key and known.run != claim.run
            for known in conversation.claims.get(claim.step, ())
        )

    def is_open(self, turn: int) -> bool:
        """Whether this turn is open."""
        return self.turn == turn and (self.held_message is not None or self.conversation.turn_open)

    def is_current(self, turn: int, run: int) -> bool:
        """Whether this pass is the newest of the turn that is open."""
        return self.is_open(turn) and self.run == run

    def _is_late_result(self, event: AnyEvent, turn: int, run: int) -> bool:
        """Whether it is the result of the newest attempt. Another attempt follows only when it is known, or
        was decided, what became of those before."""
        if not (
            isinstance(event, ToolResult) and self.conversation.turn_open and self.conversation.turn == turn
        ):
            return False
        claims = self.conversation.claims.get(event.step, ())
        newest = claims[-1] if claims else None
        return newest is not None and newest.run == run

    def _has_news(self, more: Sequence[AnyEvent]) -> bool:
        """Whether a decision, or a result of an older pass, came since the pass began, which the pass may not
        have gone on with."""
        late_result_came = self._seq_of_late_result > self._seq_before_pass
        return late_result_came or self.conversation.has_news(self._seq_before_pass, more)

    async def _write(self, append: Append) -> int:
        try:
            size = await self._journal.append(self._shard, self._epoch, append)
        except JournalError as problem:
            self.is_journal_failing = True
            self._on_failure(self, problem)
            raise
        self.is_journal_failing = False
        return size

    def _numbered(self, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        """The held message and the new ones among these events, numbered and dated. Live events keep their
        position among them, and get no number."""
        numbered: list[AnyEvent] = []
        keys: set[str] = set()
        for event in (*((self.held_message,) if self.held_message else ()), *events):
            if isinstance(event, Paused) and self._has_news(events):
                continue  # the turn does not pause: another pass follows, for what came while this one ended
            if isinstance(event, Live):
                numbered.append(event)
            elif event.key not in keys and not self.conversation.has(event):
                keys.add(event.key)
                seq = self.conversation.seq + len(keys)
                numbered.append(msgspec.structs.replace(event, seq=seq, time=event.time or now()))
        return numbered

    async def drop_held_message(self) -> bool:
        """Forgets a message that could not be made durable, so that its sender can be refused. Returns False
        if it is durable by now."""
        async with self._append_lock:
            dropped, self.held_message = self.held_message is not None, None
            if dropped:  # a pass for it may still run, and the next message opens a turn of the same number
                self.run = next(self._run_numbers)
            return dropped

    def _flush_soon(self) -> None:
        if self.held_message is not None:
            self._flushing = asyncio.create_task(self.flush())

    async def flush(self) -> None:
        """Makes the message that is held durable, so that every view of the conversation has it."""
        if self.held_message is None:
            return
        try:
            await self.append(())
        except JournalError as problem:
            # The turn's own append will meet the same problem, and its sender hears of it.
            _log.warning("event=not_durable_yet %s %s", self.label, fields(message=problem))


def _is_spending(event: AnyEvent) -> bool:
    is_model_call = isinstance(event, LlmReserved | LlmCall | LlmSettled | LlmLost)
    return is_model_call or (isinstance(event, ToolResult) and event.spent is not None)


def _created_id(events: Sequence[AnyEvent]) -> str:
    """The id of the conversation that these events create."""
    created = events[0]
    assert isinstance(created, ConversationCreated), "a journal begins with its creation"
    return created.conversation_id
