"""``python -m bench.calls``: what a call between two processes costs, on our channel and on gRPC.

CPU of both processes for a call that carries 1,500 bytes there and back, with 64 calls at the same time and
with one. Both ask for a secret with each connection or call, as actors do.
"""

import asyncio
import hmac
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import uvloop

from deployments.channel import MAX_FRAME, Address, Channel, Endpoint

CALLS = 6_000
CONTENT = os.urandom(1_500)
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_FRAME),
    ("grpc.max_send_message_length", MAX_FRAME),
    ("grpc.keepalive_time_ms", 10_000),  # a silent machine is noticed within 15 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

Call = Callable[[bytes], Awaitable[bytes]]


async def echo(content: bytes) -> bytes:
    """The method that is called."""
    return content


async def serve_channel() -> tuple[int, bytes]:
    """Where it listens: the port, and the secret."""
    address = await Endpoint({"echo": echo}).listen("127.0.0.1")
    return address.port, address.secret


async def call_on_channel(port: int, secret: bytes) -> Call:
    """What makes a call."""

    async def locate() -> Address:
        return Address("127.0.0.1", port, secret)

    channel = Channel(locate)
    return lambda content: channel.call("echo", content)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, secret: str) -> None:
        self._secret = secret

    def service(self, details: Any) -> Any:
        """A call without the secret is not answered."""
        given = dict(details.invocation_metadata).get("secret", "")
        return (
            grpc.unary_unary_rpc_method_handler(_answer) if hmac.compare_digest(given, self._secret) else None
        )


async def _answer(content: bytes, _: Any) -> bytes:
    return await asyncio.shield(asyncio.ensure_future(echo(content)))  # a caller may leave: the call goes on


async def serve_grpc() -> tuple[int, bytes]:
    """As `serve_channel`."""
    secret = os.urandom(16)
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((_Methods(secret.hex()),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _kept.append(server)
    return port, secret


async def call_on_grpc(port: int, secret: bytes) -> Call:
    """As `call_on_channel`."""
    method = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS).unary_unary("/mesh/echo")
    metadata = (("secret", secret.hex()),)

    async def call(content: bytes) -> bytes:
        answer: bytes = await method(content, metadata=metadata)
        return answer

    return call


_kept: list[Any] = []  # a gRPC server that nobody holds stops
KINDS = {"channel": (serve_channel, call_on_channel), "grpc.aio": (serve_grpc, call_on_grpc)}


async def serve(kind: str) -> None:
    """The other process: says where it listens, and then its CPU seconds for each line that it reads."""
    port, secret = await KINDS[kind][0]()
    print(port, secret.hex(), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(time.process_time(), flush=True)


async def measure(kind: str) -> None:
    """Prints a line for each number of calls at the same time."""
    command = [sys.executable, "-m", "bench.calls", kind]
    # In this process nothing else runs while it waits: no need for asyncio's subprocesses.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:  # noqa: ASYNC220
        assert other.stdin and other.stdout
        stdin, stdout = other.stdin, other.stdout
        port, secret = stdout.readline().split()
        call = await KINDS[kind][1](int(port), bytes.fromhex(secret))

        def cpu() -> float:
            stdin.write("\n")
            stdin.flush()
            return time.process_time() + float(stdout.readline())

        for at_once in (64, 1):
            await _calls(call, at_once, 1_000)
            before, began = cpu(), time.perf_counter()
            await _calls(call, at_once, CALLS)
            took, used = time.perf_counter() - began, cpu() - before
            figures = f"{1e6 * used / CALLS:4.0f} us CPU a call, {CALLS / took:6.0f} calls/s"
            print(f"{kind:9} {at_once:2} at once: {figures}")
        other.kill()


async def _calls(call: Call, at_once: int, count: int) -> None:
    async def some() -> None:
        for _ in range(count // at_once):
            assert await call(CONTENT) == CONTENT

    await asyncio.gather(*(some() for _ in range(at_once)))


if __name__ == "__main__":
    if sys.argv[1:]:
        uvloop.run(serve(sys.argv[1]))
    else:
        for each in KINDS:
            uvloop.run(measure(each))
