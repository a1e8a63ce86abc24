"""A channel and an endpoint over a real connection: each call is answered once, and none is lost silently."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import msgspec
import psutil
import pytest
import uvloop

from deployments import channel as module
from deployments.channel import (
    MAX_FRAME,
    MAX_GREETING,
    Address,
    CallFailed,
    Channel,
    ConnectionLost,
    Endpoint,
)

Answer = Callable[[bytes], Awaitable[bytes]]


async def echo(content: bytes) -> bytes:
    return content


@asynccontextmanager
async def connected(answer: Answer = echo) -> AsyncIterator[tuple[Channel, Endpoint]]:
    endpoint = Endpoint({"echo": answer})
    channel = Channel(lambda: endpoint.listen("127.0.0.1"))
    try:
        yield channel, endpoint
    finally:
        channel.close()
        endpoint.close()


async def within(work: Awaitable[bytes]) -> bytes:
    return await asyncio.wait_for(work, 30)


async def test_calls_at_once_each_get_their_own_answer() -> None:
    async with connected() as (channel, _):
        calls = [b"%d" % i for i in range(500)]
        assert await asyncio.gather(*(channel.call("echo", c) for c in calls)) == calls


async def test_calls_and_answers_of_many_megabytes_arrive_whole() -> None:
    async with connected() as (channel, _):
        big = [bytes([i]) * (8_000_000 + i) for i in range(4)]
        assert await asyncio.gather(*(channel.call("echo", c) for c in big)) == big


async def test_a_slow_call_holds_up_no_other() -> None:
    release = asyncio.Event()

    async def answer(content: bytes) -> bytes:
        if content == b"slow":
            await release.wait()
        return content

    async with connected(answer) as (channel, _):
        slow = asyncio.create_task(channel.call("echo", b"slow"))
        for _ in range(20):
            assert await within(channel.call("echo", b"quick")) == b"quick"
        assert not slow.done()
        release.set()
        assert await within(slow) == b"slow"


async def test_when_the_other_end_dies_waiting_calls_are_told_and_the_next_finds_its_successor() -> None:
    taken = asyncio.Semaphore(0)

    async def never(_: bytes) -> bytes:
        taken.release()
        await asyncio.sleep(60)
        return b""

    endpoints = [Endpoint({"echo": never}), Endpoint({"echo": echo})]
    channel = Channel(lambda: endpoints[0].listen("127.0.0.1"))
    calls = [asyncio.create_task(channel.call("echo", b"x")) for _ in range(5)]
    for _ in calls:
        await asyncio.wait_for(taken.acquire(), 30)
    endpoints.pop(0).close()
    assert channel._connection is not None
    channel._connection.close()
    for found in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30):
        assert isinstance(found, ConnectionLost)
    assert await within(channel.call("echo", b"again")) == b"again"
    channel.close()
    endpoints[0].close()


async def test_nobody_is_heard_who_does_not_know_the_secret() -> None:
    heard: list[bytes] = []

    async def answer(content: bytes) -> bytes:
        heard.append(content)
        return content

    async with connected(answer) as (_, endpoint):
        address = await endpoint.listen("127.0.0.1")

        async def wrong() -> Address:
            return msgspec.structs.replace(address, secret=b"0" * 16)

        with pytest.raises(ConnectionLost):
            await within(Channel(wrong).call("echo", b"x"))
        assert heard == []


@asynccontextmanager
async def frozen() -> AsyncIterator[tuple[Channel, asyncio.Queue[asyncio.StreamWriter]]]:
    """A channel to a machine that takes connections and says nothing; and those."""
    taken: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: taken.put_nowait(writer), "127.0.0.1", 0)

    async def locate() -> Address:
        return Address("127.0.0.1", server.sockets[0].getsockname()[1], b"secret")

    channel = Channel(locate)
    try:
        yield channel, taken
    finally:
        channel.close()
        while not taken.empty():
            taken.get_nowait().close()
        server.close()


async def test_calls_that_wait_for_one_connection_fail_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECT_WITHIN_S", 0.2)
    async with frozen() as (channel, taken):
        answers = await asyncio.gather(
            *(within(channel.call("echo", b"")) for _ in range(20)), return_exceptions=True
        )
        assert {type(each) for each in answers} == {ConnectionLost}
        assert taken.qsize() == 1


async def test_calls_that_wait_for_a_connection_end_when_the_channel_is_closed() -> None:
    async with frozen() as (channel, taken):
        calls = [asyncio.create_task(channel.call("echo", b"")) for _ in range(3)]
        taken.put_nowait(await taken.get())
        calls.pop().cancel()  # whoever gives up ends nothing for the others
        await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        channel.close()
        for call in calls:
            with pytest.raises(ConnectionLost, match="closed"):
                await within(call)


async def test_a_call_of_a_channel_that_is_closed_at_once_is_not_cancelled() -> None:
    async with frozen() as (channel, _):
        call = asyncio.create_task(channel.call("echo", b""))
        await asyncio.sleep(0)
        channel.close()  # the connection has not begun
        with pytest.raises(ConnectionLost, match="closed"):
            await within(call)
        assert not call.cancelled()


async def test_an_endpoint_that_is_nowhere_is_gone_at_once() -> None:
    endpoint = Endpoint({"echo": echo})
    address = await endpoint.listen("127.0.0.1")
    endpoint.close()

    async def locate() -> Address:
        return address

    with pytest.raises(ConnectionLost, match="cannot be reached"):
        await within(Channel(locate).call("echo", b"x"))


async def test_a_call_too_large_for_a_frame_is_refused_on_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    async def thousand(_: bytes) -> bytes:
        return b"x" * 1000

    async with connected(thousand) as (channel, _):
        assert len(await within(channel.call("echo", b"small"))) == 1000
        monkeypatch.setattr(module, "MAX_FRAME", 500)
        with pytest.raises(CallFailed, match="more than a call can carry"):
            await within(channel.call("echo", b"x" * 1000))
        with pytest.raises(CallFailed, match="the answer has"):
            await within(channel.call("echo", b"small"))


async def test_a_bug_at_the_endpoint_is_told_to_its_caller_alone() -> None:
    async def answer(content: bytes) -> bytes:
        if content == b"bad":
            raise ZeroDivisionError("oops")
        return content

    async with connected(answer) as (channel, _):
        calls = (channel.call("echo", c) for c in (b"bad", b"good"))
        bad, good = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(bad, CallFailed)
        assert "ZeroDivisionError: oops" in str(bad)
        assert good == b"good"


async def test_a_caller_that_gives_up_leaves_the_channel_usable() -> None:
    async with connected() as (channel, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await channel.call("echo", b"x")
        assert await within(channel.call("echo", b"y")) == b"y"


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_call_is_cancelled_at_the_other_end_only_if_its_caller_asked_for_that(cancels: bool) -> None:
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

    async with connected(answer) as (channel, _):
        calling = asyncio.create_task(channel.call("echo", b"x", cancels=cancels))
        await asyncio.wait_for(begun.wait(), 30)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(calling, 30)
        assert ended == (["cancelled"] if cancels else [])
        release.set()
        assert await within(channel.call("echo", b"other")) == b"other"
        assert ended == (["cancelled"] if cancels else ["completed"])


# -- unauthenticated connections: those that have not shown the secret

ENDPOINT = """
import asyncio, sys, uvloop
from deployments.channel import Endpoint

