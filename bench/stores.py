"""S16: conversations in PostgreSQL beside conversations in files, and beside LangGraph on the same database.

Two agents of one mesh, one on each store, and a chat in LangGraph with its own checkpointer, in one process;
their rounds alternate. The CPU of the database is apart.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import psutil
import uvloop

from bench.cpu import seconds_by_name
from bench.figures import Bench
from bench.load import Load, Outcome
from bench.peers import langgraph_postgres
from bench.world import World, running
from mesh.store.postgres.migrate import migrate
from tests.worlds.postgres import PostgresServer

ROUNDS = 7
WARM = 4
LONG = 190
AGENTS = ("in-files", "in-postgres")


class _Round(NamedTuple):
    turns_per_s: float
    p50_ms: float
    cpu_ms: float
    database_ms: float


class _Side(Protocol):
    """One of those that are compared."""

    async def begin(self, clients: int) -> None:
        """Has so many clients, each with a new conversation of a few turns."""
        ...

    async def run(self, turns: int) -> tuple[Outcome, float]:
        """So many turns of each client, and the CPU seconds that they took, without the database's."""
        ...


class _Agent:
    """An agent of the mesh."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._load: Load | None = None

    async def begin(self, clients: int) -> None:
        if self._load:
            self._load.close()
        self._load = Load(self._world.mesh.port, clients, agent=self._name)
        await self._load.warm(WARM)

    async def run(self, turns: int) -> tuple[Outcome, float]:
        assert self._load is not None
        before = self._cpu()
        return await self._load.run(turns), self._cpu() - before

    def _cpu(self) -> float:
        return sum(seconds_by_name(self._world.mesh).values())


class _LangGraph:
    """A chat in LangGraph; see `bench/peers/by_langgraph_postgres.py`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._clients = 0

    async def begin(self, clients: int) -> None:
        self._clients = clients
        await asyncio.to_thread(self._round, f"{clients} {WARM} anew")

    async def run(self, turns: int) -> tuple[Outcome, float]:
        figures = await asyncio.to_thread(self._round, f"{self._clients} {turns}")
        return Outcome(figures["latencies"], [], figures["wall_s"]), figures["cpu_s"]

    def _round(self, asked: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{asked}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the chat in LangGraph ended; its output is above")
        figures: dict[str, Any] = json.loads(line)
        return figures


def stores(bench: Bench, scratch: Path) -> None:
    """Measures, and notes rows."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        world = stack.enter_context(_world(server, scratch))
        peer = _LangGraph(stack.enter_context(_peer(server, world.port)))
        sides: list[_Side] = [*(_Agent(world, name) for name in AGENTS), peer]
        seen = uvloop.run(_rounds(server, sides, clients=64, turns=8))
        files, postgres, _ = ([each.turns_per_s for each in rounds] for rounds in seen)
        what = "turns/s in PostgreSQL / in files, 64 clients"
        bench.add("S16", what, "≥ 0.8 ×", ratio=round(_ratio(postgres, files), 2), **_columns(*seen))
        seen = uvloop.run(_rounds(server, sides, clients=1, turns=10, after=LONG, rounds=3))
        files, postgres, _ = ([each.turns_per_s for each in rounds] for rounds in seen)
        what = "turns 195 to 205 of one conversation, turns/s in PostgreSQL / in files"
        bench.add("S16", what, "≥ 0.8 ×", ratio=round(_ratio(postgres, files), 2), **_columns(*seen))
        world.restart_model(0.05)
        seen = uvloop.run(_rounds(server, sides, clients=1, turns=30))
        files, postgres, _ = ([each.p50_ms for each in rounds] for rounds in seen)
        added = median(b - a for a, b in zip(files, postgres, strict=True))
        what = "added to a turn with a model of 50 ms, one client"
        bench.add("S16", what, "≤ 3 ms", added_ms=round(added, 1), **_columns(*seen))


@contextmanager
def _world(server: PostgresServer, scratch: Path) -> Iterator[World]:
    url = server.create_database()
    asyncio.run(migrate(url, "mesh"))
    others: list[dict[str, object]] = [{"name": AGENTS[0]}, {"name": AGENTS[1], "store": url}]
    with running(scratch / "stores", latency_s=0, others=others) as (world, _):
        yield world


@contextmanager
def _peer(server: PostgresServer, model_port: int) -> Iterator["subprocess.Popen[str]"]:
    command = langgraph_postgres(model_port, server.create_database())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process  # it ends with its input


async def _rounds(
    server: PostgresServer,
    sides: Sequence[_Side],
    *,
    clients: int,
    turns: int,
    after: int = 0,
    rounds: int = ROUNDS,
) -> list[list[_Round]]:
    """The rounds of each side, each in new conversations, after so many turns."""
    seen: list[list[_Round]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, found in zip(sides, seen, strict=True):
            await side.begin(clients)
            if after:
                await side.run(after)
            database = _cpu_of(server)
            outcome, cpu_s = await side.run(turns)
            if outcome.errors:
                raise RuntimeError(outcome.errors[0])
            count = len(outcome.latencies)
            database_ms = 1000 * (_cpu_of(server) - database) / count
            speed = count / outcome.wall_s
            found.append(_Round(speed, outcome.percentile(0.5), 1000 * cpu_s / count, database_ms))
    return seen


def _cpu_of(server: PostgresServer) -> float:
    """CPU seconds of the database so far. Its connections are processes, which stay over a round."""
    postmaster = psutil.Process(server.pid)
    times = [process.cpu_times() for process in (postmaster, *postmaster.children())]
    return sum(each.user + each.system for each in times)


def _columns(files: list[_Round], postgres: list[_Round], langgraph: list[_Round]) -> dict[str, float]:
    found: dict[str, float] = {}
    for suffix, rounds in (("_files", files), ("", postgres), ("_langgraph", langgraph)):
        found[f"turns_per_s{suffix}"] = round(median(each.turns_per_s for each in rounds), 1)
        found[f"p50_ms{suffix}"] = round(median(each.p50_ms for each in rounds), 1)
        found[f"cpu_ms{suffix}"] = round(median(each.cpu_ms for each in rounds), 2)
        if suffix != "_files":
            found[f"database_cpu_ms{suffix}"] = round(median(each.database_ms for each in rounds), 2)
    return found


def _ratio(ours: list[float], base: list[float]) -> float:
    return median(b / a for a, b in zip(base, ours, strict=True))
