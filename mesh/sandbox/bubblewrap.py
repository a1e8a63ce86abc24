"""The command line of bubblewrap for a box."""

import os
import shutil
from collections.abc import Iterator
from functools import cache

from mesh.sandbox import restriction
from mesh.sandbox.box import SYSTEM, Box, resolver
from mesh.sandbox.nesting import is_below

WRAPPERS = 2
"""Processes of bubblewrap around the command: one outside of the namespaces, and the first one inside."""
TEMPORARY = "/tmp"
"""Where a command in it has its folder for temporary files."""
_FILTER_AT = 3
_OWN_SPACE = str(256 << 20)
"""Bytes in each of /tmp, /dev/shm and the home: they are in memory."""


@cache
def program() -> str | None:
    return shutil.which("bwrap")


def filter_at() -> int | None:
    """The descriptor where bubblewrap reads its filter of system calls, if there is one for this machine."""
    return _FILTER_AT if restriction.has_filter() else None


def wrapped(box: Box, bwrap: str, cwd: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """What runs ``argv`` in the box. What comes later is mounted over what came before."""
    options = [
        bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        *(["--share-net"] if box.network else []),
        *(["--seccomp", str(at)] if (at := filter_at()) is not None else []),
        *(["--hostname", box.hostname] if box.hostname else []),
        *_system(box.system),
        # Whoever owns a file there needs no capability to write it: root would change the kernel's settings.
        *(["--proc", "/proc", "--remount-ro", "/proc"] if box.has_proc else []),
        "--dev", "/dev", *_own_memory(box), "--remount-ro", "/dev",
        *(["--size", _OWN_SPACE, "--tmpfs", box.home] if _is_private(box.home) else []),
    ]  # fmt: skip
    if box.network and (path := resolver()) is not None:
        options += ["--ro-bind-try", path, path]
    for path in _readable(box):
        options += ["--ro-bind-try", path, path]
    for path in box.roots:
        options += ["--bind", path, path]
    for path in box.covered.above:
        options += ["--bind-try", path, path]
    for path, _ in box.covered.frozen:
        options += ["--ro-bind-try", path, path]
    for path, is_folder in box.covered.hidden:
        options += ["--ro-bind", box.blanks.folder if is_folder else box.blanks.file, path]
    return (*options, "--remount-ro", "/", "--chdir", cwd, "--", *argv)


def _own_memory(box: Box) -> list[str]:
    """Its /tmp, and memory that processes share. A folder that it is given for temporary files is in place of
    both."""
    if box.temporary:
        return ["--bind", box.temporary, TEMPORARY]
    return ["--size", _OWN_SPACE, "--tmpfs", "/dev/shm", "--size", _OWN_SPACE, "--tmpfs", TEMPORARY]


def _readable(box: Box) -> Iterator[str]:
    """What may be read besides. A path with a link on its way is there as well as what it leads to, unless
    that link is in something else that is there."""
    there = ("/proc", "/dev", *box.system, *box.roots, *(path for path in box.read if _is_real(path)))
    for path in box.read:
        if _is_real(path) or not any(is_below(path, each) for each in there):
            yield path


def _is_real(path: str) -> bool:
    return os.path.realpath(path) == path


def _is_private(home: str) -> bool:
    """Whether the home is a folder apart from the system's."""
    return (
        home.startswith("/")
        and home != "/"
        and not any(f"{path}/".startswith(f"{home}/") or f"{home}/".startswith(f"{path}/") for path in SYSTEM)
    )


@cache
def _system(paths: tuple[str, ...]) -> tuple[str, ...]:
    options: list[str] = []
    for path in paths:
        if os.path.islink(path):  # noqa: PTH114 - as text
            options += ["--symlink", os.readlink(path), path]  # noqa: PTH115
        elif os.path.isdir(path):  # noqa: PTH112
            options += ["--ro-bind", path, path]
    return tuple(options)
