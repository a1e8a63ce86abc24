"""Unauthenticated connections are few, and none stays for long."""

import asyncio
import logging

import pytest

from mesh.net.admission import PendingConnections

LOG = logging.getLogger("tests.admission")


class Accepted:
    """A connection that knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def abort(self) -> None:
        self.closed.set()


async def test_over_the_limit_the_oldest_connection_is_closed() -> None:
    pending = PendingConnections(2, 60, LOG)
    first, second, third = Accepted(), Accepted(), Accepted()
    for connection in (first, second, third):
        pending.add(connection)
    assert [each.closed.is_set() for each in (first, second, third)] == [True, False, False]
    for connection in (second, third):
        pending.remove(connection)


async def test_a_connection_that_is_added_again_is_the_newest() -> None:
    pending = PendingConnections(2, 60, LOG)
    first, second, third = Accepted(), Accepted(), Accepted()
    for connection in (first, second, first, third):
        pending.add(connection)
    assert [each.closed.is_set() for each in (first, second, third)] == [False, True, False]
    for connection in (first, third):
        pending.remove(connection)


async def test_a_connection_that_takes_too_long_is_closed_and_one_that_was_removed_is_not() -> None:
    pending = PendingConnections(2, 0.02, LOG)
    slow, known = Accepted(), Accepted()
    pending.add(known)
    pending.remove(known)
    pending.add(slow)
    async with asyncio.timeout(30):
        await slow.closed.wait()
    assert not known.closed.is_set()


async def test_refusals_are_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    pending = PendingConnections(2, 60, LOG)
    for _ in range(100):
        pending.refuse(Accepted(), "wrong_secret")
    assert [record.getMessage() for record in caplog.records] == [
        "event=stranger_refused why=wrong_secret refused=1"
    ]
