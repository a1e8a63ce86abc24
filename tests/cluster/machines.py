"""Ray on several machines with a network between them, a database, and a mesh that uses both."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.test_postgres import approve, ask, new_database
from tests.cluster.world import ledger_config
from tests.worlds.cut_proxy import CutProxy
from tests.worlds.network import Machine, Network
from tests.worlds.postgres import PostgresServer
from tests.worlds.process import MeshProcess, running

PEOPLE = 12
WITHIN_S = 240.0
STARTS = 5
HELD = "select count(*) from mesh.shard where host <> '' group by host order by 1"
ELSEWHERE = """
    select c.id::text from mesh.conversation c
    join mesh.shard s on s.agent = c.agent and s.number = c.shard
    join mesh.host h on h.agent = s.agent and h.id = s.host
    where h.address <> '{}'
"""
TALKED_S = 20.0
NOTICED = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""With these Ray notices within 10 s that a machine is lost."""


class Cluster:
    """Ray on each machine of a network, a database, and a mesh. The first machine is the head."""

    def __init__(
        self,
        folder: Path,
        model: Model,
        network: Network,
        rays: "dict[Machine, subprocess.Popen[bytes]]",
        stack: ExitStack,
        *,
        mesh_on_head: bool = True,
        head_cpus: int = 2,
        ray_env: Mapping[str, str] = NOTICED,
        **config: Any,
    ) -> None:
        self._folder = folder
        self._rays = rays
        self._stack = stack
        self._head_cpus = head_cpus
        self._ray_files = folder / "ray"
        self.head, *self.others = network.machines
        self.database = stack.enter_context(PostgresServer())
        self.url = new_database(self.database)
        store = stack.enter_context(CutProxy(self.database.port, at=network.here))
        port = int(re.findall(r":(\d+)/", model.env["OPENAI_BASE_URL"])[0])
        llm = stack.enter_context(CutProxy(port, at=network.here))
        self._env = {
            **model.env,
            **ray_env,
            "OPENAI_BASE_URL": f"http://{network.here}:{llm.port}/v1",
            "STORE_URL": store.url_of(self.url),
            "RAY_AUTH_MODE": "disabled",
        }
        for machine in network.machines:
            self.start_ray(machine)
        self.ledger = folder / "mesh" / "ledger.txt"
        whole = {
            **ledger_config(self.ledger, folder / "mesh" / "failpoints"),
            "store": "${STORE_URL}",
            "host": "0.0.0.0",
            **config,
        }
        env = {**self._env, "RAY_ADDRESS": f"{self.head.address}:6379"}
        on = self.head if mesh_on_head else self.others[0]
        self.mesh = MeshProcess(folder / "mesh", whole, env, on=on)
        stack.enter_context(running(self.mesh))

    def start_ray(self, machine: Machine) -> None:
        """Starts Ray there; returns when it runs. On a busy machine it may give up, and is started again."""
        for _ in range(STARTS):
            self._start_ray(machine)
            if self._rays[machine].poll() is None:
                return
            self.end_ray(machine)
        raise AssertionError((self._folder / f"{machine.name}.log").read_text())

    def _start_ray(self, machine: Machine) -> None:
        ray = Path(sys.executable).with_name("ray")
        is_head = machine is self.head
        role = ["--head", "--port=6379"] if is_head else [f"--address={self.head.address}:6379"]
        if is_head:
            # The machines share their processes: Ray would take those of the others for its own, which it
            # has left running here.
            Path(self._ray_files, "ray_current_cluster").unlink(missing_ok=True)
            role += ["--temp-dir", str(self._ray_files)]
        cpus = self._head_cpus if is_head else 2
        options = ["--block", f"--num-cpus={cpus}", f"--node-ip-address={machine.address}"]
        options += ["--disable-usage-stats"]
        said = self._folder / f"{machine.name}.log"
        config = self._folder / machine.name / "haproxy.cfg"
        env = {
            **os.environ,
            **self._env,
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(config),
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(ray.with_name("mesh-haproxy")),
            "RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S": "2",
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

    def said_there(self, machine: Machine, *command: str) -> str:
        """What the command ``mesh`` says on a machine. Raises if it fails."""
        mesh = Path(sys.executable).with_name("mesh")
        env = {**os.environ, **self._env, "RAY_ADDRESS": f"{self.head.address}:6379"}
        there = machine.command(mesh, *command)
        return subprocess.run(there, env=env, stdout=-1, text=True, timeout=WITHIN_S, check=True).stdout

    def end_ray(self, machine: Machine) -> None:
        """All processes of a machine end."""
        machine.kill()
        self._rays[machine].wait(60)

    def ray_has_ended(self, machine: Machine) -> bool:
        """Whether Ray ends there within a while."""
        return self._rays[machine].wait(WITHIN_S) is not None

    def has_lost_ray(self, machine: Machine) -> bool:
        """Whether Ray has ended there."""
        return self._rays[machine].poll() is not None

    def bring_back(self, machine: Machine) -> None:
        """A machine that was lost gets Ray again, and a share of the shards."""
        self.end_ray(machine)
        machine.mend()
        self.start_ray(machine)
        until(lambda: self.is_spread(3), WITHIN_S)

    def conversations_elsewhere(self, machine: Machine) -> list[str]:
        """New conversations whose keepers are on other machines."""
        with Client(self.mesh.url) as client:
            ids = [client.post("/conversations", {})[1]["conversation"]["id"] for _ in range(4 * PEOPLE)]
        elsewhere = {id for (id,) in self.database.execute(self.url, ELSEWHERE.format(machine.address))}
        return [id for id in ids if id in elsewhere][:PEOPLE]

    def talked(self, conversations: list[str]) -> list[float]:
        """For a while people talk, each in a conversation. How long each turn took, in seconds."""
        end = time.monotonic() + TALKED_S

        def talk(id: str) -> list[float]:
            took = []
            with Client(self.mesh.url) as client:
                while (begun := time.monotonic()) < end:
                    _, body = client.post(f"/conversations/{id}/messages", {"message": "hello"})
                    assert body["result"]["response"] == "echo: hello"
                    took.append(time.monotonic() - begun)
            return took

        with ThreadPoolExecutor(PEOPLE) as people:
            return [seconds for each in people.map(talk, conversations) for seconds in each]

    def lines(self) -> Counter[str]:
        """How often each line is in the ledger."""
        return Counter(self.ledger.read_text().splitlines() if self.ledger.exists() else [])

    def hosts(self) -> set[str]:
        """The ids of the processes that have shards."""
        return {host for (host,) in self.database.execute(self.url, "select distinct host from mesh.shard")}

    def is_spread(self, machines: int) -> bool:
        """Whether the keepers of so many machines have their share of the shards."""
        held = [count for (count,) in self.database.execute(self.url, HELD)]
        return len(held) == machines and sum(held) == 64 and held[0] >= 64 // machines

    def has_edge(self, machine: Machine) -> bool:
        """Whether the mesh answers at the HTTP edge of a machine."""
        try:
            return httpx.get(f"http://{machine.address}:{self.mesh.port}/ready").status_code == 200
        except httpx.TransportError:
            return False

    def asked(self, name: str, people: int = PEOPLE) -> list[dict[str, str]]:
        with Client(self.mesh.url) as client:
            return [ask(client, f"{name} {number}") for number in range(people)]

    def approved(self, asked: list[dict[str, str]]) -> list[float]:
        """All approve at the same time, and are answered. How long each waited."""

        def answered(each: dict[str, str]) -> float:
            begun = time.monotonic()
            with Client(self.mesh.url) as client:
                assert approve(client, each)["response"].startswith("done: ")
            return time.monotonic() - begun

        with ThreadPoolExecutor(PEOPLE) as people:
            return [*people.map(answered, asked)]


@contextmanager
def new_cluster(folder: Path, model: Model, **options: Any) -> Iterator[Cluster]:
    with ExitStack() as stack:
        rays: dict[Machine, subprocess.Popen[bytes]] = {}
        stack.callback(lambda: [ray.wait(60) for ray in rays.values()])  # which end with the network
        yield Cluster(folder, model, stack.enter_context(Network(3)), rays, stack, **options)
