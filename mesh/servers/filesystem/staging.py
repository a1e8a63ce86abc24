"""Where work is unfinished: a folder ``.mcp-filesystem`` in the root, which exists while there is work in it.

What is made, or removed, is in there under a name of its own until one rename puts it in its place, or has
taken it away. So a crash leaves the old state or the new one, and at most something in this folder. A server
that starts removes what is there and belongs to nobody: whoever works on an entry holds a lock on it, which
the kernel releases when the process ends.

    who makes an entry   locks the folder, shared; makes the entry and locks it; releases the folder
    who cleans up        locks the folder, exclusively; removes the entries that are not locked

So an entry is never seen before it is locked. A place on another file system than its root, which no rename
reaches, has a staging folder beside it. The root's then contains a link that says where.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mesh.servers.filesystem.names import STAGING, Parts
from mesh.servers.filesystem.opening import Open
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.removing import remove_tree
from mesh.servers.filesystem.root import FOLDER, Root
from mesh.servers.filesystem.tree import listed

_LOCK_WITHIN_S = 10.0
_RETRY_S = 0.002
_MOST_TRIES = 100
_OPENED = FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Locks an open file or folder. Raises `FileRefusal` if others hold it for too long."""
    deadline = time.monotonic() + _LOCK_WITHIN_S
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while not _locked(descriptor, how):
        if time.monotonic() > deadline:
            raise FileRefusal(
                f"another call has been changing this folder for {_LOCK_WITHIN_S:g} s: try again later"
            )
        time.sleep(_RETRY_S)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def staged(root: Root, near: int | None = None) -> Iterator[int]:
    """An empty folder that is ours alone, in the staging folder of the root, or in the one in ``near``: an
    open folder on another file system. What is left in it is removed in the end."""
    base = root.folder if near is None else near
    with _staging(root, base) as folder:
        name = _new_name()
        with _making(folder):
            os.mkdir(name, 0o700, dir_fd=folder)
            own = os.open(name, _OPENED, dir_fd=folder)
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else can have it yet
        try:
            yield own
        finally:
            with suppress(OSError):  # the next start removes what cannot be removed now
                remove_tree(folder, name)
            os.close(own)


@contextmanager
def noted(root: Root, elsewhere: Parts) -> Iterator[None]:
    """Leaves a note in the root about a staging folder in another place, for the length of a ``with``."""
    with _staging(root, root.folder) as folder:
        name = _new_name()
        with _making(folder):
            os.symlink("/".join(elsewhere) or ".", name, dir_fd=folder)
        try:
            yield
        finally:
            os.unlink(name, dir_fd=folder)


def _new_name() -> str:
    return os.urandom(8).hex()


@contextmanager
def _making(folder: int) -> Iterator[None]:
    lock(folder, shared=True)
    try:
        yield
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)


@contextmanager
def _staging(root: Root, base: int) -> Iterator[int]:
    folder = _made(base, root.open_)
    try:
        yield folder
    finally:
        os.close(folder)
        with suppress(OSError):  # somebody else works there, or has removed it
            os.rmdir(STAGING, dir_fd=base)


def _made(base: int, open_: Open) -> int:
    for _ in range(_MOST_TRIES):
        with suppress(FileExistsError):
            os.mkdir(STAGING, 0o700, dir_fd=base)
        with suppress(FileNotFoundError):  # another call has removed it: it was empty
            folder = open_(base, (STAGING,), FOLDER)
            if os.fstat(folder).st_nlink:
                return folder
            os.close(folder)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def clean(root: Root) -> int:
    """Removes what servers have left behind that are no more. Returns the number of entries."""
    return _clean(root, root.folder, notes=True)


def _clean(root: Root, base: int, *, notes: bool) -> int:
    try:
        folder = root.open_(base, (STAGING,), FOLDER)
    except OSError:  # there is none, or it is not ours
        return 0
    try:
        lock(folder)
        return sum(_cleaned(root, folder, name, notes) for name in sorted(listed(folder)))
    finally:
        os.close(folder)
        with suppress(OSError):
            os.rmdir(STAGING, dir_fd=base)


def _cleaned(root: Root, folder: int, name: str, notes: bool) -> int:
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        return _followed(root, folder, name) if notes else 0
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return 0
    entry = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        if not _locked(entry, fcntl.LOCK_EX):
            return 0
        remove_tree(folder, name)
        return 1
    finally:
        os.close(entry)


def _followed(root: Root, folder: int, name: str) -> int:
    parts = tuple(part for part in os.readlink(name, dir_fd=folder).split("/") if part not in ("", ".", ".."))
    count = 0
    with suppress(FileNotFoundError), root.opened(parts, FOLDER) as base:
        count = _clean(root, base, notes=False)
        if STAGING in listed(base):  # somebody works there, whose note this is
            return count
    os.unlink(name, dir_fd=folder)
    return count
