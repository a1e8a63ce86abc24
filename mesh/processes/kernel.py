"""System calls of Linux that Python has no functions for. Each raises `OSError`."""

import ctypes
import os
import platform
import struct
from functools import lru_cache
from typing import Any

AT_FDCWD = -100
RENAME_NOREPLACE = 1
CLONE_FS = 0x200
PR_SET_NO_NEW_PRIVS = 38

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

_OPENAT2 = 437
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION = 1
_RULE_PATH_BENEATH = 1
_AT_EMPTY_PATH, _STATX_BTIME, _STATX_SIZE, _BTIME_AT = 0x1000, 0x800, 256, 80
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "arm64": 276}.get(platform.machine())

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_SIZE_OF_HOW = ctypes.sizeof(_OpenHow)


class _RulesetAttr(ctypes.Structure):
    _fields_ = [
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


# Every call of a tool opens paths. Here ctypes knows the types, so that no argument is wrapped each time.
_openat2 = _libc["syscall"]
_openat2.restype = ctypes.c_long
_openat2.argtypes = (
    *(ctypes.c_long, ctypes.c_long, ctypes.c_char_p),
    *(ctypes.POINTER(_OpenHow), ctypes.c_size_t),
)


def openat2(folder: int, path: bytes, flags: int, resolve: int) -> int:
    how = _how(flags | os.O_CLOEXEC, resolve)
    return _done(_openat2(_OPENAT2, folder, path, how, _SIZE_OF_HOW), "openat2")


@lru_cache(maxsize=64)
def _how(flags: int, resolve: int) -> Any:
    """The kernel only reads it, so that calls in several threads may share one."""
    return ctypes.pointer(_OpenHow(flags, 0, resolve))


def rename(source: int, name: str, target: int, new_name: str, flags: int = 0) -> None:
    """``renameat2``: like ``os.rename``, with flags."""
    if _RENAMEAT2 is None:
        raise OSError(38, "renameat2 is not known on this machine")
    _done(
        _syscall(
            ctypes.c_long(_RENAMEAT2),
            ctypes.c_long(source),
            os.fsencode(name),
            ctypes.c_long(target),
            os.fsencode(new_name),
            ctypes.c_long(flags),
        ),
        "renameat2",
    )


def created_s(descriptor: int) -> float | None:
    """When an open file came into being, in seconds; None if the file system does not say."""
    if not hasattr(_libc, "statx"):
        return None
    found = ctypes.create_string_buffer(_STATX_SIZE)
    _done(_libc.statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, found), "statx")
    (mask,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BTIME_AT)
    return seconds + nanoseconds / 1e9 if mask & _STATX_BTIME else None


def unshare_working_folder() -> None:
    """Gives the calling thread a working directory of its own."""
    _done(_libc.unshare(CLONE_FS), "unshare")


def landlock_version() -> int:
    """The version of Landlock in this kernel; 0 if it has none."""
    found = _syscall(
        ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_long(_LANDLOCK_VERSION)
    )
    return max(0, int(found))


def landlock_ruleset(handled: int, net: int = 0, scoped: int = 0) -> int:
    """A descriptor of a new set of rules, which denies ``handled`` and ``net`` except where a rule allows it,
    and what is ``scoped`` outside of those who share the rules."""
    attr = _RulesetAttr(handled, net, scoped)  # an older kernel accepts the fields it does not know if 0
    size = ctypes.c_size_t(ctypes.sizeof(attr))
    return _done(
        _syscall(ctypes.c_long(_LANDLOCK_CREATE), ctypes.byref(attr), size, ctypes.c_long(0)),
        "landlock_create_ruleset",
    )


def landlock_allow(ruleset: int, folder: int, access: int) -> None:
    attr = _PathBeneathAttr(access, folder)
    _done(
        _syscall(
            ctypes.c_long(_LANDLOCK_ADD),
            ctypes.c_long(ruleset),
            ctypes.c_long(_RULE_PATH_BENEATH),
            ctypes.byref(attr),
            ctypes.c_long(0),
        ),
        "landlock_add_rule",
    )


def landlock_restrict(ruleset: int) -> None:
    """Restricts the calling thread, and the threads and processes that it starts from now on."""
    _done(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _done(
        _syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ctypes.c_long(ruleset), ctypes.c_long(0)),
        "landlock_restrict_self",
    )


def _done(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
