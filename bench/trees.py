"""S4: trees. What a turn takes beyond its model calls, and what it costs when many run.

Each shape has a mesh of its own: every node of its tree is an actor.
"""

import time
from pathlib import Path
from typing import Any

import uvloop

from bench.client import Connection
from bench.figures import Bench, alone, brief, measured
from bench.load import Load
from bench.world import running

Tree = dict[str, Any]
LATENCY_S = 0.05


def shapes(bench: Bench, scratch: Path, *, widest: bool) -> None:
    """Latency minus the ideal at one client, CPU at 64; wide fan-outs. The ``widest`` has 129 actors, which
    take minutes to start on two cores."""
    for name, tree, deep, target, clients in (
        ("sequential of 3", sequential(3), 3, "added ≤ 15 ms", (1, 64)),
        ("parallel of 8", parallel(8), 1, "added ≤ 30 ms", (1, 64)),
        ("parallel of 32", parallel(32), 1, "", (1, 8)),
        *([("parallel of 128", parallel(128), 1, "", (1,))] if widest else []),
    ):
        with running(scratch / name.replace(" ", "-"), latency_s=LATENCY_S, tree=tree) as (world, took):
            one, *many = clients
            alone_ms = deep * uvloop.run(alone(world))
            outcome, figures = uvloop.run(_turns(world, one, 40))
            bench.add(
                "S4",
                f"{name}, {one} client",
                target,
                added_p50_ms=round(outcome.percentile(0.5) - alone_ms, 1),
                added_p99_ms=round(outcome.percentile(0.99) - alone_ms, 1),
                start_s=round(took, 1),
                **brief(figures, "cpu_ms_per_turn"),
            )
            for at_once in many:
                outcome, figures = uvloop.run(_turns(world, at_once, 10))
                names = ("turns_per_s", "p50_ms", "cpu_ms_per_turn")
                bench.add("S4", f"{name}, {at_once} clients", **brief(figures, *names))


async def _turns(world: Any, clients: int, turns: int) -> Any:
    load = Load(world.mesh.port, clients)
    await load.warm(3)
    try:
        return await measured(world, lambda: load.run(turns))
    finally:
        load.close()


def resumed(bench: Bench, scratch: Path) -> None:
    """A pipeline of 20 nodes that waits at its last one: from the decision to the answer, model of 0 ms."""
    tree = sequential(19)
    tree["agents"].append({"name": "asks", "type": "llm", "model": "openai:asks"})
    with running(scratch / "resume", latency_s=0, with_tools=True, tree=tree) as (world, _):
        seen = sorted(uvloop.run(_resumes(world.mesh.port, 20)))
        bench.add("S4", "20 nodes, resumed at the last", p50_ms=round(1000 * seen[len(seen) // 2], 1))


async def _resumes(port: int, times: int) -> list[float]:
    connection = Connection("127.0.0.1", port)
    seen: list[float] = []
    for number in range(times):
        said = {"message": f"add resource r{number} with value {number}"}
        _, body = await connection.post("/conversations", said)
        uuid = body["result"]["approval"]["uuid"]
        started = time.perf_counter()
        status, body = await connection.post(f"/approvals/{uuid}", {"approved": True})
        seen.append(time.perf_counter() - started)
        if status != 200 or body["result"]["waiting_approval"]:
            raise RuntimeError(f"{status}: {body}")
    connection.close()
    return seen


def sequential(count: int) -> Tree:
    """So many llm nodes, one after the other."""
    return {"name": "all", "type": "sequential", "agents": _nodes(count)}


def parallel(count: int) -> Tree:
    """So many llm nodes at the same time."""
    return {"name": "all", "type": "parallel", "agents": _nodes(count)}


def _nodes(count: int) -> list[Tree]:
    return [{"name": f"n{i}", "type": "llm", "prompt": f"You are number {i}."} for i in range(count)]
