"""kill -9 at every step of a change: the old state is there, or the new one, and no rest after the next start.

A step is a call into the operating system. The process that makes the change counts them, and kills itself
before the one that it is told, so that no step is left out and no timing matters.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mesh.servers.filesystem import opening
from mesh.servers.filesystem.staging import clean
from tests.servers.filesystem.world import World, tree

MOST_STEPS = 400
CHANGE = """
import json, os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from mesh.servers.filesystem import changing, kernel, opening, staging, target, transferring, tree
from tests.servers.filesystem.world import World
world = World(Path({folder!r}), opening.by_kernel)
left = int(sys.argv[1])

class Counting:
    "The calls of a module; before one of them, this process dies."
    def __init__(self, module):
        self._module = module
    def __getattr__(self, name):
        found = getattr(self._module, name)
        if not callable(found) or isinstance(found, type) or name in ("fsencode", "fsdecode", "strerror"):
            return found
        def call(*args, **kwargs):
            global left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return found(*args, **kwargs)
        return call

for module in (changing, opening, staging, target, transferring, tree):
    module.os = Counting(os)
    if hasattr(module, "kernel"):
        module.kernel = Counting(kernel)
for tool, arguments in json.loads(sys.argv[2]):
    world.call(tool, **arguments)
"""
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "overwrite": ("write_file", {"path": "a", "content": "new\n"}),
    "append": ("write_file", {"path": "a", "content": "new\n", "mode": "append"}),
    "create": ("write_file", {"path": "n/e/w", "content": "new\n"}),
    "patch": ("patch_file", {"path": "a", "edits": [{"old": "one", "new": "two"}]}),
    "remove a file": ("remove_file", {"path": "a"}),
    "create a folder": ("create_folder", {"path": "n/e"}),
    "remove a folder": ("remove_folder", {"path": "d"}),
    "copy a file": ("copy", {"source_path": "a", "dest_path": "n/a"}),
    "copy a folder": ("copy", {"source_path": "d", "dest_path": "n/d"}),
    "replace by a copy": ("copy", {"source_path": "a", "dest_path": "c", "overwrite": True}),
    "move a file": ("move", {"source_path": "a", "dest_path": "b"}),
    "move a folder": ("move", {"source_path": "d", "dest_path": "e"}),
    "replace by a move": ("move", {"source_path": "a", "dest_path": "c", "overwrite": True}),
}


def prepared(folder: Path) -> Path:
    ws = folder / "ws"
    (ws / "d/e").mkdir(parents=True)
    (ws / "d/e/f").write_text("f")
    (ws / "d/g").write_text("g")
    (ws / "a").write_text("one\n")
    (ws / "c").write_text("there\n")
    return ws


def killed(folder: Path, step: int, tool: str, arguments: dict[str, Any]) -> int:
    """Makes a change in another process, which dies before a step. Returns how it ended."""
    import json

    code = CHANGE.format(root=str(Path(__file__).parents[3]), folder=str(folder))
    command = [sys.executable, "-c", code, str(step), json.dumps([[tool, arguments]])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def _steps() -> list[int]:
    """Every step with `make chaos`, a few of them otherwise."""
    return list(range(MOST_STEPS)) if os.environ.get("CHAOS_KILLS") else list(range(3, MOST_STEPS, 9))


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.timeout(600)
def test_a_kill_leaves_the_old_state_or_the_new_one(tmp_path: Path, name: str) -> None:
    tool, arguments = CHANGES[name]
    (tmp_path / "done").mkdir()
    old = tree(prepared(tmp_path / "done"))
    assert killed(tmp_path / "done", 10**6, tool, arguments) == 0
    new = tree(tmp_path / "done/ws")
    assert new != old
    seen = set()
    for step in _steps():
        folder = tmp_path / str(step)
        folder.mkdir()
        ws = prepared(folder)
        ended = killed(folder, step, tool, arguments)
        world = World(folder, opening.by_kernel)
        clean(world.root)
        found = tree(ws)
        assert found in (old, new), f"killed before step {step}"
        outcome = world.call(tool, **arguments, check=True)["outcome"]
        assert outcome in ({"applied", "unknown"} if found == new else {"not_applied", "unknown"})
        seen.add(found == new)
        world.close()
        if ended == 0:
            assert found == new
            break
    else:
        pytest.fail(f"more than {MOST_STEPS} steps")
    assert True in seen


def test_a_kill_before_any_step_is_seen_as_not_applied_with_expect(tmp_path: Path) -> None:
    for name, (tool, arguments) in CHANGES.items():
        folder = tmp_path / name
        folder.mkdir()
        prepared(folder)
        world = World(folder, opening.by_kernel)
        expect = world.call(tool, **arguments, dry_run=True)["expect"]
        assert world.call(tool, **arguments, expect=expect, check=True)["outcome"] == "not_applied"
        assert killed(folder, 10**6, tool, {**arguments, "expect": expect}) == 0
        assert world.call(tool, **arguments, expect=expect, check=True)["outcome"] == "applied"
        world.close()


def test_a_move_to_another_file_system_leaves_the_source_or_the_destination(tmp_path: Path) -> None:
    from tests.servers.filesystem.test_hostile import mounted

    for step in range(0, MOST_STEPS, 7):
        folder = tmp_path / str(step)
        folder.mkdir()
        ws = prepared(folder)
        (ws / "m").mkdir()
        with mounted(ws / "m", "-t", "tmpfs"):
            ended = killed(folder, step, "move", {"source_path": "d", "dest_path": "m/d"})
            world = World(folder, opening.by_kernel)
            clean(world.root)
            found = tree(ws)
            world.close()
        source = {name for name in found if name == "d" or name.startswith("d/")}
        destination = {name for name in found if name.startswith("m/")}
        whole = {"d", "d/e", "d/e/f", "d/g"}
        assert source in (set(), whole)
        assert {name.removeprefix("m/") for name in destination} in (set(), whole)
        assert source or destination
        assert set(found) - source - destination == {"a", "c", "m"}
        if ended == 0:
            assert not source
            return
    pytest.fail(f"more than {MOST_STEPS} steps")
