"""Copies files and trees, from descriptors and without following links. What was copied is synced."""

import errno
import os
import stat

from mesh.servers.filesystem.bounds import CHUNK, TimeLimit
from mesh.servers.filesystem.names import STAGING, shown
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.tree import CHILD, entries_of

_COPIED = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_LEVELS = 200
"""Of a tree that is copied."""


def copy_content(source: int, target: int, stop: TimeLimit) -> None:
    """Copies an open file. Shares the blocks where the file system can."""
    at = 0
    while True:
        stop.check()
        try:
            done = os.copy_file_range(source, target, 16 * CHUNK, at)
        except OSError as error:
            if at or error.errno not in (
                errno.EXDEV,
                errno.EINVAL,
                errno.ENOSYS,
                errno.EOPNOTSUPP,
                errno.EBADF,
            ):
                raise
            return _copy_by_hand(source, target, stop)
        if not done:
            return None
        at += done


def _copy_by_hand(source: int, target: int, stop: TimeLimit) -> None:
    at = 0
    while chunk := os.pread(source, CHUNK, at):
        stop.check()
        at += len(chunk)
        while chunk:
            chunk = chunk[os.write(target, chunk) :]


def copy_tree(source: int, target: int, stop: TimeLimit, level: int = 0) -> None:
    """Copies what is in one open folder into another, which is empty. Links are copied as links. Everything
    is synced. Raises `FileRefusal` and `OSError`."""
    if level > MOST_LEVELS:
        raise FileRefusal(f"the folder is nested more than {MOST_LEVELS} levels deep")
    for name, mode in entries_of(source):
        stop.check()
        if name == STAGING:  # the copy itself may be in there
            continue
        if mode == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif mode == stat.S_IFDIR:
            _copy_folder(source, target, name, stop, level)
        elif mode == stat.S_IFREG:
            copy_file(source, target, name, name, stop)
        else:
            raise FileRefusal(
                f"{shown(name)} is neither a file nor a folder nor a link, and cannot be copied"
            )
    os.fsync(target)


def _copy_folder(source: int, target: int, name: str, stop: TimeLimit, level: int) -> None:
    inner = os.open(name, CHILD, dir_fd=source)
    try:
        os.mkdir(name, 0o700, dir_fd=target)
        made = os.open(name, CHILD, dir_fd=target)
        try:
            copy_tree(inner, made, stop, level + 1)
            os.fchmod(made, stat.S_IMODE(os.fstat(inner).st_mode) & 0o777)
        finally:
            os.close(made)
    finally:
        os.close(inner)


def copy_file(source: int, target: int, name: str, new_name: str, stop: TimeLimit) -> None:
    """Copies one file, with the bits of its mode that are not special, and syncs it. Raises `FileRefusal`
    and `OSError`."""
    taken = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
    try:
        mode = os.fstat(taken).st_mode
        if not stat.S_ISREG(mode):
            raise FileRefusal(f"{shown(name)} changed while it was copied")
        made = os.open(new_name, _COPIED, 0o600, dir_fd=target)
        try:
            copy_content(taken, made, stop)
            os.fchmod(made, stat.S_IMODE(mode) & 0o777)
            os.fsync(made)
        finally:
            os.close(made)
    finally:
        os.close(taken)
