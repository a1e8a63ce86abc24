"""``mesh up`` on a Ray that runs already: joins it, serves, and leaves it as it was."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.person import Person
from tests.cluster.rest import until
from tests.cluster.test_lifecycle import refused
from tests.cluster.world import World
from tests.worlds.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

GONE_WITHIN_S = 90.0
"""A head that keeps its state may come back, so it is waited for."""
_PORTS = ("port", "ray-client-server-port", "dashboard-agent-listen-port", "dashboard-port")


@contextmanager
def running_ray(folder: Path, env: dict[str, str]) -> Iterator[str]:
    """The address of a Ray that somebody else started."""
    ports = {option: free_port() for option in _PORTS}
    ray = str(Path(sys.executable).with_name("ray"))
    options = [f"--{option}={port}" for option, port in ports.items()]
    haproxy = {"RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "h" / "haproxy.cfg")}
    with (folder / "ray.log").open("wb") as log:
        head = subprocess.Popen(
            [ray, "start", "--head", "--block", "--num-cpus=2", "--disable-usage-stats", *options],
            env={**os.environ, "RAY_SERVE_ENABLE_HA_PROXY": "1", **haproxy, **env},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: b"Ray runtime started" in (folder / "ray.log").read_bytes(), 60)
        yield f"127.0.0.1:{ports['port']}"
    finally:
        with suppress(subprocess.TimeoutExpired):
            head.terminate()
            head.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait(10)
        for process in psutil.process_iter(["cmdline"]):
            if str(folder / "h") in " ".join(process.info["cmdline"] or ()):
                process.kill()  # a Ray that is killed leaves its HAProxy behind


@pytest.mark.parametrize("auth", ["token", "disabled"])
def test_a_mesh_joins_a_running_ray_and_leaves_it_as_it_was(folder: Path, model: Model, auth: str) -> None:
    token = {"RAY_AUTH_TOKEN": "a" * 64}
    with running_ray(folder, {"RAY_AUTH_MODE": auth, **token, **model.env}) as address:
        world = World(folder / "mesh", model, env={"RAY_ADDRESS": address, **token})
        before = actors(address, token)
        world.mesh.start()
        with Client(world.mesh.url) as client:
            person = Person(client, world.lines)
            told = person.open()
            person.append(told)
        assert list(world.lines().values()) == [1]
        assert any(name.endswith("/keeper/0") for name in actors(address, token))
        assert world.mesh.stop() == []
        until(lambda: actors(address, token) == before, 30)


def test_a_cluster_that_goes_away_is_noticed_and_said(folder: Path, model: Model) -> None:
    with running_ray(folder, {"RAY_AUTH_MODE": "disabled", **model.env}) as address:
        world = World(folder / "mesh", model, env={"RAY_ADDRESS": address})
        world.mesh.start()
    try:
        world.mesh.wait(GONE_WITHIN_S)
        assert world.mesh.status == 1
        last = world.mesh.log.read_text().splitlines()[-1]
        assert last.startswith("mesh: ") and last.endswith(f"; Ray was joined at {address}")
        assert world.mesh.left_behind() == []
    finally:
        world.mesh.kill_all()


def test_a_cluster_that_is_not_there_is_one_clear_line(folder: Path) -> None:
    config = {"llm": {"model": "offline"}, "host": "127.0.0.1"}  # an open one is a line of its own
    said = refused(folder, config, RAY_ADDRESS="127.0.0.1:1")
    assert "cannot join Ray at 127.0.0.1:1 (RAY_ADDRESS)" in said


def actors(address: str, env: dict[str, str]) -> list[str]:
    """The names of all actors of a cluster, as another program sees them."""
    look = "import ray, json; ray.init(log_to_driver=False); print(json.dumps(sorted(a['name'] for a in "
    look += "ray.util.list_named_actors(all_namespaces=True))))"
    found = subprocess.run(
        [sys.executable, "-c", look],
        env={**os.environ, **env, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "token"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    names: list[str] = json.loads(found.stdout.splitlines()[-1])
    return names
