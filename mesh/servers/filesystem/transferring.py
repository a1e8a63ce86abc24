"""The tools ``copy`` and ``move``: from one root to another, or within one.

Both change the destination with one rename. A move within a file system is that rename. Between two, it is a
copy that takes its place, and then the removal of the source: a crash in between leaves both.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from mesh.processes import kernel
from mesh.servers.filesystem import unified_diff
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.call import Call
from mesh.servers.filesystem.changing import Change, carried_out, present, state_of
from mesh.servers.filesystem.copying import copy_file, copy_tree
from mesh.servers.filesystem.expectations import ABSENT, Expected, outcome, parsed
from mesh.servers.filesystem.names import Parts
from mesh.servers.filesystem.refusal import FileRefusal, StateConflict
from mesh.servers.filesystem.root import FOLDER, Root, kind
from mesh.servers.filesystem.staging import lock
from mesh.servers.filesystem.target import Target, nearest, targeted
from mesh.servers.filesystem.tree import summed_up
from mesh.servers.filesystem.unified_diff import ChangePreview, File


class Source(NamedTuple):
    """What is copied: the name ``name`` in an open folder."""

    root: Root
    parts: Parts
    folder: int
    name: str
    found: os.stat_result

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.found.st_mode)


def copy(call: Call) -> dict[str, Any]:
    root = call.root("source_root")
    parts = root.following(call.parts("source_path"))
    with targeted(call.root("dest_root"), call.parts("dest_path")) as target:
        if call.flag("check"):
            return _looked_up(call, _state(root, parts, call.stop), target)
        with _source(call, root, parts) as source:
            _check(call, source, target, moves=False)
            return carried_out(call, call.path("dest_path"), _copying(call, source, target))


@contextmanager
def _source(call: Call, root: Root, parts: Parts) -> Iterator[Source]:
    try:
        with root.opened(parts[:-1], FOLDER) as folder:
            name = parts[-1] if parts else "."
            yield Source(root, parts, folder, name, os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        raise FileRefusal(f"{call.path('source_path')}: path not found") from None


def _check(call: Call, source: Source, target: Target, *, moves: bool) -> None:
    """Raises `FileRefusal` if the one may not come in the place of the other."""
    mode = source.found.st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (moves and stat.S_ISLNK(mode))):
        raise FileRefusal(
            f"{call.path('source_path')}: is a {kind(mode)}: only regular files and folders are taken"
        )
    if target.found is not None:
        what = kind(target.found.st_mode)
        if source.is_folder or not stat.S_ISREG(target.found.st_mode):
            raise FileRefusal(
                f"{call.path('dest_path')}: exists, and is a {what}: give a path that does not exist"
            )
        if not call.flag("overwrite"):
            raise FileRefusal(f"{call.path('dest_path')}: already exists: say overwrite: true to replace it")
        if os.path.samestat(source.found, target.found):
            raise FileRefusal(f"{call.path('dest_path')}: is the same file as the source")
    if moves and source.is_folder and _is_within(target, source):
        raise FileRefusal(f"{call.path('source_path')}: a folder cannot be moved into itself")
    if source.is_folder:
        with source.root.opened(source.parts, FOLDER) as top:
            summed_up(
                source.root, source.parts, top, call.stop, becomes=(target.root, target.parts), moves=moves
            )


def _is_within(target: Target, source: Source) -> bool:
    """Whether a place is in a folder that is to move. Of roots within one another, the kernel finds out."""
    is_same = source.root.folder == target.root.folder
    return is_same and target.parts[: len(source.parts)] == source.parts


def _copying(call: Call, source: Source, target: Target) -> Change:
    def apply() -> None:
        target.publish(
            lambda folder, name: _copy(source, folder, name, call.stop), replace=target.found is not None
        )

    return _change(call, source, target, apply, "copied", leaves_source=True)


def _copy(source: Source, folder: int, name: str, stop: TimeLimit) -> None:
    if stat.S_ISLNK(source.found.st_mode):
        os.symlink(os.readlink(source.name, dir_fd=source.folder), name, dir_fd=folder)
    elif not source.is_folder:
        copy_file(source.folder, folder, source.name, name, stop)
    else:
        os.mkdir(name, 0o700, dir_fd=folder)
        with source.root.opened(source.parts, FOLDER) as top:
            made = os.open(name, FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                copy_tree(top, made, stop)
                os.fchmod(made, stat.S_IMODE(os.fstat(top).st_mode) & 0o777)
            finally:
                os.close(made)


def _change(
    call: Call, source: Source, target: Target, apply: Any, verb: str, *, leaves_source: bool
) -> Change:
    paths = call.path("source_path"), call.path("dest_path")
    result: dict[str, Any] = {"source": paths[0], "destination": paths[1], "is_directory": source.is_folder}
    if not source.is_folder:
        result["size"] = source.found.st_size
    own, there = ("", "")
    if call.wants_states:
        own, there = _state(source.root, source.parts, call.stop), state_of(target, call.stop)
    left = own if leaves_source else ABSENT

    def preview() -> ChangePreview:
        shown = _replaced(call, source, target, (there, own))
        if shown is None:
            text = f"the {kind(source.found.st_mode)} {paths[0]} is {verb} to {paths[1]}"
            shown = unified_diff.told(text, paths[1], (there, own))
        return shown._replace(files=(File(paths[0], own, left), *shown.files))

    return Change((_pair(own, there), _pair(left, own)), preview, apply, result)


def _replaced(call: Call, source: Source, target: Target, states: tuple[str, str]) -> ChangePreview | None:
    """What becomes of a file that is there; None if there is none."""
    if target.found is None:
        return None
    taken = Target(source.root, source.parts, source.folder, source.parts[:-1])
    new = present(taken, call.stop, hashed=False).text if taken.is_regular else None
    old = present(target, call.stop, hashed=False).text
    if old is None or new is None:
        text = f"{call.path('source_path')} takes the place of {call.path('dest_path')}, which is not shown"
        return unified_diff.told(text, call.path("dest_path"), states)
    return unified_diff.preview(call.path("dest_path"), old, new, states)


def _pair(source: str, destination: str) -> str:
    return hashlib.sha256(f"{source} {destination}".encode()).hexdigest()


def _state(root: Root, parts: Parts, stop: TimeLimit) -> str:
    """The state of a source."""
    if not parts:
        return "root"
    try:
        folder = root.open_(root.folder, parts[:-1], FOLDER)
    except FileNotFoundError:
        return ABSENT
    try:
        return state_of(Target(root, parts, folder, parts[:-1]), stop)
    finally:
        os.close(folder)


def _looked_up(call: Call, source: str, target: Target) -> dict[str, Any]:
    """The outcome, for both paths together."""
    there = state_of(target, call.stop)
    known = parsed(call.text("expect"))
    if known.before is None and not call.flag("overwrite"):
        known = Expected(_pair(source, ABSENT), known.after)
    if known.after is None and call.tool == "copy":
        known = Expected(known.before, _pair(source, source))
    if known.after is None and source == ABSENT and there != ABSENT:
        known = Expected(known.before, _pair(source, there))
    return outcome(_pair(source, there), known, f"{call.path('source_path')} and {call.path('dest_path')}")


def move(call: Call) -> dict[str, Any]:
    with _both(call) as (origin, target):
        if call.flag("check"):
            return _looked_up(call, state_of(origin, call.stop), target)
        with _source(call, origin.root, origin.parts) as source:
            origin.check_not_mounted()
            _check(call, source, target, moves=True)
            change = _change(
                call,
                source,
                target,
                lambda: _move(call, source, origin, target),
                "moved",
                leaves_source=False,
            )
            return carried_out(call, call.path("dest_path"), change)


@contextmanager
def _both(call: Call) -> Iterator[tuple[Target, Target]]:
    """Source and destination, with the folders of both locked."""
    sides = [(call.root(f"{side}_root"), call.parts(f"{side}_path")) for side in ("source", "dest")]
    with ExitStack() as stack:
        places = [nearest(root, parts) for root, parts in sides]
        for folder, _ in places:
            stack.callback(os.close, folder)
        # In one order everywhere, so that two moves in opposite directions do not wait for each other; and
        # once only, if both are in one folder.
        identities = {_identity(folder): folder for folder, _ in places}
        for identity in sorted(identities):
            lock(identities[identity])
        origin, target = (
            Target(root, parts, folder, existing)
            for (root, parts), (folder, existing) in zip(sides, places, strict=True)
        )
        yield origin, target


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _move(call: Call, source: Source, origin: Target, target: Target) -> None:
    if target.found is not None:
        target.check_replaceable()
    with _parent(target) as folder:
        origin.check_unchanged()
        if target.found is not None:
            target.check_unchanged()
        if _renamed(source, origin, folder, target):
            os.fsync(folder)
            os.fsync(source.folder)
            return
        copied = Target(target.root, target.parts, folder, target.parts[:-1])
        copied.found = target.found  # what was seen, and not what may be there by now
        copied.publish(lambda at, name: _copy(source, at, name, call.stop), replace=target.found is not None)
    try:
        origin.take_away()
    except StateConflict:
        raise FileRefusal(
            f"{origin.path}: changed while it was copied to {target.path}, and stays: remove one of the two"
        ) from None


def _renamed(source: Source, origin: Target, folder: int, target: Target) -> bool:
    """Renames the source, unless it is on another file system."""
    flags = 0 if target.found is not None else kernel.RENAME_NOREPLACE
    try:
        kernel.rename(source.folder, source.name, folder, target.name, flags)
    except FileExistsError:
        raise StateConflict(f"{target.path}: came into being meanwhile: nothing was changed") from None
    except OSError as error:
        if error.errno == errno.EINVAL and source.is_folder:
            raise FileRefusal(f"{origin.path}: a folder cannot be moved into itself") from None
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS):
            raise
        return False
    return True


@contextmanager
def _parent(target: Target) -> Iterator[int]:
    """The folder that the destination is in. It is made if it is missing: before the move, because a source
    that lay in a place of ours, even for a moment, would be lost by a crash."""
    parts = target.parts[:-1]
    if len(target.existing) < len(parts):
        parent = Target(target.root, parts, target.folder, target.existing)
        parent.publish(lambda folder, name: os.mkdir(name, 0o777, dir_fd=folder), replace=False)
    with target.root.opened(parts, FOLDER) as folder:
        yield folder
