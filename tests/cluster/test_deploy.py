"""``mesh deploy``: agents that stay on a cluster when the command has returned, and change without a gap."""

import os
import re
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.person import Person
from tests.cluster.rest import until
from tests.cluster.test_join import running_ray
from tests.cluster.world import ledger_config
from tests.worlds.long import takes_long
from tests.worlds.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900)]

MESH = str(Path(sys.executable).with_name("mesh"))
WITHIN_S = "240"


class Deployed:
    """An agent with a ledger on a Ray that runs already."""

    def __init__(self, folder: Path, address: str, env: dict[str, str]) -> None:
        self.folder = folder
        self.token = env["RAY_AUTH_TOKEN"]
        self.env = {**os.environ, **env, "RAY_ADDRESS": address}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ledger = folder / "ledger.txt"
        self.file = folder / "agent.yaml"

    def write(self, **more: Any) -> Path:
        """Writes the agent's file."""
        place = {"host": "127.0.0.1", "port": self.port, "data_dir": str(self.folder / "data")}
        cluster = {"idle_timeout_s": 6}
        ledger = ledger_config(self.ledger, self.folder / "failpoints")
        config = {**ledger, **place, "cluster": cluster, **more}
        self.file.write_text(yaml.safe_dump(config))
        return self.file

    def run(self, *args: str, fails: bool = False) -> str:
        """What a command says."""
        ran = subprocess.run(
            [MESH, *args], env=self.env, capture_output=True, text=True, timeout=400, check=False
        )
        said = ran.stdout + ran.stderr
        assert (ran.returncode != 0) == fails, said
        assert "Traceback" not in said
        return said

    def deploy(self, *options: str, fails: bool = False, **more: Any) -> str:
        """Deploys the agent."""
        return self.run("deploy", str(self.write(**more)), "--within", WITHIN_S, *options, fails=fails)

    def serve_deploy(self, config: str) -> None:
        """Has Serve apply a config, as people do who do not use ours."""
        found = re.search(r"http://[\w.]+:\d+", (self.folder / "ray.log").read_text())
        assert found is not None
        file = self.folder / "serve.yaml"
        file.write_text(config)
        serve = str(Path(sys.executable).with_name("serve"))
        env = {**self.env, "RAY_DASHBOARD_ADDRESS": found[0]}
        subprocess.run([serve, "deploy", str(file)], env=env, check=True, timeout=120)

    def lines(self) -> list[str]:
        """The ledger."""
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    @contextmanager
    def asking_all_the_time(self, message: str = "hello", people: int = 4) -> Iterator[list[int]]:
        """The status of each answer to people who ask without a pause."""
        statuses: list[int] = []
        stop = Event()

        def ask() -> None:
            with httpx.Client(base_url=self.url, timeout=60) as client:
                while not stop.is_set():
                    statuses.append(client.post("/conversations", json={"message": message}).status_code)

        with ThreadPoolExecutor(people) as threads:
            asking = [threads.submit(ask) for _ in range(people)]
            try:
                yield statuses
            finally:
                stop.set()
        for each in asking:
            each.result()


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("deployed")
    (folder / "failpoints").mkdir()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # Serve would let each gateway that ends live for half a minute more.
    drains = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"}
    with running_ray(folder, {**token, **model.env, **drains}) as address:
        found = Deployed(folder, address, {**token, **model.env})
        found.deploy()
        yield found


def prompt_of(deployed: Deployed) -> str:
    """What the model is told in a new conversation."""
    body = httpx.post(f"{deployed.url}/conversations", json={"message": "hello"}, timeout=60).json()
    return str(body["conversation"]["messages"][0]["content"])


def processes(kind: str, deployed: Deployed) -> list[psutil.Process]:
    """The processes of the cluster's actors of a kind."""
    running = psutil.process_iter(["cmdline", "environ"], ad_value={})
    of_cluster = (e for e in running if e.info["environ"].get("RAY_AUTH_TOKEN") == deployed.token)
    return [each for each in of_cluster if " ".join(each.info["cmdline"]).startswith(f"ray::{kind}")]


