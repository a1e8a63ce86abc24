"""``mesh up`` from its start to its end, in all the ways that people end it."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.world import World
from tests.worlds.ports import free_port
from tests.worlds.process import UP_WITHIN_S, WITH_DASHBOARD, MeshProcess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

GONE_WITHIN_S = 180.0
HAPROXY = "haproxy -db"


def refused(folder: Path, config: dict[str, Any], *options: str, **env: str) -> str:
    """What ``mesh up`` says as it refuses to start: one line a problem, no traceback, nothing left."""
    path = folder / "agent.yaml"
    path.write_text(yaml.safe_dump({"port": free_port(), "data_dir": str(folder / "data"), **config}))
    mesh = Path(sys.executable).with_name("mesh")
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    ended = subprocess.run(
        [mesh, "up", path, *options],
        env={**inherited, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode not in (0, -signal.SIGKILL)
    assert "Traceback" not in ended.stdout + ended.stderr
    assert [p.pid for p in psutil.process_iter(["cmdline"]) if str(folder) in str(p.info["cmdline"])] == []
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_port_in_use_is_one_clear_line(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(folder, {"llm": {"model": "offline"}, "port": port})
    assert f"port {port}" in said and "in use" in said and "--port" in said


def test_a_missing_mcp_binary_is_one_clear_line(folder: Path) -> None:
    said = refused(folder, {"llm": {"model": "offline"}, "mcp": {"command": "no-such-program"}})
    assert "agent.yaml:" in said and "no-such-program" in said and "mcp.command" in said


@pytest.mark.parametrize(
    ("model", "key"),
    [("gemini-2.5-flash", "GEMINI_API_KEY"), ("claude-sonnet-4-5", "ANTHROPIC_API_KEY")],
)
def test_a_missing_api_key_is_one_clear_line(folder: Path, model: str, key: str) -> None:
    said = refused(folder, {"llm": {"model": model}})
    assert f"{key} is not set" in said and model in said


def test_a_server_that_dies_at_once_is_one_clear_line(folder: Path) -> None:
    dead = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('the disk is full')"]}
    said = last_words(folder, {"llm": {"model": "offline"}, "mcp": dead})
    assert "mcp" in said and "the disk is full" in said


def test_resources_that_this_machine_does_not_have_are_one_clear_line(folder: Path) -> None:
    tree = {"name": "a", "type": "llm", "resources": {"num_cpus": 10_000, "tpu": 1}}
    server = {"name": "files", "command": "mcp-filesystem", "args": ["."], "resources": {"files_of_web": 1}}
    said = last_words(folder, {"llm": {"model": "offline"}, "agent": tree, "mcp_servers": [server]})
    assert "too little" in said and "num_cpus (10000 asked, " in said and "tpu (1 asked, 0 there)" in said
    assert "files_of_web (1 asked, 0 there)" in said


def last_words(folder: Path, config: dict[str, Any]) -> str:
    """The last line of a ``mesh up`` that fails after it began to start Ray. Nothing is left."""
    mesh = MeshProcess(folder, config)
    with pytest.raises(AssertionError, match="is not up"):
        mesh.start()
    mesh.wait(GONE_WITHIN_S)
    assert mesh.left_behind() == []
    said = mesh.log.read_text()
    assert "Traceback" not in said
    return said.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("hangs", "how", "group"),
    [("gcs_server", signal.SIGTERM, False), ("ray::ServeController", signal.SIGINT, True)],
)
def test_a_start_that_hangs_in_ray_or_serve_is_stopped_all_the_same(
    folder: Path, hangs: str, how: int, group: bool
) -> None:
    mesh = MeshProcess(folder, {"llm": {"model": "offline"}})
    mesh.launch()
    try:
        gcs = until(lambda: mesh.find("gcs_server"), UP_WITHIN_S)[0]
        scratch = Path(gcs.environ()["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parent
        assert scratch.is_dir()
        until(lambda: mesh.find(hangs), UP_WITHIN_S)[0].suspend()
        signalled = time.monotonic()
        assert mesh.stop(how, group=group) == []
        assert time.monotonic() - signalled < GONE_WITHIN_S
    finally:
        mesh.kill_all()
    assert not scratch.exists()
    said = mesh.log.read_text()
    assert "Traceback" not in said and "ready" not in said
    assert said.splitlines()[-1] in ("mesh: stopped", "mesh: stopped, by force")


def test_loopback_means_that_no_port_is_open_elsewhere_and_sigterm_ends_all(
    folder: Path, model: Model
) -> None:
    world = World(folder, model, WITH_DASHBOARD, host="127.0.0.1")
    world.mesh.start()
    (dashboard,) = re.findall(r"Ray dashboard +(http://127\.0\.0\.1:\d+)", world.mesh.log.read_text())
    assert httpx.get(f"{dashboard}/api/cluster_status", timeout=30).status_code == 401  # it has a token
    assert httpx.get(f"{world.mesh.url}/ready").status_code == 200
    open_ports = listening(world.mesh)
    assert [each for each in open_ports if not is_loopback(each[1])] == []
    assert {name for name, _, port in open_ports if port == world.mesh.port} == {HAPROXY}
    world.mesh.kill("ray::ServeReplica")  # its successor has another port: HAProxy's configuration changes
    until(lambda: len(world.mesh.find("ray::ServeReplica")) == 1, UP_WITHIN_S)
    world.mesh.wait_ready()
    assert [each for each in listening(world.mesh) if not is_loopback(each[1])] == []
    for address in own_addresses():
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://{address}:{world.mesh.port}/health", timeout=2)
    started = time.monotonic()
    assert world.mesh.stop(signal.SIGTERM) == []
    assert time.monotonic() - started < GONE_WITHIN_S


def test_an_open_host_opens_the_port_of_http_and_no_other(world: World) -> None:
    elsewhere = {each for each in listening(world.mesh) if not is_loopback(each[1])}
    assert elsewhere == {(HAPROXY, "0.0.0.0", world.mesh.port)}


def listening(mesh: MeshProcess) -> list[tuple[str, str, int]]:
    """Every listening socket of a mesh: the process (`HAPROXY`, else its command), the address and the
    port."""
    found = []
    for process in mesh.processes():
        with suppress(psutil.NoSuchProcess):  # Ray's come and go
            command = " ".join(process.cmdline())
            name = HAPROXY if HAPROXY in command else command
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.append((name, connection.laddr.ip, connection.laddr.port))
    return found


def is_loopback(address: str) -> bool:
    return address.removeprefix("::ffff:").startswith("127.") or address == "::1"


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine that other machines may reach it by."""
    every = [a for addresses in psutil.net_if_addrs().values() for a in addresses]
    return [a.address for a in every if a.family == socket.AF_INET and not is_loopback(a.address)]
