"""What a command made under a name that rules hide or freeze is taken away again when it has ended.

No sandbox knows patterns of names: it covers what is there when a command starts. Nothing is lost: it is
moved into a folder of the server, under a name that says nothing.
"""

import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.names import shown
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import FOLDER, Root
from mesh.servers.shell.box import Covered
from mesh.servers.shell.covered import covered_names
from mesh.servers.shell.output_folder import PLACE, folder_of_server
from mesh.servers.shell.stand_ins import StandIns

_PLACE = (PLACE[0], "refused")
_MOST_TOLD = 20


def taken_away(
    roots: Sequence[Root], before: Covered, stand_ins: StandIns, stop: TimeLimit
) -> dict[str, Any]:
    """Moves what is new, and returns what the result of the call tells of it; nothing if nothing is."""
    found: list[dict[str, str]] = []
    try:
        for root in roots:
            found += [_moved(root, path) for path in _new(root, before, stand_ins, stop)]
    except (FileRefusal, OSError) as error:
        return {"refused": found[:_MOST_TOLD], "refused_problem": f"more could not be looked at: {error}"}
    if not found:
        return {}
    more = {"refused_count": len(found)} if len(found) > _MOST_TOLD else {}
    why = "hide or freeze forbid these names: what the command made there was moved"
    return {"refused": found[:_MOST_TOLD], **more, "refused_because": why}


def _new(root: Root, before: Covered, stand_ins: StandIns, stop: TimeLimit) -> list[str]:
    """The outermost paths in a root that are covered by their names, and were not there before."""
    found: list[str] = []
    for path in sorted(each.path for each in covered_names(root, stop)):
        where = f"{root.where}/{path}"
        is_known = where in before.names or stand_ins.covers(where)
        if not is_known and not any(path.startswith(f"{other}/") for other in found[-1:]):
            found.append(path)
    return found


def _moved(root: Root, path: str) -> dict[str, str]:
    *above, name = path.split("/")
    new = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    folder = folder_of_server(root, _PLACE)
    try:
        with root.opened(tuple(above), FOLDER) as parent:
            os.rename(name, new, src_dir_fd=parent, dst_dir_fd=folder)
    finally:
        os.close(folder)
    return {"root": root.name, "path": shown(path), "moved_to": "/".join((*_PLACE, new))}
