"""A line and a desk: many calls in few exchanges, each answered once, none lost in silence."""

import asyncio

import pytest

from deployments.line import Desk, Failed, Line


class Wire:
    """An exchange that counts, and can break."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.exchanges = 0
        self.broken: Exception | None = None

    async def __call__(self, packed: bytes) -> bytes:
        self.exchanges += 1
        await asyncio.sleep(0)
        if self.broken:
            raise self.broken
        answers = await self.desk.exchange(packed)
        if self.broken:
            raise self.broken
        return answers


async def echo(content: bytes) -> bytes:
    return content


async def test_a_single_call_is_a_single_exchange() -> None:
    wire = Wire(Desk(echo))
    line = Line(wire)
    for i in range(5):
        assert await line.call(b"%d" % i) == b"%d" % i
        await asyncio.sleep(0)
    assert wire.exchanges == 5


async def test_calls_at_once_travel_together_and_each_gets_its_own_answer() -> None:
    wire = Wire(Desk(echo))
    line = Line(wire)
    calls = [b"%d" % i for i in range(200)]
    assert await asyncio.gather(*(line.call(c) for c in calls)) == calls
    assert wire.exchanges < 10


async def test_a_slow_call_holds_up_no_other() -> None:
    release = asyncio.Event()

    async def answer(content: bytes) -> bytes:
        if content == b"slow":
            await release.wait()
        return content

    line = Line(Wire(Desk(answer)))
    slow = asyncio.create_task(line.call(b"slow"))
    for _ in range(20):
        assert await asyncio.wait_for(line.call(b"quick"), 1) == b"quick"
    assert not slow.done()
    release.set()
    assert await asyncio.wait_for(slow, 1) == b"slow"


async def test_a_broken_exchange_is_told_to_every_caller_and_the_next_call_goes_through() -> None:
    wire = Wire(Desk(lambda content: asyncio.sleep(60, content)))
    line = Line(wire)
    calls = [asyncio.create_task(line.call(b"x")) for _ in range(5)]
    await asyncio.sleep(0.01)
    wire.broken = ConnectionError("gone")
    calls.append(asyncio.create_task(line.call(b"y")))
    for found in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5):
        assert isinstance(found, ConnectionError)
    wire.broken, wire.desk = None, Desk(echo)
    assert await asyncio.wait_for(line.call(b"again"), 1) == b"again"


async def test_a_bug_at_the_desk_is_told_to_its_caller_alone() -> None:
    async def answer(content: bytes) -> bytes:
        if content == b"bad":
            raise ZeroDivisionError("oops")
        return content

    line = Line(Wire(Desk(answer)))
    bad, good = await asyncio.gather(line.call(b"bad"), line.call(b"good"), return_exceptions=True)
    assert isinstance(bad, Failed)
    assert "ZeroDivisionError: oops" in str(bad)
    assert good == b"good"


async def test_a_caller_that_gives_up_leaves_the_line_usable() -> None:
    line = Line(Wire(Desk(echo)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await line.call(b"x")
    assert await asyncio.wait_for(line.call(b"y"), 1) == b"y"
