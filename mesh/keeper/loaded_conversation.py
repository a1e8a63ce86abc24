"""One conversation in the memory of its keeper: its folded state, and the one way to write to it.

What is durable is in ``conversation``. The message that opens a turn may be only *held* for a moment
(``held_message``): it becomes durable with the first append of its turn, which saves a write and an fsync per
turn. A request that shows the conversation meanwhile calls `flush` first, so that no reply shows less than an
earlier one acknowledged.

Appends go one at a time; each is deduplicated by event key, numbered, made durable, and only then applied.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from weakref import WeakValueDictionary

import msgspec

from mesh.core.agent_limits import AgentsStarted, is_start, refusal
from mesh.core.agents_of_turn import AgentView
from mesh.core.budget import CallRequest, Scope, scope_of, tightest, with_limits
from mesh.core.conversation import Conversation, fold
from mesh.core.errors import JournalError, JournalRefused, MeshError, NotFound, Unavailable, WrongSequence
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalResolved,
    Completed,
    ConversationCreated,
    Error,
    LimitReached,
    Live,
    LlmCall,
    LlmLost,
    LlmReserved,
    LlmSettled,
    NodeCompleted,
    Paused,
    ToolIntent,
    ToolResult,
    UserMessage,
    Validation,
    now,
)
from mesh.core.places import ROOT, Place
from mesh.core.spend_of_runs import spend_of
from mesh.core.view import as_they_stand
from mesh.journal.listing import ListingEntry, entry_of
from mesh.journal.port import Append, Journal
from mesh.keeper.audience import Audience
from mesh.keeper.budgets import Admission, lost_calls, settled_late
from mesh.keeper.runs import GivenRun, Runs
from mesh.keeper.turn_slots import TurnSlots
from mesh.keeper.waiters import Waiter, WaitingCalls
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields, log_events
from mesh.tree.nodes_below import RunningNode
from mesh.tree.steps import SEND_AHEAD_S
from mesh.tree.turn import (
    Ack,
    Activation,
    Decisions,
    PassInput,
    PassOutput,
    ReserveReply,
    Restarted,
    SlotReply,
    SlotRequest,
    StartReply,
)

_log = logging.getLogger("mesh.keeper")


class PassUnderWay:
    """A pass, from its input until what came of it is journaled, which is when it is ``over``. ``root`` takes
    news for the tree meanwhile."""

    def __init__(self, root: RunningNode) -> None:
        self.root = root
        self.over = asyncio.Event()
        self._handing_down: set[asyncio.Task[None]] = set()

    def hand_down(self, decisions: Decisions) -> None:
        """Hands decisions down, which nobody waits for: they are journaled, and a pass that ends without them
        is followed by another."""
        task = asyncio.create_task(self._hand_down(decisions))
        self._handing_down.add(task)
        task.add_done_callback(self._handing_down.discard)

    async def _hand_down(self, decisions: Decisions) -> None:
        try:
            await self.root.hear(decisions, is_durable=True)
        except Unavailable as problem:  # it goes on in the background
            _log.warning("event=decision_late %s", fields(message=problem))


More = Callable[[Sequence[AnyEvent]], Sequence[AnyEvent]]
"""From the events of an append that are new to those that are appended after them."""


def nothing_more(_: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
    """Appends nothing else."""
    return ()


class LoadedConversation:
    """See the module's text.

    ``run_numbers`` gives the numbers of passes. Each is greater than those of all passes before, also of
    those that began before the conversation was read anew. ``on_append`` is called after every append with
    the events that are new and the journal's size, ``on_failure`` when an append failed. ``lists_ahead``: the
    listing moves with the journal, so that an append brings its entry (`Append.entry`). ``agents_at_once``
    bounds the agents of a turn that work at the same time. ``limits_of`` is a digest, and the limits of the
    budgets in its config, by node path.
    """

    def __init__(
        self,
        conversation: Conversation,
        journal: Journal,
        shard: int,
        epoch: int,
        run_numbers: Iterator[int],
        agents_at_once: int,
        limits_of: tuple[str, Mapping[str, Mapping[str, float]]],
        on_append: Callable[["LoadedConversation", Sequence[AnyEvent], int], None],
        on_failure: Callable[["LoadedConversation", JournalError], None],
        *,
        lists_ahead: bool = False,
    ) -> None:
        self.conversation = conversation
        self.audience = Audience()
        self.slots = TurnSlots(agents_at_once)
        # Messages take their turns in the order of this lock: the next one waits for the end of the turn
        # before.
        self.turn_lock = asyncio.Lock()
        self._interventions: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by agent
        self.waiting_messages = 0
        # Of the open turn: the task that drives it and the pass that runs now (both are the driver's), the
        # bearer token of whoever asked last, which is never written.
        self.driver: asyncio.Task[None] | None = None
        self.running_pass: asyncio.Task[PassOutput] | None = None
        self.pass_under_way: PassUnderWay | None = None
        self.turn_to_cancel = 0
        self.token = ""
        self.held_message: UserMessage | None = None
        self.is_journal_failing = False  # whether the last append failed
        self.append_took_s = 0.0
        self.refused_because = ""  # why the journal will never take something of the newest turn
        self.is_dropped = False  # see `drop`
        self._dropped_because: MeshError | None = None
        self._is_behind = False  # whether its journal may have more than what is in memory
        self._lists_ahead = lists_ahead
        # With `lists_ahead`: the conversation with the events that are being appended. A fold of its own, so
        # that ``conversation`` shows nothing before it is durable. None: not known.
        self._ahead: Conversation | None = None
        self._scopes: dict[str, Scope] = {}  # the budgets that effects of the newest turn were under
        self._users = 0
        self._run_numbers = run_numbers
        self._runs = Runs()
        self._limits_of, self._limits = limits_of
        self._added: dict[str, int] = {}  # the numbers of agents that people add, by intervention
        self._late_results: list[ToolResult] = []  # those that older runs brought since the newest pass began
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
        self._waiting_calls = WaitingCalls()

    @property
    def label(self) -> str:
        """The fields of a log line that say which conversation it is."""
        return f"sid={self.conversation.session_id} conversation={self.conversation.id}"

    @property
    def turn(self) -> int:
        """The number of the newest turn."""
        return self.held_message.turn if self.held_message else self.conversation.turn

    @property
    def digest(self) -> str:
        """The version of the newest turn."""
        return (self.held_message.digest if self.held_message else "") or self.conversation.digest

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

    def has_money_limit(self, place: Place) -> bool:
        """Whether a budget bounds what model calls at a place may cost, as far as it is known."""
        scopes = (*self._scopes.values(), *self._scopes_around(place))
        if any(each.max_nusd is not None or each.max_conversation_nusd is not None for each in scopes):
            return True
        return not {"max_cost_usd", "max_conversation_cost_usd"}.isdisjoint(self.conversation.budget)

    def as_they_stand(self, agents: Iterable[AgentView]) -> Iterator[AgentView]:
        """Agents of the conversation, of which some may ask a person or wait for a slot."""
        for agent in as_they_stand(agents, self.conversation):
            is_queued = not agent.detail and not agent.has_ended and self.slots.is_waiting(agent.place)
            yield msgspec.structs.replace(agent, detail="queued", started_at=None) if is_queued else agent

    def take_changed_agents(self) -> list[str]:
        """The ids of the agents that stand otherwise since this was called last."""
        agents = self.conversation.agents
        queued = (agents.at(Place(place)) for place in self.slots.take_changed())
        ids = [*agents.take_changed(), *(agent.agent_id for agent in queued if agent)]
        return [*dict.fromkeys(ids)]

    def intervening(self, agent: str) -> asyncio.Lock:
        """What is held while a person steps in with an agent."""
        return self._interventions.setdefault(agent, asyncio.Lock())

    @property
    def needs_pass(self) -> bool:
        """Whether the open turn can go on without a person."""
        return self.held_message is not None or self.conversation.needs_pass

    @property
    def ends_now(self) -> bool:
        """Whether the open turn ends without another pass: it is to be cancelled, its root agent is deleted,
        or an agent has returned to the user."""
        conversation = self.conversation
        is_over = conversation.turn_open and (conversation.returned is not None or conversation.is_stopped)
        return is_over or (self.turn_to_cancel != 0 and self.turn_to_cancel == self.turn)

    def cancel_pass(self) -> None:
        """Cancels the pass that runs, once: it waits for destructive tools that run, and another cancellation
        would break that off."""
        if self.running_pass is not None and not self.running_pass.cancelling():
            self.running_pass.cancel()

    @property
    def is_unsure(self) -> bool:
        """Whether its journal may have more than what is in memory."""
        return self._is_behind or self.is_dropped

    def nobody_knows(self, problem: JournalError) -> WrongSequence:
        """The error for a sender whose message may be in the journal, or not."""
        what = "nobody knows whether the message was journaled; send the same again, with its Idempotency-Key"
        return WrongSequence(f"conversation {self.conversation.id}: {what}: {problem}")

    def check_current(self) -> None:
        """Raises `WrongSequence` if another object has taken the place of this one."""
        if isinstance(self._dropped_because, NotFound):
            raise NotFound(str(self._dropped_because))
        if self.is_dropped:
            what = f"is read again from its journal, because {self._dropped_because}"
            raise WrongSequence(f"conversation {self.conversation.id} {what}; send the same again")

    def drop(self, problem: WrongSequence | NotFound) -> None:
        """Goes on with nothing more: it may differ from its journal, and another object takes its place; or
        it is deleted."""
        self.is_dropped, self._dropped_because = True, problem
        self.held_message = None
        self.close()
        self.cancel_pass()

    def close(self) -> None:
        """Starts nothing more by itself."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()

    def hold(self, message: UserMessage) -> None:
        """Opens a turn. The message becomes durable with the first append, or after `SEND_AHEAD_S`; at once
        where there is a watcher, which is to see it first."""
        self.check_current()
        self.held_message = message
        self.refused_because = ""
        self._scopes = {}
        self._added = {}
        delay = 0 if self.audience.is_there else SEND_AHEAD_S
        self._flush_timer = asyncio.get_running_loop().call_later(delay, self._flush_soon)

    def end_pass(self) -> None:
        """What came of the pass under way is journaled, or never will be."""
        assert self.pass_under_way is not None
        self.pass_under_way.over.set()
        self.pass_under_way = None
        self._waiting_calls.wake_all()

    async def begin_pass(self) -> PassInput:
        """The input of the next pass over the tree. From here on, no older pass can claim or record anything;
        an append that one of them is just making is waited for, so that the new pass knows it."""
        if self.audience.is_there:  # a watcher sees the message before what it leads to
            await self.append(())
        async with self._append_lock:
            self.check_current()
            self.slots.lose_all()
            self._runs.begin_pass(self._new_run())
            self._late_results.clear()
            self._waiting_calls.wake_all()
            return self._turn_input()

    def _new_run(self) -> GivenRun:
        return GivenRun(next(self._run_numbers), self.conversation.seq)

    def _turn_input(self) -> PassInput:
        conversation, held = self.conversation, self.held_message
        return PassInput(
            conversation_id=conversation.id,
            session_id=held.session_id or conversation.session_id if held else conversation.turn_session_id,
            digest=self.digest,
            turn=self.turn,
            nonce=held.nonce if held else conversation.turn_nonce,
            run=self._runs.of_pass.number,
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
            self.check_current()
            if self._is_behind:
                await self._catch_up()
            if not only_if():
                return False
            numbered = self._numbered(events)
            if added := more(numbered):
                numbered = self._numbered([*events, *added])
            journaled = [event for event in numbered if event.seq]
            if journaled:
                failpoint("journal.before_append")
                conversation_id = self.conversation.id or _created_id(journaled)
                # Durable first: what is applied is shown to clients, and must not be lost any more.
                size = await self._write(conversation_id, journaled)
                failpoint("journal.after_append")
                self._journaled(journaled, size)
            for event in self._with_spend(numbered):
                self.audience.show(event)
            return True

    def _journaled(self, events: Sequence[AnyEvent], size: int) -> None:
        self.held_message = None
        for event in events:
            self._apply(event)
        log_events(events, self.conversation.id, self.conversation.session_id)
        self._on_append(self, events, size)
        self._wake(events)

    async def _catch_up(self) -> None:
        """Applies what an append has made durable whose caller was cancelled meanwhile."""
        try:
            found = await self._journal.read(self.conversation.id)
        except JournalError:
            self.is_journal_failing = True
            raise
        self._is_behind = False
        missed = [event for event in found if event.seq > self.conversation.seq]
        if missed:
            held = self.held_message
            self._journaled(missed, 0)  # no size it could have: an index reads it again at the next start
            if held is not None and not self.conversation.has(held):
                self.held_message = held  # it came after them
            for event in self._with_spend(missed):
                self.audience.show(event)

    def _apply(self, event: AnyEvent) -> None:
        conversation = self.conversation
        conversation.apply(event)
        if isinstance(event, NodeCompleted):
            self.slots.end(event.place, is_leaf=not conversation.agents_started.below(event.place))
        if not conversation.turn_open:
            self.token = ""
            self.slots.lose_all()

    def _with_spend(self, events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
        """The events for watchers, with what the runs with budgets have used after them: before the end of
        the turn, after which a watcher may leave."""
        if not self._scopes or not self.audience.is_there:
            return events
        scopes = {scope.place: scope for event in events for scope in self._scopes_used_by(event)}
        if not scopes:
            return events
        use, agents, at = self.conversation.budget_use, self.conversation.agents_started, now()
        run = self._runs.of_pass.number
        shown = (spend_of(use, agents, scope, run, at) for scope in scopes.values())
        spends = [msgspec.structs.replace(spend, turn=self.turn, time=at) for spend in shown]
        end = next((i for i, e in enumerate(events) if isinstance(e, Completed | Error)), len(events))
        return [*events[:end], *spends, *events[end:]]

    def _scopes_used_by(self, event: AnyEvent) -> Iterator[Scope]:
        """The runs with budgets of which an event uses something."""
        is_of_agents = is_start(event)
        if not is_of_agents and not _is_spending(event):
            return
        for place in event.place.scopes:
            scope = self._scopes.get(place.text)
            if scope and (scope.max_agents is not None if is_of_agents else scope.bounds_calls):
                yield scope

    async def append_from_pass(
        self, activation: Activation, events: Sequence[AnyEvent], *, more: More = nothing_more
    ) -> bool:
        """An append by a node. Returns False when its run is not in force at its place any more, when the
        place or the turn has ended, when another run holds a claim that this one makes, or when the journal
        has another result of a call than this one.

        The result of a tool that an older run claimed is taken all the same: it is the truth about something
        that happened, and nobody else can tell it.
        """
        return await self._append_if_current(activation, events, more)

    async def _append_if_current(
        self, activation: Activation, events: Sequence[AnyEvent], more: More = nothing_more
    ) -> bool:
        if await self.append(events, only_if=lambda: self._may_append(activation, events), more=more):
            return True
        turn = activation.turn
        late = [event for event in events if self._is_late_result(event, activation)]
        if late:
            await self.append(late, only_if=lambda: self.conversation.turn == turn, more=self._note_late)
        # An answer that comes too late is not used, but it was paid for: what it cost is no longer a guess.
        if any(isinstance(event, LlmCall) for event in events):
            settle = partial(settled_late, self.conversation)
            await self.append((), only_if=lambda: self.is_open(turn), more=lambda _: settle(events))
        return False

    async def reserve(
        self, activation: Activation, events: Sequence[AnyEvent], request: CallRequest, within_s: float
    ) -> ReserveReply:
        """Appends events of a pass, and admits a model call if it fits into its budgets. A call that fits
        only if calls in flight turn out cheaper waits for them, at most ``within_s``: then the grant has no
        event, and the node asks again, so that no call between processes is open for ever."""
        deadline = asyncio.get_running_loop().time() + within_s
        with self._waiting_calls.waiter(activation.place) as waiter:
            while True:
                # A person may set others while it waits.
                scopes = self._as_set(request.scopes, activation.place)
                request = msgspec.structs.replace(request, scopes=scopes)
                self._scopes |= {scope.place: scope for scope in scopes}
                admission = Admission(self.conversation, activation, self._runs.of_pass.number, request)
                if not await self._append_if_current(activation, events, admission):
                    return ReserveReply(Ack(False))
                ack = Ack(True, self.audience.is_there, self.conversation.llm_calls)
                grant = admission.grant(ack)
                if grant is not None:
                    if isinstance(grant.event, LimitReached):
                        failpoint("limit.recorded")
                    return grant
                assert admission.short is not None  # why there is no grant
                # Nothing is awaited between the decision and this, so that nothing is freed in between.
                self._waiting_calls.line_up(waiter, admission.short)
                events = ()  # they are durable
                if not await waiter.wait(deadline):
                    return ReserveReply(ack)

    async def start_agents(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        """Appends events of a pass, and the starts of agents among them unless that would exceed a limit:
        then none of these. Starts that are in the journal by now, as the reply to them was lost, are as
        good."""
        self._scopes |= {scope.place: scope for scope in scopes}
        starts = [event for event in events if _is_of_start(event)]
        others = [event for event in events if not _is_of_start(event)]
        # Who journals the start of an agent that a person adds does not know the budgets around that one.
        place = starts[0].place if starts else activation.place
        around = self._as_set(scopes, place) if asker else self._scopes_around(place)
        refused = ""

        def within_limits(appended: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
            nonlocal refused
            begins = any(isinstance(event, UserMessage) for event in appended)
            refused = self._refusal(starts, around, AgentsStarted() if begins else None)
            return () if refused else starts

        if not await self._append_if_current(activation, others, within_limits):
            return StartReply(Ack(False))
        ack = Ack(True, self.audience.is_there, self.conversation.llm_calls)
        if refused:
            return StartReply(ack, refused)
        granted = self.slots.start(asker, [start.step for start in starts]) if asker else ()
        return StartReply(ack, granted=granted, is_short=self.slots.is_short)

    def refusal(self, start: AgentStarted) -> str:
        """Why an agent may not start now, as far as the budgets around it are known; empty if it may."""
        return self._refusal([start], self._scopes_around(start.place))

    def _as_set(self, scopes: Sequence[Scope], place: Place) -> Sequence[Scope]:
        """The budgets around a place as a node knows them, with what people have set since."""
        for at in place.scopes:
            if limits := self.conversation.agents.limits_set(at):
                scopes = with_limits(scopes, at.text, limits)
        return scopes

    def _scopes_around(self, place: Place) -> Sequence[Scope]:
        """The budgets around a place: those of the config, as far as it is known, of the request, and of
        starts, with what people have set."""
        known = dict(self._scopes)
        limits = self._limits if self.digest == self._limits_of else {}
        for at in place.scopes:
            given = self.conversation.agents.budget_given(at)
            if own := tightest(limits.get(at.path, {}), given):
                known[at.text] = scope_of(at.text, own)
        return self._as_set([known[at.text] for at in place.scopes if at.text in known], place)

    def _refusal(
        self, starts: Sequence[AnyEvent], scopes: Sequence[Scope], before: AgentsStarted | None = None
    ) -> str:
        new = [each.place for each in starts if is_start(each) and not self.conversation.has(each)]
        return refusal(before or self.conversation.agents_started, new, scopes)

    def number_of_added(self, id: str) -> int:
        """The number by which the place of an agent is told apart that an intervention adds: that of the next
        event in the journal, or a greater one if another agent has this number. It is the same for the same
        intervention, which may still be on its way when it comes again."""
        number = max(self.conversation.seq + 1, max(self._added.values(), default=0) + 1)
        return self._added.setdefault(id, number)

    async def ask_for_slots(
        self, activation: Activation, request: SlotRequest, within_s: float
    ) -> SlotReply | None:
        """Carries out a request about slots; None when the pass is over. One that changes nothing waits for
        news, at most ``within_s``."""
        if not self.is_current(activation):
            return None
        if request.number:
            return self.slots.change(request, activation.at)
        try:
            async with asyncio.timeout(within_s):
                reply = await self.slots.news(request)
        except TimeoutError:
            reply = self.slots.change(request)
        return reply if self.is_current(activation) else None

    async def restart(self, lost: Activation) -> Restarted:
        """See `Recorder.restart`. An append that the old run is just making is waited for, so that the new
        one knows it. Costs what happened at the place and below it, however large the turn is elsewhere."""
        conversation, place = self.conversation, lost.place

        def begin(_: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
            self._runs.restart(place, self._new_run())
            self.slots.lose_below(place)
            self._waiting_calls.wake_inside(place.text)
            return lost_calls(conversation, place, self._runs.of_pass.number)

        if not await self.append((), only_if=lambda: self._may_restart(lost), more=begin):
            return Restarted(Ack(False))
        # Nothing is awaited from the append to here: the new run is told all that was journaled before it.
        ack = Ack(True, self.audience.is_there, conversation.llm_calls)
        done = conversation.done_before(place) if place.first != place else ()
        return Restarted(ack, self._runs.at(place).number, conversation.within(place), done)

    def _may_restart(self, lost: Activation) -> bool:
        """Whether whoever asks for a restart is in force at the place of the parent."""
        parent = next(lost.place.enclosing, None)
        if parent is None or not self.is_open(lost.turn) or self.conversation.has_ended(lost.place):
            return False
        return self._runs.is_in_force(lost.run, parent)

    def hand_down(self, uuids: Sequence[str]) -> None:
        """Hands the decisions about approvals down the pass that runs, if one does."""
        decided = self.conversation.decided
        found = [decided[uuid] for uuid in uuids if uuid in decided]
        if self.pass_under_way is not None and found:
            self.pass_under_way.hand_down(Decisions(found, self.token))

    def waiting_at(self, place: Place) -> AbstractContextManager[Waiter]:
        """One that is woken when a node at a place or around it has ended, and when a pass begins or ends."""
        return self._waiting_calls.waiter(place)

    def _wake(self, events: Sequence[AnyEvent]) -> None:
        """Wakes those model calls that wait whom these events concern, which were journaled."""
        if not self.conversation.turn_open or any(isinstance(e, ApprovalResolved) for e in events):
            self._waiting_calls.wake_all()
            return
        for event in events:
            if isinstance(event, NodeCompleted | ToolResult | Validation):
                self._waiting_calls.wake_inside(event.step)
                self._waiting_calls.free(event.place)
            elif isinstance(event, LlmCall | LlmSettled | LlmLost):
                self._waiting_calls.free(event.place)
            elif isinstance(event, AgentTold) and event.limits:
                self._waiting_calls.wake_all()

    def _may_append(self, activation: Activation, events: Sequence[AnyEvent]) -> bool:
        if not self.is_current(activation):
            return False
        if any(self._comes_after_end(event) or self._contradicts_result(event) for event in events):
            return False
        if any(event.turn != activation.turn for event in events):
            return False  # something that was meant for a turn that is over
        if self._ends_unread(events):
            return False
        claims = [event for event in events if isinstance(event, ToolIntent)]
        if claims and self.ends_now:
            return False  # no destructive tool starts in a turn that is about to end
        return not any(self._is_taken(claim) for claim in claims)

    def _ends_unread(self, events: Sequence[AnyEvent]) -> bool:
        """Whether the root agent would return to the user although a person has just told it something, or
        has paused it. It begins again, and learns of that."""
        returns = any(isinstance(e, ToolResult) and e.ends_turn and e.place == ROOT for e in events)
        return returns and self.has_news_for_root(events)

    def _comes_after_end(self, event: AnyEvent) -> bool:
        """Whether an event would add to what happened at a place that has ended. What a claimed tool came to,
        and what a reserved call cost, are true all the same."""
        conversation = self.conversation
        is_truth = isinstance(event, LlmSettled) or (
            isinstance(event, ToolResult) and event.step in conversation.claims
        )
        if is_truth or isinstance(event, Live) or conversation.has(event):
            return False
        return conversation.has_ended(event.place)

    def _contradicts_result(self, event: AnyEvent) -> bool:
        """Whether a node has come to another result of a call than the one that is journaled: that of an
        older run, which came late. The node has to begin again, to tell its model what is journaled."""
        known = self.conversation.results.get(event.step) if isinstance(event, ToolResult) else None
        if known is None or not isinstance(event, ToolResult) or known.key != event.key:
            return False
        return (known.content, known.is_error) != (event.content, event.is_error)

    def _is_taken(self, claim: ToolIntent) -> bool:
        """Whether another run has made this claim, or its step got a result since the run in force there
        began. One that is told twice is not."""
        conversation = self.conversation
        for known in conversation.claims.get(claim.step, ()):
            if known.key == claim.key:
                return known.run != claim.run
        result = conversation.results.get(claim.step)
        return result is not None and result.seq > self._runs.at(claim.place).after

    def is_open(self, turn: int) -> bool:
        """Whether this turn is open."""
        return self.turn == turn and (self.held_message is not None or self.conversation.turn_open)

    def is_current(self, activation: Activation) -> bool:
        """Whether this run is in force at its place, which has not ended, in the turn that is open."""
        place = activation.place
        is_in_force = self.is_open(activation.turn) and self._runs.is_in_force(activation.run, place)
        return is_in_force and not self.conversation.has_ended(place)

    def _is_late_result(self, event: AnyEvent, activation: Activation) -> bool:
        """Whether it is the result of the newest attempt. Another attempt follows only when it is known, or
        was decided, what became of those before."""
        is_open = self.conversation.turn_open and self.conversation.turn == activation.turn
        if not (isinstance(event, ToolResult) and is_open):
            return False
        claims = self.conversation.claims.get(event.step, ())
        newest = claims[-1] if claims else None
        return newest is not None and newest.run == activation.run

    def _note_late(self, events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
        """Notes late results that are about to be journaled."""
        self._late_results += [event for event in events if isinstance(event, ToolResult)]
        return ()

    def _has_news(self, more: Sequence[AnyEvent]) -> bool:
        """Whether something came since the run in force there began, which may not have gone on with it: a
        decision, what a person told an agent, that one goes on, or a result of an older run."""
        if any(result.seq > self._runs.at(result.place).after for result in self._late_results):
            return True
        since = self._runs.of_pass.after
        conversation = self.conversation
        if conversation.has_news(since, more) or conversation.agents.let_go_after(since):
            return True
        return bool(conversation.unheard(since, more))

    def has_news_for_root(self, more: Sequence[AnyEvent]) -> bool:
        """Whether a person has paused the root agent since the pass began, or has told it something that no
        model call has read, neither in the journal nor among the ``more`` events."""
        since = self._runs.of_pass.after
        if self.conversation.agents.root_held_after(since):
            return True
        return any(event.place == ROOT for event in self.conversation.unheard(since, more))

    async def _write(self, conversation_id: str, events: Sequence[AnyEvent]) -> int:
        try:
            entry = await self._entry_after(conversation_id, events) if self._lists_ahead else None
            append = Append(conversation_id, self.conversation.seq, events, entry)
            begun = time.monotonic()
            size = await self._journal.append(self._shard, self._epoch, append)
            self.append_took_s = time.monotonic() - begun
        except JournalError as problem:
            self.is_journal_failing = True
            self._ahead = None
            if isinstance(problem, JournalRefused):
                self.refused_because = str(problem)
            self._on_failure(self, problem)
            raise
        except BaseException:
            # Cancelled, most likely: the append goes on, and what becomes of it is in the journal.
            self._ahead, self._is_behind = None, True
            if not self.conversation.id:
                cancelled = WrongSequence(f"conversation {conversation_id}: its creation was cancelled")
                self._on_failure(self, cancelled)
            raise
        self.is_journal_failing = False
        return size

    async def _entry_after(self, conversation_id: str, events: Sequence[AnyEvent]) -> ListingEntry:
        """The conversation's entry once these events are in its journal."""
        if self._ahead is None:
            known = await self._journal.read(conversation_id) if self.conversation.seq else ()
            self._ahead = fold(event for event in known if event.seq <= self.conversation.seq)
        for event in events:
            self._ahead.apply(event)
        return entry_of(self._ahead)

    def _numbered(self, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        """The held message and the new ones among these events, numbered and dated. Live events keep their
        position among them, and get no number."""
        numbered: list[AnyEvent] = []
        keys: set[str] = set()
        for event in (*((self.held_message,) if self.held_message else ()), *events):
            if isinstance(event, Paused) and not event.is_move and self._has_news(events):
                continue  # the turn does not pause: another pass follows, for what came while this one ended
            if isinstance(event, Live):
                numbered.append(event)
            elif event.key not in keys and not self.conversation.has(event):
                keys.add(event.key)
                seq = self.conversation.seq + len(keys)
                numbered.append(
                    msgspec.structs.replace(event, seq=seq, time=event.time or now(), **self._version(event))
                )
        return numbered

    def _version(self, event: AnyEvent) -> dict[str, str]:
        """The field of the end of a turn that runs on another version than the conversation began on."""
        if isinstance(event, Completed | Error) and self.digest != self.conversation.first_digest:
            return {"digest": self.digest}
        return {}

    async def drop_held_message(self) -> bool:
        """Forgets a message that could not be made durable, so that its sender can be refused. Returns False
        if it is durable by now, or nobody knows (`is_unsure`)."""
        async with self._append_lock:
            if self.is_unsure:
                return False
            dropped, self.held_message = self.held_message is not None, None
            if dropped:  # a pass for it may still run, and the next message opens a turn of the same number
                self._runs.begin_pass(self._new_run())
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


def _is_of_start(event: AnyEvent) -> bool:
    """Whether it is the start of an agent, or tells of one that a person adds."""
    return is_start(event) or (isinstance(event, AgentTold) and event.adds is not None)


def _is_spending(event: AnyEvent) -> bool:
    is_model_call = isinstance(event, LlmReserved | LlmCall | LlmSettled | LlmLost)
    return is_model_call or (isinstance(event, ToolResult) and event.spent is not None)


def _created_id(events: Sequence[AnyEvent]) -> str:
    """The id of the conversation that these events create."""
    created = events[0]
    assert isinstance(created, ConversationCreated), "a journal begins with its creation"
    return created.conversation_id
