"""Trees of folders: listed and summed up, from descriptors and without following links."""

import errno
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mesh.servers.filesystem.bounds import CHUNK, MOST_ENTRIES, TimeLimit
from mesh.servers.filesystem.names import STAGING, Parts, shown, text_of
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import FOLDER, Root, kind

CHILD = FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeEntry(NamedTuple):
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
) -> Iterator[TreeEntry]:
    """All that is below an open folder, each folder before its content, sorted within a folder. Ends silently
    when ``stop`` is over.

    With ``enters``, that is asked with the path of a folder and a descriptor before the folder is entered,
    and a folder that cannot be opened is passed over. Without, raises `OSError`: the walk is of everything.
    """
    levels: list[_Level] = []
    try:
        own = os.open(".", CHILD, dir_fd=top)
        levels.append(_Level(own, _entries(own, "")))
        while levels:
            entry = next(levels[-1].entries, None)
            if entry is None:
                os.close(levels.pop().folder)
                if stop.is_over:
                    return
                continue
            yield entry
            if entry.mode == stat.S_IFDIR and (max_depth is None or len(levels) < max_depth):
                child = _entered(entry, enters)
                if child is not None:
                    levels.append(_Level(child, _entries(child, f"{entry.path}/")))
    finally:
        for level in levels:
            os.close(level.folder)


class _Level(NamedTuple):
    """A folder that the walk is in, and what of it is still to come."""

    folder: int
    entries: Iterator[TreeEntry]


def _entries(folder: int, prefix: str) -> Iterator[TreeEntry]:
    for name, mode in entries_of(folder):
        yield TreeEntry(prefix + name, name, mode, folder)


def _entered(entry: TreeEntry, enters: Callable[[str, int], bool] | None) -> int | None:
    try:
        child = os.open(entry.name, CHILD, dir_fd=entry.folder)
    except OSError as error:
        if enters is None or error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    if enters is None or enters(entry.path, child):
        return child
    os.close(child)
    return None


def entries_of(folder: int) -> Iterator[tuple[str, int]]:
    """The names in an open folder, sorted, each with its type."""
    with os.scandir(folder) as entries:
        found = [(entry.name, _type(entry)) for entry in entries]
    found.sort()
    return iter(found)


def listed(folder: int) -> list[str]:
    """The names in an open folder."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _type(entry: "os.DirEntry[str]") -> int:
    if entry.is_file(follow_symlinks=False):  # first what most are
        return stat.S_IFREG
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFLNK if entry.is_symlink() else 0


class TreeSize(NamedTuple):
    """What a tree holds."""

    files: int = 0
    folders: int = 0
    links: int = 0
    size: int = 0


def summed_up(
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
    device, size = os.fstat(top).st_dev, 0
    types: Counter[int] = Counter()
    for count, entry in enumerate(walk(top, stop)):
        if STAGING in entry.path.split("/", 1) or entry.name == STAGING:
            continue
        if count >= MOST_ENTRIES:
            raise FileRefusal(f"{text_of(parts)}: holds more than {MOST_ENTRIES} entries")
        own = "/".join((*parts, entry.path))
        root.check_below(own, writes=moves)
        if becomes is not None:
            becomes[0].check_below("/".join((*becomes[1], entry.path)), writes=True)
        found = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
        if why := _immovable(found, device, is_kept=becomes is not None):
            raise FileRefusal(f"{shown(own)}: {why}")
        types[stat.S_IFMT(found.st_mode)] += 1
        size += found.st_size if stat.S_ISREG(found.st_mode) else 0
    stop.check()
    return TreeSize(types[stat.S_IFREG], types[stat.S_IFDIR], types[stat.S_IFLNK], size)


def _immovable(found: os.stat_result, device: int, *, is_kept: bool) -> str:
    """Why a tree with this in it stays where it is; empty if it need not. ``is_kept``: it is not removed."""
    if stat.S_ISDIR(found.st_mode):
        return "is a mount point" if found.st_dev != device else ""
    if is_kept and not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return f"is a {kind(found.st_mode)}, which is neither copied nor moved"
    return ""


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
