"""A line and a desk over a real connection: each call answered once, none lost in silence."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from deployments import line as module
from deployments.line import Address, Desk, Failed, Gone, Line

Answer = Callable[[bytes], Awaitable[bytes]]


async def echo(content: bytes) -> bytes:
    return content


@asynccontextmanager
async def connected(answer: Answer = echo) -> AsyncIterator[tuple[Line, Desk]]:
    desk = Desk({"echo": answer})
    line = Line(lambda: desk.listen("127.0.0.1"))
    try:
        yield line, desk
    finally:
        line.close()
        desk.close()


async def within(work: Awaitable[bytes]) -> bytes:
    return await asyncio.wait_for(work, 5)


async def test_calls_at_once_each_get_their_own_answer() -> None:
    async with connected() as (line, _):
        calls = [b"%d" % i for i in range(500)]
        assert await asyncio.gather(*(line.call("echo", c) for c in calls)) == calls


async def test_calls_and_answers_of_many_megabytes_arrive_whole() -> None:
    async with connected() as (line, _):
        big = [bytes([i]) * (8_000_000 + i) for i in range(4)]
        assert await asyncio.gather(*(line.call("echo", c) for c in big)) == big


async def test_a_slow_call_holds_up_no_other() -> None:
    release = asyncio.Event()

    async def answer(content: bytes) -> bytes:
        if content == b"slow":
            await release.wait()
        return content

    async with connected(answer) as (line, _):
        slow = asyncio.create_task(line.call("echo", b"slow"))
        for _ in range(20):
            assert await within(line.call("echo", b"quick")) == b"quick"
        assert not slow.done()
        release.set()
        assert await within(slow) == b"slow"


async def test_when_the_other_end_dies_waiting_calls_are_told_and_the_next_finds_its_successor() -> None:
    taken = asyncio.Semaphore(0)

    async def never(_: bytes) -> bytes:
        taken.release()
        await asyncio.sleep(60)
        return b""

    desks = [Desk({"echo": never}), Desk({"echo": echo})]
    line = Line(lambda: desks[0].listen("127.0.0.1"))
    calls = [asyncio.create_task(line.call("echo", b"x")) for _ in range(5)]
    for _ in calls:
        await asyncio.wait_for(taken.acquire(), 5)
    desks.pop(0).close()
    line._connection.close()
    for found in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5):
        assert isinstance(found, Gone)
    assert await within(line.call("echo", b"again")) == b"again"
    line.close()
    desks[0].close()


async def test_nobody_is_heard_who_does_not_know_the_secret() -> None:
    heard: list[bytes] = []

    async def answer(content: bytes) -> bytes:
        heard.append(content)
        return content

    async with connected(answer) as (_, desk):
        address = await desk.listen("127.0.0.1")

        async def wrong() -> Address:
            return msgspec.structs.replace(address, secret=b"0" * 16)

        with pytest.raises(Gone):
            await within(Line(wrong).call("echo", b"x"))
        assert heard == []


async def test_a_desk_that_is_nowhere_is_gone_at_once() -> None:
    desk = Desk({"echo": echo})
    address = await desk.listen("127.0.0.1")
    desk.close()

    async def locate() -> Address:
        return address

    with pytest.raises(Gone, match="cannot be reached"):
        await within(Line(locate).call("echo", b"x"))


async def test_a_call_too_large_for_a_frame_is_refused_on_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    async def thousand(_: bytes) -> bytes:
        return b"x" * 1000

    async with connected(thousand) as (line, _):
        assert len(await within(line.call("echo", b"small"))) == 1000
        monkeypatch.setattr(module, "MAX_FRAME", 500)
        with pytest.raises(Failed, match="more than a call can carry"):
            await within(line.call("echo", b"x" * 1000))
        with pytest.raises(Failed, match="the answer has"):
            await within(line.call("echo", b"small"))


async def test_a_bug_at_the_desk_is_told_to_its_caller_alone() -> None:
    async def answer(content: bytes) -> bytes:
        if content == b"bad":
            raise ZeroDivisionError("oops")
        return content

    async with connected(answer) as (line, _):
        calls = (line.call("echo", c) for c in (b"bad", b"good"))
        bad, good = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(bad, Failed)
        assert "ZeroDivisionError: oops" in str(bad)
        assert good == b"good"


async def test_a_caller_that_gives_up_leaves_the_line_usable() -> None:
    async with connected() as (line, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await line.call("echo", b"x")
        assert await within(line.call("echo", b"y")) == b"y"


@pytest.mark.parametrize("call_off", [True, False])
async def test_a_call_is_cancelled_at_the_other_end_only_if_its_caller_asked_for_that(call_off: bool) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def answer(content: bytes) -> bytes:
        if content == b"other":
            return content
        begun.set()
        try:
            await release.wait()
            ended.append("completed")
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            ended.append("cancelled")
            raise
        return content

    async with connected(answer) as (line, _):
        calling = asyncio.create_task(line.call("echo", b"x", call_off=call_off))
        await asyncio.wait_for(begun.wait(), 5)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(calling, 5)
        assert ended == (["cancelled"] if call_off else [])
        release.set()
        assert await within(line.call("echo", b"other")) == b"other"
        assert ended == (["cancelled"] if call_off else ["completed"])
