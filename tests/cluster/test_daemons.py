"""Ray's daemons die, one after the other, as an out-of-memory kill would have it; the mesh comes back."""

import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.person import Person, judge
from tests.cluster.rest import until
from tests.cluster.world import World
from tests.worlds.long import IS_LONG
from tests.worlds.process import WITH_DASHBOARD, MeshProcess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

RESTARTED_BY_SERVE = {"ray::ServeController": "Serve controller", "haproxy -db": "HAProxy"}
FATAL = {
    "gcs/gcs_server --": "gcs_server",
    "raylet/raylet --": "raylet",
    "ray::DashboardAgent": "dashboard agent",
    "ray::RuntimeEnvAgent": "runtime-env agent",
    "dashboard/dashboard.py --": "dashboard",
}
RESTARTS = len(FATAL) if IS_LONG else 1
"""As many as may be in five minutes."""
NOTICED_WITHIN_S = 120.0
BACK_WITHIN_S = 240.0
"""Twice what it may take: other tests run on this machine at the same time."""
GONE_WITHIN_S = 180.0


@pytest.mark.chaos  # where all of them die
def test_each_daemon_that_dies_is_noticed_and_the_mesh_comes_back_until_it_was_too_often(
    folder: Path, model: Model
) -> None:
    world = World(folder, model, WITH_DASHBOARD, options=["--max-restarts", str(RESTARTS)])
    world.mesh.start()
    try:
        with Client(world.mesh.url) as client:
            person = Person(client, world.lines)
            waits = person.open()
            approval = person.ask_to_append(waits)
            for daemon, name in RESTARTED_BY_SERVE.items():
                (line,) = lines_after_the_kill_of(world.mesh, daemon, name)
                assert "level=WARNING event=daemon_died" in line
                until(lambda daemon=daemon: world.mesh.find(daemon), BACK_WITHIN_S)
                world.mesh.wait_ready(BACK_WITHIN_S)
            for daemon, name in [*FATAL.items()][:RESTARTS]:
                driver = world.mesh.driver()
                (line,) = lines_after_the_kill_of(world.mesh, daemon, name)
                assert "level=ERROR event=ray_lost" in line
                driver.wait(BACK_WITHIN_S)
                world.mesh.wait_ready(BACK_WITHIN_S)
                person.append(person.open())
            person.settle(waits, approval)
            judge(waits, client, world.lines())
        world.mesh.driver().kill()
        world.mesh.wait(GONE_WITHIN_S)
        assert world.mesh.status == 1
        assert world.mesh.left_behind() == []
        last = world.mesh.log.read_text().splitlines()[-1]
        assert last.startswith(f"mesh: Ray was started anew {RESTARTS} times within 5 minutes, and ")
    finally:
        world.mesh.kill_all()


def test_the_web_chat_outlives_ray_and_all_of_it_is_stopped_while_ray_starts_anew(
    folder: Path, model: Model
) -> None:
    world = World(folder, model, options=["--web"])
    world.mesh.start()
    try:
        addresses = world.mesh.log.read_text().partition("ready after")[2].splitlines()[1:]
        name, url = addresses[0].rsplit(maxsplit=1)
        assert name.strip() == "web chat" and url.startswith("http://127.0.0.1:3")
        until(lambda: httpx.get(f"{url}/api/conversations").status_code == 200, BACK_WITHIN_S)
        lines_after_the_kill_of(world.mesh, "raylet/raylet --", "raylet")
        until(lambda: world.mesh.find("gcs/gcs_server --"), BACK_WITHIN_S)
        assert "<title>" in httpx.get(url).text
        signalled = time.monotonic()
        assert world.mesh.stop(signal.SIGTERM) == []
        assert time.monotonic() - signalled < GONE_WITHIN_S
        assert world.mesh.status == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
    finally:
        world.mesh.kill_all()


def lines_after_the_kill_of(mesh: MeshProcess, daemon: str, name: str) -> list[str]:
    """What is logged, within the time in which it must be noticed, of the death of a daemon."""
    before = len(mesh.log.read_text())
    assert mesh.kill(daemon) >= 1

    def said() -> list[str]:
        return [
            line
            for line in mesh.log.read_text()[before:].splitlines()
            if f"the {name} " in line and " died" in line
        ]

    deadline = time.monotonic() + NOTICED_WITHIN_S
    while not (found := said()):
        assert time.monotonic() < deadline, f"{name} died unnoticed:\n{mesh.log.read_text()[-4000:]}"
        time.sleep(0.05)
    return found
