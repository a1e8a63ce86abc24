"""Push notifications of a mesh that runs: its keeper dies with SIGKILL, webhooks are told all the same."""

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path

import pytest

from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.world import World
from tests.worlds.receiver import short
from tests.worlds.rpc import Json, Rpc, said, state

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

WITHIN_S = 180
ALL = ["input_required", "artifact", "completed"]


class Hook(ThreadingHTTPServer):
    """A webhook in a thread of its own. While it ``is_down`` it fails; ``told`` is what it accepted."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taken)
        self.url = f"http://127.0.0.1:{self.server_port}/s3cret-path"
        self.is_down = False
        self.failed = 0
        self.told: list[str] = []


class _Taken(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != "Bearer s3cret-credentials":
            self.send_error(401)
        elif self.server.is_down:
            self.server.failed += 1
            self.send_error(500)
        else:
            self.server.told.append(short(body))
            self.send_response(204)
            self.end_headers()

    def log_message(self, *_: object) -> None:
        return None


@contextmanager
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(WITHIN_S)


def test_whenever_its_keeper_is_killed_a_webhook_is_told_everything_in_order(
    folder: Path, model: Model
) -> None:
    world = World(folder, model, card={"push_hosts": ["127.0.0.1"]})
    world.mesh.start()
    try:
        with hook() as desk, Rpc(world.mesh.url) as rpc:
            _while_the_webhook_is_down(world, rpc, desk)
            desk.told.clear()
            _after_it_was_sent_and_before_that_was_noted(world, rpc, desk)
            _shown_to_nobody(world)
    finally:
        world.mesh.stop()
        world.mesh.kill_all()


def _while_the_webhook_is_down(world: World, rpc: Rpc, desk: Hook) -> None:
    desk.is_down = True
    task = _asked(rpc, desk)
    until(lambda: desk.failed > 0, WITHIN_S)
    assert world.mesh.kill("ray::KeeperActor")
    desk.is_down = False
    until(lambda: desk.told == ALL[:1], WITHIN_S)
    rpc.send("yes", task["id"])
    until(lambda: desk.told == ALL, WITHIN_S)


def _after_it_was_sent_and_before_that_was_noted(world: World, rpc: Rpc, desk: Hook) -> None:
    task = _asked(rpc, desk)
    until(lambda: desk.told == ALL[:1], WITHIN_S)
    world.arm("push.sent")
    rpc.send("yes", task["id"])
    until(lambda: desk.told[-1:] == ALL[-1:], WITHIN_S)
    assert not world.is_armed("push.sent")
    assert [told for told, _ in groupby(desk.told)] == ALL
    assert len(desk.told) == len(ALL) + 1  # what nobody noted was told again, and nothing else


def _shown_to_nobody(world: World) -> None:
    for path in (world.mesh.data_dir / "push").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    shown = [world.mesh.log, *world.mesh.data_dir.glob("*.json*"), *world.mesh.logs().rglob("*.*")]
    assert [path for path in shown if path.is_file() and b"s3cret" in path.read_bytes()] == []


def _asked(rpc: Rpc, desk: Hook) -> Json:
    """A task that waits for a person, with a webhook."""
    push = {"url": desk.url, "authentication": {"scheme": "Bearer", "credentials": "s3cret-credentials"}}
    asked = {"message": said("append a"), "configuration": {"taskPushNotificationConfig": push}}
    task: Json = rpc.result("SendMessage", asked)["task"]
    assert state(task) == "INPUT_REQUIRED"
    return task
