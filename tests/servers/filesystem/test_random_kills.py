"""kill -9 at random moments of many changes, one after the other: each is made once, and none is lost.

The client does what a mesh does. It asks for the preview of a change, and makes it with what the preview
expects. If the server dies before it has answered, the next one is asked whether the change was applied; if
not, it is made again. The judge is a second folder, in which nobody was killed.
"""

import json
import logging
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

from mesh.servers.filesystem import opening
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.dispatch import Server
from mesh.servers.filesystem.names import STAGING
from mesh.servers.filesystem.root import Root
from mesh.servers.filesystem.staging import clean
from tests.servers.filesystem.world import long, tree

NAMES = ("a", "b", "d/a", "d/e/b", "f/c")
FOLDERS = ("d", "d/e", "f", "g/h")
_log = logging.getLogger("chaos")


class Served(Protocol):
    """A server in a process of its own."""

    def send(self, tool: str, arguments: dict[str, Any]) -> None: ...
    def receive(self) -> tuple[Any, bool]: ...
    def kill(self) -> None: ...


class Forked:
    """The server without MCP: it starts in no time."""

    def __init__(self, ws: Path) -> None:
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            ours.close()
            _serve(ws, theirs)
        theirs.close()
        self._file = ours.makefile("rwb")
        ours.close()

    def send(self, tool: str, arguments: dict[str, Any]) -> None:
        self._file.write(json.dumps([tool, arguments]).encode() + b"\n")
        self._file.flush()

    def receive(self) -> tuple[Any, bool]:
        value, failed = json.loads(self._file.readline())
        return value, failed

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._file.close()


def _serve(ws: Path, connection: socket.socket) -> None:
    """Never returns: a child of a test that went on would be a second test."""
    try:
        _serve_calls(ws, connection)
    finally:
        os._exit(0)


def _serve_calls(ws: Path, connection: socket.socket) -> None:
    root = Root("ws", os.open(ws, os.O_RDONLY | os.O_DIRECTORY), opening.by_kernel)
    clean(root)
    server, file = Server([root], 1 << 20), connection.makefile("rwb")
    for line in file:
        tool, arguments = json.loads(line)
        answer = server.answer(tool, arguments, TimeLimit(30))
        file.write(json.dumps([answer.value, answer.failed]).encode() + b"\n")
        file.flush()


class Started:
    """``mcp-filesystem`` as a client starts it."""

    def __init__(self, ws: Path) -> None:
        command = [sys.executable, "-m", "mesh.servers.filesystem.main", str(ws)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        about = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "k", "version": "1"},
        }
        self._say({"id": 1, "method": "initialize", "params": about})
        self._out.readline()
        self._say({"method": "notifications/initialized"})

    def _say(self, message: dict[str, Any]) -> None:
        self._in.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._in.flush()

    def send(self, tool: str, arguments: dict[str, Any]) -> None:
        self._say({"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})

    def receive(self) -> tuple[Any, bool]:
        result = json.loads(self._out.readline())["result"]
        text = result["content"][0]["text"]
        return (text, True) if result.get("isError") else (json.loads(text), False)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()


def a_change(chance: random.Random, number: int) -> tuple[str, dict[str, Any]]:
    """Any change; whether it is possible, the server says."""
    path, other, folder = chance.choice(NAMES), chance.choice(NAMES), chance.choice(FOLDERS)
    text = f"{number}\n" * chance.choice((1, 1, 5000))
    both = {"source_path": path, "dest_path": other, "overwrite": True}
    return chance.choice(
        [
            ("write_file", {"path": path, "content": text}),
            ("write_file", {"path": path, "content": text, "mode": "append"}),
            ("write_file", {"path": path, "content": text, "mode": "append"}),
            ("patch_file", {"path": path, "patch": f"@@ -0,0 +1 @@\n+{number}\n"}),
            ("remove_file", {"path": path}),
            ("create_folder", {"path": folder}),
            ("remove_folder", {"path": folder}),
            ("copy", both),
            ("copy", {"source_path": folder, "dest_path": f"k/{number}"}),
            ("move", both),
            ("move", {"source_path": folder, "dest_path": chance.choice(FOLDERS)}),
        ]
    )


class Client:
    """Makes changes, and kills the server at some of them."""

    def __init__(self, start: Callable[[Path], Served], ws: Path, chance: random.Random) -> None:
        self._start = start
        self._ws = ws
        self._chance = chance
        self._server = start(ws)
        self._took_s = [0.001]
        self.found = {"applied": 0, "not_applied": 0}

    def ask(self, tool: str, arguments: dict[str, Any]) -> tuple[Any, bool]:
        started = time.perf_counter()
        self._server.send(tool, arguments)
        answer = self._server.receive()
        self._took_s = [*self._took_s[-20:], time.perf_counter() - started]
        return answer

    def change(self, tool: str, arguments: dict[str, Any], *, killed: bool) -> None:
        preview, failed = self.ask(tool, {**arguments, "dry_run": True})
        if failed:
            return
        call = {**arguments, "expect": preview["expect"]}
        if not killed or self._killed(tool, call):
            value, failed = self.ask(tool, call)
            assert not failed, value

    def _killed(self, tool: str, call: dict[str, Any]) -> bool:
        """Kills the server at some moment of a call. Returns whether it has to be made again."""
        self._server.send(tool, call)
        time.sleep(self._chance.uniform(0, 2 * statistics.median(self._took_s)))
        self.close()
        self._server = self._start(self._ws)
        found, failed = self.ask(tool, {**call, "check": True})
        assert not failed, found
        assert found["outcome"] in self.found, found  # never a question for a person
        self.found[found["outcome"]] += 1
        assert not (self._ws / STAGING).exists()
        return bool(found["outcome"] == "not_applied")

    def close(self) -> None:
        self._server.kill()


def attempts(start: Callable[[Path], Served], folder: Path, kills: int) -> dict[str, int]:
    """Makes the same changes in two folders, in one of them with kills. Returns what was found after them."""
    for name in ("killed", "calm"):
        (folder / name).mkdir()
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    client = Client(start, folder / "killed", chance)
    calm = Client(Forked, folder / "calm", chance)
    number = 0
    while sum(client.found.values()) < kills:
        number += 1
        tool, arguments = a_change(chance, number)
        calm.change(tool, arguments, killed=False)
        client.change(tool, arguments, killed=number % 2 == 0)
        if number % 10 == 0 or tool in ("move", "remove_folder"):
            assert tree(folder / "killed") == tree(folder / "calm"), (seed, number, tool, arguments)
    client.close()
    calm.close()
    assert tree(folder / "killed") == tree(folder / "calm"), seed
    text = "%d kills during %d changes: %d were applied, %d were not; 0 lost, 0 made twice, 0 questions"
    _log.info(text, kills, number, client.found["applied"], client.found["not_applied"])
    return client.found


def test_no_change_is_lost_or_made_twice_by_kills(tmp_path: Path) -> None:
    assert sum(attempts(Forked, tmp_path, 40).values()) == 40


def test_no_change_is_lost_or_made_twice_by_kills_of_a_server(tmp_path: Path) -> None:
    assert sum(attempts(Started, tmp_path, 2).values()) == 2


@long
def test_no_change_is_lost_or_made_twice_by_500_kills(tmp_path: Path) -> None:
    found = attempts(Forked, tmp_path, 500)
    assert min(found.values()) > 10, found


@long
def test_no_change_is_lost_or_made_twice_by_many_kills_of_a_server(tmp_path: Path) -> None:
    assert sum(attempts(Started, tmp_path, 40).values()) == 40
