"""Who waits for something that happens in an open turn: model calls for room in their budgets.

A turn may have a thousand of them, and most events concern none: an event wakes those that it may let go on,
and looks at no others. Calls that wait for room stand in lines, one for each limit of each run. When a call
in flight turns out cheaper, the first in each line that this may concern tries again. When it leaves the
line, with the room that it got or without, the next one tries. So whatever is free is given away, and what an
event costs does not depend on how many wait.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from mesh.core.budget import MustWait
from mesh.core.places import Place


class Waiter:
    """One that waits, for what happens at a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Lets `wait` return, or the next one if nobody waits just now."""
        self._woken.set()

    async def wait(self, until: float | None = None) -> bool:
        """Waits until it is woken, and forgets that. False if that did not happen until this time of the
        event loop."""
        try:
            async with asyncio.timeout_at(until):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True


class Waiters:
    """Those who wait for the same."""

    def __init__(self) -> None:
        # By the places around each, and by the calls of the agents around it.
        self._inside: dict[str, dict[Waiter, None]] = {}
        self._all: dict[Waiter, None] = {}

    @contextmanager
    def waiter(self, place: Place) -> Iterator[Waiter]:
        """One that waits now and then, as long as the context lasts."""
        waiter = Waiter(place)
        self._all[waiter] = None
        for name in _around(place):
            self._inside.setdefault(name, {})[waiter] = None
        try:
            yield waiter
        finally:
            self._leave(waiter)

    def wake_all(self) -> None:
        """Something happened that may concern everybody."""
        for waiter in self._all:
            waiter.wake()

    def wake_inside(self, ended: str) -> None:
        """What they wait in has ended: a node, by its place, or a called agent, by its call."""
        for waiter in self._inside.get(ended, ()):
            waiter.wake()

    def _leave(self, waiter: Waiter) -> None:
        del self._all[waiter]
        for name in _around(waiter.place):
            inside = self._inside[name]
            del inside[waiter]
            if not inside:
                del self._inside[name]


class WaitingCalls(Waiters):
    """Model calls that fit only if calls in flight turn out cheaper than their bounds."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, dict[str, OrderedDict[Waiter, None]]] = {}  # by the place of a run, by limit
        self._in_line: dict[Waiter, MustWait] = {}

    def line_up(self, waiter: Waiter, short: MustWait) -> None:
        """A call has found no room. It keeps its position if it stands in line for the same already."""
        if self._in_line.get(waiter) == short:
            return
        self._leave_line(waiter)
        self._in_line[waiter] = short
        self._lines.setdefault(short.scope, {}).setdefault(short.limit, OrderedDict())[waiter] = None

    def free(self, place: Place) -> None:
        """Calls at a place or below it hold less now, or are not in flight any more."""
        if not self._lines:
            return
        for scope in place.scopes:
            for line in self._lines.get(scope.text, {}).values():
                next(iter(line)).wake()

    def _leave(self, waiter: Waiter) -> None:
        super()._leave(waiter)
        self._leave_line(waiter)

    def _leave_line(self, waiter: Waiter) -> None:
        short = self._in_line.pop(waiter, None)
        if short is None:
            return
        lines = self._lines[short.scope]
        line = lines[short.limit]
        was_first = next(iter(line)) is waiter
        del line[waiter]
        if line:
            if was_first:
                next(iter(line)).wake()
            return
        del lines[short.limit]
        if not lines:
            del self._lines[short.scope]


def _around(place: Place) -> Iterator[str]:
    for each in place.scopes:
        yield each.text
        if call := each.call:
            yield call.text
