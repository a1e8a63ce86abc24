"""Durable steps: an effect runs once, its outcome is journaled, and a later pass gets the record.

`Steps` is one node's view of the journal of the turn, in one pass. The node asks it what is known of a step,
records outcomes, and claims effects that must not happen twice. Recorded events travel with the return of the
call. They are sent ahead only when the next effect must not be repeated (`claim` waits for the
acknowledgement), when they are the outcome of such an effect (`send_ahead`), when there are watchers, or when
they are older than `SEND_AHEAD_S` and the pass still runs. Events for watchers (`show`) go the same way, in
order.

Invariant (causality): events leave in the order in which they were recorded, and everything recorded before
them is in the same append or in an earlier one. So the unjournaled events that came with the call
(``pending``) are sent before those of this node; the keeper drops what it has already.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from mesh.core.budget import CallRequest, OnLimit, Remaining, with_limits
from mesh.core.errors import JournalError, NodeLost, Unavailable
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    CodeStep,
    Live,
    LlmCall,
    NodeCompleted,
    NodeStarted,
    TextDelta,
    ToolIntent,
    ToolProgress,
    ToolResult,
    Validation,
    now,
)
from mesh.core.messages import User
from mesh.core.news import (
    HAS_MODEL,
    begun_anew,
    copy_for,
    for_models_below,
    is_copy,
    models_at_work,
    start_of,
    told_anew,
)
from mesh.core.places import Place, StepKey
from mesh.core.verdict import Verdict
from mesh.net.backoff import Backoff, Patience
from mesh.policy.commands import ParsedCommand
from mesh.policy.custom import PolicyContext
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.runtime.logs import fields
from mesh.runtime.machine import MACHINE
from mesh.tree.agent_slots import AgentSlots
from mesh.tree.nodes_below import NodesBelow, all_heard
from mesh.tree.pass_clock import PassClock
from mesh.tree.turn import (
    Ack,
    Decisions,
    Hearing,
    News,
    PassInput,
    PassOutput,
    Recorder,
    ReserveReply,
    Restarted,
    RunNode,
    StartReply,
)

SEND_AHEAD_S = 0.2
_LOST_NODES = Backoff(first_s=0.1, longest_s=5.0)
_OUTCOMES = (LlmCall, ToolResult, Validation, CodeStep, AgentStarted, NodeCompleted)
"""Events that tell that a node has got on: it does not do that again after a loss."""
_SEND_AHEAD_AT_ONCE = 8
_READ_AT_ONCE = 32
"""How many passes of a node may run at the same time in one conversation so that their answers are shown as
they come. Nobody reads along with more of them: each answer is shown when it is there."""
_MOST_UNSENT = 1_000
_MOST_CARRIED = 32
"""How many events a child carries that are not journaled yet, unless the keeper does not answer."""

E = TypeVar("E", bound=AnyEvent)
T = TypeVar("T")
_log = logging.getLogger("mesh.steps")


class Superseded(Exception):
    """A newer pass runs this turn. Unwinds the pass and never leaves the tree."""


class _Known:
    """The events of the turn that a node knows, by step and by child: what a step costs must not depend on
    how many there were before."""

    def __init__(self, place: Place, events: Sequence[AnyEvent]) -> None:
        self._inside = f"{place.text}."
        self._by_step: dict[str, list[AnyEvent]] = {}
        self._by_child: dict[str, list[AnyEvent]] = {}
        self._started: dict[str, list[AgentStarted]] = {}  # by the call, in their order
        self._added: dict[str, AgentStarted] = {}  # those that people have added to this node, by place
        # The newest start of each agent that has begun anew, by its first place.
        self.anew: dict[str, AgentStarted] = {}
        self._order: dict[str, int] = {}  # by place: which of them it is
        self._told: dict[str, AgentTold] = {}
        self.add(events)

    def add(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            if isinstance(event, AgentTold):
                if event.key in self._told:  # it was known, and came from above, too
                    continue
                self._told[event.key] = event
            self._by_step.setdefault(event.step, []).append(event)
            if event.step.startswith(self._inside):
                child = self._child_of(event.node)
                self._by_child.setdefault(child, []).append(event)
                if isinstance(event, AgentStarted):
                    self._add_start(event)

    def of(self, step: StepKey) -> list[AnyEvent]:
        return self._by_step.get(step.text, [])

    def started_in(self, call: StepKey) -> Sequence[AgentStarted]:
        return self._started.get(call.text, ())

    @property
    def added(self) -> list[AgentStarted]:
        return [*self._added.values()]

    def told(self, place: Place) -> list[AgentTold]:
        return [told for told in self._told.values() if place.contains(told.place)]

    def _add_start(self, event: AgentStarted) -> None:
        first = event.place.first
        if first != event.place:
            # They come in their order, but one may be handed to this node again.
            known = self.anew.get(first.text)
            if known is None or (len(known.step), known.step) < (len(event.step), event.step):
                self.anew[first.text] = event
            return
        if not event.by:
            return
        if event.place.is_added and event.step.rpartition(".")[0] == self._inside[:-1]:
            self._added.setdefault(event.step, event)
        call = event.place.started_in
        if call is not None and call.place.text == self._inside[:-1]:
            started = self._started.setdefault(call.text, [])
            # The same start may be handed to this node twice, when it is read from the journal anew.
            if event.step in self._order:
                started[self._order[event.step]] = event
            else:
                self._order[event.step] = len(started)
                started.append(event)

    def below_all(self) -> list[AnyEvent]:
        """All that is known of the children."""
        return [event for events in self._by_child.values() for event in events]

    def below(self, child: Place) -> list[AnyEvent]:
        return self._by_child.get(self._child_of(child.text), [])

    def replace_below(self, child: Place, journaled: Sequence[AnyEvent]) -> None:
        """Takes what the journal says of a child; of what is known of it so far, only what is not journaled
        stays, after that."""
        before = self.below(child)
        keys = {event.key for event in journaled}
        events = [*journaled, *(event for event in before if event.key not in keys)]
        for event in before:
            self._by_step.pop(event.step, None)
        self._by_child[self._child_of(child.text)] = events
        for event in events:
            self._by_step.setdefault(event.step, []).append(event)
            if isinstance(event, AgentTold):
                self._told[event.key] = event

    def _child_of(self, place: str) -> str:
        return place[len(self._inside) :].partition(".")[0]


class PassesAtOnce:
    """What the passes of one node share that run at the same time in one conversation, so that a thousand
    of them do not cost the keeper and the watchers a thousand times what one does.

    A few of them at a time send ahead what need not wait for their return (``sending_ahead``). The others
    send more at a time, or nothing, if they return meanwhile. ``number`` is how many there are.
    """

    def __init__(self) -> None:
        self.sending_ahead = asyncio.Semaphore(_SEND_AHEAD_AT_ONCE)
        self.number = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """While it is open, there is one more."""
        self.number += 1
        try:
            yield
        finally:
            self.number -= 1


class Breakable:
    """Something that is awaited, once at a time, until it is broken off from outside. It has a task of its
    own, which is cancelled once: a second cancellation would break off what must not be, such as the wait
    for a tool."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._is_broken_off = False

    async def unless_broken_off(self, call: Coroutine[Any, Any, T]) -> T | None:
        """What it comes to; None if it was broken off, once it has ended by that."""
        self._task, self._is_broken_off = asyncio.create_task(call), False
        try:
            await asyncio.wait({self._task})
            return None if self._is_broken_off and self._task.cancelled() else self._task.result()
        except asyncio.CancelledError:
            if not self._is_broken_off:
                self._task.cancel()
            await _ended(self._task)
            raise
        finally:
            self._task = None

    def break_off(self) -> None:
        """Ends it, if it goes on."""
        if self._task is not None and not self._is_broken_off:
            self._is_broken_off = True
            self._task.cancel()


