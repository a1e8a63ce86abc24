"""The slots of the agents that one node runs, in one pass: see `mesh.keeper.turn_slots`.

Slots cost as few calls to the keeper as possible. The keeper grants them with its reply to the start of
agents. Where agents have to wait, one request is on its way at a time, with all that the node takes and gives
back by then; besides, one request waits for grants. What is given back travels with the end of the agent that
the node journals, unless somebody waits for it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from itertools import count
from typing import Any

from mesh.core.errors import JournalError, Unavailable
from mesh.core.ids import new_id
from mesh.runtime.logs import fields
from mesh.tree.turn import Activation, Recorder, SlotReply, SlotRequest, SlotTake

GIVE_BACK_S = 0.4
"""How long what is given back may wait for the end of the agent to be journaled, which says the same."""

_log = logging.getLogger("mesh.steps")


class AgentSlots:
    """The slots that one node asks for, in one pass. ``own`` is the place of the agent in whose slot the node
    itself works; empty: it needs none. What waits for a slot returns False when a newer pass runs."""

    def __init__(self, activation: Activation, recorder: Recorder, own: str) -> None:
        self._activation = activation
        self._recorder = recorder
        self._own = own
        self.asker = new_id()
        self._tickets = count(1)
        self._waiting: dict[SlotTake, asyncio.Future[bool]] = {}
        self._of_starts: dict[str, asyncio.Future[bool]] = {}  # of started agents that were not run yet
        # Started agents that had to wait, and whose slot came before the reply which says that they wait.
        self._early: set[SlotTake] = set()
        self._taking: dict[str, SlotTake] = {}  # the newest of each agent, by place
        self._working: set[str] = set()
        self._unsent: dict[SlotTake, None] = {}  # as ordered sets
        self._free: dict[str, None] = {}
        self._has_own = True
        self._rests = False  # whether the keeper has to hear that it has given its own slot back
        self._leaves = False  # or that it does not work in it any more
        self._may_be_heard = False  # or may have heard it already
        self._has_rested = False  # whether the keeper has heard that it gave its own slot back
        self._returning = 0  # how many wait for its own slot
        self._again: asyncio.Future[bool] | None = None
        self._is_short = False  # whether anybody waited for a slot when the keeper replied last
        self._number = self._seen = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    # -- of the agents that the node runs

    def started(self, places: Iterable[str], granted: Iterable[str], *, is_short: bool) -> None:
        """Notes what the keeper replied to the start of agents."""
        self._is_short = is_short
        have, loop = set(granted), asyncio.get_running_loop()
        for place in places:
            wait: asyncio.Future[bool] = loop.create_future()
            self._of_starts[place] = wait
            self._taking[place] = take = SlotTake(place)
            if place in have or take in self._early:
                self._early.discard(take)
                wait.set_result(True)
            else:
                self._waiting[take] = wait
        self._listen()

    async def take(self, place: str) -> bool:
        """Returns when there is a slot for the agent at a place. `give_back` is to follow, whatever comes of
        it. Raises `Unavailable`."""
        wait = self._of_starts.pop(place, None) or self._ask(place)
        is_current = await wait
        self._working.add(place)
        return is_current

    def give_back(self, place: str, *, is_told: bool) -> None:
        """The agent at a place works no more, or need not wait any longer. ``is_told``: the journal will say
        so anyway."""
        self._working.discard(place)
        self._drop(place)
        if self._is_wanted or not is_told:
            self._free[place] = None
            self._send_soon() if self._is_wanted else self._send_later()

    def ended(self, place: str) -> None:
        """The journal will say that the agent at a place has ended, perhaps before it began to run."""
        self._drop(place)
        if not self._is_wanted:
            self._free.pop(place, None)

    def is_queued(self, place: str) -> bool:
        """Whether the agent at a place waits for a slot."""
        return self._taking.get(place) in self._waiting

    @property
    def working(self) -> Collection[str]:
        """The places of the agents that have a slot, from here."""
        return self._working

    def is_working(self, place: str) -> bool:
        """Whether the agent at a place has a slot, from here."""
        return place in self._working

    async def keep(self, place: str) -> bool:
        """Makes sure that whatever runs at a place again, because its process was gone, has a slot: it may
        have given it back. Raises `Unavailable`."""
        if place in self._working:
            return await self._ask(place)
        return not (self._own and self._has_own) or await self._ask(self._own)

    # -- its own

    def rest(self) -> None:
        """Gives the slot back in which the node works, while it waits for its agents."""
        if not self._own or not self._has_own:
            return
        self._has_own, self._rests = False, True
        self._send_soon() if self._is_wanted else self._send_later()

    def leave(self) -> None:
        """The node does nothing for a while but wait for what works in the same slot. If it had given the
        slot back and taken it again, others there may still wait for agents that need it."""
        if self._own and self._has_own and self._has_rested:
            self._has_own, self._leaves = False, True
            self._send_soon()

    async def work(self) -> bool:
        """Returns when the node has its slot again, if it has given it back. Raises `Unavailable`."""
        if self._rests or self._leaves:
            self._rests, self._leaves, self._has_own = False, False, not self._may_be_heard
        if not self._own or self._has_own:
            return True
        self._again = self._again or self._ask(self._own)
        self._returning += 1
        try:
            return await asyncio.shield(self._again)
        finally:
            self._returning -= 1

    # -- the end of the pass

    async def close(self) -> None:
        """Gives back what is not given back yet. Its own slot is given back by whoever runs the agent; as one
        of several nodes that work in it, this one leaves it."""
        self._stop_timer()
        if self._sender is not None:
            await self._sender
        is_one_of_several = self._own != self._activation.at
        self._leaves = bool(self._own) and is_one_of_several and (self._rests or self._has_rested)
        self._rests = False
        if self._free or self._leaves:
            await self._in_background(self._send)
        self.abandon()

    def abandon(self) -> None:
        """The keeper hears of the end of this pass from whoever ran it."""
        self._stop_timer()
        for task in (self._sender, self._listener):
            if task is not None:
                task.cancel()

    def _drop(self, place: str) -> None:
        self._of_starts.pop(place, None)
        take = self._taking.pop(place, None)
        if take is not None:
            wait = self._waiting.pop(take, None)
            self._unsent.pop(take, None)
            if wait is not None and not wait.done():
                wait.set_result(True)  # whoever waits finds that the agent has ended, and works no more

    # -- calls

    @property
    def _is_wanted(self) -> bool:
        """Whether somebody waits for a slot, as far as it is known here."""
        return self._is_short or bool(self._waiting)

    def _ask(self, place: str) -> asyncio.Future[bool]:
        take = SlotTake(place, next(self._tickets))
        wait: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[take] = wait
        self._unsent[take] = None
        if place != self._own:
            self._taking[place] = take
        self._send_soon()
        return wait

    def _send_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GIVE_BACK_S, self._send_soon)

    def _send_soon(self) -> None:
        # Not at once: what other branches take and give back in this round of the loop goes with it.
        self._stop_timer()
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._in_background(self._send_all))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _listen(self) -> None:
        if self._waiting and (self._listener is None or self._listener.done()):
            self._listener = asyncio.create_task(self._in_background(self._listen_all))

    async def _in_background(self, calls: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await calls()
        except (Unavailable, JournalError) as problem:
            about = f"conversation={self._activation.conversation_id} node={self._activation.at}"
            _log.warning("event=no_slots %s %s", about, fields(message=problem))
            for wait in self._all_waiting():
                wait.set_exception(problem)
                wait.exception()  # not everything that waits does so at this moment

    async def _send_all(self) -> None:
        while self._unsent or self._free or self._rests or self._leaves:
            await self._send()

    async def _send(self) -> None:
        self._number += 1
        request = SlotRequest(
            self.asker,
            self._seen,
            self._number,
            take=tuple(self._unsent),
            free=tuple(self._free),
            rests=self._own if self._rests else "",
            leaves=self._own if self._leaves else "",
        )
        self._has_rested |= self._rests
        self._unsent, self._free, self._rests, self._leaves = {}, {}, False, False
        try:
            reply = await self._recorder.slots(self._activation, request)
        except (Unavailable, JournalError):
            self._give_back_again(request)
            raise
        self._may_be_heard = False
        self._note(reply)
        self._listen()

    def _give_back_again(self, request: SlotRequest) -> None:
        """Nobody knows whether a request was carried out. What it gave back must not stay taken: others may
        wait for it."""
        for place in request.free:
            if place not in self._taking and place not in self._working:
                self._free[place] = None
        if not self._has_own:
            self._rests |= bool(request.rests)
            self._leaves |= bool(request.leaves)
            self._may_be_heard |= self._rests or self._leaves
        if self._free or self._rests or self._leaves:
            self._send_later()

    async def _listen_all(self) -> None:
        while self._waiting:
            self._note(await self._recorder.slots(self._activation, SlotRequest(self.asker, self._seen)))

    def _note(self, reply: SlotReply | None) -> None:
        if reply is None:
            for wait in self._all_waiting():
                wait.set_result(False)
            return
        self._is_short = reply.is_short
        for take in reply.granted[max(0, self._seen - reply.before) :]:
            self._granted(take)
        self._seen = max(self._seen, reply.before + len(reply.granted))

    def _granted(self, take: SlotTake) -> None:
        wait = self._waiting.pop(take, None)
        if wait is None and not take.ticket and take.place not in self._taking:
            self._early.add(take)
        if wait is not None and not wait.done():
            wait.set_result(True)
        if wait is not None and wait is self._again:
            self._again, self._has_own = None, True
            if not self._returning:  # who wanted it was cancelled
                self.rest()

    def _all_waiting(self) -> list[asyncio.Future[bool]]:
        waiting, self._waiting, self._again = self._waiting, {}, None
        return [wait for wait in waiting.values() if not wait.done()]
