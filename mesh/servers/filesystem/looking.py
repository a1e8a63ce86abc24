"""The tools ``list_roots``, ``list_folder``, ``stat_file``, ``hash_file`` and ``permissions_file``."""

import grp
import os
import pwd
import stat
from datetime import UTC, datetime
from typing import Any

from mesh.processes import kernel
from mesh.servers.filesystem.call import Call
from mesh.servers.filesystem.names import Parts, shown, text_of
from mesh.servers.filesystem.opening import resolved
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import FOLDER, Root, kind
from mesh.servers.filesystem.tree import hash_of, listed

MOST_LISTED = 100_000
_EXTERNAL = "external"


def list_roots(call: Call) -> list[dict[str, Any]]:
    def tools(root: Root) -> Any:
        return "*" if root.tools is None else sorted(root.tools)

    return sorted(
        ({"name": root.name, "allowed_tools": tools(root)} for root in call.roots),
        key=lambda each: str(each["name"]),
    )


def list_folder(call: Call) -> dict[str, Any]:
    root = call.root()
    parts = root.following(call.parts())
    with root.opened(parts, FOLDER) as folder:
        names = [name for name in sorted(listed(folder)) if not root.is_hidden((*parts, name))]
        found = [_entry(call, root, parts, folder, name) for name in names[:MOST_LISTED]]
    entries = [entry for entry in found if entry is not None]
    result: dict[str, Any] = {"entries": entries, "count": len(entries)}
    if len(names) > MOST_LISTED:
        result |= {
            "truncated": True,
            "hint": f"only the first {MOST_LISTED} are listed: glob finds the others",
        }
    return result


def _entry(call: Call, root: Root, parts: Parts, folder: int, name: str) -> dict[str, Any] | None:
    call.stop.check()
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:  # removed meanwhile
        return None
    entry = {"name": shown(name), "type": kind(found.st_mode), **_measures(found)}
    if stat.S_ISLNK(found.st_mode):
        entry["target_type"] = target_type(root, (*parts, name))
    return entry


def target_type(root: Root, parts: Parts) -> str:
    """What a link leads to: ``external`` if that is outside the root, ``missing`` if it is nothing."""
    try:
        return kind(root.stat(root.following(parts)).st_mode)
    except FileRefusal:
        return _EXTERNAL
    except OSError:
        return "missing"


def _measures(found: os.stat_result) -> dict[str, Any]:
    return {"size": found.st_size, "modified_at": moment(found.st_mtime)}


def moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # a file may have any time
        return "unknown"


def stat_file(call: Call) -> dict[str, Any]:
    root = call.root()
    own = _itself(root, call.parts())
    with root.opened(own, os.O_PATH) as descriptor:
        found, created_s = os.fstat(descriptor), kernel.created_s(descriptor)
    result = {
        "name": shown(own[-1]) if own else ".",
        "path": call.path(),
        "is_directory": stat.S_ISDIR(found.st_mode),
        "is_symlink": stat.S_ISLNK(found.st_mode),
        "type": kind(found.st_mode),
        **_measures(found),
    }
    if created_s is not None:
        result["created_at"] = moment(created_s)
    if stat.S_ISLNK(found.st_mode):
        result["target_type"] = target_type(root, own)
        if result["target_type"] in ("file", "directory"):
            target = root.following(own)
            result["target"] = {"path": text_of(target), **_measures(root.stat(target))}
    return result


def _itself(root: Root, parts: Parts) -> Parts:
    """The path without links before its last name: a link at the end is looked at itself."""
    if not parts:
        return parts
    own = (*resolved(root.open_, root.folder, parts[:-1]), parts[-1])
    root.check_visible(own)
    return own


def hash_file(call: Call) -> dict[str, Any]:
    algorithm = call.text("algorithm") or "sha256"
    with call.root().reading(call.parts()) as (descriptor, found, _):
        digest = hash_of(descriptor, call.stop, algorithm)
    return {"path": call.path(), "algorithm": algorithm, "hash": digest, "size": found.st_size}


def permissions_file(call: Call) -> dict[str, Any]:
    root = call.root()
    found = root.stat(root.following(call.parts()))
    return {
        "path": call.path(),
        "owner": _owner(found.st_uid),
        "group": _group(found.st_gid),
        "mode": f"{stat.S_IMODE(found.st_mode):04o}",
        "mode_string": stat.filemode(found.st_mode),
    }


def _owner(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OSError):
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except (KeyError, OSError):
        return str(number)
