"""Rows of figures, and how they are taken."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from rich.console import Console

from bench.client import Connection
from bench.cpu import seconds_by_name
from bench.load import Outcome
from bench.world import World

Row = dict[str, Any]


class Bench:
    """Collects rows of figures."""

    def __init__(self, console: Console, wanted: set[str]) -> None:
        self.rows: list[Row] = []
        self._console = console
        self._wanted = wanted

    def wants(self, scenario: str) -> bool:
        """Whether a scenario was asked for."""
        return not self._wanted or scenario in self._wanted

    def add(self, scenario: str, what: str, target: str = "", **figures: Any) -> None:
        """Notes a row and shows it at once: a long run shows that it is alive."""
        row = {"scenario": scenario, "what": what, **figures, "target": target}
        self.rows.append(row)
        shown = "  ".join(f"{key} {value}" for key, value in figures.items())
        self._console.print(f"{scenario:3} {what:34} {shown}   [dim]{target}[/]", highlight=False)


async def measured(world: World, work: Callable[[], Awaitable[Outcome]]) -> tuple[Outcome, Row]:
    """The outcome of a load, and its figures."""
    before = seconds_by_name(world.mesh)
    outcome = await work()
    used = seconds_by_name(world.mesh) - before
    count = max(1, len(outcome.latencies))
    return outcome, {
        "turns_per_s": round(count / outcome.wall_s),
        "p50_ms": round(outcome.percentile(0.5), 1),
        "p99_ms": round(outcome.percentile(0.99), 1),
        "cpu_ms_per_turn": round(1000 * sum(used.values()) / count, 2),
        "errors": len(outcome.errors),
        "cpu_by_process": {name: round(1000 * s / count, 2) for name, s in used.most_common(8)},
    }


def brief(figures: Row, *names: str) -> Row:
    """Some of the figures."""
    return {name: figures[name] for name in (*names, "errors", "cpu_by_process")}


async def alone(world: World) -> float:
    """What one call of the model takes, asked directly, in milliseconds: the median."""
    model = Connection("127.0.0.1", world.port)
    asked = {"model": "stub", "messages": [{"role": "user", "content": "hello"}]}
    times: list[float] = []
    for _ in range(40):
        started = time.perf_counter()
        await model.post("/v1/chat/completions", asked)
        times.append(time.perf_counter() - started)
    model.close()
    return 1000 * sorted(times)[len(times) // 2]
