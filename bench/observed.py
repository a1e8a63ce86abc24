"""S18: what it costs to be observed.

Traces: two agents of one mesh, of which one sends the traces of a tenth of its turns to a collector; their
rounds alternate. Metrics: a keeper always measures, so what it does for a turn is measured alone, in an actor
of Ray as a keeper is one, with the events of a turn of the same mesh, and compared with the CPU of a turn.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import ray
import uvloop

from bench.figures import Bench, measured
from bench.load import Load
from bench.world import World, running
from mesh.core.events import AnyEvent, decode
from tests.tracing.test_exporter import Collector

CLIENTS, TURNS, ROUNDS = 16, 25, 9
NOTED = 2000
AGENTS = ("plain", "traced")


def observed(bench: Bench, scratch: Path) -> None:
    """Measures, and notes two rows."""
    collector = Collector()
    otel = {"endpoint": collector.url, "sample": 0.1}
    agents = [{"name": "plain"}, {"name": "traced", "otel": otel}]
    with collector.running(), running(scratch / "observed", latency_s=0, others=agents) as (world, _):
        plain, traced = uvloop.run(_cpu_per_turn(world))
        events = _newest_turn(world)
    if not collector.spans:
        raise RuntimeError("nothing was traced")
    bench.add(
        "S18",
        "a tenth of the turns traced / none",
        "≤ 1.05 × CPU",
        ratio=round(median(b / a for a, b in zip(plain, traced, strict=True)), 3),
        cpu_ms_per_turn=round(median(plain), 2),
        spans=len(collector.spans),
    )
    noting_ms = _noting_ms(events)
    bench.add(
        "S18",
        "a turn with metrics / without",
        "≤ 1.03 × CPU",
        ratio=round(median(plain) / (median(plain) - noting_ms), 3),
        metrics_ms_per_turn=round(noting_ms, 3),
    )


async def _cpu_per_turn(world: World) -> tuple[list[float], list[float]]:
    """The CPU of a turn in ms, of each round of each agent."""
    loads = [Load(world.mesh.port, CLIENTS, agent=name) for name in AGENTS]
    seen: tuple[list[float], list[float]] = ([], [])
    for load in loads:
        await load.warm(5)
    for _ in range(ROUNDS):
        for load, used in zip(loads, seen, strict=True):
            outcome, figures = await measured(world, lambda load=load: load.run(TURNS))  # type: ignore[misc]
            if outcome.errors:
                raise RuntimeError(outcome.errors[0])
            used.append(figures["cpu_ms_per_turn"])
    for load in loads:
        load.close()
    return seen


def _newest_turn(world: World) -> list[AnyEvent]:
    """The journal of a conversation of one turn."""
    base = f"{world.mesh.url}/plain/conversations"
    id = httpx.post(base, json={"message": "hello"}, timeout=60).json()["conversation"]["id"]
    return [decode(line) for line in httpx.get(f"{base}/{id}/log").text.splitlines()]


def _noting_ms(events: Sequence[AnyEvent]) -> float:
    """The CPU in ms of what a keeper measures of these events."""

    @ray.remote
    class Keeper:
        def note(self, events: Sequence[AnyEvent]) -> float:
            from deployments.ray_metrics import RayMetrics
            from mesh.core.conversation import fold
            from mesh.metrics.meters import Meters
            from mesh.metrics.of_events import note_events
            from mesh.metrics.table import APPEND_SECONDS

            meters, conversation = Meters(RayMetrics("bench")), fold(events)
            began = 0.0
            for number in range(2 * NOTED):
                if number == NOTED:  # the first half is to warm up
                    began = time.process_time()
                for event in events:
                    meters.observe(APPEND_SECONDS, 0.001)  # as if each had an append of its own
                    note_events(meters, conversation, [event])
            return (time.process_time() - began) * 1000 / NOTED

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        keeper: Any = Keeper.remote()  # type: ignore[attr-defined]
        noting: float = ray.get(keeper.note.remote(events))
        return noting
    finally:
        ray.shutdown()
