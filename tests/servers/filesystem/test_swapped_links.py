"""A folder and a file are swapped with links that lead out of the root, all the time, while tools use them.

Nothing outside may be changed, and nothing of it may be in a result. The server itself is not confined by
Landlock here, so that the way in which paths are opened is on its own; ripgrep is confined in one half of the
tests.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mesh.servers.filesystem import confinement
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.names import STAGING
from tests.servers.filesystem.world import World, long, tree

SWAPPER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.syscall(157, 36, 0, 0, 0, 0)
pairs = [(sys.argv[1] + a, sys.argv[1] + b) for a, b in (("/a/d", "/a/to_outside"), ("/s", "/to_secret"))]
pairs = [(a.encode(), b.encode()) for a, b in pairs]
sys.stdout.write("ready\\n")
sys.stdout.flush()
while True:
    for a, b in pairs:
        libc.renameat2(-100, a, -100, b, 2)
"""
LEAK = "the outside"
_log = logging.getLogger("chaos")
OUTSIDE_SIZE = 4321

TRIES: dict[str, list[dict[str, Any]]] = {
    "list_roots": [{}],
    "list_folder": [{"path": "a/d"}, {"path": "a"}, {"path": "a/d/sub"}],
    "read_file": [{"path": "a/d/f"}, {"path": "s"}],
    "write_file": [
        {"path": "a/d/f", "content": "w"},
        {"path": "a/d/f", "content": "w", "mode": "append"},
        {"path": "a/d/new/x", "content": "w"},
        {"path": "s", "content": "inside"},
    ],
    "remove_file": [{"path": "a/d/f"}, {"path": "a/d/sub/g"}],
    "patch_file": [
        {"path": "a/d/f", "patch": "@@ -0,0 +1 @@\n+w\n"},
        {"path": "a/d/new/x", "edits": [{"old": "", "new": "w"}]},
    ],
    "create_folder": [{"path": "a/d/made"}, {"path": "a/d/sub/made/more"}],
    "remove_folder": [{"path": "a/d/sub"}, {"path": "a/d/made"}],
    "stat_file": [{"path": "a/d/f"}, {"path": "s"}],
    "hash_file": [{"path": "a/d/f"}, {"path": "s"}],
    "permissions_file": [{"path": "a/d/f"}, {"path": "s"}],
    "copy": [
        {"source_path": "a/d/f", "dest_path": "copied", "overwrite": True},
        {"source_path": "a/d", "dest_path": "copied_folder"},
        {"source_path": "still", "dest_path": "a/d/copied", "overwrite": True},
        {"source_path": "s", "dest_path": "copied", "overwrite": True},
    ],
    "move": [
        {"source_path": "a/d/f", "dest_path": "moved", "overwrite": True},
        {"source_path": "a/d/sub", "dest_path": "moved_folder"},
        {"source_path": "moving", "dest_path": "a/d/moved", "overwrite": True},
    ],
    "grep": [
        {"pattern": "outside|inside", "path": "a"},
        {"pattern": "outside", "path": "a/d"},
        {"pattern": "the"},
    ],
    "glob": [{"pattern": "**", "path": "a"}, {"pattern": "only_outside"}, {"regex": ".", "path": "a/d"}],
}


