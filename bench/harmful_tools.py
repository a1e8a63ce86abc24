"""S10: calls of a tool while tools of another server die, loop and hold the interpreter's lock.

Beside and alone alternate, so that both see the same machine. What loops takes one CPU until its deadline: on
a machine with few of them, this is a part of what is seen.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Bench
from mesh.config.model import McpServer, PythonFile
from mesh.core.errors import ToolSessionError
from mesh.mcp.python_file import launched
from mesh.mcp.session import McpSession

ROUNDS, DEADLINE_S, PAUSE_S = 5, 1.0, 0.005
HARMS = ("die", "loop", "hold_the_lock")
FILE = """
import ctypes
import re
from mesh.tools import tool

@tool(read_only=True)
async def harmless() -> str:
    return "fine"

@tool(read_only=True)
def die() -> str:
    return str(ctypes.string_at(0))

@tool(read_only=True)
def loop() -> None:
    while True:
        pass

@tool(read_only=True)
def hold_the_lock() -> None:
    re.match(r"(a+)+$", "a" * 100 + "b")
"""


def harmful_tools(bench: Bench, scratch: Path) -> None:
    """Measures, and notes a row."""
    alone, beside = asyncio.run(_measure(scratch))
    bench.add(
        "S10",
        "p99 of a tool beside those that do harm / alone",
        "≤ 2 ×",
        ratio=round(median(b / a for a, b in zip(alone, beside, strict=True)), 2),
        alone_ms=round(1000 * median(alone), 1),
        beside_ms=round(1000 * median(beside), 1),
    )


async def _measure(scratch: Path) -> tuple[list[float], list[float]]:
    """The p99 in seconds of each round, alone and beside harm."""
    seen: tuple[list[float], list[float]] = ([], [])
    async with AsyncExitStack() as stack:
        other, hostile = _session(scratch / "other"), _session(scratch / "hostile")
        for session in (other, hostile):
            stack.push_async_callback(session.close)
            await session.catalogue()
        await _p99(other, asyncio.sleep(1))
        for _ in range(ROUNDS):
            seen[0].append(await _p99(other, asyncio.sleep(len(HARMS) * DEADLINE_S)))
            seen[1].append(await _p99(other, _do_harm(hostile)))
    return seen


async def _do_harm(session: McpSession) -> None:
    for tool in HARMS:
        try:
            await session.call(tool, {}, timeout_s=DEADLINE_S)
        except ToolSessionError:
            continue
        raise AssertionError(f"{tool} did no harm")


async def _p99(session: McpSession, end: Coroutine[Any, Any, None]) -> float:
    """The latency of harmless calls until then."""
    ending, took = asyncio.ensure_future(end), []
    while not ending.done():
        started = time.perf_counter()
        outcome = await session.call("harmless", {})
        took.append(time.perf_counter() - started)
        assert not outcome.is_error, outcome
        await asyncio.sleep(PAUSE_S)
    await ending
    return sorted(took)[int(0.99 * len(took))]


def _session(folder: Path) -> McpSession:
    python = PythonFile(file="tools.py", path=str(folder / "tools.py"), code=FILE)
    return McpSession(launched(McpServer(name=folder.name, python=python), folder / "code"))
