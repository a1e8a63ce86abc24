"""Three machines with a network between them, which are cut off, cut off in one direction, and killed: what
was asked is answered, once, by those that are left.

    CHAOS_KILLS=30 CHAOS_SEED=1 pytest -m chaos tests/cluster/test_partitions.py
"""

import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.test_postgres import GAPS, approve, ask, new_database
from tests.cluster.world import ledger_config
from tests.worlds.cut_proxy import CutProxy
from tests.worlds.long import takes_long
from tests.worlds.network import Machine, Network
from tests.worlds.postgres import PostgresServer
from tests.worlds.process import MeshProcess, running

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(1800), takes_long]

log = logging.getLogger("tests")
PEOPLE = 12
WITHIN_S = 240.0
HELD = "select count(*) from mesh.shard where host <> '' group by host order by 1"
KILLS = int(os.environ.get("CHAOS_KILLS", "3"))
SEED = int(os.environ.get("CHAOS_SEED", "7"))
LOSSES = {"cut off": Machine.cut, "mute": Machine.mute, "killed": Machine.kill}
NOTICED = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}


class Cluster:
    """Ray on each machine of a network, a database, and a mesh. The first machine is the head."""

    def __init__(
        self,
        folder: Path,
        model: Model,
        network: Network,
        rays: "dict[Machine, subprocess.Popen[bytes]]",
        stack: ExitStack,
    ) -> None:
        self._folder = folder
        self._rays = rays
        self._stack = stack
        self.head, *self.others = network.machines
        self.database = stack.enter_context(PostgresServer())
        self.url = new_database(self.database)
        store = stack.enter_context(CutProxy(self.database.port, at=network.here))
        port = int(re.findall(r":(\d+)/", model.env["OPENAI_BASE_URL"])[0])
        llm = stack.enter_context(CutProxy(port, at=network.here))
        self._env = {
            **model.env,
            **NOTICED,
            "OPENAI_BASE_URL": f"http://{network.here}:{llm.port}/v1",
            "STORE_URL": store.url_of(self.url),
            "RAY_AUTH_MODE": "disabled",
        }
        for machine in network.machines:
            self.start_ray(machine)
        self.ledger = folder / "mesh" / "ledger.txt"
        config = {
            **ledger_config(self.ledger, folder / "mesh" / "failpoints"),
            "store": "${STORE_URL}",
            "host": "0.0.0.0",
        }
        env = {**self._env, "RAY_ADDRESS": f"{self.head.address}:6379"}
        self.mesh = MeshProcess(folder / "mesh", config, env, on=self.head)
        stack.enter_context(running(self.mesh))

    def start_ray(self, machine: Machine) -> None:
        """Starts Ray there; returns when it runs."""
        ray = Path(sys.executable).with_name("ray")
        is_head = machine is self.head
        role = ["--head", "--port=6379"] if is_head else [f"--address={self.head.address}:6379"]
        options = ["--block", "--num-cpus=2", f"--node-ip-address={machine.address}", "--disable-usage-stats"]
        said = self._folder / f"{machine.name}.log"
        config = self._folder / machine.name / "haproxy.cfg"
        env = {
            **os.environ,
            **self._env,
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(config),
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        }
        with said.open("wb") as output:
            ray_process = self._rays[machine] = subprocess.Popen(
                machine.command(ray, "start", *role, *options),
                env=env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(lambda: b"Ray runtime started" in said.read_bytes() or ray_process.poll() is not None, WITHIN_S)
        assert ray_process.poll() is None, said.read_text()

    def end_ray(self, machine: Machine) -> None:
        """All processes of a machine end."""
        machine.kill()
        self._rays[machine].wait(60)

    def ray_has_ended(self, machine: Machine) -> bool:
        """Whether Ray ends there within a while."""
        return self._rays[machine].wait(WITHIN_S) is not None

    def is_spread(self, machines: int) -> bool:
        """Whether the keepers of so many machines have their share of the shards."""
        held = [count for (count,) in self.database.execute(self.url, HELD)]
        return len(held) == machines and sum(held) == 64 and held[0] >= 64 // machines

    def asked(self, name: str) -> list[dict[str, str]]:
        with Client(self.mesh.url) as client:
            return [ask(client, f"{name} {number}") for number in range(PEOPLE)]

    def approved(self, asked: list[dict[str, str]]) -> list[float]:
        """All approve at the same time, and are answered. How long each waited."""

        def answered(each: dict[str, str]) -> float:
            begun = time.monotonic()
            with Client(self.mesh.url) as client:
                assert approve(client, each)["response"].startswith("done: ")
            return time.monotonic() - begun

        with ThreadPoolExecutor(PEOPLE) as people:
            return [*people.map(answered, asked)]


@pytest.fixture
def cluster(folder: Path, model: Model) -> Iterator[Cluster]:
    with ExitStack() as stack:
        rays: dict[Machine, subprocess.Popen[bytes]] = {}
        stack.callback(lambda: [ray.wait(60) for ray in rays.values()])  # which end with the network
        yield Cluster(folder, model, stack.enter_context(Network(3)), rays, stack)


def test_whatever_becomes_of_a_machine_each_question_is_answered_once(cluster: Cluster) -> None:
    chance = random.Random(SEED)
    until(lambda: cluster.is_spread(3), WITHIN_S)
    kinds = [*LOSSES, *chance.choices([*LOSSES], k=max(0, KILLS - len(LOSSES)))]
    waited: dict[str, list[float]] = {kind: [] for kind in LOSSES}
    for number, kind in enumerate(kinds):
        machine = chance.choice(cluster.others)
        waiting = cluster.asked(f"{number}")
        LOSSES[kind](machine)
        waited[kind] += cluster.approved(waiting)
        log.info("%d, %s: the longest wait was %.1f s", number, kind, max(waited[kind][-PEOPLE:]))
        until(lambda: cluster.is_spread(2), WITHIN_S)
        cluster.end_ray(machine)
        machine.mend()
        cluster.start_ray(machine)
        until(lambda: cluster.is_spread(3), WITHIN_S)
    for kind, seconds in waited.items():
        log.info("%s: %d answers, p50 %.1f s, p99 %.1f s", kind, len(seconds), *quantiles(seconds))
    lines = cluster.ledger.read_text().splitlines()
    assert sorted(lines) == sorted(f"{n} {person}" for n in range(len(kinds)) for person in range(PEOPLE))
    assert cluster.database.execute(cluster.url, GAPS) == []


def test_what_waited_when_the_head_was_lost_is_answered_once_when_ray_was_started_again(
    cluster: Cluster,
) -> None:
    until(lambda: cluster.is_spread(3), WITHIN_S)
    waiting = cluster.asked("before")
    cluster.end_ray(cluster.head)
    cluster.mesh.wait(WITHIN_S)  # it was there, and the gateway too
    for machine in cluster.others:
        assert cluster.ray_has_ended(machine)  # by itself, as it has no control store any more
    cluster.head.mend()
    for machine in (cluster.head, *cluster.others):
        cluster.start_ray(machine)
    cluster.mesh.start()
    waited = cluster.approved(waiting)
    log.info("the head: %d answers, p50 %.1f s, p99 %.1f s", len(waited), *quantiles(waited))
    assert sorted(cluster.ledger.read_text().splitlines()) == sorted(
        f"before {person}" for person in range(PEOPLE)
    )
    until(lambda: cluster.is_spread(3), WITHIN_S)
    assert cluster.database.execute(cluster.url, GAPS) == []


def quantiles(seconds: list[float]) -> tuple[float, float]:
    """The median, and the 99th percentile."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))]