def test_a_version_takes_over_without_a_refused_request_and_open_turns_end_on_theirs(
    deployed: Deployed,
) -> None:
    with Client(deployed.url) as client:
        person = Person(client, lambda: Counter(deployed.lines()))
        waiting = person.open()
        approval = person.ask_to_append(waiting)
        body = {"message": "sleep 18"}
        _, begun = client.post("/conversations", body, waits=False)
        with deployed.asking_all_the_time() as statuses:
            said = deployed.deploy(prompt="You keep the ledger well.")
        assert "deployed ledger-agent" in said
        assert set(statuses) == {201}
        assert prompt_of(deployed) == "You keep the ledger well."
        until(lambda: processes_are(deployed, "KeeperActor", 1))
        person.settle(waiting, approval)
        assert deployed.lines() == waiting.lines
        shown = until(lambda: ended(client, begun["conversation"]["id"]))
        assert shown["messages"][-1]["content"] == "slept 18"
        assert shown["messages"][0]["content"] == "You keep a ledger."


def processes_are(deployed: Deployed, kind: str, number: int) -> bool:
    return len(processes(kind, deployed)) == number


def ended(client: Client, conversation: str) -> dict[str, Any] | None:
    """A conversation, once its turn has ended."""
    shown: dict[str, Any] = client.get(f"/conversations/{conversation}")["conversation"]
    return shown if shown["turn"].get("response") else None


def test_a_version_that_is_to_be_promoted_stands_by_until_somebody_does(deployed: Deployed) -> None:
    before = prompt_of(deployed)
    said = deployed.deploy(prompt="You stand by.", promote="manual")
    assert "stands by" in said and "mesh promote ledger-agent" in said
    assert prompt_of(deployed) == before
    assert "stands by: mesh promote ledger-agent" in deployed.run("status", "--url", deployed.url)
    with deployed.asking_all_the_time() as statuses:
        said = deployed.run("promote", "ledger-agent")
    assert "in force" in said and set(statuses) == {201}
    assert prompt_of(deployed) == "You stand by."
    assert "rollout" not in deployed.run("status", "--url", deployed.url)
    assert "in force" in deployed.run("promote", "ledger-agent")  # once more changes nothing
    assert "no caretaker" in deployed.run("promote", "nobody", fails=True)


def test_what_cannot_start_changes_nothing_whoever_dies_meanwhile(deployed: Deployed) -> None:
    before = prompt_of(deployed)
    wrong = {"command": sys.executable, "args": ["-c", "raise SystemExit('no ledger here')"], "timeout_s": 20}
    path = deployed.write(prompt="Another one.", mcp=wrong)
    said = deployed.run("deploy", str(path), "--within", "20", fails=True)
    assert "is not in force after 20 s: it waits for mcp mcp" in said and "no ledger here" in said
    said = deployed.run("status", "--url", deployed.url, fails=True)
    assert "waits for mcp mcp" in said and "no ledger here" in said
    for kind in ("ServeReplica:ledger-agent:Caretaker", "ServeReplica:ledger-agent:Gateway", "KeeperActor"):
        (killed,) = processes(kind, deployed)
        killed.kill()
        until(lambda kind=kind, killed=killed: [*{*processes(kind, deployed)} - {killed}])
    until(lambda: answers(deployed.url))
    assert prompt_of(deployed) == before
    deployed.deploy(prompt="You keep the ledger better.")
    assert prompt_of(deployed) == "You keep the ledger better."


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


@takes_long  # in short, the tests above have one version after the other
def test_who_goes_back_to_an_older_version_has_all_of_it_again_though_it_had_left(deployed: Deployed) -> None:
    deployed.deploy(prompt="You keep the ledger worse.")
    until(lambda: processes_are(deployed, "NodeActor", 1))  # the version before was idle, and has left
    deployed.deploy(prompt="You keep the ledger better.")
    assert prompt_of(deployed) == "You keep the ledger better."
    until(lambda: processes_are(deployed, "NodeActor", 1))
    with Client(deployed.url) as client:
        person = Person(client, lambda: Counter(deployed.lines()))
        told = person.open()
        person.append(told)
    assert told.lines[0] in deployed.lines()
    assert answers(deployed.url)


