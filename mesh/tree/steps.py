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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from mesh.core.budget import CallRequest, OnLimit, Remaining
from mesh.core.errors import JournalError, Unavailable
from mesh.core.events import (
    AnyEvent,
    LimitReached,
    Live,
    LlmCall,
    LlmReserved,
    NodeStarted,
    TextDelta,
    ToolIntent,
    ToolProgress,
    ToolResult,
    now,
)
from mesh.core.places import Place, StepKey
from mesh.core.verdict import Verdict
from mesh.policy.commands import ParsedCommand
from mesh.policy.custom import PolicyContext
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.runtime.logs import fields
from mesh.tree.turn import Ack, PassInput, PassOutput, Recorder, ReserveReply, RunNode

SEND_AHEAD_S = 0.2
_MOST_UNSENT = 1_000

E = TypeVar("E", bound=AnyEvent)
_log = logging.getLogger("mesh.steps")


class Superseded(Exception):
    """A newer pass runs this turn. Unwinds the pass and never leaves the tree."""


class _Known:
    """The events of the turn that a node knows, by step and by child: what a step costs must not depend on
    how many there were before. ``newest``: the decisions up to this event are among them."""

    def __init__(self, place: Place, events: Sequence[AnyEvent]) -> None:
        self._inside = f"{place.text}."
        self._by_step: dict[str, list[AnyEvent]] = {}
        self._by_child: dict[str, list[AnyEvent]] = {}
        self.newest = 0
        self.add(events)

    def add(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            self._by_step.setdefault(event.step, []).append(event)
            if event.step.startswith(self._inside):
                child = self._child_of(event.node)
                self._by_child.setdefault(child, []).append(event)
            # A reservation is numbered while the pass runs, when decisions before it may not be known.
            if not isinstance(event, LlmReserved | LimitReached):
                self.newest = max(self.newest, event.seq)

    def of(self, step: StepKey) -> list[AnyEvent]:
        return self._by_step.get(step.text, [])

    def below(self, child: Place) -> list[AnyEvent]:
        return self._by_child.get(self._child_of(child.text), [])

    def _child_of(self, place: str) -> str:
        return place[len(self._inside) :].partition(".")[0]


class Steps:
    """One node in one pass. Not shared between passes; used by one event loop."""

    def __init__(self, turn: PassInput, recorder: Recorder) -> None:
        self.turn = turn
        self._recorder = recorder
        self._known = _Known(turn.place, turn.known)
        self._pending: list[AnyEvent] = list(turn.pending)
        self._unsent: list[AnyEvent] = []
        self._on_its_way = 0  # how many of the first unsent events are being sent at this moment
        self.watched = turn.watched
        self.llm_calls_made = 0  # in this pass, here and below
        self._llm_calls_durable = 0  # of the whole turn, as the keeper said last
        self._sent: list[AnyEvent] = []
        self._sending = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[None] | None = None

    def known(self, step: StepKey, kind: type[E]) -> E | None:
        """The latest event of this kind for this step."""
        return next((e for e in reversed(self._known.of(step)) if isinstance(e, kind)), None)

    def of(self, step: StepKey) -> list[AnyEvent]:
        """All that is known of this step, in its order."""
        return [*self._known.of(step)]

    async def once(self, step: StepKey, kind: type[E], effect: Callable[[], Awaitable[E]]) -> E:
        """The recorded outcome of a repeatable effect; if there is none, the effect runs and is recorded."""
        return self.known(step, kind) or self.record(step, await effect())

    @property
    def llm_calls(self) -> int:
        """The model calls of the turn, as far as this node knows: those before it began and those made here
        and below since; or those that the keeper has and those that are not sent yet, if that is more,
        because the keeper knows those of other branches, too."""
        unsent = sum(isinstance(event, LlmCall) for event in self._unsent)
        return max(self.turn.llm_calls + self.llm_calls_made, self._llm_calls_durable + unsent)

    def record(self, step: StepKey, event: E) -> E:
        """Records an outcome. It is durable when the pass returns, or earlier."""
        stamped = self._stamp(step, event)
        self.llm_calls_made += isinstance(event, LlmCall)
        self._note([stamped])
        return stamped

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
        stamped = self._stamp(step, intent)
        self._known.add([stamped])
        self._unsent.append(stamped)
        await self._send()
        return stamped

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
        async with self._sending:
            turn, grant = self.turn, ReserveReply(Ack(False))

            async def send(batch: Sequence[AnyEvent]) -> Ack:
                nonlocal grant
                grant = await self._recorder.reserve(
                    turn.conversation_id, turn.turn, turn.run, batch, request
                )
                return grant.ack

            await self._send_batch(send)
            if grant.event is not None:
                self._known.add([grant.event])
                self._sent.append(grant.event)
            return grant

    async def remaining(self, on_limit: OnLimit) -> Remaining:
        """What may still be used of the budgets around this node. Raises `Unavailable`."""
        turn = self.turn
        if not turn.scopes:
            return Remaining()
        return await self._recorder.remaining(turn.conversation_id, turn.scopes, on_limit)

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

    def below(self, place: Place, state: Mapping[str, str], iteration: int, *, history: bool) -> PassInput:
        """The input of the child at a place: what is known there, and all that must be journaled before."""
        return msgspec.structs.replace(
            self.turn,
            at=place.text,
            state=state,
            iteration=iteration,
            known=self._known.below(place),
            pending=[*self._pending, *_journaled(self._unsent)],
            llm_calls=self.llm_calls,
            watched=self.watched,
            history=self.turn.history if history else (),
        )

    async def run_below(self, run: RunNode, turn: PassInput) -> PassOutput:
        """Runs a child, or a called agent, and takes over what it has recorded. Raises `Superseded`,
        `Unavailable`."""
        try:
            output = await run(turn)
        except Unavailable:
            # Its process may be gone. This pass ends, but only after the branches beside it have ended, and
            # they must not wait for model calls that nobody makes any more.
            if turn.scopes:
                await self._recorder.lose(turn.conversation_id, turn.turn, turn.run, turn.at)
            raise
        self._absorb(output)
        return output

    def _absorb(self, output: PassOutput) -> None:
        self.llm_calls_made += output.llm_calls
        self._known.add(output.sent)
        self._sent += output.sent
        self._note(output.events)

    async def wait_for_decisions(self) -> list[StepKey]:
        """Waits for decisions that this pass does not know, and returns their steps. Raises `Superseded`."""
        after = self._known.newest
        while True:
            turn = self.turn
            news = await self._recorder.decisions(turn.conversation_id, turn.turn, turn.run, after)
            if news is None:
                raise Superseded
            if news.events:
                lost = turn.lost_token and not news.token
                self.turn = msgspec.structs.replace(turn, token=news.token, lost_token=lost)
                self._known.add(news.events)
                return [StepKey(event.step) for event in news.events]

    # -- the end

    async def close(self) -> tuple[list[AnyEvent], list[AnyEvent]]:
        """The events that travel with the return, and those that were sent ahead. Nothing is recorded after
        this."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None:
            await self._sender
        unsent, self._unsent = self._unsent, []
        return unsent, self._sent

    def abandon(self) -> None:
        """The return reaches nobody any more: what was not sent is left to the next pass. What is on its way
        goes on, but nothing follows it: the node's parent may have recorded its end by then."""
        if self._timer is not None:
            self._timer.cancel()
        del self._unsent[self._on_its_way :]

    def _note(self, events: Sequence[AnyEvent]) -> None:
        if not events:
            return
        self._known.add(_journaled(events))
        self._unsent += events
        self._send_soon()

    def _about(self) -> str:
        return f"sid={self.turn.session_id} conversation={self.turn.conversation_id} node={self.turn.at}"

    def _stamp(self, step: StepKey, event: E) -> E:
        turn = self.turn
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
                await self._send()
        except Superseded:
            _log.info("event=superseded %s run=%d", self._about(), self.turn.run)
        except (Unavailable, JournalError) as problem:
            _log.warning("event=not_sent_ahead %s %s", self._about(), fields(message=problem))

    async def _send(self) -> None:
        # One append at a time: an event must not arrive before what was recorded before it.
        async with self._sending:
            turn = self.turn
            if self._unsent:
                await self._send_batch(
                    partial(self._recorder.append, turn.conversation_id, turn.turn, turn.run)
                )

    async def _send_batch(self, send: Callable[[Sequence[AnyEvent]], Awaitable[Ack]]) -> None:
        """Sends all that is not sent yet. The lock is held."""
        before, own = len(self._pending), len(self._unsent)
        self._on_its_way = own
        try:
            ack = await send([*self._pending, *self._unsent])
        finally:
            self._on_its_way = 0
        if not ack.taken:
            raise Superseded
        self.watched = ack.watched
        self._llm_calls_durable = ack.llm_calls
        self._sent += _journaled(self._unsent[:own])
        del self._pending[:before], self._unsent[:own]


def _follows(first: TextDelta, second: TextDelta) -> bool:
    """Whether the second piece of text follows the first without a gap."""
    return first.step == second.step and first.offset + len(first.text) == second.offset


def _journaled(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """The events that are journaled: all but those for watchers."""
    return [event for event in events if not isinstance(event, Live)]
