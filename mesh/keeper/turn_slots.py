"""The slots of one open turn: how many of its agents work at the same time (``limits.agents_at_once``).

An agent that was started takes a slot at its place while it works, as an item of a map does. The root agent,
the nodes of its tree and agents that are called as tools take none. Who finds no free slot waits, in the
order of the requests; each slot that becomes free goes to the first who waits. So nobody waits for ever, as
long as those who work end some day, pause, or give their slot back while they wait for agents of their own.

Several nodes may work in the slot of one agent, side by side: branches, or agents that it has called. One of
them that has waited for agents of its own, and has taken the slot again, says when it ends. If others of them
still wait, the slot becomes free: their agents may need it.

Slots live in the memory of the keeper. A new pass begins without any, and so does a subtree that restarts:
what ran there before may work no more.

Requests come from passes of nodes, the *askers*. What an asker was granted is a list, which it reads from
where it stopped: what a lost reply said, the next one says again.
"""

import asyncio
from collections.abc import Iterable

from mesh.core.places import Place
from mesh.tree.turn import SlotReply, SlotRequest, SlotTake


class _Asker:
    """What one pass of a node has asked for. ``granted`` are those that it may not know yet, ``before`` says
    how many it does know, ``number`` is its newest request."""

    def __init__(self) -> None:
        self.granted: list[SlotTake] = []
        self.before = 0
        self.number = 0
        self.has_news = asyncio.Event()

    def grant(self, take: SlotTake) -> None:
        self.granted.append(take)
        self.has_news.set()

    def reply(self, seen: int, is_short: bool) -> SlotReply:
        """What was granted after the first ``seen``, which the asker knows."""
        known = min(max(0, seen - self.before), len(self.granted))
        del self.granted[:known]
        self.before += known
        if not self.granted:
            self.has_news.clear()
        return SlotReply(self.before, tuple(self.granted), is_short=is_short)


class TurnSlots:
    """The slots of one turn. ``at_once``: how many there are."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._held: set[str] = set()
        self._waiting: dict[str, list[tuple[_Asker, SlotTake]]] = {}  # by place, the first one first
        self._askers: dict[str, _Asker] = {}
        # By the place of the slot: the askers that work in it, and wait for agents; and where these run.
        self._resting: dict[str, dict[str, str]] = {}
        self._changed: set[str] = set()  # the places that have joined those who wait, or left them

    def is_waiting(self, place: str) -> bool:
        """Whether the agent at a place waits for a slot."""
        return place in self._waiting

    def take_changed(self) -> set[str]:
        """The places of those who have begun to wait since this was called last, or wait no more."""
        changed, self._changed = self._changed, set()
        return changed

    @property
    def held(self) -> frozenset[str]:
        """The places of those who have a slot."""
        return frozenset(self._held)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The places of those who wait for one, in their order."""
        return tuple(self._waiting)

    @property
    def is_short(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def start(self, asker: str, places: Iterable[str]) -> tuple[str, ...]:
        """Takes slots for agents that start, the first request of each. Returns the places of those that have
        one; the others wait. When it is repeated, it changes nothing."""
        places = tuple(places)
        for place in places:
            if place not in self._held and place not in self._waiting:
                self._waiting[place] = [(self._asker(asker), SlotTake(place))]
        # Those that need not wait are in the reply, and in no list.
        while self._waiting and len(self._held) < self._at_once and self._first in places:
            place = self._first
            del self._waiting[place]
            self._held.add(place)
        self._changed.update(place for place in places if place in self._waiting)
        return tuple(place for place in places if place in self._held)

    def change(self, request: SlotRequest, at: str = "") -> SlotReply:
        """Carries a request out, unless it is an old one that arrives once more. ``at`` is where the asker
        runs."""
        asker = self._asker(request.asker)
        if request.number > asker.number:
            asker.number = request.number
            if request.rests:
                self._held.discard(request.rests)
                self._resting.setdefault(request.rests, {})[request.asker] = at
            if request.leaves:
                self._leave(request.leaves, request.asker)
            for place in request.free:
                self._drop(place)
            for take in request.take:
                self._works_on(take.place, request.asker)
                self._take(asker, take)
            self._grant()
        return asker.reply(request.seen, self.is_short)

    async def news(self, request: SlotRequest) -> SlotReply:
        """What the asker was granted that it does not know; waits until there is something, or until all
        slots are lost."""
        asker = self._asker(request.asker)
        reply = asker.reply(request.seen, self.is_short)
        if not reply.granted:
            await asker.has_news.wait()
            reply = asker.reply(request.seen, self.is_short)
        return reply

    def end(self, place: Place, *, is_leaf: bool) -> None:
        """The run at a place is over. ``is_leaf``: no agent was started below it."""
        self._drop(place.text)
        if is_leaf:
            self._grant()
        else:
            self.lose_below(place)

    def lose_below(self, place: Place) -> None:
        """Nobody works below a place any more. Whoever runs at the place itself keeps its slot."""
        inside = f"{place.text}."
        for each in [*self._held, *self._waiting, *self._resting]:
            if each.startswith(inside):
                self._drop(each)
        for slot, resting in [*self._resting.items()]:
            for asker, at in [*resting.items()]:
                if at == place.text or at.startswith(inside):
                    self._works_on(slot, asker)
        self._grant()

    def lose_all(self) -> None:
        """The pass is over. Whoever still waits for news gets a reply."""
        askers, self._askers = self._askers, {}
        self._held.clear()
        self._changed.update(self._waiting)
        self._waiting.clear()
        self._resting.clear()
        for asker in askers.values():
            asker.has_news.set()

    @property
    def _first(self) -> str:
        return next(iter(self._waiting))

    def _asker(self, name: str) -> _Asker:
        return self._askers.setdefault(name, _Asker())

    def _take(self, asker: _Asker, take: SlotTake) -> None:
        if take.place in self._held:
            asker.grant(take)
        else:
            self._waiting.setdefault(take.place, []).append((asker, take))
            self._changed.add(take.place)

    def _leave(self, place: str, name: str) -> None:
        asker = self._asker(name)
        takes = [take for take in self._waiting.get(place, ()) if take[0] is not asker]
        if takes:
            self._waiting[place] = takes
        else:
            self._wait_no_more(place)
        if not self._works_on(place, name) and place in self._resting:
            self._held.discard(place)

    def _works_on(self, place: str, asker: str) -> bool:
        """An asker that may rest in the slot of a place does so no more. Returns whether it did."""
        resting = self._resting.get(place, {})
        has_rested = resting.pop(asker, None) is not None
        if has_rested and not resting:
            del self._resting[place]
        return has_rested

    def _drop(self, place: str) -> None:
        self._held.discard(place)
        self._wait_no_more(place)
        self._resting.pop(place, None)

    def _wait_no_more(self, place: str) -> list[tuple[_Asker, SlotTake]]:
        if place not in self._waiting:
            return []
        self._changed.add(place)
        return self._waiting.pop(place)

    def _grant(self) -> None:
        while self._waiting and len(self._held) < self._at_once:
            place = self._first
            self._held.add(place)
            for asker, take in self._wait_no_more(place):
                asker.grant(take)
