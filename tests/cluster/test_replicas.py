"""Several processes of one MCP server, each behind a session actor of its own."""

import re
import sys
import tempfile
import time
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
from tests.worlds.process import MeshProcess, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

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
    return {"name": name, "command": sys.executable, "args": args, "replicas": replicas, "timeout_s": 20}


@pytest.fixture(scope="module")
def ledger() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "ledger"


@pytest.fixture(scope="module")
def api(ledger: Path) -> Iterator[httpx.Client]:
    config = {
        "name": "replicas",
        "llm": {"model": "openai:stub"},
        "limits": {"max_parallel_calls": 40},
        "mcp_servers": [server("one", 1, ledger), server("four", 4, ledger)],
    }
    with Model(lambda: LlmStub(Calling())) as model:
        mesh = MeshProcess(ledger.parent, config, model.env)
        with running(mesh), httpx.Client(base_url=mesh.url, timeout=60) as client:
            yield client


def calls_a_second(api: httpx.Client, tool: str, times: int) -> tuple[float, Counter[str]]:
    """So many calls of 0.1 s in one answer: how many a second, and which process ran how many."""
    start = time.perf_counter()
    conversation = created(api, f"call {tool} 0.1 {times}")["conversation"]
    took = time.perf_counter() - start
    return times / took, Counter(contents(conversation, "tool"))


def test_four_replicas_share_the_calls_of_one_answer(api: httpx.Client) -> None:
    one, of_one = calls_a_second(api, "one", 20)
    four, of_four = calls_a_second(api, "four", 80)
    print(f"calls/s: {one:.1f} with one replica, {four:.1f} with four: {four / one:.2f} x")  # noqa: T201
    assert (len(of_one), len(of_four)) == (1, 4)
    assert max(of_four.values()) - min(of_four.values()) <= 4
    assert four / one > 3


def test_a_replica_that_dies_leaves_one_unknown_outcome_and_the_others_go_on(
    api: httpx.Client, ledger: Path
) -> None:
    with ThreadPoolExecutor() as clients:
        answers = [clients.submit(created, api, "call four_once 4 1") for _ in range(4)]
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
