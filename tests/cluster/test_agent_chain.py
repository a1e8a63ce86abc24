"""Three agents in one mesh, each of which asks the next by its URL, as strangers would.

    person ──► top (a2a node) ──► middle (llm, with the agent as a tool) ──► bottom (llm, keeps the ledger)

Processes of each agent die with SIGKILL in turn while people work; the ledger is the judge.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.person import Person, Told, judge
from tests.cluster.test_several_agents import Several, cluster_of
from tests.cluster.world import ledger_config
from tests.worlds.ports import free_port
from tests.worlds.process import WITH_DASHBOARD, running

PEOPLE = 2
SEED = int(os.environ.get("CHAOS_SEED", "7"))
ROUNDS = max(1, int(os.environ.get("CHAOS_KILLS", "25")) // 100)
UP_AGAIN_WITHIN_S = 240.0

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(420 + 120 * ROUNDS)]

_LOOK = """
import json, ray
from ray.util.state import list_actors
ray.init(log_to_driver=False)
alive = list_actors(filters=[("state", "=", "ALIVE")], limit=1000, detail=True)
print(json.dumps({actor.name: actor.pid for actor in alive if actor.name}))
"""


class Chain:
    """The mesh and its ledger."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.ledger = folder / "ledger.txt"
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        llm = {"model": "openai:stub", "timeout_s": 20}
        top: dict[str, Any] = {
            "name": "top",
            "port": port,
            "agent": {
                "name": "ask",
                "type": "a2a",
                "url": f"{url}/middle",
                "prompt": "tell bottom {user_message}",
            },
        }
        middle = {"name": "middle", "llm": llm, "a2a": [{"name": "bottom", "url": f"{url}/bottom/a2a"}]}
        bottom = {**ledger_config(self.ledger, folder), "name": "bottom"}
        data = str(folder / "data")
        configs = [{**each, "data_dir": data} for each in (top, middle, bottom)]
        self.mesh = Several(folder, configs, {**model.env, **WITH_DASHBOARD})  # which knows the processes

    @property
    def top(self) -> str:
        return f"{self.mesh.url}/top"

    def lines(self) -> Counter[str]:
        return Counter(self.ledger.read_text().splitlines() if self.ledger.exists() else [])

    def processes(self) -> dict[str, int]:
        """The pid of each actor by its name, as Ray knows it now."""
        address, env = cluster_of(self.mesh)
        found = subprocess.run(
            [sys.executable, "-c", _LOOK],
            env={**os.environ, **env, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "token"},
            capture_output=True,
            check=True,
            timeout=60,
        )
        pids: dict[str, int] = json.loads(found.stdout.splitlines()[-1])
        return pids

    def kill(self, part_of_name: str) -> None:
        """Kills the actor with this in its name, as soon as there is one."""
        deadline = time.monotonic() + UP_AGAIN_WITHIN_S
        while time.monotonic() < deadline:
            for name, pid in self.processes().items():
                if part_of_name in name:
                    try:
                        psutil.Process(pid).kill()
                    except psutil.NoSuchProcess:
                        break
                    return
        raise AssertionError(f"there is no actor {part_of_name}")


@pytest.fixture(scope="module")
def chain(model: Model) -> Iterator[Chain]:
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        chain = Chain(Path(name), model)
        with running(chain.mesh):
            yield chain


def test_an_approval_at_the_bottom_is_asked_at_the_top(chain: Chain) -> None:
    with Client(chain.top) as client:
        person = Person(client, chain.lines)
        told = person.open()
        approval = person.ask_to_append(told)
        assert approval["remote_agent_name"] == "ask"
        assert "Agent bottom asks: Run ledger_append" in approval["description"]
        person.settle(told, approval)
        judge(told, client, chain.lines())


def test_whatever_dies_at_whichever_agent_nothing_is_lost_and_nothing_done_twice(chain: Chain) -> None:
    victims = [
        f"{agent}{kind}"
        for agent in ("top", "middle", "bottom")
        for kind in ("@", "#1/keeper/0", "#Gateway")  # a node of any version, the keeper, the gateway
    ] * ROUNDS
    dice = random.Random(SEED)
    dice.shuffle(victims)
    over = threading.Event()

    def work() -> list[Told]:
        told: list[Told] = []
        with Client(chain.top) as client:
            person = Person(client, chain.lines)
            while not over.is_set():
                told.append(person.open())
                person.append(told[-1])
        return told

    with ThreadPoolExecutor(PEOPLE) as pool:
        people = [pool.submit(work) for _ in range(PEOPLE)]
        try:
            for victim in victims:
                time.sleep(dice.uniform(0, 2))
                chain.kill(_actor(victim))
                for gave_up in (person for person in people if person.done()):
                    gave_up.result()
        finally:
            over.set()
    told = [each for person in people for each in person.result()]
    with Client(chain.top) as client:
        for each in told:
            judge(each, client, chain.lines())
    assert len(told) >= PEOPLE


def _actor(victim: str) -> str:
    """How Serve names the replicas of an agent's gateway: ``SERVE_REPLICA::top#Gateway#…``."""
    return f"SERVE_REPLICA::{victim}" if victim.endswith("#Gateway") else victim
