"""kill -9 at every step of a change: the old state is there, or the new one, and the next start cleans up."""

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mesh.servers.filesystem import opening
from mesh.servers.filesystem.staging import clean
from tests.servers.filesystem.mounts import mounted
from tests.servers.filesystem.steps import MOST, NEVER, changed
from tests.servers.filesystem.world import World, tree

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


def killed(folder: Path, step: int, tool: str, arguments: dict[str, Any]) -> bool:
    """Makes a change in a process that dies before a step. Returns whether it did."""
    code, died = changed(folder, tool, arguments, step, lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert code == (-signal.SIGKILL if died else 0)
    return died


@pytest.mark.parametrize("name", CHANGES)
def test_a_kill_leaves_the_old_state_or_the_new_one_and_the_check_knows_which(
    tmp_path: Path, name: str
) -> None:
    tool, arguments = CHANGES[name]
    (tmp_path / "done").mkdir()
    old = tree(prepared(tmp_path / "done"))
    with closing(World(tmp_path / "done", opening.by_kernel)) as world:
        expect = world.call(tool, **arguments, dry_run=True)["expect"]
    assert not killed(tmp_path / "done", NEVER, tool, arguments)
    new = tree(tmp_path / "done/ws")
    assert new != old
    seen = set()
    for step in range(MOST):
        folder = tmp_path / str(step)
        folder.mkdir()
        ws = prepared(folder)
        died = killed(folder, step, tool, {**arguments, "expect": expect})
        with closing(World(folder, opening.by_kernel)) as world:
            found = world.call(tool, **arguments, expect=expect, check=True)["outcome"]
            unsure = world.call(tool, **arguments, check=True)["outcome"]
            clean(world.root)
        assert tree(ws) in (old, new), f"killed before step {step}"
        assert found == ("applied" if tree(ws) == new else "not_applied")
        assert unsure in (found, "unknown")
        seen.add(found)
        if not died:
            break
    assert not died
    assert seen == {"applied", "not_applied"}


def test_a_move_to_another_file_system_leaves_the_source_or_the_destination(tmp_path: Path) -> None:
    for step in range(0, MOST, 4):  # each with a mount, which takes longer than all the rest
        folder = tmp_path / str(step)
        folder.mkdir()
        ws = prepared(folder)
        (ws / "m").mkdir()
        with mounted(ws / "m", "-t", "tmpfs"):
            died = killed(folder, step, "move", {"source_path": "d", "dest_path": "m/d"})
            with closing(World(folder, opening.by_kernel)) as world:
                clean(world.root)
            found = tree(ws)
        source = {name for name in found if name == "d" or name.startswith("d/")}
        destination = {name for name in found if name.startswith("m/")}
        whole = {"d", "d/e", "d/e/f", "d/g"}
        assert source in (set(), whole)
        assert {name.removeprefix("m/") for name in destination} in (set(), whole)
        assert source or destination
        assert set(found) - source - destination == {"a", "c", "m"}
        if not died:
            assert not source
            return
    pytest.fail(f"more than {MOST} steps")
