"""Connections that have not shown yet what they came for: at most so many, and none for long.

A server adds each connection that it accepts, and removes it when it has sent enough to be served, or ended.
Over the bound the oldest is closed, not the newest: a client with something to say sends it at once and waits
for one round trip, whereas a connection that only waits grows old. To refuse the newest instead would let
idle connections keep everybody out. What happens to a connection after that is up to the server.

Invariant: a server accepts fewer at a time (its backlog) than half of the bound. What it accepts in one step
of the event loop it reads in the next, and must not close in between.
"""

import asyncio
import logging
import time
from typing import Protocol

BACKLOG = 100
_REPORT_EVERY_S = 10.0


class Connection(Protocol):
    """What a server accepted. Hashed by identity."""

    def abort(self) -> None:
        """Closes it at once: nothing that is on its way matters."""
        ...


class Strangers:
    """See the module. ``log`` is told why connections are refused, at most once in 10 s: strangers must not
    fill the log either. Used by one event loop."""

    def __init__(self, most: int, within_s: float, log: logging.Logger) -> None:
        self._most = most
        self._within_s = within_s
        self._log = log
        self._deadlines: dict[Connection, asyncio.TimerHandle] = {}  # oldest first
        self._refused = 0
        self._report_at = 0.0

    def add(self, stranger: Connection) -> None:
        """Gives it its time, anew if it was here before."""
        self.remove(stranger)
        loop = asyncio.get_running_loop()
        self._deadlines[stranger] = loop.call_later(self._within_s, self.refuse, stranger, "too_slow")
        if len(self._deadlines) > self._most:
            self.refuse(next(iter(self._deadlines)), "too_many")

    def remove(self, stranger: Connection) -> None:
        """It is known now, or gone; does nothing if it is not here."""
        deadline = self._deadlines.pop(stranger, None)
        if deadline is not None:
            deadline.cancel()

    def refuse(self, stranger: Connection, why: str) -> None:
        """Closes it. ``why`` is one word for the log."""
        self.remove(stranger)
        stranger.abort()
        self._refused += 1
        if time.monotonic() >= self._report_at:
            self._report_at = time.monotonic() + _REPORT_EVERY_S
            self._log.warning("event=stranger_refused why=%s refused=%d", why, self._refused)
