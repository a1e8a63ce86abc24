"""S10: a tool in a Python file beside the same tool of a server written by hand, with the official SDK.

Both are asked through a session of the mesh, in turn, so that both see the same machine. CPU is that of the
server's process for a call. Of the rounds the least is taken, since whatever else the machine does can only
add to it.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.figures import Bench
from mesh.config.model import McpServer, PythonFile
from mesh.core.execution import ExecutionContext
from mesh.mcp.python_file import launched
from mesh.mcp.session import McpSession

CALLS, ROUNDS = 400, 7
ARGUMENTS = {"order": "A-1", "cents": 5, "tags": ["a", "b"]}
CONTEXT = ExecutionContext(
    idempotency_key="c|1|0/tool/0.0", trace_id="0" * 32, depth=1, agent_path=("bench",)
)

BY_HAND = """
import json, anyio, mcp_types as types
from mcp.server.lowlevel import Server
from {module} import {streams} as streams

PROPERTIES = {{"order": {{"type": "string"}}, "cents": {{"type": "integer"}},
              "tags": {{"type": "array", "items": {{"type": "string"}}}}}}
SCHEMA = {{"type": "object", "properties": PROPERTIES, "required": ["order", "cents", "tags"]}}

async def list_tools(context, params):
    return types.ListToolsResult(tools=[types.Tool(name="refund", input_schema=SCHEMA)])

async def call_tool(context, params):
    given = params.arguments
    answer = {{"order": given["order"], "cents": given["cents"], "tags": given["tags"]}}
    return types.CallToolResult(content=[types.TextContent(text=json.dumps(answer))])

async def main():
    server = Server("by-hand", on_list_tools=list_tools, on_call_tool=call_tool)
    async with streams() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())

anyio.run(main)
"""
IN_A_FILE = """
from pydantic import BaseModel
from mesh.tools import Context, tool

class Refund(BaseModel):
    order: str
    cents: int
    tags: list[str]

@tool(destructive=True)
{function} refund(order: str, cents: int, tags: list[str], ctx: Context) -> Refund:
    return Refund(order=order, cents=cents, tags=tags)
"""


class Taken(NamedTuple):
    """What a call took, in milliseconds."""

    p50: float
    cpu: float


def s10(bench: Bench, scratch: Path) -> None:
    """Measures, and notes a row for each."""
    asyncio.run(_measure(bench, scratch))


async def _measure(bench: Bench, scratch: Path) -> None:
    servers = {
        "by hand, stdio of the SDK": _by_hand("mcp.server.stdio", "stdio_server"),
        "by hand, stdio of mesh": _by_hand("mesh.mcp.stdio_server", "stdio_streams"),
        "Python file, async def": _in_a_file("async def", scratch),
        "Python file, def": _in_a_file("def", scratch),
    }
    taken: dict[str, list[Taken]] = {name: [] for name in servers}
    async with AsyncExitStack() as stack:
        sessions = {name: McpSession(server) for name, server in servers.items()}
        processes = {}
        for name, session in sessions.items():
            before = set(psutil.Process().children(recursive=True))
            stack.push_async_callback(session.close)
            await session.catalogue()
            processes[name] = [*set(psutil.Process().children(recursive=True)) - before]
            await _round(session, processes[name])
        for _ in range(ROUNDS):
            for name, session in sessions.items():
                taken[name].append(await _round(session, processes[name]))
    base = _least(taken["by hand, stdio of the SDK"])
    for name, rounds in taken.items():
        least = _least(rounds)
        bench.add(
            "S10",
            name,
            "≤ 1.1 ×" if name.startswith("Python") else "",
            p50_ms=round(least.p50, 3),
            cpu_ms_per_call=round(least.cpu, 3),
            latency_ratio=round(least.p50 / base.p50, 2),
            cpu_ratio=round(least.cpu / base.cpu, 2),
        )


async def _round(session: McpSession, processes: list[psutil.Process]) -> Taken:
    before, latencies = _cpu_s(processes), []
    for _ in range(CALLS):
        started = time.perf_counter()
        outcome = await session.call("refund", ARGUMENTS, context=CONTEXT)
        latencies.append(time.perf_counter() - started)
        assert not outcome.is_error, outcome
    cpu = (_cpu_s(processes) - before) / CALLS
    return Taken(1000 * sorted(latencies)[CALLS // 2], 1000 * cpu)


def _cpu_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def _least(rounds: list[Taken]) -> Taken:
    return Taken(min(each.p50 for each in rounds), min(each.cpu for each in rounds))


def _by_hand(module: str, streams: str) -> McpServer:
    script = BY_HAND.format(module=module, streams=streams)
    return McpServer(name="by-hand", command=sys.executable, args=["-c", script])


def _in_a_file(function: str, scratch: Path) -> McpServer:
    path = scratch / f"{function.replace(' ', '_')}.py"
    python = PythonFile(file=path.name, path=str(path), code=IN_A_FILE.format(function=function))
    return launched(McpServer(name="file", python=python), scratch / "code")