def test_a_version_that_the_cluster_cannot_read_is_refused_and_the_one_before_goes_on(
    deployed: Deployed,
) -> None:
    before = prompt_of(deployed)
    path = deployed.write(prompt="You keep ${ONLY_HERE}.")
    deployed.env["ONLY_HERE"] = "a secret"
    said = deployed.run("deploy", str(path), "--within", WITHIN_S, fails=True)
    assert "cannot be deployed" in said and "ONLY_HERE" in said and "goes on" in said
    assert prompt_of(deployed) == before
    (caretaker,) = processes("ServeReplica:ledger-agent:Caretaker", deployed)
    (gateway,) = processes("ServeReplica:ledger-agent:Gateway", deployed)
    for killed in (caretaker, gateway):
        killed.kill()
    until(lambda: answers(deployed.url))
    assert prompt_of(deployed) == before
    end_for_good(deployed, "/keeper/")  # whoever keeps the version before makes another one
    until(lambda: not answers(deployed.url))
    until(lambda: answers(deployed.url))
    said = deployed.run("status", "--url", deployed.url, fails=True)
    assert "ONLY_HERE" in said and "the version before goes on" in said
    deployed.deploy(prompt=before)


def end_for_good(deployed: Deployed, name: str) -> None:
    """Ends the actors with this in their names, so that Ray does not start them again."""
    program = (
        "import ray; ray.init(log_to_driver=False); "
        "[ray.kill(ray.get_actor(a['name'], a['namespace'])) "
        f"for a in ray.util.list_named_actors(all_namespaces=True) if {name!r} in a['name']]"
    )
    subprocess.run([sys.executable, "-c", program], env=deployed.env, check=True, timeout=120)


@takes_long
def test_a_caretaker_that_dies_leaves_everything_as_it_is(deployed: Deployed) -> None:
    before = {each.pid for kind in ("KeeperActor", "NodeActor") for each in processes(kind, deployed)}
    (caretaker,) = processes("ServeReplica:ledger-agent:Caretaker", deployed)
    with deployed.asking_all_the_time() as statuses:
        caretaker.kill()
        until(lambda: {*processes("ServeReplica:ledger-agent:Caretaker", deployed)} - {caretaker})
        said = deployed.deploy(prompt="You keep the ledger better.")
    assert "deployed ledger-agent" in said
    assert set(statuses) == {201}
    after = {each.pid for kind in ("KeeperActor", "NodeActor") for each in processes(kind, deployed)}
    assert before == after


@takes_long
def test_more_gateways_serve_where_one_has_too_many_requests(deployed: Deployed) -> None:
    gateways = {"min": 1, "max": 2, "target": 1}
    deployed.deploy(cluster={"idle_timeout_s": 6, "gateways": gateways})
    kind = "ServeReplica:ledger-agent:Gateway"
    assert processes_are(deployed, kind, 1)
    with deployed.asking_all_the_time("sleep 1") as statuses:
        until(lambda: processes_are(deployed, kind, 2))
    assert set(statuses) == {201}


def test_what_is_taken_down_leaves_nothing_but_its_conversations(deployed: Deployed) -> None:
    with Client(deployed.url) as client:
        told = Person(client, lambda: Counter(deployed.lines())).open()
    assert "ledger-agent is down" in deployed.run("down", "ledger-agent")
    for kind in ("KeeperActor", "NodeActor", "McpSessionActor", "ServeReplica"):
        until(lambda kind=kind: processes_are(deployed, kind, 0))
    assert "no agent ledger-agent is deployed here" in deployed.run("down", "ledger-agent", fails=True)
    options = ["--port", str(deployed.port), "--mounted", str(deployed.folder)]
    config = deployed.run("serve-config", str(deployed.write()), *options)
    deployed.serve_deploy(config)
    until(lambda: answers(deployed.url))
    with Client(deployed.url) as client:
        assert (
            client.get(f"/conversations/{told.conversation_id}")["conversation"]["id"] == told.conversation_id
        )