class Judge:
    """The world that is swapped, and what must not be seen of the one outside."""

    def __init__(self, world: World) -> None:
        self.world = world
        for folder, word in ((world.ws / "a/d", "inside"), (world.outside, LEAK)):
            (folder / "sub").mkdir(parents=True)
            (folder / "f").write_text(word)
            (folder / "sub/g").write_text(word)
        (world.outside / "secret").write_text(f"{LEAK} {'x' * OUTSIDE_SIZE}"[:OUTSIDE_SIZE])
        (world.outside / "f").write_text((world.outside / "secret").read_text())
        (world.outside / "only_outside").write_text(LEAK)
        (world.outside / "f").chmod(0o600)
        (world.outside / "secret").chmod(0o600)
        (world.ws / "a/to_outside").symlink_to(world.outside)
        (world.ws / "s").write_text("inside")
        (world.ws / "to_secret").symlink_to(world.outside / "secret")
        (world.ws / "still").write_text("inside")
        self.before = tree(world.outside)
        self.inside = os.open(world.ws / "a/d", os.O_RDONLY)
        self.succeeded = self.refused = 0

    def restore(self) -> None:
        """Puts back what tools took away, in the real folder, wherever that is now."""
        with suppress(FileExistsError):
            os.mkdir("sub", dir_fd=self.inside)
        for name in ("f", "sub/g"):
            descriptor = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644, dir_fd=self.inside)
            os.write(descriptor, b"inside")
            os.close(descriptor)
        for name in ("new", "made", "sub/made"):
            shutil.rmtree(name, ignore_errors=True, dir_fd=self.inside)
        for name in ("copied_folder", "moved_folder"):
            shutil.rmtree(self.world.ws / name, ignore_errors=True)
        (self.world.ws / "moving").write_text("inside")

    def attempt(self, tool: str, arguments: dict[str, Any]) -> None:
        answer = self.world.server.answer(tool, arguments, TimeLimit(30))
        said = json.dumps(answer.value)
        self.succeeded += not answer.failed
        self.refused += answer.failed
        assert LEAK not in said, (tool, arguments)
        assert str(self.world.outside) not in said
        assert f'"size": {OUTSIDE_SIZE}' not in said
        if tool == "permissions_file":
            assert "0600" not in said
        if tool == "glob":
            assert "only_outside" not in said

    def has_seen_both(self, tool: str) -> bool:
        return self.succeeded > 0 and (self.refused > 0 or tool == "list_roots")

    def settle(self) -> None:
        """Nothing outside is changed, and nothing of it has come in."""
        assert tree(self.world.outside) == self.before
        for path in self.world.ws.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert LEAK not in path.read_text(errors="replace"), path
        assert not (self.world.ws / STAGING).exists()
        os.close(self.inside)


@contextmanager
def swapping(ws: Path) -> Iterator[None]:
    command = [sys.executable, "-c", SWAPPER, str(ws)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.kill()


def attempts(world: World, tool: str, count: int) -> None:
    """Calls a tool as often as told, and goes on until the links were in the way, and out of it."""
    judge, done = Judge(world), 0
    with swapping(world.ws):
        while done < count or not judge.has_seen_both(tool):
            assert done < 100 * count, "the links were always in the way, or never"
            judge.restore()
            judge.attempt(tool, TRIES[tool][done % len(TRIES[tool])])
            done += 1
    judge.settle()
    outcomes = f"{judge.succeeded} were carried out, {judge.refused} refused"
    _log.info("%s, %s: %d tries, %s, 0 went outside", tool, world.how.__name__, done, outcomes)


@pytest.fixture(params=["Landlock", "no Landlock"])
def confined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no Landlock":
        monkeypatch.setattr(confinement, "is_available", lambda: False)
    elif not confinement.is_available():
        pytest.skip("this kernel has no Landlock")


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("tool", TRIES)
def test_no_tool_follows_a_link_that_is_swapped_in(world: World, tool: str) -> None:
    attempts(world, tool, 80)


@long
@pytest.mark.parametrize("tool", TRIES)
def test_no_tool_follows_a_link_in_many_tries(
    world: World, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "is_available", lambda: False)
    attempts(world, tool, 120 * int(os.environ["CHAOS_KILLS"]))  # 20,000, if it is not told otherwise


def test_the_swapper_catches_a_server_that_checks_a_path_and_then_opens_it(tmp_path: Path) -> None:
    """What is tested here can go wrong: the usual way of doing it does."""

    def naive(folder: int, parts: tuple[str, ...], flags: int) -> int:
        path = os.path.realpath(f"/proc/self/fd/{folder}/{'/'.join(parts)}")
        if not path.startswith(str(tmp_path / "ws")):
            raise FileNotFoundError(2, path)
        return os.open(path, flags)

    world = World(tmp_path, naive)
    judge = Judge(world)
    with swapping(world.ws), pytest.raises(AssertionError):
        for _ in range(20_000):
            judge.attempt("read_file", {"path": "a/d/f"})
    world.close()
