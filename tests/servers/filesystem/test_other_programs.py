"""Another program, which knows of no locks, writes at some step of a change: what it wrote is not lost."""

from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mesh.servers.filesystem import opening
from mesh.servers.filesystem.names import STAGING
from tests.servers.filesystem.steps import MOST, changed
from tests.servers.filesystem.world import World

THEIRS = "by another program\n"
CREATING: dict[str, tuple[str, dict[str, Any], str]] = {
    "create": ("write_file", {"path": "n", "content": "new\n"}, "n"),
    "create only": ("write_file", {"path": "n", "content": "new\n", "mode": "create_only"}, "n"),
    "create below a new folder": ("write_file", {"path": "n/e/w", "content": "new\n"}, "n/e/w"),
    "append to nothing": ("write_file", {"path": "n", "content": "new\n", "mode": "append"}, "n"),
    "patch nothing": ("patch_file", {"path": "n", "edits": [{"old": "", "new": "x"}]}, "n"),
    "copy": ("copy", {"source_path": "a", "dest_path": "n"}, "n"),
    "copy a folder": ("copy", {"source_path": "d", "dest_path": "n"}, "n"),
    "move": ("move", {"source_path": "a", "dest_path": "n"}, "n"),
    "move below a new folder": ("move", {"source_path": "a", "dest_path": "n/e/w"}, "n/e/w"),
    "move what they write": ("move", {"source_path": "a", "dest_path": "n"}, "a"),
    "move a folder": ("move", {"source_path": "d", "dest_path": "n"}, "n"),
    "move a folder in which they write": ("move", {"source_path": "d", "dest_path": "n"}, "d/f"),
}
REPLACING: dict[str, tuple[str, dict[str, Any], str]] = {
    "overwrite": ("write_file", {"path": "a", "content": "new\n"}, "a"),
    "append": ("write_file", {"path": "a", "content": "new\n", "mode": "append"}, "a"),
    "patch": ("patch_file", {"path": "a", "edits": [{"old": "one", "new": "two"}]}, "a"),
    "remove": ("remove_file", {"path": "a"}, "a"),
    "replace by a copy": ("copy", {"source_path": "a", "dest_path": "c", "overwrite": True}, "c"),
    "replace by a move": ("move", {"source_path": "a", "dest_path": "c", "overwrite": True}, "c"),
}


def write(path: Path) -> None:
    """As editors do that write into the file itself."""
    with suppress(IsADirectoryError):  # then it is they who have to give way
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(THEIRS)


def replace(path: Path) -> None:
    """As editors do that bring a new file to the place of the old one."""
    path.with_name("saved").write_text(THEIRS)
    path.with_name("saved").replace(path)


def steps_that_lose(
    folder: Path, tool: str, arguments: dict[str, Any], path: str, how: Callable[[Path], None]
) -> list[int]:
    """Makes a change again and again, with another program at each of its steps. Returns those at which what
    it wrote is nowhere in the end."""
    lost = []
    for step in range(MOST):
        ws = folder / str(step) / "ws"
        (ws / "d").mkdir(parents=True)
        for name in ("a", "c", "d/f"):
            (ws / name).write_text(f"one {name}\n")
        with closing(World(ws.parent, opening.by_kernel)) as world:
            expect = world.call(tool, **arguments, dry_run=True)["expect"]
        code, came = changed(ws.parent, tool, {**arguments, "expect": expect}, step, partial(how, ws / path))
        assert code in (0, 1)
        assert not (ws / STAGING).exists()
        if not came:
            assert code == 0
            return lost
        files = [file for file in ws.rglob("*") if file.is_file()]
        if not any(file.read_text() == THEIRS for file in files) and not (ws / path).is_dir():
            lost.append(step)
    pytest.fail(f"more than {MOST} steps")


@pytest.mark.parametrize("name", CREATING)
def test_what_came_into_being_meanwhile_is_never_replaced(tmp_path: Path, name: str) -> None:
    tool, arguments, path = CREATING[name]
    assert steps_that_lose(tmp_path, tool, arguments, path, write) == []


@pytest.mark.parametrize("how", [write, replace])
@pytest.mark.parametrize("name", REPLACING)
def test_what_was_changed_meanwhile_is_replaced_in_the_very_last_step_only(
    tmp_path: Path, name: str, how: Callable[[Path], None]
) -> None:
    tool, arguments, path = REPLACING[name]
    assert len(steps_that_lose(tmp_path, tool, arguments, path, how)) <= 1
