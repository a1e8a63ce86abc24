"""What a command made under a name that rules hide or freeze is taken away again when it has ended.

No sandbox knows patterns of names: it covers what is there when a command starts. What is new is moved to the
folder of the server's records, which no command reads, under a name that says nothing.
"""

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mesh.sandbox.box import Covered
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.names import shown
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.removing import remove_tree
from mesh.servers.filesystem.root import FOLDER, Root
from mesh.servers.filesystem.tree import listed
from mesh.servers.shell.covered import covered_names
from mesh.servers.shell.moving import moved_away
from mesh.servers.shell.stand_ins import StandIns

_MOST_TOLD = 20
_WHY_REMOVED = "it could not be moved: it is no file, or too large to be copied"
MOST_KEPT = 100
"""Commands of which it is kept what was taken away."""
MOST_BYTES_KEPT = 256 << 20
"""Of all of them but the newest."""
_LEAST_BYTES = 4096
"""That a file counts for: also many empty files take room."""


def taken_away(
    roots: Sequence[Root], before: Covered, stand_ins: StandIns, kept: Path, stop: TimeLimit
) -> dict[str, Any]:
    """Moves what is new into the folder ``kept``. Returns what the result of the call tells of it; nothing if
    nothing is new. What cannot be looked at or moved is no reason to leave the rest."""
    found: list[dict[str, str]] = []
    problems: list[str] = []
    place = kept / _name()
    for root in roots:
        for path in _new(root, before, stand_ins, stop, problems):
            told = {"root": root.name, "path": shown(path)}
            try:
                where = moved_away(root, path, place, str(len(found)))
                found.append(told | ({"moved_to": shown(where)} if where else {"removed": _WHY_REMOVED}))
            except (FileRefusal, OSError) as error:
                problems.append(f"{shown(path)} is still there: {error}")
    if found:
        _forget_older(kept)
    return _told(found, problems)


def _name() -> str:
    """Of what one call took away. It sorts by time."""
    now = time.time_ns()
    day = time.strftime("%Y%m%d-%H%M%S", time.localtime(now // 10**9))
    return f"{day}-{now % 10**9:09}-{secrets.token_hex(4)}"


def _told(found: list[dict[str, str]], problems: list[str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if found:
        why = "hide or freeze forbid these names: what the command made there was moved"
        told = {"refused": found[:_MOST_TOLD], "refused_because": why}
    if len(found) > _MOST_TOLD:
        told["refused_count"] = len(found)
    if problems:
        told["refused_problem"] = "; ".join(problems[:_MOST_TOLD])
    return told


def _new(
    root: Root, before: Covered, stand_ins: StandIns, stop: TimeLimit, problems: list[str]
) -> Iterator[str]:
    """The outermost paths in a root that are covered by their names, and were not there before."""
    names: list[str] = []
    try:
        names.extend(each.path for each in covered_names(root, stop))
    except FileRefusal as error:
        problems.append(f"more of the root {root.name} could not be looked at: {error}")
    last = ""
    for path in sorted(names):
        where = f"{root.where}/{path}"
        is_known = where in before.names or stand_ins.covers(where)
        if not is_known and not (last and path.startswith(f"{last}/")):
            last = path
            yield path


def _forget_older(kept: Path) -> None:
    """Removes what is beyond the bounds, the oldest first."""
    folder = os.open(kept, FOLDER | os.O_CLOEXEC)
    try:
        room = MOST_BYTES_KEPT
        # The names begin with the time.
        for number, name in enumerate(sorted(listed(folder), reverse=True)):
            if number:
                room -= _size(kept / name, room)
            if number >= MOST_KEPT or room < 0:
                remove_tree(folder, name)
    finally:
        os.close(folder)


def _size(path: Path, most: int) -> int:
    """What a tree takes, or something beyond ``most``."""
    total = 0
    for folder, folders, files in os.walk(path):
        total += _LEAST_BYTES * len(folders)
        total += sum(max(_LEAST_BYTES, os.lstat(f"{folder}/{name}").st_size) for name in files)
        if total > most:
            break
    return total
