"""S16: conversations in PostgreSQL beside conversations in files.

Two agents of one mesh, one on each store; their rounds alternate. The CPU of the database is apart.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
import uvloop

from bench.cpu import seconds_by_name
from bench.figures import Bench
from bench.load import Load
from bench.world import World, running
from mesh.store.postgres.migrate import migrate
from tests.worlds.postgres import PostgresServer

ROUNDS = 7
AGENTS = ("in-files", "in-postgres")


class _Round(NamedTuple):
    turns_per_s: float
    p50_ms: float
    cpu_ms: float
    database_ms: float


def stores(bench: Bench, scratch: Path) -> None:
    """Measures, and notes rows."""
    with PostgresServer() as server, _world(server, scratch) as world:
        saturated = _seen(server, world, clients=64, turns=12)
        world.restart_model(0.05)
        alone = _seen(server, world, clients=1, turns=30)
    files, postgres = saturated
    bench.add(
        "S16",
        "turns/s in PostgreSQL / in files, 64 clients",
        "≥ 0.8 ×",
        ratio=round(_ratio([each.turns_per_s for each in postgres], [each.turns_per_s for each in files]), 2),
        **_columns(files, postgres),
    )
    files, postgres = alone
    bench.add(
        "S16",
        "added to a turn with a model of 50 ms, one client",
        "≤ 3 ms",
        added_ms=round(median(b.p50_ms - a.p50_ms for a, b in zip(files, postgres, strict=True)), 1),
        **_columns(files, postgres),
    )


@contextmanager
def _world(server: PostgresServer, scratch: Path) -> Iterator[World]:
    url = server.create_database()
    asyncio.run(migrate(url, "mesh"))
    others: list[dict[str, object]] = [{"name": AGENTS[0]}, {"name": AGENTS[1], "store": url}]
    with running(scratch / "stores", latency_s=0, others=others) as (world, _):
        yield world


def _seen(
    server: PostgresServer, world: World, *, clients: int, turns: int
) -> tuple[list[_Round], list[_Round]]:
    return uvloop.run(_rounds(server, world, clients, turns))


async def _rounds(
    server: PostgresServer, world: World, clients: int, turns: int
) -> tuple[list[_Round], list[_Round]]:
    loads = [Load(world.mesh.port, clients, agent=name) for name in AGENTS]
    seen: tuple[list[_Round], list[_Round]] = ([], [])
    for load in loads:
        await load.warm(4)
    for _ in range(ROUNDS):
        for load, rounds in zip(loads, seen, strict=True):
            rounds.append(await _round(server, world, load, turns))
    for load in loads:
        load.close()
    return seen


async def _round(server: PostgresServer, world: World, load: Load, turns: int) -> _Round:
    used, database = _cpu(world), _cpu_of(server)
    outcome = await load.run(turns)
    if outcome.errors:
        raise RuntimeError(outcome.errors[0])
    count = len(outcome.latencies)
    return _Round(
        count / outcome.wall_s,
        outcome.percentile(0.5),
        1000 * (_cpu(world) - used) / count,
        1000 * (_cpu_of(server) - database) / count,
    )


def _cpu(world: World) -> float:
    return sum(seconds_by_name(world.mesh).values())


def _cpu_of(server: PostgresServer) -> float:
    """CPU seconds of the database so far. Its connections are processes, which stay over a round."""
    postmaster = psutil.Process(server.pid)
    times = [process.cpu_times() for process in (postmaster, *postmaster.children())]
    return sum(each.user + each.system for each in times)


def _columns(files: list[_Round], postgres: list[_Round]) -> dict[str, float]:
    return {
        "turns_per_s_files": round(median(each.turns_per_s for each in files), 1),
        "turns_per_s": round(median(each.turns_per_s for each in postgres), 1),
        "cpu_ms_files": round(median(each.cpu_ms for each in files), 2),
        "cpu_ms": round(median(each.cpu_ms for each in postgres), 2),
        "database_cpu_ms": round(median(each.database_ms for each in postgres), 2),
    }


def _ratio(ours: list[float], base: list[float]) -> float:
    return median(b / a for a, b in zip(base, ours, strict=True))
