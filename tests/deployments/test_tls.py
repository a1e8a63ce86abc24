"""Calls between actors are encrypted with Ray's certificates, and nobody without one is heard."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from deployments import channel as module
from deployments.channel import GREET_WITHIN_S, Address, Channel, ConnectionLost, Endpoint
from deployments.tls import is_on, tls_of
from tests.worlds.certificates import ray_tls

SAID = b"delete everything, as admin"


async def echo(content: bytes) -> bytes:
    return content


class Wire:
    """A relay before an endpoint, which remembers what passes. ``pause_s``: so long after each 64 KB."""

    def __init__(self, endpoint: Endpoint, pause_s: float = 0.0) -> None:
        self._endpoint = endpoint
        self._pause_s = pause_s
        self.passed = b""
        self.secret = b""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Address]:
        address = await self._endpoint.listen("127.0.0.1")
        self.secret = address.secret

        async def copied(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                self.passed += data
                to.write(data)
                await asyncio.sleep(self._pause_s)
            to.close()

        relays: set[asyncio.Task[None]] = set()

        async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            relay = asyncio.current_task()
            assert relay is not None
            relays.add(relay)
            there, back = await asyncio.open_connection(address.host, address.port)
            await asyncio.gather(copied(reader, back), copied(there, writer), return_exceptions=True)
            for end in (writer, back):
                with suppress(OSError):
                    await end.wait_closed()

        server = await asyncio.start_server(relayed, "127.0.0.1", 0)
        try:
            yield Address("127.0.0.1", server.sockets[0].getsockname()[1], address.secret)
        finally:
            server.close()
            self._endpoint.close()
            if relays:  # uvloop does not end with an open connection
                _, left = await asyncio.wait(relays, timeout=30)
                assert not left


async def said_to(endpoint: Endpoint, tls: ssl.SSLContext | None) -> Wire:
    """The wire of a call that was answered. Raises `ConnectionLost` if it was not."""
    wire = Wire(endpoint)
    async with wire.listening() as address:

        async def locate() -> Address:
            return address

        channel = Channel(locate, tls)
        try:
            assert await asyncio.wait_for(channel.call("echo", SAID), 60) == SAID
        finally:
            channel.close()
    return wire


async def test_what_actors_say_and_their_secrets_are_not_on_the_wire(tmp_path: Path) -> None:
    plain = await said_to(Endpoint({"echo": echo}), None)
    assert SAID in plain.passed and plain.secret in plain.passed
    tls = tls_of(ray_tls(tmp_path))
    encrypted = await said_to(Endpoint({"echo": echo}, tls.server), tls.client)
    assert len(encrypted.passed) > len(SAID)
    assert SAID not in encrypted.passed and encrypted.secret not in encrypted.passed


@pytest.mark.parametrize("caller", ["without TLS", "without a certificate", "of another authority"])
async def test_who_has_no_certificate_of_the_authority_is_not_heard(tmp_path: Path, caller: str) -> None:
    env = ray_tls(tmp_path / "ours")
    tls, other = tls_of(env), tls_of(ray_tls(tmp_path / "theirs"))
    anonymous = ssl.create_default_context(cafile=env["RAY_TLS_CA_CERT"])
    anonymous.check_hostname = False
    other.client.verify_mode = ssl.CERT_NONE  # so that it is the endpoint that refuses
    contexts = {"without TLS": None, "without a certificate": anonymous, "of another authority": other.client}
    heard = []

    async def answer(content: bytes) -> bytes:
        heard.append(content)
        return content

    with pytest.raises(ConnectionLost):
        await said_to(Endpoint({"echo": answer}, tls.server), contexts[caller])
    assert heard == []


async def test_a_caller_says_its_secret_to_nobody_without_a_certificate_of_the_authority(
    tmp_path: Path,
) -> None:
    ours, theirs = tls_of(ray_tls(tmp_path / "ours")), tls_of(ray_tls(tmp_path / "theirs"))
    with pytest.raises(ConnectionLost, match="certificate"):
        await said_to(Endpoint({"echo": echo}, theirs.server), ours.client)


async def test_who_connects_and_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    endpoint = Endpoint({"echo": echo}, tls_of(ray_tls(tmp_path)).server)
    address = await endpoint.listen("127.0.0.1")
    reader, writer = await asyncio.open_connection(address.host, address.port)
    async with asyncio.timeout(30 * GREET_WITHIN_S):
        assert await reader.read() == b""
    writer.close()
    endpoint.close()


async def test_calls_to_a_host_that_does_not_answer_any_more_end_when_its_channel_is_closed(
    tmp_path: Path,
) -> None:
    tls, never, is_there = tls_of(ray_tls(tmp_path)), asyncio.Event(), asyncio.Event()

    async def silent(_: bytes) -> bytes:
        is_there.set()
        await never.wait()
        return b""

    endpoint = Endpoint({"echo": silent}, tls.server)
    channel = Channel(lambda: endpoint.listen("127.0.0.1"), tls.client)
    call = asyncio.create_task(channel.call("echo", SAID))
    await is_there.wait()
    channel.close()
    # Not when the other end has said goodbye, for which TLS waits half a minute.
    _, waiting = await asyncio.wait({call}, timeout=10)
    assert not waiting
    with pytest.raises(ConnectionLost):
        await call
    never.set()
    endpoint.close()


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("True", True), ("0", False), ("", False)]
)
def test_ray_says_whether_it_is_on(value: str, expected: bool) -> None:
    assert is_on({"RAY_USE_TLS": value}) is expected and not is_on({})


async def test_a_long_call_over_a_slow_network_is_not_taken_for_a_process_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What waits to be sent is below TLS, where nothing tells how much that is.
    monkeypatch.setattr(module, "_PING_EVERY_S", 0.05)
    monkeypatch.setattr(module, "_BYTES_BETWEEN_PINGS", 10_000)
    tls = tls_of(ray_tls(tmp_path))

    async def length(content: bytes) -> bytes:
        return b"%d" % len(content)

    wire = Wire(Endpoint({"length": length}, tls.server), pause_s=0.02)
    async with wire.listening() as address:

        async def locate() -> Address:
            return address

        channel = Channel(locate, tls.client)
        try:
            assert await asyncio.wait_for(channel.call("length", bytes(4_000_000)), 60) == b"4000000"
        finally:
            channel.close()
