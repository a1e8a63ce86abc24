"""Peers that did not answer, and until when nobody asks them again."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mesh.net.backoff import Backoff

P = TypeVar("P")


class SilentPeers(Generic[P]):
    """By their ids. ``again`` says how soon each is asked again, ``clock`` the time in seconds."""

    def __init__(self, again: Backoff, clock: Callable[[], float]) -> None:
        self._again = again
        self._clock = clock
        self._until: dict[P, float] = {}
        self._delays: dict[P, Iterator[float]] = {}

    def note(self, id: P) -> None:
        self._until[id] = self._clock() + next(self._delays.setdefault(id, self._again.delays()))

    def forget(self, id: P) -> None:
        """Notes that it has answered."""
        self._until.pop(id, None)
        self._delays.pop(id, None)

    def forget_except(self, ids: set[P]) -> None:
        for gone in self._until.keys() - ids:
            del self._until[gone], self._delays[gone]

    def ids(self) -> set[P]:
        now = self._clock()
        return {id for id, until in self._until.items() if now < until}
