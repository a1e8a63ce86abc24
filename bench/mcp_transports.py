"""``python -m bench.mcp_transports``: what the stdio transports of the SDK cost beside ours, at both ends.

    client   CPU of this process for a call, and seconds for one message of 1, 10 and 50 MB
    server   CPU of a server process for a call

The figures of `docs/decisions/mcp-transports.md`. The other end is the same in each pair.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import mcp_types as types
import psutil
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from mesh.mcp.stdio import StdioTransport

CALLS = 2_000
SIZES_MB = (1, 10, 50)

# A server of the standard library: as little of its own as possible.
PLAIN_SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "plain", "version": "1"}}
    else:
        size = message["params"]["arguments"].get("size", 1)
        result = {"content": [{"type": "text", "text": "x" * size}]}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\\n")
    sys.stdout.flush()
"""
SDK_SERVER = """
import anyio, mcp_types as types
from mcp.server.lowlevel import Server
{imports}

async def list_tools(context, params):
    return types.ListToolsResult(tools=[])

async def call_tool(context, params):
    return types.CallToolResult(content=[types.TextContent(text="x")])

async def main():
    server = Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)
    async with {streams}() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())

anyio.run(main)
"""
SERVERS = {
    "sdk": SDK_SERVER.format(imports="from mcp.server.stdio import stdio_server", streams="stdio_server"),
    "ours": SDK_SERVER.format(
        imports="from mesh.mcp.stdio_server import stdio_streams", streams="stdio_streams"
    ),
}
Transport = Callable[[str], AbstractAsyncContextManager[Any]]


def by_sdk(script: str) -> AbstractAsyncContextManager[Any]:
    command = StdioServerParameters(
        command=sys.executable, args=["-c", script], encoding_error_handler="replace"
    )
    return stdio_client(command)


def by_ours(script: str) -> AbstractAsyncContextManager[Any]:
    return StdioTransport("bench", [sys.executable, "-c", script], {}, 200 << 20, lambda: None)


CLIENTS: dict[str, Transport] = {"sdk": by_sdk, "ours": by_ours}


@asynccontextmanager
async def connected(transport: Transport, script: str) -> AsyncIterator[ClientSession]:
    async with transport(script) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
        await session.initialize()
        yield session


async def call(session: ClientSession, **arguments: Any) -> None:
    request = types.CallToolRequest(params=types.CallToolRequestParams(name="x", arguments=arguments))
    await session.send_request(request, types.CallToolResult)


def cpu_of_this() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_of_children() -> float:
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


async def ms_a_call(transport: Transport, script: str, cpu: Callable[[], float]) -> float:
    async with connected(transport, script) as session:
        for _ in range(200):
            await call(session)
        before = cpu()
        for _ in range(CALLS):
            await call(session)
        return 1000 * (cpu() - before) / CALLS


async def seconds_for(transport: Transport, megabytes: int) -> float:
    async with connected(transport, PLAIN_SERVER) as session:
        started = time.perf_counter()
        await call(session, size=megabytes * 1_000_000)
        return time.perf_counter() - started


async def main() -> None:
    for turn in range(3):
        for name, transport in CLIENTS.items():
            figures: dict[str, Any] = {"turn": turn, "client": name}
            figures["cpu_ms_a_call"] = round(await ms_a_call(transport, PLAIN_SERVER, cpu_of_this), 3)
            if turn == 0:
                figures["s_for_mb"] = {mb: round(await seconds_for(transport, mb), 2) for mb in SIZES_MB}
            print(json.dumps(figures), flush=True)
        for name, script in SERVERS.items():
            cpu = await ms_a_call(by_sdk, script, cpu_of_children)
            print(json.dumps({"turn": turn, "server": name, "cpu_ms_a_call": round(cpu, 3)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
