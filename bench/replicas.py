"""S10: calls of a tool of 100 ms, with one replica of its server and with four.

Two agents of one mesh have the same Python file; their rounds alternate. A turn has one tool call. What one
replica can do at the most is ten calls a second.
"""

from pathlib import Path
from statistics import median

import uvloop

from bench.figures import Bench
from bench.load import Load
from bench.world import World, running

CLIENTS, TURNS, ROUNDS = 16, 4, 5
FILE = """
import time
from mesh.tools import tool

@tool(read_only=True)
def slow() -> str:
    time.sleep(0.1)
    return "done"
"""
RULES = {
    "rules": [
        {"match": {"from": "tool"}, "answer": {"text": "Done."}},
        {"match": {"from": "user", "tools": ["slow"]}, "answer": {"tool_calls": [{"name": "slow"}]}},
    ]
}


def replicas(bench: Bench, scratch: Path) -> None:
    """Measures, and notes a row."""
    file = scratch / "slow.py"
    file.write_text(FILE)
    agents = [
        {"name": f"by-{n}", "mcp_servers": [{"name": "slow", "python": str(file), "replicas": n}]}
        for n in (1, 4)
    ]
    with running(scratch / "replicas", latency_s=0, rules=RULES, others=agents) as (world, _):
        one, four = uvloop.run(_rates(world))
    bench.add(
        "S10",
        "4 replicas / 1, a tool of 100 ms",
        "≥ 3.5 ×",
        ratio=round(median(b / a for a, b in zip(one, four, strict=True)), 2),
        calls_per_s_1=round(median(one), 1),
        calls_per_s_4=round(median(four), 1),
    )


async def _rates(world: World) -> tuple[list[float], list[float]]:
    """Calls per second with one replica and with four, of each round."""
    loads = [Load(world.mesh.port, CLIENTS, agent=name) for name in ("by-1", "by-4")]
    seen: tuple[list[float], list[float]] = ([], [])
    for load in loads:
        await load.warm(1)
    for _ in range(ROUNDS):
        for load, rates in zip(loads, seen, strict=True):
            outcome = await load.run(TURNS)
            if outcome.errors:
                raise RuntimeError(outcome.errors[0])
            rates.append(len(outcome.latencies) / outcome.wall_s)
    for load in loads:
        load.close()
    return seen
