"""S19: turns that wait for a tool, on one to four machines (Rays on this one).

Each machine has a session with a server whose tool takes half a second and runs one call at a time, so that
the turns of a machine are capped. A turn has one tool call.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvloop

from bench.figures import Bench
from bench.load import Load
from mesh.servers.llm_stub.script import Script
from mesh.servers.llm_stub.server import LlmStub
from tests.cluster.model import Model
from tests.cluster.test_join import machine, running_ray
from tests.worlds.process import MeshProcess
from tests.worlds.process import running as running_mesh

MACHINES = (1, 2, 3, 4)
TOOL_S = 0.5
CLIENTS_EACH, TURNS = 4, 8
FILE = f"""
import time
from mesh.tools import tool

@tool(read_only=True)
def slow() -> str:
    time.sleep({TOOL_S})
    return "done"
"""
RULES: dict[str, Any] = {
    "rules": [
        {"match": {"from": "tool"}, "answer": {"text": "Done."}},
        {"match": {"from": "user", "tools": ["slow"]}, "answer": {"tool_calls": [{"name": "slow"}]}},
    ]
}


def scale_out(bench: Bench, scratch: Path) -> None:
    """Measures, and notes a row for each number of machines."""
    first = 0.0
    for number in MACHINES:
        with _mesh_on(scratch / f"on-{number}", number) as mesh:
            rate = uvloop.run(_rate(mesh, number))
        first = first or rate
        bench.add(
            "S19",
            f"{number} machines / 1, turns capped on each",
            f"≥ {0.9 * number:g} ×" if number > 1 else "",
            ratio=round(rate / first, 2),
            turns_per_s=round(rate, 2),
            most_per_s=number / TOOL_S,
        )


async def _rate(mesh: MeshProcess, machines: int) -> float:
    """Turns per second."""
    load = Load(mesh.port, CLIENTS_EACH * machines)
    try:
        await load.warm(2)
        outcome = await load.run(TURNS)
    finally:
        load.close()
    if outcome.errors:
        raise RuntimeError(outcome.errors[0])
    return len(outcome.latencies) / outcome.wall_s


@contextmanager
def _mesh_on(folder: Path, machines: int) -> Iterator[MeshProcess]:
    folder.mkdir(parents=True)
    file = folder / "slow.py"
    file.write_text(FILE)
    server = {"name": "slow", "python": str(file), "replicas": machines}
    agent = {"name": "caller", "type": "llm", "replicas": "auto"}
    config = {"name": "scaled", "llm": {"model": "openai:stub"}, "agent": agent, "mcp_servers": [server]}
    config["cluster"] = {"keepers": machines}
    with ExitStack() as stack:
        model = stack.enter_context(Model(lambda: LlmStub(Script(RULES))))
        env = {"RAY_AUTH_MODE": "disabled", **model.env}
        address = stack.enter_context(running_ray(folder, env, cpus=1))
        for number in range(1, machines):
            own = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(machine(own, address, {f"machine_{number}": 1}, env))
        mesh = MeshProcess(folder / "mesh", config, {**model.env, "RAY_ADDRESS": address})
        stack.enter_context(running_mesh(mesh))
        yield mesh
