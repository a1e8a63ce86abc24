"""``python -m bench [S1 S2 …]``: measures a whole mesh, prints a table, writes ``bench/out/results.json``.

    S1  latency added to a model of 50 ms, one client
    S2  the same with one MCP tool call (two model calls)
    S3  model of 0 ms: turns/s, latency and CPU at 1, 16 and 64 clients
    S4  trees: sequential of 3, parallel of 8 and 32 (with the word ``wide`` 128 too) with a model of 50 ms;
        time to resume a long one
    S5  100 to 2,000 conversations in flight with a model of 2 s
    S6  turn 10 and turn 200 of one conversation: latency and bytes on the disk
    S7  streams: first text at one client; CPU per delta with 200 conversations, each watched
    S8  A2A: what message/send costs beside the REST turn
    S9  called agents beside a tree that makes the same model calls, a model call with and without a budget,
        calls 10 and 1,000 of a turn, bytes in the journal
    S10 a tool in a Python file beside one of a server written by hand, four replicas of a server beside one,
        a check of an answer by its schema, a tool beside others that do harm
    S11 a verdict of a policy of 200 rules, with and without a shell command
    S12 `mcp-filesystem` beside the server of npm, which is downloaded once, and beside ripgrep
    S13 a command in each sandbox of mcp-shell
    S14 a thousand agents of one turn, by a map node and by a model that starts them, beside LangGraph,
        openai-agents and ADK, which are downloaded once
    S15 people who follow a thousand agents of one turn, tell one something and delete one
    S16 conversations in PostgreSQL beside conversations in files, and beside LangGraph on the same database
    S17 a million conversations in PostgreSQL (with the word ``fewer`` 50,000): start, lists, an old approval;
        shards with open turns that are taken over; a start with 100,000 in files; a copy from files
    S18 what traces of a tenth of the turns cost, and metrics
    S19 turns that wait for a tool, on one to four machines
    up  time to start, CPU when idle, memory; the first prompt of a chat

`bench.compare` measures two checkouts beside each other.

CPU is the sum over all processes of the mesh (Ray's daemons and the edge included, the model and the
load not). Where the machine is shared, CPU is the steadiest figure; the row ``cpu`` tells how fast it is
just now.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.a2a import s8
from bench.agents import s9
from bench.answers import answers
from bench.chat import chat
from bench.commands import commands
from bench.cpu import memory_mib, seconds_by_name
from bench.figures import Bench, Row, alone, brief, measured
from bench.files import files
from bench.harmful_tools import harmful_tools
from bench.large_stores import CONVERSATIONS, FEWER, large_stores
from bench.live import live
from bench.load import Load
from bench.many_agents import many_agents
from bench.observed import observed
from bench.python_tools import s10
from bench.replicas import replicas
from bench.scale_out import scale_out
from bench.shell_commands import shell_commands
from bench.steered import steered
from bench.stores import stores
from bench.trees import resumed, shapes
from bench.verdicts import s11
from bench.world import World, running

OUT = Path(__file__).parent / "out" / "results.json"


async def s1(bench: Bench, world: World) -> None:
    await added(bench, world, "S1", "model 50 ms, 1 client", model_calls=1, target="added ≤ 7 ms")


async def s2(bench: Bench, world: World) -> None:
    await added(bench, world, "S2", "the same with one tool call", model_calls=2, target="added ≤ 15 ms")


async def added(bench: Bench, world: World, name: str, what: str, *, model_calls: int, target: str) -> None:
    """What a turn takes beyond its model calls, which are measured beside it, by the same client."""
    alone_ms = model_calls * await alone(world)
    load = Load(world.mesh.port, 1)
    await load.warm(20)
    outcome, figures = await measured(world, lambda: load.run(80))
    load.close()
    bench.add(
        name,
        what,
        target,
        added_p50_ms=round(outcome.percentile(0.5) - alone_ms, 1),
        added_p99_ms=round(outcome.percentile(0.99) - alone_ms, 1),
        model_alone_ms=round(alone_ms, 1),
        **brief(figures, "cpu_ms_per_turn"),
    )


def machine(bench: Bench) -> None:
    """How fast this machine is just now: compare figures of two runs only where this is the same."""
    best = min(_additions_ms() for _ in range(5))
    bench.add("cpu", "2 million additions in Python", ms=round(best))


def _additions_ms() -> float:
    started = time.perf_counter()
    total = 0
    for number in range(2_000_000):
        total += number
    return 1000 * (time.perf_counter() - started)


async def s3(bench: Bench, world: World) -> None:
    for clients, turns in ((1, 300), (16, 50), (64, 40)):
        load = Load(world.mesh.port, clients)
        await load.warm(3)
        _, figures = await measured(world, lambda load=load, turns=turns: load.run(turns))  # type: ignore[misc]
        load.close()
        target = "≤ 6 ms CPU, ≥ 250/s" if clients == 64 else ""
        names = ("turns_per_s", "p50_ms", "p99_ms", "cpu_ms_per_turn")
        bench.add("S3", f"model 0 ms, {clients} clients", target, **brief(figures, *names))


async def s5(bench: Bench, world: World) -> None:
    for clients in (100, 500, 1000, 2000):
        load = Load(world.mesh.port, clients)
        await load.warm(0)
        outcome, figures = await measured(world, lambda load=load: load.run(1))  # type: ignore[misc]
        load.close()
        bench.add(
            "S5",
            f"model 2 s, {clients} in flight",
            "2,000 in ≤ 8 s, no error" if clients == 2000 else "",
            wall_s=round(outcome.wall_s, 2),
            over_ideal=round(outcome.wall_s / 2, 2),
            memory_mib=round(memory_mib(world.mesh)),
            **brief(figures, "p99_ms", "cpu_ms_per_turn"),
        )
        if outcome.errors:
            bench.add("S5", "first error", error=outcome.errors[0])


async def s6(bench: Bench, world: World) -> None:
    load = Load(world.mesh.port, 1)
    await load.warm(0)
    seen: list[float] = []
    for _ in range(205):
        seen += (await load.run(1)).latencies
    load.close()
    await asyncio.sleep(1.5)  # the file beside the journal is written within a second
    journal = world.mesh.data_dir / f"conversation_{load.ids[0]}.jsonl"
    for turn in (10, 200):
        around = sorted(seen[turn - 5 : turn + 5])
        target = "≤ 10 ms" if turn == 200 else ""
        bench.add("S6", f"turn {turn}", target, p50_ms=round(1000 * around[len(around) // 2], 1))
    kib = journal.stat().st_size / 1000
    beside = journal.with_suffix(".json").stat().st_size / 1000
    bench.add("S6", "after 205 turns", "≤ 90 KB", journal_kb=round(kib, 1), beside_kb=round(beside, 1))


def idle(bench: Bench, world: World, took_s: float) -> None:
    """Start-up, and what it costs to do nothing."""
    time.sleep(5)  # a mesh that has just started is not idle yet
    before, started = seconds_by_name(world.mesh), time.perf_counter()
    time.sleep(10)
    used = sum((seconds_by_name(world.mesh) - before).values()) / (time.perf_counter() - started)
    bench.add(
        "up",
        "start, idle",
        start_s=round(took_s, 1),
        idle_cores=round(used, 3),
        memory_mib=round(memory_mib(world.mesh)),
        processes=len(world.mesh.processes()),
    )


PLAIN = (("S3", 0, s3), ("S6", 0, s6), ("S8", 0, s8), ("S1", 0.05, s1), ("S5", 2.0, s5))
"""The scenarios that share a mesh without tools: the name, the latency of the model, what is measured."""


def plain(bench: Bench, scratch: Path) -> None:
    """Those of them that were asked for."""
    with running(scratch / "plain", latency_s=0) as (world, took):
        if bench.wants("up"):
            idle(bench, world, took)
        for name, latency, scenario in PLAIN:
            if bench.wants(name):
                world.restart_model(latency)
                uvloop.run(scenario(bench, world))


def main() -> None:
    """Runs what was asked for, or all."""
    console = Console(soft_wrap=True)
    bench = Bench(console, set(sys.argv[1:]))
    machine(bench)
    if bench.wants("S11"):
        s11(bench)
        shell_commands(bench)
    if bench.wants("S13"):
        commands(bench)
    with tempfile.TemporaryDirectory(prefix="mesh-bench-") as scratch:
        if bench.wants("up"):
            chat(bench, Path(scratch))
        if bench.wants("S12"):
            files(bench, Path(scratch))
        if any(bench.wants(name) for name in ("up", *(name for name, _, _ in PLAIN))):
            plain(bench, Path(scratch))
        if bench.wants("S4"):
            shapes(bench, Path(scratch), widest="wide" in sys.argv)
            resumed(bench, Path(scratch))
        if bench.wants("S7"):
            live(bench, Path(scratch))
        if bench.wants("S9"):
            s9(bench, Path(scratch))
        if bench.wants("S10"):
            s10(bench, Path(scratch))
            answers(bench)
            replicas(bench, Path(scratch))
            harmful_tools(bench, Path(scratch))
        if bench.wants("S14"):
            many_agents(bench, Path(scratch))
        if bench.wants("S15"):
            steered(bench, Path(scratch))
        if bench.wants("S16"):
            stores(bench, Path(scratch))
        if bench.wants("S17"):
            large_stores(bench, Path(scratch), FEWER if "fewer" in sys.argv else CONVERSATIONS)
        if bench.wants("S18"):
            observed(bench, Path(scratch))
        if bench.wants("S19"):
            scale_out(bench, Path(scratch))
        if bench.wants("S2"):
            with running(Path(scratch) / "tools", latency_s=0.05, with_tools=True) as (world, _):
                uvloop.run(s2(bench, world))
    machine(bench)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(bench.rows, indent=1))
    console.print(table(bench.rows))
    console.print(f"written to {OUT.relative_to(Path.cwd()) if OUT.is_relative_to(Path.cwd()) else OUT}")


def table(rows: list[Row]) -> Table:
    """All rows, figures in words."""
    shown = Table("", "what", "figures", "target")
    for row in rows:
        figures = "  ".join(
            f"{key} {value}"
            for key, value in row.items()
            if key not in ("scenario", "what", "target", "cpu_by_process")
        )
        shown.add_row(row["scenario"], row["what"], figures, row["target"])
    return shown


if __name__ == "__main__":
    main()
