"""Several processes of one MCP server, each behind a session actor of its own."""

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from mesh.servers.llm_stub.script import ModelRequest, Script, ScriptedAnswer, ScriptedCall
from mesh.servers.llm_stub.server import LlmStub
from tests.cluster.model import Model
from tests.cluster.rest import Body, contents, created, shown, until
from tests.cluster.test_join import machine, placed, running_ray, seen
from tests.cluster.world import World
from tests.worlds.long import takes_long
from tests.worlds.process import MeshProcess, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SERVER = Path(__file__).with_name("slow_server.py")


class Calling(Script):
    """``call TOOL SECONDS TIMES`` calls a tool so often in one answer; then it says what came of the last."""

    def answer(self, call: ModelRequest) -> ScriptedAnswer:
        self.calls += 1
        said = re.fullmatch(r"call (\w+) ([\d.]+) (\d+)", call.last)
        if call.speaker == "tool" or not said:
            return ScriptedAnswer(text=f"done: {call.last}")
        asked = ScriptedCall(name=said[1], arguments={"s": float(said[2])})
        return ScriptedAnswer(tool_calls=(asked,) * int(said[3]))


def server(name: str, replicas: int, ledger: Path) -> dict[str, Any]:
    args = [str(SERVER), name, str(ledger)]
    return {"name": name, "command": sys.executable, "args": args, "replicas": replicas, "timeout_s": 60}


@pytest.fixture(scope="module")
def ledger() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "ledger"


@pytest.fixture(scope="module")
def api(ledger: Path) -> Iterator[httpx.Client]:
    config = {
        "name": "replicas",
        "llm": {"model": "openai:stub"},
        "mcp_servers": [server("four", 4, ledger)],
    }
    with Model(lambda: LlmStub(Calling())) as model:
        mesh = MeshProcess(ledger.parent, config, model.env)
        with running(mesh), httpx.Client(base_url=mesh.url, timeout=60) as client:
            yield client


def test_four_replicas_run_four_calls_at_the_same_time_and_the_others_wait(
    api: httpx.Client, ledger: Path
) -> None:
    with ThreadPoolExecutor() as clients:
        answers = [clients.submit(created, api, "call four 0 20") for _ in range(4)]
        until(lambda: len(held(ledger)) >= 4)
        ledger.with_suffix(".released").touch()
        bodies = [answer.result() for answer in answers]
    noted = held(ledger)
    assert [line for line, _ in noted[:4]] == ["began"] * 4
    ran = Counter(pid for body in bodies for pid in contents(body["conversation"], "tool"))
    assert {pid for _, pid in noted[:4]} == ran.keys()
    assert [[line for line, by in noted if by == pid] for pid in ran] == [
        ["began", "ended"] * calls for calls in ran.values()
    ]
    assert ran.total() == 80


def held(ledger: Path) -> list[tuple[str, str]]:
    """What the processes noted of calls that began and ended: which, and by whom."""
    file = ledger.with_suffix(".held")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line, pid) for line, _, pid in (line.partition(" ") for line in lines)]


def test_a_replica_that_dies_leaves_one_unknown_outcome_and_the_others_go_on(
    api: httpx.Client, ledger: Path
) -> None:
    with ThreadPoolExecutor() as clients:
        answers = [clients.submit(created, api, "call four_once 15 1") for _ in range(4)]
        until(lambda: ledger.exists() and len(ledger.read_text().split()) == 4)
        ran = ledger.read_text().split()
        assert len({*ran}) == 4
        _guard, actor, *_ = psutil.Process(int(ran[0])).parents()
        actor.kill()
        bodies = [answer.result() for answer in answers]
    asked = [body["result"] for body in bodies if body["result"]["waiting_approval"]]
    assert [one["approval"]["kind"] for one in asked] == ["unknown_outcome"]
    assert sorted(_last(body) for body in bodies if not body["result"]["waiting_approval"]) == sorted(
        f"done: {pid}" for pid in ran[1:]
    )
    decided = api.post(f"/approvals/{asked[0]['approval']['uuid']}", json={"action": "retry"})
    assert decided.status_code == 200, decided.text
    (waited,) = [body["conversation"]["id"] for body in bodies if body["result"]["waiting_approval"]]
    assert contents(shown(api, waited), "assistant")[-1].startswith("done: ")
    assert len(ledger.read_text().split()) == 5


def _last(body: Body) -> str:
    return contents(body["conversation"], "assistant")[-1]


@pytest.mark.chaos
@takes_long  # in short, `tests/deployments/test_node_replicas.py`
def test_the_actors_of_a_node_are_on_different_machines_and_one_that_does_not_answer_is_left_out(
    folder: Path, model: Model
) -> None:
    env = {"RAY_AUTH_MODE": "disabled", **model.env}
    with running_ray(folder, env) as address, machine(folder, address, {"second": 1}, env):
        until(lambda: len(machines(address)) == 2)
        agent = {"name": "writer", "type": "llm", "replicas": 2}
        world = World(folder / "mesh", model, {"RAY_ADDRESS": address}, agent=agent)
        with running(world.mesh), httpx.Client(base_url=world.mesh.url, timeout=60) as client:
            nodes = placed(address, "NodeActor")
            assert len(nodes) == 2 and {node["machine"] for node in nodes} == set(machines(address)), nodes
            created(client, "hello")
            stopped = psutil.Process(nodes[0]["pid"])
            stopped.suspend()
            try:
                for number in range(8):
                    body = created(client, f"hello {number}")
                    assert body["result"]["response"] == f"echo: hello {number}"
            finally:
                stopped.resume()


@pytest.mark.chaos
@takes_long  # the same
def test_with_replicas_auto_each_machine_has_one_also_one_that_joins_later(
    folder: Path, model: Model
) -> None:
    env = {"RAY_AUTH_MODE": "disabled", **model.env}
    branches = [{"name": name, "type": "llm", "replicas": "auto"} for name in ("left", "right")]
    agent = {"name": "both", "type": "parallel", "replicas": "auto", "agents": branches}
    with running_ray(folder, env) as address:
        world = World(folder / "mesh", model, {"RAY_ADDRESS": address}, agent=agent)
        with running(world.mesh), httpx.Client(base_url=world.mesh.url, timeout=60) as client:
            assert nodes_by_machine(address) == [3]
            with machine(folder, address, {"second": 1}, env):
                until(lambda: nodes_by_machine(address) == [3, 3])
                for number in range(8):
                    body = created(client, f"hello {number}")
                    assert f"echo: hello {number}" in body["result"]["response"]
            until(lambda: nodes_by_machine(address) == [3])
            for number in range(8):
                created(client, f"hello {number}")
            assert client.get("/ready").status_code == 200


def nodes_by_machine(address: str) -> list[int]:
    """How many nodes each machine has that has any."""
    return sorted(Counter(node["machine"] for node in placed(address, "NodeActor")).values())


def machines(address: str) -> list[str]:
    found: list[str] = seen("[n['NodeID'] for n in ray.nodes() if n['Alive']]", address, {})
    return found
