"""``mesh up a.yaml b.yaml``: agents that share a Ray, an edge and a port, and nothing else."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from mesh.client.rest import Connected, MeshClient
from mesh.core.events import Completed
from tests.cluster.model import Model
from tests.cluster.rest import Body, contents, created, problem
from tests.cluster.test_join import actors
from tests.cluster.world import ledger_config
from tests.worlds.process import MeshProcess, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

MESH = str(Path(sys.executable).with_name("mesh"))


class Several(MeshProcess):
    """``mesh up`` of several configs, a file each."""

    def __init__(self, folder: Path, configs: list[dict[str, Any]], env: dict[str, str]) -> None:
        super().__init__(folder, configs[0], env)
        for config in configs[1:]:
            (folder / f"{config['name']}.yaml").write_text(yaml.safe_dump(config))
        self._others = [str(folder / f"{config['name']}.yaml") for config in configs[1:]]

    def launch(self) -> None:
        with self.log.open("ab") as log:
            self._said_before = log.tell()
            self._process = subprocess.Popen(
                [MESH, "up", str(self.config), *self._others],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._env,
                start_new_session=True,
            )


def keeper_of(ledger: Path, name: str) -> dict[str, Any]:
    """An agent that keeps this ledger."""
    return {**ledger_config(ledger, ledger.parent), "name": name, "data_dir": str(ledger.parent / "data")}


@pytest.fixture(scope="module", params=["own", "shared"])
def mesh(request: pytest.FixtureRequest, model: Model) -> Iterator[Several]:
    """Two agents, ``left`` and ``right``, each with its ledger; one ``data_dir``. With gateways of their own,
    or one for both."""
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        configs = [keeper_of(folder / f"{name}.txt", name) for name in ("left", "right")]
        light = {"cluster": {"isolation": request.param}}
        mesh = Several(folder, [{**config, **light} for config in configs], model.env)
        with running(mesh):
            gateways = len(mesh.find("ray::ServeReplica"))
            assert gateways == {"own": 3, "shared": 1}[request.param]
            yield mesh


@pytest.fixture
def root(mesh: Several) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=mesh.url, timeout=30) as client:
        yield client


@pytest.fixture
def left(mesh: Several) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{mesh.url}/left", timeout=30) as client:
        yield client


@pytest.fixture
def right(mesh: Several) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{mesh.url}/right", timeout=30) as client:
        yield client


def test_whoever_opens_the_port_is_told_where_the_agents_are(mesh: Several, root: httpx.Client) -> None:
    agents = {agent["name"]: agent for agent in root.get("/").json()["agents"]}
    assert {name: agent["url"] for name, agent in agents.items()} == {
        "left": f"{mesh.url}/left",
        "right": f"{mesh.url}/right",
    }
    for agent in agents.values():
        assert httpx.get(agent["docs"]).status_code == 200
        assert httpx.get(f"{agent['url']}/ready").json() == {"status": "ready"}
    assert root.get("/health").json() == {"status": "ok", "agents": ["left", "right"]}
    assert root.get("/ready").json() == {"status": "ready", "agents": {"left": "ready", "right": "ready"}}
    assert "/left, /right" in problem(root.get("/nobody/conversations"), 404)
    assert "/left, /right" in problem(root.post("/leftover", json={}), 404)


def test_the_terminal_shows_the_address_of_each_agent_and_counts_the_actors_of_all(mesh: Several) -> None:
    said = mesh.log.read_text()
    for name in ("left", "right"):
        assert f"http://127.0.0.1:{mesh.port}/{name}\n" in said
        assert re.search(rf"actor \d of 6: {name}: keeper 0", said)


def test_each_agent_has_actors_tools_and_conversations_of_its_own(
    mesh: Several, left: httpx.Client, right: httpx.Client
) -> None:
    waiting: Body = created(left, "append only here")
    conversation_id = waiting["conversation"]["id"]
    assert problem(right.get(f"/conversations/{conversation_id}"), 404)
    uuid = waiting["result"]["approval"]["uuid"]
    assert problem(right.post(f"/approvals/{uuid}", json={"approved": True}), 404)
    assert left.post(f"/approvals/{uuid}", json={"approved": True}).status_code == 200
    assert (mesh.folder / "left.txt").read_text() == "only here\n"
    assert not (mesh.folder / "right.txt").exists()
    homes = mesh.data_dir / "agents"
    assert (homes / "left" / f"conversation_{conversation_id}.jsonl").exists()
    assert [*mesh.data_dir.glob("*.epoch")] == []
    names = actors(*cluster_of(mesh))
    assert {"left#1/keeper/0", "right#1/keeper/0"} <= set(names)


def cluster_of(mesh: Several) -> tuple[str, dict[str, str]]:
    """The address of its Ray, and what another program needs to look into it."""
    raylet = mesh.find("raylet/raylet ")[0]
    address = re.search(r"--gcs-address=(\S+)", " ".join(raylet.cmdline()))
    assert address
    return address[1], raylet.environ()


def test_documents_and_what_they_need_are_below_the_path_too(root: httpx.Client, left: httpx.Client) -> None:
    page = left.get("/docs").text
    needed = [path for path in re.findall(r"""(?:href|src|url)\s*[=:]\s*["']([^"']+)""", page) if path]
    assert len(needed) >= 4
    for path in needed:
        assert path.startswith("/left/"), path
        assert root.get(path).status_code == 200, path
    assert left.get("/openapi.json").json()["servers"] == [{"url": "/left"}]


def test_a_location_leads_to_what_was_made(root: httpx.Client, right: httpx.Client) -> None:
    made = right.post("/conversations", json={"message": "hi"}, headers={"Prefer": "respond-async"})
    assert made.status_code == 202
    assert made.headers["location"].startswith("/right/conversations/")
    assert (
        root.get(made.headers["location"]).json()["conversation"]["id"] == made.json()["conversation"]["id"]
    )
    session = right.post("/api/sessions", json={})
    assert session.headers["location"] == f"/right/api/sessions/{session.json()['id']}"
    moved = right.get("/conversations/", follow_redirects=True)
    assert moved.status_code == 200 and moved.url.path == "/right/conversations"


async def test_a_client_of_an_agent_below_a_path_says_and_watches(mesh: Several) -> None:
    async with MeshClient(f"{mesh.url}/right/") as client:
        conversation_id = await client.create()
        said = False
        async for event in client.events(conversation_id, after=0):
            if isinstance(event, Connected) and not said:
                await client.say(conversation_id, "hello there")
                said = True
            if isinstance(event, Completed):
                break
        shown = await client.show(conversation_id)
        assert [m.content for m in shown.messages][-1] == "echo: hello there"
        assert [tool.name for tool in await client.tools()] == ["ledger_append", "ledger_read"]


def test_the_terminal_chat_talks_to_an_agent_below_a_path(mesh: Several, right: httpx.Client) -> None:
    ended = subprocess.run(
        [MESH, "chat", "--url", f"{mesh.url}/right"],
        input="from a pipe\n",
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "echo: from a pipe"), ended.stderr
    newest = right.get("/conversations").json()["conversations"][0]["id"]
    assert contents(right.get(f"/conversations/{newest}").json()["conversation"], "user") == ["from a pipe"]
