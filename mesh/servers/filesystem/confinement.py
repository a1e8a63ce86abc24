"""Landlock: the kernel keeps a thread, and what it starts, to some folders, whatever our own code does.

It comes on top of the way in which paths are opened. Where the kernel does not have it, or has the first
version, which knows no renames from one folder to another, there is only the latter.
"""

import os
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import mesh
from mesh.processes import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_SYM = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_ALL_OF_VERSION = {2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_LEAST_VERSION = 2

LOOK = _READ_FILE | _READ_DIR
RUN = LOOK | _EXECUTE
CHANGE = (
    LOOK | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SYM | _REFER | _TRUNCATE
)


def is_available() -> bool:
    return kernel.landlock_version() >= _LEAST_VERSION


def confine(allowed: Iterable[tuple[int, int]]) -> None:
    """Restricts this thread to some open files and folders, each with what may be done there. Threads and
    processes that it starts are restricted as well. Raises `OSError`."""
    handled = _ALL_OF_VERSION.get(kernel.landlock_version(), (1 << 16) - 1)
    ruleset = kernel.landlock_ruleset(handled)
    try:
        for descriptor, access in allowed:
            kernel.landlock_allow(ruleset, descriptor, access & handled & _possible(descriptor))
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def _possible(descriptor: int) -> int:
    """What can be done with it: a file cannot be listed."""
    return -1 if os.path.isdir(f"/proc/self/fd/{descriptor}") else _OF_FILES  # noqa: PTH112


def confine_server(roots: Iterable[int], *programs: str) -> None:
    """Restricts the server: it changes the roots, and reads what Python and the system's libraries need."""
    opened = [(descriptor, RUN) for path in (*_system(), *programs) for descriptor in _opened(path)]
    try:
        confine([*((root, CHANGE) for root in roots), *opened])
    finally:
        for descriptor, _ in opened:
            os.close(descriptor)


_OF_SYSTEM = ("/usr", "/lib", "/lib64", "/dev/null", "/dev/urandom", "/etc/localtime", "/etc/nsswitch.conf",
              "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf")  # fmt: skip


def _system() -> set[str]:
    own = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    # Modules may be elsewhere, where a .pth file says. The first place is that of the script, or the working
    # directory, which may be anything.
    elsewhere = {path for path in sys.path[1:] if Path(path).is_absolute()}
    return own | elsewhere | {str(Path(mesh.__path__[0])), *_OF_SYSTEM}


def _opened(path: str) -> Iterable[int]:
    with suppress(OSError):
        return [os.open(Path(path), os.O_PATH | os.O_CLOEXEC)]
    return []
