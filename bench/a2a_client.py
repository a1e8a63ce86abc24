"""``python -m bench.a2a_client``: what a call of another agent costs, by our client and by the A2A SDK's.

CPU of the client's process for a message that is answered at once, four at the same time; and what importing
each client costs in a process that has only started.
"""

import asyncio
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import uvloop
from a2a.client.transports.jsonrpc import JsonRpcTransport
from a2a.types import a2a_pb2 as pb

from mesh.a2a.client.agent import HttpAgent
from mesh.a2a.client.port import ForwardedHeaders, OutgoingMessage
from tests.worlds.agents import Agent, served

CALLS, AT_ONCE = 1_000, 4
Send = Callable[[str], Awaitable[Any]]
IMPORTS = ("mesh.a2a.client.agent", "a2a.client")
_IMPORT = """
import time, psutil
before, memory = time.process_time(), psutil.Process().memory_info().rss
import {}
memory = psutil.Process().memory_info().rss - memory
print(f"{{time.process_time() - before:.2f}} s of CPU, {{memory / 1e6:.0f}} MB")
"""


async def ours(url: str) -> tuple[Send, Callable[[], Awaitable[None]]]:
    """Our client, with its guard, its bounds and the fetching of the card (once)."""
    agent = HttpAgent("peer", url)

    async def send(message_id: str) -> None:
        await agent.send(OutgoingMessage(message_id, "echo hello", message_id), ForwardedHeaders("s"))

    return send, agent.close


async def sdk(url: str) -> tuple[Send, Callable[[], Awaitable[None]]]:
    """The SDK's transport alone, on an httpx client with its defaults: no guard, no bounds, no card."""
    client = httpx.AsyncClient(headers={"A2A-Version": "1.0"})
    transport = JsonRpcTransport(client, pb.AgentCard(), f"{url}/a2a")

    async def send(message_id: str) -> None:
        part = pb.Part(text="echo hello")
        message = pb.Message(
            message_id=message_id, context_id=message_id, role=pb.Role.ROLE_USER, parts=[part]
        )
        await transport.send_message(pb.SendMessageRequest(message=message))

    return send, transport.close


async def measure(name: str, url: str, client: Callable[[str], Awaitable[Any]]) -> None:
    send, close = await client(url)
    for number in range(20):
        await send(f"{name}-warm-{number}")
    before = time.process_time()

    async def some(worker: int) -> None:
        for number in range(CALLS // AT_ONCE):
            await send(f"{name}-{worker}-{number}")

    await asyncio.gather(*map(some, range(AT_ONCE)))
    print(f"{name:5} {(time.process_time() - before) / CALLS * 1e3:.2f} ms of CPU a call")
    await close()


def serve(urls: "multiprocessing.Queue[str]") -> None:
    async def forever() -> None:
        async with served(Agent().app()) as url:
            urls.put(url)
            await asyncio.Event().wait()

    uvloop.run(forever())


def main() -> None:
    urls: multiprocessing.Queue[str] = multiprocessing.Queue()
    peer = multiprocessing.Process(target=serve, args=(urls,), daemon=True)
    peer.start()
    url = urls.get(timeout=30)
    try:
        for _ in range(3):
            uvloop.run(measure("ours", url, ours))
            uvloop.run(measure("sdk", url, sdk))
    finally:
        peer.terminate()
    for module in IMPORTS:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT.format(module)], capture_output=True, check=True, text=True
        )
        print(f"import {module}: {done.stdout.strip()}")


if __name__ == "__main__":
    main()