async def _ended(task: asyncio.Task[Any]) -> None:
    """Waits for the end of a task, whoever is cancelled meanwhile."""
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()  # it is taken: nobody else asks for it


class Steps:
    """One node in one pass. Not shared between passes; used by one event loop. ``has_model``: it reads what
    it is told."""

    def __init__(
        self,
        turn: PassInput,
        recorder: Recorder,
        passes: PassesAtOnce | None = None,
        *,
        has_model: bool = True,
    ) -> None:
        self.turn = turn
        self._has_model = has_model
        self._recorder = recorder
        self._passes = passes or PassesAtOnce()
        self._known = _Known(turn.place, turn.known)
        self._pending: list[AnyEvent] = list(turn.pending)
        self._unsent: list[AnyEvent] = []
        self._on_its_way = 0  # how many of the first unsent events are being sent at this moment
        self.watched = turn.watched
        self.llm_calls_made = 0  # in this pass, here and below
        self._llm_calls_durable = 0  # of the whole turn, as the keeper said last
        self._llm_calls_unsent = 0
        self._sent: list[AnyEvent] = []
        self._runs_below = dict(turn.runs)
        self._sending = asyncio.Lock()
        self._slots = AgentSlots(turn.activation, recorder, turn.slot)
        self._timer: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[None] | None = None
        self._is_queued = False  # whether the sender waits for its turn
        self._held = {*turn.held}  # the places at which a person has paused this node or an agent around it
        self._held |= held_in(self._known.of(turn.place.step))
        self._below = NodesBelow(self._known.told, self._as_of_now)
        self._hears = True
        self.told_now = 0  # how often news came that is to act now
        self._model_call: asyncio.Task[Any] | None = None  # what such news breaks off
        self._is_broken_off = False
        self._calls_below: dict[str, Breakable] = {}  # by place
        self._returned: set[str] = set()  # the places of those of them whose node has come to its end
        self._taking_news = 0  # how many hearings are under way
        self._no_news = asyncio.Event()
        self._no_news.set()
        self._heard: list[str] = []
        # The keys of the news that has acted here: what is handed down again does not act again.
        self._taken_before = {e.key for e in self._known.of(turn.place.step) if isinstance(e, AgentTold)}
        self._decided: list[StepKey] = []  # the steps of the decisions that this pass has learned of
        self._more_decided = asyncio.Event()
        self._when_told: list[Callable[[StepKey | None], None]] = []
        self.stop_agent: Callable[[AgentTold], None] = _nobody_to_stop
        """Ends an agent that this node has started."""
        self.start_added: Callable[[], None] = _nothing_to_start
        """Starts the agents that people have `added` to this node."""
        self.clock = PassClock()

    def known(self, step: StepKey, kind: type[E]) -> E | None:
        """The latest event of this kind for this step. Of an agent that has begun anew, the end is that of
        the newest start."""
        if kind is NodeCompleted and self._known.anew:
            step = self._newest(step.place).step if step.text == step.place.text else step
        return self._latest(step, kind)

    def _latest(self, step: StepKey, kind: type[E]) -> E | None:
        return next((e for e in reversed(self._known.of(step)) if isinstance(e, kind)), None)

    def _newest(self, place: Place) -> Place:
        """Where the agent works now that began at a place."""
        anew = self._known.anew.get(place.first.text)
        return anew.place if anew else place

    def of(self, step: StepKey) -> list[AnyEvent]:
        """All that is known of this step, in its order."""
        return [*self._known.of(step)]

    def started_in(self, call: StepKey) -> Sequence[AgentStarted]:
        """The agents that a tool call of this node has started, in their order."""
        return self._known.started_in(call)

    @property
    def added(self) -> Sequence[AgentStarted]:
        """The agents that people have added to this node."""
        return self._known.added

    async def once(self, step: StepKey, kind: type[E], effect: Callable[[], Awaitable[E]]) -> E:
        """The recorded outcome of a repeatable effect; if there is none, the effect runs and is recorded."""
        return self.known(step, kind) or self.record(step, await effect())

    @property
    def llm_calls(self) -> int:
        """The model calls of the turn, as far as this node knows: those before it began and those made here
        and below since; or those that the keeper has and those that are not sent yet, if that is more,
        because the keeper knows those of other branches, too."""
        known_to_keeper = self._llm_calls_durable + self._llm_calls_unsent
        return max(self.turn.llm_calls + self.llm_calls_made, known_to_keeper)

    def record(self, step: StepKey, event: E) -> E:
        """Records an outcome. It is durable when the pass returns, or earlier. The end of an agent that has
        begun anew is that of the newest start."""
        if isinstance(event, NodeCompleted) and self._known.anew:
            step = self._newest(step.place).step
        stamped = self._stamp(step, event)
        self.llm_calls_made += isinstance(event, LlmCall)
        if isinstance(event, NodeCompleted):
            self._slots.ended(stamped.step)
        self._note([stamped])
        return stamped

    @property
    def wants_deltas(self) -> bool:
        """Whether somebody can read along while a model answers."""
        return self.watched and self._passes.number <= _READ_AT_ONCE

    def show(self, step: StepKey, event: Live) -> None:
        """Shows an event to the watchers, if there are any."""
        if not self.watched or len(self._unsent) >= _MOST_UNSENT:
            return
        if self.turn.conceals and not isinstance(event, NodeStarted):
            return
        stamped = self._stamp(step, event)
        last = self._unsent[-1] if len(self._unsent) > self._on_its_way else None
        match last, stamped:
            case TextDelta(), TextDelta() if _follows(last, stamped):
                self._unsent[-1] = msgspec.structs.replace(last, text=last.text + stamped.text)
            case ToolProgress(), ToolProgress() if last.step == stamped.step:
                self._unsent[-1] = stamped
            case _:
                self._unsent.append(stamped)
        self._send_soon()

    async def claim(self, step: StepKey, intent: ToolIntent) -> ToolIntent:
        """The claim as it was journaled: this pass, and no other, may run the effect. Raises `Superseded`."""
        stamped = self._stamp(step, msgspec.structs.replace(intent, nonce=self.nonce_of(step)))
        self._known.add([stamped])
        self._unsent.append(stamped)
        await self._send()
        return stamped

    def nonce_of(self, step: StepKey) -> str:
        """The nonce in the name by which others know a call (`step_id`): that of the turn, or of the first
        claim, which a node of an earlier release may have made."""
        claim = self.known(step, ToolIntent)
        return self.turn.nonce if claim is None else claim.nonce

    async def start(self, started: Sequence[tuple[Place, AgentStarted]]) -> str:
        """Records that agents start at these places. Returns when it is durable, in one append; or says
        why none of them may start. Raises `Superseded`, `Unavailable`."""
        starts = [self._stamp(place.step, start) for place, start in started]
        reply = await self._start(starts, self._slots.asker)
        if not reply.refusal:
            places = [start.step for start in starts]
            self._slots.started(places, reply.granted, is_short=reply.is_short)
        return reply.refusal

    async def _start(self, starts: Sequence[AnyEvent], slots_for: str) -> StartReply:
        """Journals starts of agents, if they may start, in one append with what was recorded before."""
        async with self._sending:
            reply = StartReply(Ack(False))

            async def send(batch: Sequence[AnyEvent]) -> Ack:
                nonlocal reply
                turn, events = self.turn, [*batch, *starts]
                reply = await self._recorder.start(turn.activation, events, turn.scopes, slots_for)
                return reply.ack

            await self._send_batch(send)
            if not reply.refusal:
                self._known.add(starts)
                self._sent += starts
        return reply

    # -- slots

    @asynccontextmanager
    async def slot(self, place: Place) -> AsyncIterator[None]:
        """A slot for the started agent, or item of a map, at a place, while it runs. Waits until there is
        one. Raises `Superseded`, `Unavailable`."""
        place = self._newest(place)
        try:
            if not await self._slots.take(place.text):
                raise Superseded
            yield
        finally:
            self._slots.give_back(place.text, is_told=self.known(place.step, NodeCompleted) is not None)

    def is_queued(self, place: Place) -> bool:
        """Whether the agent at a place waits for a slot."""
        return self._slots.is_queued(self._newest(place).text)

    @asynccontextmanager
    async def without_slot(self) -> AsyncIterator[None]:
        """Gives back the slot in which this node works, while it waits for its agents, and takes one again.
        Raises `Superseded`, `Unavailable`."""
        self.rest()
        yield
        await self.work()

    def rest(self) -> None:
        """Gives back the slot in which this node works, if it has one: it waits for its agents."""
        self._slots.rest()

    def leave(self) -> None:
        """The node only waits for others that work in the same slot: see `AgentSlots.leave`."""
        self._slots.leave()

    async def work(self) -> None:
        """Takes the slot again that the node gave back, before it goes on. Raises `Superseded`,
        `Unavailable`."""
        if not await self._slots.work():
            raise Superseded

    async def send_ahead(self) -> None:
        """Makes what was recorded durable now, or leaves it to the return of the pass if that is not
        possible.

        To be awaited after an effect that must not be repeated: while its result is not journaled, a crash
        leaves an unknown outcome. Raises `Superseded`."""
        try:
            await self._send()
        except (Unavailable, JournalError) as problem:
            _log.warning("event=not_sent_ahead %s %s", self._about(), fields(message=problem))

    async def reserve(self, request: CallRequest) -> ReserveReply:
        """Reserves what a model call can cost, together with all that was recorded before it, on which it
        depends. The lock is held meanwhile: nothing may overtake them. Raises `Superseded`, `Unavailable`."""
        activation, grant = self.turn.activation, ReserveReply(Ack(False))
        at_once = msgspec.structs.replace(request, at_once=True)

        async def send(batch: Sequence[AnyEvent]) -> Ack:
            nonlocal grant
            grant = await self._recorder.reserve(activation, batch, at_once)
            return grant.ack

        async with self._sending:
            await self._send_batch(send)
        if grant.event is None and not grant.is_paused:
            # It waits for calls in flight. The lock is free meanwhile: what agents of this node bring may be
            # what it waits for.
            grant = await self._recorder.reserve(activation, (), request)
            self._take_ack(grant.ack)
        if grant.event is not None:
            self._known.add([grant.event])
            self._sent.append(grant.event)
        return grant

    async def remaining(self, on_limit: OnLimit) -> Remaining:
        """What may still be used of the budgets around this node. Raises `Unavailable`."""
        turn = self.turn
        if not turn.call_scopes:
            return Remaining()
        return await self._recorder.remaining(turn.conversation_id, turn.call_scopes, on_limit)

    async def grants(self, agent: str) -> Sequence[Grant]:
        """What is remembered for an agent. Raises `Unavailable`."""
        return await self._recorder.grants(self.turn.conversation_id, agent)

    def context(self, agent: str, verdict: Verdict, command: ParsedCommand | None) -> PolicyContext:
        """What a custom function of the policy is told of this turn."""
        turn = self.turn
        return PolicyContext(
            verdict=verdict,
            command=command,
            agent_path=tuple(turn.agent_path) or (agent,),
            conversation_id=turn.conversation_id,
            turn=turn.turn,
            by=turn.by,
        )

    async def denial(self, call: PolicyCall) -> Verdict | None:
        """How the newest config denies a call, if it does. Raises `Unavailable`."""
        if not self.turn.is_older:
            return None
        return await self._recorder.denial(self.turn.conversation_id, call)

    async def end_turn(self, step: StepKey, result: ToolResult) -> None:
        """Records a result that ends the turn; returns when it is durable. The keeper cancels what still
        runs. Raises `Superseded`, `Unavailable`."""
        self.record(step, result)
        await self._send()

    # -- children

    def below(
        self,
        place: Place,
        state: Mapping[str, str],
        iteration: int,
        *,
        history: bool,
        is_started: bool = False,
    ) -> PassInput:
        """The input of the child at a place: what is known there, and all that must be journaled before. For
        an agent whose start is journaled that is only what it has recorded itself: all else on which it
        depends is journaled with its start."""
        known = self._known.below(place)
        return msgspec.structs.replace(
            self.turn,
            at=place.text,
            run=self._runs_below.get(place.text, self.turn.run),
            runs=self._runs_inside(place),
            state=state,
            iteration=iteration,
            known=known,
            pending=self._unjournaled_of(place, known) if is_started else self._unjournaled,
            llm_calls=self.llm_calls,
            watched=self.watched,
            exchange=(),
            history=self.turn.history if history else (),
        )

    def _as_of_now(self, turn: PassInput) -> PassInput:
        """The input of a child, which may be older than news for this node."""
        own, known = self.turn, self._known.below(turn.place)
        return msgspec.structs.replace(
            turn,
            held=sorted(self._held),
            scopes=own.scopes,
            known=known,
            token=own.token,
            lost_token=own.lost_token,
        )

    @property
    def _unjournaled(self) -> list[AnyEvent]:
        return [*self._pending, *_journaled(self._unsent)]

    def _unjournaled_of(self, place: Place, known: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
        """What a started agent has recorded that is not journaled yet; ``known`` is all of it."""
        if len(known) < 2:  # it has not begun: a thousand agents that start must not look at all of it each
            return ()
        return [event for event in self._unjournaled if place.contains(event.place)]

    async def send_if_many(self) -> None:
        """Sends ahead what must be journaled before anything that children do, if that is much: each of them
        would carry all of it, and of a thousand calls of one answer each is one more event to carry. Raises
        `Superseded`."""
        if len(self._pending) + len(self._unsent) > _MOST_CARRIED:
            await self.send_ahead()

    async def run_below(self, run: RunNode, turn: PassInput) -> PassOutput:
        """Runs a child, or a called agent, and takes over what it has recorded.

        While its process is lost, or something does not answer it, it begins again at once, then after
        growing pauses, each time in a new run of its place alone: what is beside it goes on. What it had
        journaled it is told, and does not do again. Raises `Superseded` if this node's own run is not in
        force any more, `Unavailable` if the keeper does not answer, and `NodeLost` when that has lasted for
        as long as anybody waits."""
        place = turn.place
        output = await self._run_at(run, turn) if self._newest(place) == place else None
        while output is None or self._newest(place) != place:  # it has begun anew, maybe meanwhile
            place = self._newest(turn.place)
            async with self._slot_anew(turn, place):
                if self._newest(place) != place:  # once more, while it waited for a slot
                    continue
                output = self._end_if_deleted(place)
                if output is None:
                    output = await self._run_at(run, await self._begun_anew(turn, place))
        return output

    @asynccontextmanager
    async def _slot_anew(self, turn: PassInput, place: Place) -> AsyncIterator[None]:
        """A slot for an agent that begins anew at a place, if it needs one and this pass has not taken it
        yet: that of its run before was given back with the end of it."""
        needs_one = place.text not in self._slots.working and any(
            Place(each).first == turn.place.first for each in self._slots.working
        )
        if not needs_one:
            yield
            return
        async with self.slot(place):
            yield

    async def _begun_anew(self, turn: PassInput, place: Place) -> PassInput:
        """The input of an agent that has begun anew at a place, from that of its first start. Raises
        `Superseded`, `Unavailable`."""
        start = self._known.anew[place.first.text]
        at = msgspec.structs.replace(turn, at=place.text, run=self.turn.run, runs={})
        with self._below.restarting(place):
            restarted = await self._restart(at)
        if not await self._slots.keep(at.at):
            raise Superseded
        told = told_anew(start, turn.user_message, restarted.done)
        task = {"task": start.task} if start.task and start.by != "map" else {}
        return msgspec.structs.replace(
            at,
            run=restarted.run,
            known=self._known.below(place),
            pending=self._unjournaled,
            user_message=told,
            exchange=(*turn.exchange, User(told)) if turn.exchange else (),
            state={**turn.state, **task},
            started_at=start.time,
            llm_calls=self.llm_calls,
        )

    async def _run_at(self, run: RunNode, turn: PassInput) -> PassOutput:
        if self._slots.is_working(turn.at):
            turn = msgspec.structs.replace(turn, slot=turn.at)
        if (deleted := self._end_if_deleted(turn.place)) is not None:
            return deleted
        call = self._calls_below[turn.at] = Breakable()
        try:
            output = await call.unless_broken_off(self._run_below(run, turn))
        finally:
            del self._calls_below[turn.at]
            self._returned.discard(turn.at)
        deleted = self._end_if_deleted(turn.place)
        assert output is not None or deleted is not None  # nothing else breaks it off
        return deleted or output  # type: ignore[return-value]  # one of them there is

    def _end_if_deleted(self, place: Place) -> PassOutput | None:
        """Ends the call of a node that a person has deleted; None if nobody has."""
        stop, end = self.stop_of(place), self._latest(place.step, NodeCompleted)
        if stop is None and (end is None or end.status != "deleted"):
            return None
        if stop is not None and end is None and not place.is_started:
            self._record_stopped(stop)  # a crash came between the two
        return PassOutput("deleted", stop.end_text if stop else end.text if end else "")

    async def _run_below(self, run: RunNode, turn: PassInput) -> PassOutput:
        losses: _Losses | None = None
        while True:
            try:
                output = await self._below.run(run, turn)
            except Unavailable as problem:
                output = PassOutput("interrupted", str(problem))
            self._absorb(output, turn.place)
            if output.status in ("completed", "failed", "stopped"):
                # Until its end is recorded, which takes a moment, nothing else says that it hears no more.
                self._returned.add(turn.at)
            if output.status not in ("interrupted", "superseded") or output.gave_up:
                return output
            losses = losses or _Losses(turn)
            turn = await self._restarted(turn, losses, output.text)

    async def _restarted(self, turn: PassInput, losses: "_Losses", problem: str) -> PassInput:
        """The input of a child that begins again."""
        # First of all the keeper: what is left of the child is to do nothing more, not even while this waits.
        with self._below.restarting(turn.place):
            restarted = await self._restart(turn)
        delay = losses.pause(restarted.events)
        about = fields(child=turn.at, run=restarted.run, delay_s=round(delay, 2), message=problem)
        _log.warning("event=node_lost %s %s", self._about(), about)
        if losses.are_too_many:
            raise NodeLost(problem or f"the node at {turn.at} was lost again and again")
        await asyncio.sleep(delay)
        if not await self._slots.keep(turn.at):
            raise Superseded
        own, known = self.turn, self._known.below(turn.place)
        before = {event.key for event in turn.pending}
        return msgspec.structs.replace(
            turn,
            run=restarted.run,
            runs={},
            known=known,
            # And what it had recorded itself by then, and is not journaled yet.
            pending=[*turn.pending, *(e for e in known if not e.seq and e.key not in before)],
            llm_calls=self.llm_calls,
            watched=self.watched,
            token=own.token,
            lost_token=own.lost_token,
        )

    async def _restart(self, turn: PassInput) -> Restarted:
        lost = msgspec.structs.replace(turn.activation, run=self.turn.run)
        restarted = await self._recorder.restart(lost)
        if not restarted.ack.taken:
            raise Superseded
        self.watched = restarted.ack.watched
        self._llm_calls_durable = restarted.ack.llm_calls
        before = {event.key for event in self._known.below(turn.place)}
        self._known.replace_below(turn.place, restarted.events)
        # Those above learn it with the return of this node, as what the child itself would have returned.
        self._sent += [event for event in restarted.events if event.key not in before]
        for ended in self._runs_inside(turn.place):
            del self._runs_below[ended]
        self._runs_below[turn.at] = restarted.run
        return restarted

    @property
    def runs_below(self) -> Mapping[str, int]:
        """See `PassOutput.runs`."""
        return self._runs_below

    def _runs_inside(self, child: Place) -> Mapping[str, int]:
        inside = f"{child.text}."
        return {at: run for at, run in self._runs_below.items() if at.startswith(inside)}

    def _absorb(self, output: PassOutput, place: Place) -> None:
        self.llm_calls_made += output.llm_calls
        sent = [event for event in output.sent if not self._is_known(event)]
        self._known.add(sent)
        self._sent += sent
        self._runs_below |= output.runs
        if self._latest(place.step, NodeCompleted) is None:
            self._note(output.events)
        else:  # it was deleted just when it returned: nothing counts there any more but what tools did
            self._note([event for event in output.events if self._is_truth(event)])

    def _is_truth(self, event: AnyEvent) -> bool:
        known = self._known.of(StepKey(event.step))
        return isinstance(event, ToolResult) and any(isinstance(each, ToolIntent) for each in known)

    @property
    def decided(self) -> int:
        """How many decisions this pass has learned of since it began."""
        return len(self._decided)

    async def next_decisions(self, since: int) -> Sequence[StepKey]:
        """The steps of the decisions that this pass has learned of after so many; waits for one. Each of
        those who wait gets all of them."""
        while len(self._decided) <= since:
            await self._more_decided.wait()
        return self._decided[since:]

    async def _hear_decisions(self, news: Decisions) -> Hearing:
        """Takes decisions about steps here and below, and hands those on that let a call below go on."""
        lost = self.turn.lost_token and not news.token
        self.turn = msgspec.structs.replace(self.turn, token=news.token, lost_token=lost)
        found = [event for event in news.events if not self._is_known(event)]
        if not found:
            return "taken"
        self._known.add(found)
        self._decided += [StepKey(event.step) for event in found]
        self._more_decided.set()
        self._more_decided = asyncio.Event()
        hearing = []
        for call in self._below.all():
            concerned = [event for event in found if StepKey(event.step).lets_go_on(call.place)]
            if concerned:
                hearing.append(call.hear(Decisions(concerned, news.token), is_durable=True))
        await all_heard(hearing)
        return "taken"

    def _is_known(self, event: AnyEvent) -> bool:
        # A decision comes from above and with what was journaled of a child that was lost.
        return any(known.key == event.key for known in self._known.of(StepKey(event.step)))

    # -- news

    @property
    def news(self) -> Sequence[AgentTold]:
        """What the agent at this place was told while it works."""
        known = self._known.of(self.turn.place.step)
        return [event for event in known if isinstance(event, AgentTold) and event.is_read]

    @property
    def changes(self) -> Mapping[str, Any]:
        """What a person has changed of this agent, by name."""
        return changes_in(self._known.of(self.turn.place.step), self.turn.place)

    async def unless_told_now(self, as_of: int, call: Coroutine[Any, Any, T]) -> T | None:
        """Awaits a model call, of which a node has one at a time. None: it was broken off, as news has come
        that is to act now; ``as_of`` is `told_now` when its prompt was made."""
        if as_of != self.told_now:
            call.close()
            return None
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        self._model_call, self._is_broken_off = task, False
        try:
            return await call
        except asyncio.CancelledError:
            # As `asyncio.timeout` does it: whoever else cancels the task cancels it for good.
            if self._is_broken_off and task.uncancel() <= cancelled_before:
                return None
            raise
        finally:
            self._model_call = None

    @property
    def is_held(self) -> bool:
        """Whether a person has paused this node, or an agent around it: then no step begins."""
        return bool(self._held)

    def _hold(self, news: AgentTold) -> None:
        if news.action == "pause":
            self._held.add(news.step)
        elif news.action == "resume":
            self._held.discard(news.step)
        else:
            return
        self.clock.hold(self.is_held)

    def stop_hearing(self) -> None:
        """From here on the model of this node reads nothing more: what comes now comes too late."""
        self._hears = False

    async def tell(self, place: Place, told: AgentTold) -> Hearing:
        """Tells something to a started agent below this node. Raises `Superseded`, `Unavailable`."""
        # What led to it goes first, as another node may journal it.
        async with self._sending:
            if self._pending or self._unsent:
                await self._send_batch(partial(self._recorder.append, self.turn.activation))
        return await self.hear(self._stamp(place.step, told), is_durable=False)

    async def hear(self, news: News, *, is_durable: bool) -> Hearing:
        """Takes news about this place or one below it: see `RunNode.hear`. Raises `Superseded`,
        `Unavailable`."""
        if isinstance(news, Decisions):
            return await self._hear_decisions(news)
        self._taking_news += 1
        self._no_news.clear()
        try:
            heard = await self._hear(news, is_durable)
        finally:
            self._taking_news -= 1
            if not self._taking_news:
                self._no_news.set()
        if heard == "taken":
            self._heard.append(news.key)
        return heard

    async def _hear(self, news: AgentTold, is_durable: bool) -> Hearing:
        place = news.addressee
        if not is_durable and news.place == self.turn.place and news.is_read:
            return await self._hear_for_models(news)
        if place.contains(self.turn.place):
            return await (self._hear_stop(news, is_durable) if news.stops else self._hear_own(news))
        while True:
            await self._below.restarted(place)
            running = self._below.around(place)
            # The node that has started an agent knows best whether it can be stopped, and one without a model
            # which of the nodes below it have one.
            is_last = running is None or (
                running.place == place and not news.stops and not for_models_below(news)
            )
            if running is None and for_models_below(news):
                return await self._tell_models(news, place)
            if not is_durable and is_last:
                if problem := self._cannot_hear(news) or await self._journal(news):
                    return problem
                is_durable = True
            if is_durable:
                self._known.add([news])
                running = self._below.around(place)  # it may have begun, or ended, meanwhile
            if running is None:
                return self._cannot_hear(news) or self._wake_for(news)
            heard = await running.hear(news, is_durable=is_durable)
            if heard == "taken":
                # The call may have ended with the reply: the next one has to know it, and may have to begin.
                self._known.add([news])
                self._wake_for(news)
            if heard is not None:
                return heard
            if is_durable:
                return self._wake_for(news)  # the next call of the node brings it

    # -- what all models below a node are told

    async def _hear_for_models(self, news: AgentTold) -> Hearing:
        """Takes what this node and all below it are told: each model that is at work reads it, under an id of
        its own. It is journaled here for this model, as nobody else knows which there are."""
        heard: list[Hearing] = []
        if self._has_model and self._hears:
            await self._journal(news)
            heard.append(await self._hear_own(news))
        calls = self._below.all()
        below = (call.hear(copy_for(news, call.place), is_durable=False) for call in calls)
        heard += [each for each in await all_heard(below) if each]
        heard.append(await self._tell_models(news, self.turn.place, beside=[call.place for call in calls]))
        return "taken" if "taken" in heard else "mute"

    async def _tell_models(self, news: AgentTold, place: Place, beside: Sequence[Place] = ()) -> Hearing:
        """Journals news for the models at a place and below it that wait for something and do not run now:
        they read it when they go on. Not for those at the places ``beside``, or below these."""
        others = [*beside, *map(Place, self._returned)]
        waiting = [
            at
            for at in models_at_work(self._known.below_all(), place)
            if at != self.turn.place and not any(other.contains(at) for other in others)
        ]
        heard: list[Hearing] = []
        for at in waiting:
            copy = copy_for(news, at)
            await self._journal(copy)
            heard.append(await self._hear(copy, is_durable=True))  # it may have begun meanwhile
        return "taken" if "taken" in heard else "mute"

    async def _hear_own(self, news: AgentTold) -> Hearing:
        """Takes what is about this node, or holds it with an agent around it."""
        if not self._hears:
            return "ended"
        is_new = news.key not in self._taken_before
        self._taken_before.add(news.key)
        if news.place == self.turn.place:
            self._known.add([news])
        if is_new:
            self._act_on(news)
        try:
            if news.is_for_all_below:
                await self._below.hear_all(news)
        finally:
            if news.action == "resume":
                self._wake(None)
        return "taken"

    def _act_on(self, news: AgentTold) -> None:
        self._hold(news)
        if (start := start_of(news, self.turn.conversation_id)) is not None:
            self._known.add([start])
            self.start_added()
        is_own = news.place == self.turn.place
        if news.limits:
            scopes = with_limits(self.turn.scopes, news.step, news.limits)
            self.turn = msgspec.structs.replace(self.turn, scopes=scopes)
        if is_own and "timeout_s" in news.changes:
            self.clock.limit(news.changes["timeout_s"])
        if news.now and (is_own or news.action == "pause"):
            self.told_now += 1
            if self._model_call is not None and not self._is_broken_off:
                self._is_broken_off = True
                self._model_call.cancel()

    async def _hear_stop(self, stop: AgentTold, is_durable: bool) -> Hearing:
        """Ends an agent that this node has started or called."""
        if self._is_deleted_by(stop) and self._latest(stop.place.step, NodeCompleted):
            self._break_off_below(stop)
            await self._send()  # it may not be journaled yet
            return "taken"  # the reply to it was lost
        if problem := self._cannot_hear(stop):
            return problem
        # Invariant: the stop and the end of its agent are in one append, so that nothing of the agent comes
        # between them. That it ends is known here before anything is awaited: an answer that comes now is
        # none.
        if not is_durable and stop.key not in {told.key for told in self._known.told(stop.place)}:
            self._unsent.append(stop)
        self._known.add([stop])
        if stop.place.is_started and not stop.restarts:
            self.stop_agent(stop)
            self._record_stopped(stop)  # this node may not have come to it yet
        else:  # a called agent, or an item of a map, or one that begins anew
            self._record_stopped(stop)
            self._break_off_below(stop)
        await self._send()
        return "taken"

    def _record_stopped(self, stop: AgentTold) -> None:
        """Records what a stop comes to: that the agent ends, and that it begins anew if it is to."""
        start = self._latest(stop.place.step, AgentStarted)
        name = start.name if start else stop.name
        if not name or self._latest(stop.place.step, NodeCompleted) is not None:
            return
        if start is None or not stop.restarts:
            self.record(stop.place.step, NodeCompleted(name=name, status="deleted", text=stop.end_text))
            return
        events = begun_anew(stop, start, self.turn.conversation_id)
        self._slots.ended(start.step)
        self._note([self._stamp(StepKey(event.step), event) for event in events])

    def _break_off_below(self, stop: AgentTold) -> None:
        """Ends the call of an agent that is deleted. One that has paused goes on, to end by that."""
        if (call := self._calls_below.get(stop.step)) is not None:
            call.break_off()
        self._wake(stop.place.step)

    def _wake_for(self, news: AgentTold) -> Hearing:
        """No node runs any more between this one and the addressee of news that is journaled. One that has
        paused goes on, as after a decision, if an agent is stopped, as it may have waited for this one, or if
        a person lets it go on."""
        if news.lets_go_on:
            self._wake(news.place.step)
        return "taken"

    def _wake(self, step: StepKey | None) -> None:
        for go_on in self._when_told:
            go_on(step)

    @contextmanager
    def when_told(self, go_on: Callable[[StepKey | None], None]) -> Iterator[None]:
        """While it is open, ``go_on`` is told at which step below something may go on that had paused; None:
        at all of them."""
        self._when_told.append(go_on)
        try:
            yield
        finally:
            self._when_told.remove(go_on)

    def stop_of(self, place: Place) -> AgentTold | None:
        """What stops the agent at a place below this node, if a node above has stopped it."""
        return next((told for told in self._known.told(place) if told.stops and told.place == place), None)

    def _is_deleted_by(self, stop: AgentTold) -> bool:
        """Whether it is this very stop, journaled before, that deletes the agent."""
        known, end = self.stop_of(stop.place), self._latest(stop.place.step, NodeCompleted)
        return known is not None and known.id == stop.id and (end is None or end.status == "deleted")

    def _cannot_hear(self, news: AgentTold) -> Hearing | None:
        """Why the agent below this node that news is about does not hear, as far as this node knows; None if
        it does."""
        if news.stops and self._is_deleted_by(news):
            return None
        place = news.place
        for at in place.scopes:
            if at == self.turn.place:
                break
            if at.text in self._returned or self._latest(at.step, NodeCompleted):
                return "ended"
            if at.call and self.known(at.call, ToolResult):
                return "ended"
        start = self.known(place.step, AgentStarted)
        kind = start.kind if start else news.kind
        # What a model tells is for agents that were started; a person may tell any node.
        if not kind or not (news.from_person or (start and start.by)):
            return "unknown"
        return "mute" if news.is_read and kind != HAS_MODEL and not is_copy(news) else None

    async def _journal(self, news: AgentTold) -> Hearing | None:
        """Journals news for an agent below. Returns why it cannot take it; None if it does."""
        if news.key in {told.key for told in self._known.told(news.place)}:
            return None
        if (start := start_of(news, self.turn.conversation_id)) is not None:
            # The agent to which it is added runs it, and asks for its slot.
            reply = await self._start([news, start], slots_for="")
            return "full" if reply.refusal else None
        self._unsent.append(news)
        if news.stops and news.addressee != self.turn.place:
            # The node that started the agent does not run now, and would end it only when it does: until then
            # a person could decide what the agent asks.
            self._record_stopped(news)
        await self._send()
        return None

    # -- the end

    @property
    def heard(self) -> Sequence[str]:
        """The keys of the news that this run took."""
        return self._heard

    async def close(self) -> tuple[list[AnyEvent], list[AnyEvent]]:
        """The events that travel with the return, and those that were sent ahead. Nothing is recorded after
        this."""
        await self._no_news.wait()  # what is being journaled for news that comes right now belongs to it, too
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None and self._is_queued:
            self._sender.cancel()  # what it would have sent travels with the return
        elif self._sender is not None:
            await self._sender
        await self._slots.close()
        unsent, self._unsent = self._unsent, []
        return unsent, self._sent

    def abandon(self) -> None:
        """The return reaches nobody any more: what was not sent is left to the next pass. What is on its way
        goes on, but nothing follows it: the node's parent may have recorded its end by then."""
        if self._timer is not None:
            self._timer.cancel()
        self._slots.abandon()
        del self._unsent[self._on_its_way :]

    def _note(self, events: Sequence[AnyEvent]) -> None:
        if not events:
            return
        self._known.add(_journaled(events))
        self._unsent += events
        self._llm_calls_unsent += _llm_calls(events)
        self._send_soon()

    def _about(self) -> str:
        return f"sid={self.turn.session_id} conversation={self.turn.conversation_id} node={self.turn.at}"

    def _stamp(self, step: StepKey, event: E) -> E:
        turn = self.turn
        if isinstance(event, LlmCall | ToolResult):
            event = msgspec.structs.replace(event, machine=MACHINE)
        return msgspec.structs.replace(
            event, turn=turn.turn, step=step.text, time=event.time or now(), concealed=turn.conceals
        )

    def _send_soon(self) -> None:
        # Invariant: what is recorded right before the return travels with it. A timer, even one of no time at
        # all, fires only when the pass waits for something.
        if self._timer is None:
            wait = 0 if self.watched else SEND_AHEAD_S
            self._timer = asyncio.get_running_loop().call_later(wait, self._start_sending)

    def _start_sending(self) -> None:
        self._timer = None
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_in_background())

    async def _send_in_background(self) -> None:
        try:
            while self._unsent:
                self._is_queued = True
                async with self._passes.sending_ahead:
                    self._is_queued = False
                    await self._send()
        except Superseded:
            _log.info("event=superseded %s run=%d", self._about(), self.turn.run)
        except (Unavailable, JournalError) as problem:
            _log.warning("event=not_sent_ahead %s %s", self._about(), fields(message=problem))

    async def _send(self) -> None:
        # One append at a time: an event must not arrive before what was recorded before it.
        async with self._sending:
            if self._unsent:
                await self._send_batch(partial(self._recorder.append, self.turn.activation))

    async def _send_batch(self, send: Callable[[Sequence[AnyEvent]], Awaitable[Ack]]) -> None:
        """Sends all that is not sent yet. The lock is held."""
        before, own = len(self._pending), len(self._unsent)
        self._on_its_way = own
        try:
            ack = await send([*self._pending, *self._unsent])
        finally:
            self._on_its_way = 0
        self._take_ack(ack)
        sent = self._unsent[:own]
        self._llm_calls_unsent -= _llm_calls(sent)
        self._sent += _journaled(sent)
        del self._pending[:before], self._unsent[:own]

    def _take_ack(self, ack: Ack) -> None:
        if not ack.taken:
            raise Superseded
        self.watched = ack.watched
        self._llm_calls_durable = ack.llm_calls


