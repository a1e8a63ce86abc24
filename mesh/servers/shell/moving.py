"""Moves a file or a folder out of a root, whatever its modes are, and also to another file system.

A command may run at the same time: no link is followed in the root, and everything goes by descriptors.
"""

import errno
import os
import stat
from pathlib import Path

from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.copying import MOST_LEVELS, copy_file, copy_tree
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import FOLDER, Root
from mesh.servers.filesystem.tree import listed

_COPY_WITHIN_S = 30.0
_FOLDER = FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC


def moved_away(root: Root, path: str, place: Path, name: str) -> str:
    """Moves what is at a path into the folder ``place``, which is made. Returns where it is now; nothing
    if it could only be removed, as something that is no file, or too large to be copied. Raises `OSError` and
    `FileRefusal` if it is still there."""
    *above, own = path.split("/")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = os.open(place, _FOLDER)
    try:
        with root.opened(tuple(above), FOLDER) as parent:
            if _renamed(parent, own, target, name):
                return str(place / name)
            is_copied = _copied(parent, own, target, name)
            _remove(parent, own)
    finally:
        os.close(target)
    return str(place / name) if is_copied else ""


def _renamed(parent: int, own: str, target: int, name: str) -> bool:
    for _ in range(2):
        try:
            os.rename(own, name, src_dir_fd=parent, dst_dir_fd=target)
            return True
        except PermissionError:
            _make_writable(parent, own)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return False
            raise
    return False


def _copied(parent: int, own: str, target: int, name: str) -> bool:
    """Whether it could be copied. What is left of a copy that failed is removed with the others."""
    _make_writable(parent, own)
    mode = os.stat(own, dir_fd=parent, follow_symlinks=False).st_mode
    stop = TimeLimit(_COPY_WITHIN_S)
    try:
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(own, dir_fd=parent), name, dir_fd=target)
        elif stat.S_ISDIR(mode):
            _copy_folder(parent, own, target, name, stop)
        else:
            copy_file(parent, target, own, name, stop)
    except (FileRefusal, OSError):
        return False
    return True


def _copy_folder(parent: int, own: str, target: int, name: str, stop: TimeLimit) -> None:
    os.mkdir(name, 0o700, dir_fd=target)
    source, made = os.open(own, _FOLDER, dir_fd=parent), os.open(name, _FOLDER, dir_fd=target)
    try:
        copy_tree(source, made, stop)
    finally:
        os.close(source)
        os.close(made)


def _make_writable(parent: int, name: str) -> None:
    """Lets a name in an open folder be moved, or what is in it be removed: the folder above it has to be
    writable, and a folder itself, too."""
    os.fchmod(parent, stat.S_IMODE(os.fstat(parent).st_mode) | stat.S_IRWXU)
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):  # a file may be another's under a second name
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | stat.S_IRWXU)  # noqa: PTH101
    finally:
        os.close(descriptor)


def _remove(parent: int, name: str, level: int = 0) -> None:
    if level > MOST_LEVELS:
        raise OSError(errno.ELOOP, f"it is nested more than {MOST_LEVELS} levels deep")
    _make_writable(parent, name)
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        inner = os.open(name, _FOLDER, dir_fd=parent)
        try:
            for each in listed(inner):
                _remove(inner, each, level + 1)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=parent)
