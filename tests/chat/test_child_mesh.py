"""A chat with --ray has a mesh of its own, which is gone when the chat is, come what may."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from mesh.chat.child_mesh import ChildMeshFailed, child_mesh
from tests.chat.screen import CTRL_D, MESH, WITHIN_S, Screen, chat_env
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import says

# Stands in for Ray where only the coming and going of `mesh up` is looked at: it serves until it is stopped.
RUNTIME = """
import http.server, signal, sys
from mesh.core.errors import MeshError

class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass

def up(config, console, options):
    if config.name == "fails":
        raise SystemExit("it broke")
    if config.name == "refuses":
        console.print("mesh: an oddity on the way")
        raise MeshError("Ray does not start:\\nsee its log …")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    console.print("mesh: starting something …")
    http.server.HTTPServer((config.host, config.port), Ready).serve_forever()
"""
EMBEDS = """
import asyncio, sys
from pathlib import Path
from mesh.chat.child_mesh import child_mesh

async def main():
    async with child_mesh(Path(sys.argv[1]), lambda _: None) as url:
        print(url, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    metadata = tmp_path / "site" / "aruntime-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: aruntime\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[mesh.runtime]\nray = aruntime:up\n")
    (metadata.parent / "aruntime.py").write_text(RUNTIME)
    monkeypatch.setenv("PYTHONPATH", str(metadata.parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    return named(tmp_path, "agent")


def named(folder: Path, name: str) -> Path:
    path = folder / "agent.yaml"
    path.write_text(f"name: {name}\nllm: {{model: offline}}\n")
    return path


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def gone(url: str) -> bool:
    try:
        httpx.get(url, timeout=30, trust_env=False)
    except httpx.ConnectError:
        return True
    except (httpx.ReadError, httpx.RemoteProtocolError):  # it ends just now
        return False
    return False


async def test_it_answers_while_it_is_needed_and_is_gone_after(config: Path) -> None:
    told: list[str] = []
    before = children()
    async with child_mesh(config, told.append) as url:
        assert not gone(url)
        assert len(children()) == len(before) + 1
    assert told == ["starting something", "stopping"]
    assert children() == before


async def test_what_keeps_it_from_starting_is_said_in_its_own_words(config: Path, tmp_path: Path) -> None:
    with pytest.raises(ChildMeshFailed) as wrong:
        async with child_mesh(tmp_path / "none.yaml", lambda _: None):
            pass
    assert wrong.value.status == 2
    assert "none.yaml" in wrong.value.problems[0]
    with pytest.raises(ChildMeshFailed) as broken:
        async with child_mesh(named(tmp_path, "fails"), lambda _: None):
            pass
    assert broken.value.problems == ["mesh up ended with status 1", "it broke"]


async def test_a_problem_is_what_mesh_up_reports_whatever_else_it_prints(
    config: Path, tmp_path: Path
) -> None:
    with pytest.raises(ChildMeshFailed) as refused:
        async with child_mesh(named(tmp_path, "refuses"), lambda _: None):
            pass
    assert (refused.value.status, refused.value.problems) == (1, ["Ray does not start:\nsee its log …"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent was killed")
def test_it_is_gone_when_the_chat_is_killed(config: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", EMBEDS, config], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert not gone(url)
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + WITHIN_S
    while not gone(url):
        assert time.monotonic() < deadline, "the mesh outlives its chat"
        time.sleep(0.05)


def test_an_agent_that_runs_already_is_not_started_beside_itself(tmp_path: Path) -> None:
    with LiveMesh(Spoken(says("x"))) as mesh:
        config = tmp_path / "agent.yaml"
        config.write_text(f"name: test\nport: {mesh.port}\nllm: {{model: offline}}\n")
        done = subprocess.run(
            [str(MESH), "chat", "--ray", "--config", str(config)],
            input="hi",
            capture_output=True,
            text=True,
            env=chat_env(tmp_path),
            timeout=2 * WITHIN_S,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == f"mesh: this agent runs already: talk to it with mesh chat --url {mesh.url}\n"


@pytest.mark.cluster
@pytest.mark.timeout(1000)
def test_a_person_talks_to_an_agent_on_ray_with_one_command(tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(
        "name: solo\nllm: {model: offline}\n"
        f"mcp_servers: [{{name: r, command: mcp-resources, args: [--db, {tmp_path / 'r.db'}]}}]\n"
    )
    env = chat_env(tmp_path)
    del env["PYTHONWARNINGS"]  # Ray's own processes warn
    with Screen("--ray", "--config", config, env=env, cwd=tmp_path) as screen:
        screen.ready(within_s=180)
        screen.say("add resource web-1 with value 42")
        screen.asked()
        screen.press("a")
        screen.wait("✓ resources_add", "name web-1, value 42")
        screen.ready()
        screen.press(CTRL_D)
        assert screen.ended(within_s=90) == 0
        assert f"To continue: mesh chat --config {config} --ray --resume " in screen.text.replace("\n", "")
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert left == []
