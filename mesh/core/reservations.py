"""The reservations of model calls that nothing has settled, and how much they hold. Pure.

Every model call under a budget asks how much is held at each place around it, and how much of that will
never turn out cheaper. So both are kept, by place: what a reservation costs does not depend on how many
others there are, nor does a look.

    live    the call may be being made: by the present pass, or by a part of it that began anew
    lost    it is held all the same, but nobody makes it any more: it is of an older pass, or of an attempt
            that was repeated; its process died, or what it belongs to has ended
"""

from collections.abc import Iterator, MutableMapping
from typing import TypeVar

from mesh.core.amounts import NOTHING, Amount, reported
from mesh.core.events import LlmReserved
from mesh.core.overlay import Overlay

K = TypeVar("K")
Attempt = tuple[str, int]
"""A step, and the number of an attempt at it."""


class OpenReservations:
    """See the module."""

    def __init__(self) -> None:
        self._open: MutableMapping[Attempt, LlmReserved] = {}
        self._newest: MutableMapping[str, int] = {}  # the newest attempt of each step
        self._given_up: MutableMapping[Attempt, None] = {}
        # The open ones by what they belong to: each place around them, each call of an agent that they are
        # made in, and their own step.
        self._belonging: MutableMapping[str, MutableMapping[Attempt, None]] = {}
        self._held: MutableMapping[str, Amount] = {}  # by place
        self._live: MutableMapping[tuple[str, int], Amount] = {}  # by place and run
        self._live_calls: MutableMapping[int, int] = {}  # by run: those that have some

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenReservations) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def overlaid(self) -> "OpenReservations":
        """The same, to be changed while this one stays as it is."""
        after = OpenReservations()
        for name, value in vars(self).items():
            setattr(after, name, Overlay(value))
        return after

    def __iter__(self) -> Iterator[LlmReserved]:
        """Every open reservation."""
        return iter(self._open.values())

    def get(self, step: str, attempt: int) -> LlmReserved | None:
        """The open reservation of an attempt."""
        return self._open.get((step, attempt))

    def of_step(self, step: str) -> Iterator[LlmReserved]:
        """The open reservations of a step: one for each attempt."""
        found = (self._open[key] for key in self._belonging.get(step, ()))
        return (reserved for reserved in found if reserved.step == step)

    def live(self, place: str, run: int) -> list[LlmReserved]:
        """The calls that the pass ``run`` may be making at a place and below it."""
        keys = (key for key in self._belonging.get(place, ()) if self._is_live(key))
        return [self._open[key] for key in keys if self._open[key].run >= run]

    def lost(self, place: str, run: int) -> Amount:
        """What calls at a place and below it hold whose answers are lost to the pass ``run``."""
        lost = self._held.get(place, NOTHING)
        for each in self._live_calls:
            if each >= run:
                lost -= self._live.get((place, each), NOTHING)
        return lost

    def add(self, reserved: LlmReserved) -> None:
        """Takes a reservation."""
        key = (reserved.step, reserved.attempt)
        self.settle(*key)  # a journal that was imported may have it twice
        newest = self._newest.get(reserved.step)
        if newest is not None and self._is_live((reserved.step, newest)):
            self._count(self._open[reserved.step, newest], -1)
        self._newest[reserved.step] = reserved.attempt
        self._open[key] = reserved
        for name in _belongings(reserved):
            self._attempts_of(name)[key] = None
        bound = bound_of(reserved)
        for place in reserved.place.scopes:
            self._held[place.text] = self._held.get(place.text, NOTHING) + bound
        if self._is_live(key):
            self._count(reserved, 1)

    def settle(self, step: str, attempt: int) -> LlmReserved | None:
        """Takes an open reservation away; None if there is none."""
        key = (step, attempt)
        reserved = self._open.get(key)
        if reserved is None:
            return None
        if self._is_live(key):
            self._count(reserved, -1)
        del self._open[key]
        self._given_up.pop(key, None)
        for name in _belongings(reserved):
            attempts = self._attempts_of(name)
            del attempts[key]
            if not attempts:
                del self._belonging[name]
        bound = bound_of(reserved)
        for place in reserved.place.scopes:
            _put(self._held, place.text, self._held[place.text] - bound)
        return reserved

    def lose(self, step: str, attempt: int) -> None:
        """Nobody makes this call any more."""
        key = (step, attempt)
        if self._is_live(key):
            self._count(self._open[key], -1)
        if key in self._open:
            self._given_up[key] = None

    def end(self, ended: str) -> None:
        """Nobody makes the calls any more that belong to what has ended: a node, by its place, or a called
        agent, by its call."""
        for key in [*self._belonging.get(ended, ())]:
            self.lose(*key)

    def _is_live(self, key: Attempt) -> bool:
        step, attempt = key
        return key in self._open and key not in self._given_up and self._newest.get(step) == attempt

    def _count(self, reserved: LlmReserved, sign: int) -> None:
        """A call has become live, or is not any more (``sign`` -1)."""
        bound, run = bound_of(reserved), reserved.run
        for place in reserved.place.scopes:
            have = self._live.get((place.text, run), NOTHING)
            _put(self._live, (place.text, run), have + bound if sign > 0 else have - bound)
        calls = self._live_calls.get(run, 0) + sign
        if calls:
            self._live_calls[run] = calls
        else:
            del self._live_calls[run]

    def _attempts_of(self, name: str) -> MutableMapping[Attempt, None]:
        attempts = self._belonging.get(name)
        if attempts is None:
            attempts = self._belonging[name] = {}
        elif isinstance(self._belonging, Overlay) and not self._belonging.has_changed(name):
            attempts = self._belonging[name] = Overlay[Attempt, None](attempts)
        return attempts


def bound_of(reserved: LlmReserved) -> Amount:
    """The most that a reserved call can cost."""
    return reported(reserved.nusd, reserved.tokens, 1)


def _belongings(reserved: LlmReserved) -> Iterator[str]:
    yield reserved.step
    for place in reserved.place.scopes:
        if place.text != reserved.step:
            yield place.text
        if call := place.call:
            yield call.text


def _put(amounts: MutableMapping[K, Amount], key: K, amount: Amount) -> None:
    """Sets an amount; what is nothing is left out."""
    if amount:
        amounts[key] = amount
    else:
        amounts.pop(key, None)
