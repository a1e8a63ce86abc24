"""Runs a piece of work once to warm up and once to measure; prints seconds and CPU seconds. It runs in the
Python of a peer, which has nothing of the mesh.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

WARM = 10


def timed(work: Callable[[str, int], Awaitable[int]]) -> None:
    """``work`` gets the URL of the model and how many agents to run, and returns how many have answered."""
    asyncio.run(_timed(work, f"http://127.0.0.1:{sys.argv[1]}", int(sys.argv[2])))


async def _timed(work: Callable[[str, int], Awaitable[int]], url: str, count: int) -> None:
    await work(url, WARM)
    started, before = time.perf_counter(), time.process_time()
    answered = await work(url, count)
    figures = {"wall_s": time.perf_counter() - started, "cpu_s": time.process_time() - before}
    if answered != count:
        raise RuntimeError(f"{answered} of {count} have answered")
    print(json.dumps(figures))