async def echo(content):
    return content

async def main():
    address = await Endpoint({"echo": echo}).listen("127.0.0.1")
    print(address.port, address.secret.hex(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

(uvloop if sys.argv[1] == "uvloop" else asyncio).run(main())
"""
ENDLESS = MAX_FRAME.to_bytes(4, "big") + b"x" * 100_000
GREETINGS = {
    "silent": b"",
    "half a length": b"\0\0",
    "half a secret": b"\0\0\0\x10" + b"x" * 8,
    "a wrong secret": b"\0\0\0\x10" + b"x" * 16,
    "a frame a byte too long": (MAX_GREETING + 1).to_bytes(4, "big") + b"x" * (MAX_GREETING + 1),
    "a frame that never ends": ENDLESS,
}


@contextmanager
def endpoint_process() -> Iterator[tuple[psutil.Process, Address]]:
    """An endpoint in its own process, on a loop of the same kind, so that its cost can be measured."""
    kind = "uvloop" if isinstance(asyncio.get_running_loop(), uvloop.Loop) else "asyncio"
    command = [sys.executable, "-c", ENDPOINT, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        port, secret = process.stdout.readline().split()
        try:
            yield psutil.Process(process.pid), Address("127.0.0.1", int(port), bytes.fromhex(secret.decode()))
        finally:
            process.stdin.close()
            process.wait(30)


async def knock(address: Address, greeting: bytes) -> None:
    """A connection that begins like this, until the endpoint closes it."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        with suppress(ConnectionError):
            writer.write(greeting)
            await writer.drain()
            assert await reader.read() == b""
    finally:
        writer.transport.abort()


async def knock_for_a_while(address: Address, greeting: bytes) -> None:
    """`knock`, but gives up: a connection beyond the system's own queue never reaches the endpoint."""
    with suppress(TimeoutError):
        await asyncio.wait_for(knock(address, greeting), 3)


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS.keys())
async def test_an_unauthenticated_connection_is_closed_at_the_first_wrong_byte_or_after_the_deadline(
    greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as (channel, endpoint):
        with monkeypatch.context() as patched:
            patched.setattr(module, "GREET_WITHIN_S", 0.2)
            await asyncio.wait_for(knock(await endpoint.listen("127.0.0.1"), greeting), 30)
        assert await within(channel.call("echo", b"x")) == b"x"


async def test_a_known_caller_may_be_silent_for_longer_than_an_unauthenticated_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected() as (channel, endpoint):
        assert await within(channel.call("echo", b"x")) == b"x"
        monkeypatch.setattr(module, "GREET_WITHIN_S", 0.05)
        connection = channel._connection
        await asyncio.wait_for(knock(await endpoint.listen("127.0.0.1"), b""), 30)  # came later, and is over
        assert await within(channel.call("echo", b"y")) == b"y"
        assert channel._connection is connection


async def call_again_and_again(address: Address, over: asyncio.Event) -> int:
    """Calls the endpoint, on a connection of its own each time; how many calls were answered."""

    async def locate() -> Address:
        return address

    answered = 0
    while not over.is_set():
        channel = Channel(locate)
        assert await asyncio.wait_for(channel.call("echo", b"x"), 30) == b"x"
        channel.close()
        answered += 1
    return answered


async def test_thousands_of_unauthenticated_connections_cost_no_memory_and_keep_no_caller_out() -> None:
    with endpoint_process() as (process, address):
        before, descriptors, over = process.memory_info().rss, 0, asyncio.Event()
        calling = asyncio.create_task(call_again_and_again(address, over))
        for _ in range(3):
            greetings = [ENDLESS, b"", *GREETINGS.values()] * 125
            strangers = asyncio.gather(*(knock_for_a_while(address, greeting) for greeting in greetings))
            while not strangers.done():
                descriptors = max(descriptors, process.num_fds())
                await asyncio.wait({strangers}, timeout=0.02)
            await strangers
        over.set()
        assert await asyncio.wait_for(calling, 60) > 10
        # On top of the bound come those that the event loop has just accepted or not yet closed.
        assert descriptors < 3 * module.MAX_UNAUTHENTICATED
        assert process.memory_info().rss - before < 32 * 1024 * 1024


STOPPED = """
import asyncio
from deployments.channel import Endpoint

async def main():
    async def never(_):
        print("taken", flush=True)
        await asyncio.Event().wait()
    endpoint = Endpoint({"echo": never})
    address = await endpoint.listen("127.0.0.1")
    print(address.port, address.secret.hex(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def other_process() -> Iterator[subprocess.Popen[str]]:
    """A process with an endpoint, whose calls never end. It prints where it is, and when it took a call."""
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_call_of_a_process_that_is_stopped_is_lost_and_one_that_only_takes_long_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PING_EVERY_S", 0.1)
    with other_process() as process:
        assert process.stdout is not None
        port, secret = (await asyncio.to_thread(process.stdout.readline)).split()

        async def locate() -> Address:
            return Address("127.0.0.1", int(port), bytes.fromhex(secret))

        channel = Channel(locate)
        call = asyncio.create_task(channel.call("echo", b"x"))
        assert await asyncio.to_thread(process.stdout.readline) == "taken\n"
        done, _ = await asyncio.wait({call}, timeout=2 * module._MOST_UNANSWERED * module._PING_EVERY_S)
        assert not done
        psutil.Process(process.pid).suspend()
        with pytest.raises(ConnectionLost, match="does not answer"):
            await within(call)
        channel.close()


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


async def frame_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


class TestReleases:
    """The release before says nothing about its protocol."""

    async def test_a_caller_of_the_release_before_is_answered(self) -> None:
        async with connected() as (_, endpoint):
            address = await endpoint.listen("127.0.0.1")
            reader, writer = await asyncio.open_connection(address.host, address.port)
            call = msgspec.msgpack.encode([7, "echo", b"hello"])
            writer.write(framed(address.secret) + framed(call))
            await frame_of(reader)  # what was an empty frame; that release does not look into it
            assert msgspec.msgpack.decode(await frame_of(reader))[:3] == [7, b"hello", ""]
            writer.close()

    async def test_an_endpoint_of_the_release_before_is_called_as_it_expects(self) -> None:
        seen: list[bytes] = []
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await frame_of(reader))
            writer.write(framed(b""))
            seen.append(await frame_of(reader))
            number, _, content = msgspec.msgpack.decode(seen[-1])
            writer.write(framed(msgspec.msgpack.encode([number, content, "", False])))
            await reader.read()
            writer.close()
            await writer.wait_closed()
            ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1], b"s" * 16)

        async def locate() -> Address:
            return address

        channel = Channel(locate)
        assert await within(channel.call("echo", b"hello")) == b"hello"
        assert seen == [b"s" * 16, msgspec.msgpack.encode([0, "echo", b"hello"])]
        channel.close()
        await asyncio.wait_for(ended.wait(), 30)
        server.close()

    async def test_both_ends_say_their_protocol_and_one_that_is_too_old_is_told_to_upgrade(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[bytes] = []

        async def answer(content: bytes) -> bytes:
            ran.append(content)
            return content

        async with connected(answer) as (channel, endpoint):
            monkeypatch.setattr(module, "OLDEST_PROTOCOL", module.PROTOCOL)
            assert await within(channel.call("echo", b"same")) == b"same"  # which says its number
            address = await endpoint.listen("127.0.0.1")
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(framed(address.secret) + framed(msgspec.msgpack.encode([1, "echo", b"old"])))
            assert int.from_bytes(await frame_of(reader), "big") == module.PROTOCOL
            assert "upgrade by one release" in msgspec.msgpack.decode(await frame_of(reader))[2]
            writer.close()
            monkeypatch.setattr(module, "OLDEST_PROTOCOL", module.PROTOCOL + 1)
            newer = Channel(lambda: endpoint.listen("127.0.0.1"))
            with pytest.raises(CallFailed, match="the other end has protocol 1, and this process 2 to"):
                await within(newer.call("echo", b"newer"))
            newer.close()
        assert ran == [b"same"]
