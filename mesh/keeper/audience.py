"""The watchers of one conversation, and the events that they have not received yet.

A watcher asks again and again for new events, and counts as present for a moment after each request. While a
watcher is present, events are kept in a `RecentEvents`, and nodes send text as their models produce it. With
no watcher nothing is kept, and no deltas are produced.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from mesh.core.events import AnyEvent
from mesh.keeper.recent_events import RecentEvents

_STAYS_S = 5.0
"""How long a watcher may take between two requests and still count as present."""


class Audience:
    """The watchers of one conversation. Used by one event loop."""

    def __init__(self) -> None:
        self._recent: RecentEvents | None = None
        self._asking = 0
        self._until = 0.0
        self._holder = ""
        self._held_until = 0.0

    @property
    def is_there(self) -> bool:
        """Whether anybody watches."""
        return self._asking > 0 or asyncio.get_running_loop().time() < self._until

    def expect(self, seq: int) -> RecentEvents:
        """Keeps events from now on for a watcher that is about to come, and has received those up to
        ``seq``."""
        if self._recent is None or not self.is_there:
            self._recent = RecentEvents(seq)
        self._until = asyncio.get_running_loop().time() + _STAYS_S
        return self._recent

    def show(self, event: AnyEvent) -> None:
        """Keeps an event for the watchers, if there are any."""
        if self.is_there and self._recent is not None:
            self._recent.add(event)
        else:
            self._recent = None

    def hold(self, watcher: str) -> bool:
        """Takes the exclusive place for this watcher. Returns False if another one has it."""
        now = asyncio.get_running_loop().time()
        if self._holder not in ("", watcher) and now < self._held_until:
            return False
        self._holder = watcher
        return True

    @contextmanager
    def attended(self, seq: int, watcher: str, within_s: float) -> Iterator[RecentEvents]:
        """A request of a watcher, while it waits for events. One that is cancelled leaves at once: its client
        has gone."""
        recent, loop = self.expect(seq), asyncio.get_running_loop()
        self._asking += 1
        if watcher == self._holder:
            self._held_until = loop.time() + within_s + _STAYS_S
        try:
            yield recent
        except asyncio.CancelledError:
            self._until = loop.time() if self._asking == 1 else self._until
            if watcher == self._holder:
                self._holder = ""
            raise
        finally:
            self._asking -= 1
