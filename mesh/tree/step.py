"""Durable steps: an effect runs once, its outcome is journaled, a later pass gets the record.

`Steps` is one pass's view of the turn's journal. A node asks it what is known of a step, records
what it learns, and claims what must not happen twice. Outcomes ride on the call's return; they are
sent ahead only when the next effect must not be repeated (`claim` waits for the acknowledgement),
when they tell of such an effect (`send_ahead`), or when they are older than `SEND_AHEAD_S` and the turn
still runs.

Invariant (causality): events leave in the order they were recorded, with everything recorded
before them in the same append or in an earlier one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from mesh.errors import JournalError, Unavailable
from mesh.events import AnyEvent, ApprovalRequired, ApprovalResolved, ToolIntent, now
from mesh.tree.turn import AppendAhead, TurnInput

SEND_AHEAD_S = 0.2

E = TypeVar("E", bound=AnyEvent)
_log = logging.getLogger("mesh.steps")


class Superseded(Exception):
    """A newer pass runs this turn. Unwinds the pass; never leaves the tree."""


class Steps:
    """One pass over the tree. Not shared between passes; used by one event loop."""

    def __init__(self, turn: TurnInput, append: AppendAhead) -> None:
        self.turn = turn
        self._append = append
        self._known: list[AnyEvent] = list(turn.known)
        self._unsent: list[AnyEvent] = []
        self._sending = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[None] | None = None

    def known(self, step: str, kind: type[E]) -> E | None:
        """The latest event of this kind for this step."""
        return next((e for e in reversed(self._known) if e.step == step and isinstance(e, kind)), None)

    def decision(self, step: str, approval: ApprovalRequired) -> ApprovalResolved | None:
        """What a person decided about an approval of this step."""
        for event in reversed(self._known):
            if event.step == step and isinstance(event, ApprovalResolved) and event.uuid == approval.uuid:
                return event
        return None

    async def once(self, step: str, kind: type[E], effect: Callable[[], Awaitable[E]]) -> E:
        """The recorded outcome of a repeatable effect, or the effect's, recorded now."""
        return self.known(step, kind) or self.record(step, await effect())

    def record(self, step: str, event: E) -> E:
        """Notes an outcome. It is durable when the pass returns, or earlier."""
        stamped = self._stamp(step, event)
        self._known.append(stamped)
        self._unsent.append(stamped)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SEND_AHEAD_S, self._start_sending)
        return stamped

    async def claim(self, step: str, intent: ToolIntent) -> None:
        """Returns when this pass, and no other, may run the effect. Raises `Superseded`."""
        stamped = self._stamp(step, intent)
        self._known.append(stamped)
        self._unsent.append(stamped)
        await self._send()

    async def send_ahead(self) -> None:
        """Makes what was recorded durable now, or lets it ride on the return if that cannot be.

        Awaited after an effect that must not be repeated: while its result is not journaled, a crash
        leaves an outcome that nobody knows. Raises `Superseded`."""
        try:
            await self._send()
        except (Unavailable, JournalError) as problem:
            _log.warning("event=not_sent_ahead %s message=%r", self._about(), str(problem))

    async def take_unsent(self) -> list[AnyEvent]:
        """What must ride on the return. The pass records nothing after this."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None:
            await self._sender
        unsent, self._unsent = self._unsent, []
        return unsent

    def _about(self) -> str:
        return f"sid={self.turn.session_id} conversation={self.turn.conversation_id}"

    def _stamp(self, step: str, event: E) -> E:
        return msgspec.structs.replace(event, turn=self.turn.turn, step=step, time=event.time or now())

    def _start_sending(self) -> None:
        self._timer = None
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_in_background())

    async def _send_in_background(self) -> None:
        try:
            await self.send_ahead()
        except Superseded:
            _log.info("event=superseded %s run=%d", self._about(), self.turn.run)

    async def _send(self) -> None:
        async with self._sending:
            batch = list(self._unsent)
            if not batch:
                return
            turn = self.turn
            if not await self._append(turn.conversation_id, turn.turn, turn.run, batch):
                raise Superseded
            del self._unsent[: len(batch)]