class _Losses:
    """How often in a row a child was lost, and how long that has lasted. A new row begins when it has got
    on in between."""

    def __init__(self, turn: PassInput) -> None:
        self._for_s = turn.patience_s
        self._outcomes = 0
        self._patience = Patience(_LOST_NODES, self._for_s)

    def pause(self, journaled: Sequence[AnyEvent]) -> float:
        """The seconds to wait after one more loss; ``journaled`` is what has happened there so far."""
        outcomes = sum(isinstance(event, _OUTCOMES) for event in journaled)
        if outcomes > self._outcomes:
            self._outcomes = outcomes
            self._patience = Patience(_LOST_NODES, self._for_s)
        return self._patience.next_delay()

    @property
    def are_too_many(self) -> bool:
        """Whether nobody waits any more."""
        return self._patience.is_over


def _nothing_to_start() -> None:
    """A node whose agents do not run yet: it knows of those that were added when it comes to them."""


def _nobody_to_stop(_: AgentTold) -> None:
    """A node whose agents do not run yet: it knows of the stop when it comes to them."""


def held_in(events: Sequence[AnyEvent]) -> set[str]:
    """The places at which a person has paused an agent, and has not let it go on."""
    held: set[str] = set()
    for event in events:
        if isinstance(event, AgentTold) and event.action == "pause":
            held.add(event.step)
        elif isinstance(event, AgentTold) and event.action == "resume":
            held.discard(event.step)
    return held


def changes_in(events: Sequence[AnyEvent], place: Place) -> dict[str, Any]:
    """What a person has changed of the agent at a place, by name. A fork begins with what had been changed of
    the node by then that it is once more."""
    changes: dict[str, Any] = {}
    for event in events:
        if event.step != place.text:
            continue
        if isinstance(event, AgentStarted):
            changes = {**event.changes, **changes}
        elif isinstance(event, AgentTold):
            changes = event.added_to(changes)
    return changes


def _follows(first: TextDelta, second: TextDelta) -> bool:
    """Whether the second piece of text follows the first without a gap."""
    return first.step == second.step and first.offset + len(first.text) == second.offset


def _llm_calls(events: Sequence[AnyEvent]) -> int:
    return sum(isinstance(event, LlmCall) for event in events)


def _journaled(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """The events that are journaled: all but those for watchers."""
    return [event for event in events if not isinstance(event, Live)]
