"""Bounds on unauthenticated connections: how many a server holds, and how long each of them may take.

A server adds every connection that it accepts, and removes it once the connection has sent enough to be
served, or has ended. When there are too many, the oldest is closed and not the newest: a client that has
something to say sends it at once and needs one round trip, whereas an idle connection only grows older. If
the newest were refused instead, idle connections could keep everybody else out. What happens to a connection
after its removal is up to the server.

Invariant: the server's backlog is less than half of the limit. The connections that are accepted in one
iteration of the event loop are read in the next one, and must not be closed in between.
"""

import asyncio
import logging
import time
from typing import Protocol

BACKLOG = 100
"""The backlog for a server with a limit of more than 200 connections."""
_REPORT_INTERVAL_S = 10.0


class Connection(Protocol):
    """An accepted connection. It is hashed by identity."""

    def abort(self) -> None:
        """Closes the connection at once; data in either direction may be lost."""
        ...


class PendingConnections:
    """The connections of a server that are not authenticated yet. Belongs to one event loop.

    At most ``limit`` of them are kept, each for at most ``within_s`` seconds. ``log`` gets a warning with the
    reason and the number of refusals, at most one in 10 s: whoever opens connections must not be able to
    fill the log.
    """

    def __init__(self, limit: int, within_s: float, log: logging.Logger) -> None:
        self._limit = limit
        self._within_s = within_s
        self._log = log
        # Ordered by age: a dict keeps its insertion order, and `add` inserts anew.
        self._deadlines: dict[Connection, asyncio.TimerHandle] = {}
        self._refused = 0
        self._next_report_at = 0.0

    def add(self, connection: Connection) -> None:
        """Starts the connection's time, anew if it was added before."""
        self.remove(connection)
        loop = asyncio.get_running_loop()
        self._deadlines[connection] = loop.call_later(self._within_s, self.refuse, connection, "too_slow")
        if len(self._deadlines) > self._limit:
            self.refuse(next(iter(self._deadlines)), "too_many")

    def remove(self, connection: Connection) -> None:
        """Stops the connection's time. Does nothing if the connection was not added."""
        deadline = self._deadlines.pop(connection, None)
        if deadline is not None:
            deadline.cancel()

    def refuse(self, connection: Connection, reason: str) -> None:
        """Removes and aborts the connection. ``reason`` is one word for the log."""
        self.remove(connection)
        connection.abort()
        self._refused += 1
        if time.monotonic() >= self._next_report_at:
            self._next_report_at = time.monotonic() + _REPORT_INTERVAL_S
            self._log.warning("event=stranger_refused why=%s refused=%d", reason, self._refused)
