"""Trees of folders: listed, summed up, copied and removed, from descriptors and without following links."""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mesh.servers.filesystem.bounds import CHUNK, MOST_ENTRIES, TimeLimit
from mesh.servers.filesystem.names import STAGING, Parts, shown, text_of
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import FOLDER, Root, kind

_CHILD = FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC
_COPIED = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_LEVELS = 200
"""Of a tree that is copied."""


class Entry(NamedTuple):
    """``path`` is relative to the top of the walk; ``folder`` is the open folder that the entry is in, until
    the walk goes on."""

    path: str
    name: str
    mode: int
    folder: int


def walk(
    top: int,
    stop: TimeLimit,
    *,
    max_depth: int | None = None,
    enters: Callable[[str, int], bool] | None = None,
) -> Iterator[Entry]:
    """All that is below an open folder, each folder before its content, sorted within a folder. Ends silently
    when ``stop`` is over.

    With ``enters``, that is asked with the path of a folder and a descriptor before the folder is entered,
    and a folder that cannot be opened is passed over. Without, raises `OSError`: the walk is of everything.
    """
    open_folders: list[tuple[str, int, Iterator[tuple[str, int]]]] = []
    try:
        own = os.open(".", _CHILD, dir_fd=top)
        open_folders.append(("", own, _listed(own)))
        while open_folders:
            prefix, folder, names = open_folders[-1]
            found = next(names, None)
            if found is None:
                open_folders.pop()
                os.close(folder)
                if stop.is_over:
                    return
                continue
            name, mode = found
            path = prefix + name
            yield Entry(path, name, mode, folder)
            if mode != stat.S_IFDIR or (max_depth is not None and len(open_folders) >= max_depth):
                continue
            child = _entered(folder, path, name, enters)
            if child is not None:
                open_folders.append((f"{path}/", child, _listed(child)))
    finally:
        for _, folder, _names in open_folders:
            os.close(folder)


def _entered(folder: int, path: str, name: str, enters: Callable[[str, int], bool] | None) -> int | None:
    try:
        child = os.open(name, _CHILD, dir_fd=folder)
    except OSError as error:
        if enters is None or error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    if enters is None or enters(path, child):
        return child
    os.close(child)
    return None


def _listed(folder: int) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        found = [(entry.name, _type(entry)) for entry in entries]
    found.sort()
    return iter(found)


def listed(folder: int) -> list[str]:
    """The names in an open folder."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _type(entry: "os.DirEntry[str]") -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    if entry.is_file(follow_symlinks=False):
        return stat.S_IFREG
    return 0


class TreeSize(NamedTuple):
    """What a tree holds."""

    files: int = 0
    folders: int = 0
    links: int = 0
    size: int = 0


def checked(
    root: Root,
    parts: Parts,
    top: int,
    stop: TimeLimit,
    *,
    becomes: tuple[Root, Parts] | None = None,
    moves: bool = True,
) -> TreeSize:
    """Sums up a tree that is about to be moved, copied or removed. Without ``moves``, the tree itself stays.

    Raises `FileRefusal` if something in it, or in the place that it is going to, is hidden or frozen, is a
    mount point, or is no file, folder or link.
    """
    device = os.fstat(top).st_dev
    files = folders = links = size = 0
    for count, entry in enumerate(walk(top, stop)):
        if STAGING in entry.path.split("/", 1) or entry.name == STAGING:
            continue
        own = "/".join((*parts, entry.path))
        root.check_below(own, writes=moves)
        if becomes is not None:
            becomes[0].check_below("/".join((*becomes[1], entry.path)), writes=True)
        if count >= MOST_ENTRIES:
            raise FileRefusal(f"{text_of(parts)}: holds more than {MOST_ENTRIES} entries")
        found = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            if found.st_dev != device:
                raise FileRefusal(f"{shown(own)}: is a mount point")
            folders += 1
        elif stat.S_ISLNK(found.st_mode):
            links += 1
        elif stat.S_ISREG(found.st_mode):
            files, size = files + 1, size + found.st_size
        elif becomes is not None:
            raise FileRefusal(f"{shown(own)}: is a {kind(found.st_mode)}, which is neither copied nor moved")
    stop.check()
    return TreeSize(files, folders, links, size)


def digest(top: int, stop: TimeLimit) -> str:
    """A hash of all names, types and contents of a tree."""
    total = hashlib.sha256()
    for entry in walk(top, stop):
        content = ""
        if entry.mode == stat.S_IFREG:
            content = hash_at(entry.folder, entry.name, stop)
        elif entry.mode == stat.S_IFLNK:
            content = shown(os.readlink(entry.name, dir_fd=entry.folder))
        total.update(f"{entry.mode:o} {shown(entry.path)!r} {content!r}\n".encode())
    stop.check()
    return total.hexdigest()


def hash_at(folder: int, name: str, stop: TimeLimit) -> str:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        return hash_of(descriptor, stop)
    finally:
        os.close(descriptor)


def hash_of(descriptor: int, stop: TimeLimit, algorithm: str = "sha256") -> str:
    """The hash of an open file, from its beginning to its end."""
    total, at = hashlib.new(algorithm, usedforsecurity=False), 0
    while chunk := os.pread(descriptor, CHUNK, at):
        total.update(chunk)
        at += len(chunk)
        stop.check()
    return total.hexdigest()


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
    is synced."""
    if level > MOST_LEVELS:
        raise FileRefusal(f"the folder is nested more than {MOST_LEVELS} levels deep")
    for name, mode in _listed(source):
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
    inner = os.open(name, _CHILD, dir_fd=source)
    try:
        os.mkdir(name, 0o700, dir_fd=target)
        made = os.open(name, _CHILD, dir_fd=target)
        try:
            copy_tree(inner, made, stop, level + 1)
            os.fchmod(made, stat.S_IMODE(os.fstat(inner).st_mode) & 0o777)
        finally:
            os.close(made)
    finally:
        os.close(inner)


def copy_file(source: int, target: int, name: str, new_name: str, stop: TimeLimit) -> None:
    """Copies one file, with the bits of its mode that are not special, and syncs it."""
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


_FLAT = 50


def remove_tree(folder: int, name: str) -> None:
    """Removes a file, a link, or a folder with all that is in it. ``folder`` must be a place where only we
    are: folders that are nested very deeply are moved there before they are removed, so that their number,
    and not their depth, grows."""
    waiting = [name]
    while waiting:
        _remove(folder, waiting.pop(), folder, waiting, 0)


def _remove(folder: int, name: str, flat: int, waiting: list[str], level: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if level > _FLAT:
            waiting.append(_flattened(folder, name, flat))
            return
        _remove_folder(folder, name, flat, waiting, level)


def _remove_folder(folder: int, name: str, flat: int, waiting: list[str], level: int) -> None:
    try:
        inner = os.open(name, _CHILD, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)  # ours: it lies in our staging folder
        inner = os.open(name, _CHILD, dir_fd=folder)
    try:
        for each, _ in _listed(inner):
            _remove(inner, each, flat, waiting, level + 1)
    except PermissionError:
        os.fchmod(inner, 0o700)
        for each, _ in _listed(inner):
            _remove(inner, each, flat, waiting, level + 1)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _flattened(folder: int, name: str, flat: int) -> str:
    new_name = f"flat-{os.urandom(8).hex()}"
    os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=flat)
    return new_name
