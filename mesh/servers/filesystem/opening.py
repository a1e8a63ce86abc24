"""Opens paths from the descriptor of a folder, without following links.

Two ways do the same. `by_kernel` is one call of ``openat2``, and what is used. `by_component` opens one name
after the other with ``O_NOFOLLOW``; it is used where the kernel does not have the call (before Linux 5.6).

Where a path may lead through links, `resolved` finds the path without links that it stands for. It only finds
out: the result is opened like any other path, so that links that change meanwhile gain nothing.
"""

import errno
import os
import stat
from collections.abc import Callable
from typing import TypeAlias

from mesh.processes import kernel
from mesh.servers.filesystem.names import Parts, text_of
from mesh.servers.filesystem.refusal import FileRefusal

Open: TypeAlias = Callable[[int, Parts, int], int]
"""Opens a path below a folder with the flags of ``open``. Raises `OSError`: with ``ELOOP`` if there is a link
in the path. With ``O_PATH``, a link at its end is opened itself."""

MOST_LINKS = 40
"""As many as the kernel follows."""
_MOST_TRIES = 100
_BENEATH = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_MAGICLINKS | kernel.RESOLVE_NO_SYMLINKS


def by_kernel(folder: int, parts: Parts, flags: int) -> int:
    """See `chosen`. Raises `OSError`."""
    path = "/".join(parts).encode("utf-8", "surrogateescape") or b"."
    for _ in range(_MOST_TRIES):
        try:
            return kernel.openat2(folder, path, flags | os.O_NOFOLLOW, _BENEATH)
        except OSError as error:
            # The kernel could not tell whether a rename led out of the folder meanwhile.
            if error.errno != errno.EAGAIN:
                raise
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def by_component(folder: int, parts: Parts, flags: int) -> int:
    """The same, one part after the other. Raises `OSError`."""
    at = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        for part in parts[:-1]:
            following = _folder(at, part)
            os.close(at)
            at = following
        name = parts[-1] if parts else "."
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def _folder(at: int, name: str) -> int:
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    mode = os.fstat(found).st_mode
    if stat.S_ISDIR(mode):
        return found
    os.close(found)
    number = errno.ELOOP if stat.S_ISLNK(mode) else errno.ENOTDIR
    raise OSError(number, os.strerror(number))


def chosen() -> Open:
    """The way that works here. Only a kernel without the call gets the other one: whatever else fails is a
    reason not to start. Raises `OSError`."""
    try:
        os.close(kernel.openat2(kernel.AT_FDCWD, b"/", os.O_PATH, 0))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return by_component
    return by_kernel


def resolved(open_: Open, folder: int, parts: Parts) -> Parts:
    """The path without links that ``parts`` leads to. What comes after a name that is missing, or no folder,
    stays as it is. Raises `FileRefusal` if a link leads out of the folder, and `OSError`."""
    found: list[str] = []
    left = list(reversed(parts))
    links = 0
    while left:
        name = left.pop()
        if name == "..":
            if not found:
                raise FileRefusal(f"{text_of(parts)}: a link in the path leads out of the root")
            found.pop()
            continue
        target = _target(open_, folder, (*found, name))
        if target is None:
            found.append(name)
            continue
        links += 1
        if links > MOST_LINKS:
            raise FileRefusal(f"{text_of(parts)}: more than {MOST_LINKS} links follow one another")
        if target.startswith("/"):
            raise FileRefusal(f"{text_of(parts)}: a link in the path leads out of the root")
        left += reversed([part for part in target.split("/") if part not in ("", ".")])
    return tuple(found)


def _target(open_: Open, folder: int, parts: Parts) -> str | None:
    """Where the link leads; None if it is none."""
    try:
        at = open_(folder, parts, os.O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if not stat.S_ISLNK(os.fstat(at).st_mode):
            return None
        return os.readlink("", dir_fd=at)
    finally:
        os.close(at)
