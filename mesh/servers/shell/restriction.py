"""What a process does to itself before it becomes a command that Landlock confines; and the filter of system
calls, which bubblewrap gets, too.

The kernel keeps keys for whoever starts a session, such as those of Kerberos, and no sandbox takes them away:
the filter refuses the calls for them.

Landlock keeps it to some paths, and from signals and abstract sockets of others (version 6, Linux 6.12). It
cannot keep it from UDP, nor from sockets that have a path: seccomp does, which refuses to create sockets.
Pairs of sockets remain. Nor can it keep it from memory, semaphores and queues of others, for which there are
no paths: seccomp does. Capabilities, if the server has any, are given up: Landlock does not restrict what
they allow beside files.
"""

import ctypes
import os
import platform
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from mesh.servers.filesystem import kernel
from mesh.servers.shell.order import Restriction

LEAST_VERSION = 6

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _TRUNCATE, _IOCTL_DEV = 1 << 6, 1 << 11, 1 << 14, 1 << 15
_HANDLED = (1 << 16) - 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_TCP = 0b11
_SCOPES = 0b11  # abstract sockets, signals

LIST = _READ_DIR
READ = _READ_FILE | _READ_DIR | _EXECUTE
WRITE = _HANDLED & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
DEVICE = _READ_FILE | _WRITE_FILE | _IOCTL_DEV

_PR_CAPBSET_DROP, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 24, 22, 2
_CAPABILITIES = 64
_CAPABILITY_VERSION_3 = 0x20080522


@dataclass(frozen=True)
class _Numbers:
    """Of system calls, and of the architecture in AUDIT_ARCH. ``keys``: add_key, request_key and keyctl.
    ``ipc``: those of System V for shared memory, semaphores and messages, and mq_open and mq_unlink."""

    arch: int
    socket: int
    io_uring_setup: int
    keys: tuple[int, ...]
    ipc: tuple[int, ...]


_NUMBERS = {
    "x86_64": _Numbers(
        0xC000003E, 41, 425, keys=(248, 249, 250), ipc=(29, 30, 31, *range(64, 72), 220, 240, 241)
    ),
    "aarch64": _Numbers(0xC00000B7, 198, 425, keys=(217, 218, 219), ipc=(180, 181, *range(186, 198))),
}
_X32 = 0x40000000
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_EACCES, _ENOSYS = 13, 38

_libc = ctypes.CDLL(None, use_errno=True)


def is_possible() -> bool:
    return kernel.landlock_version() >= LEAST_VERSION and has_filter()


def has_filter() -> bool:
    """Whether the numbers of the system calls of this machine are known."""
    return platform.machine() in _NUMBERS


def hand_over_filter(descriptor: int) -> None:
    """Opens a file with the filter for bubblewrap, which the program that is started next reads."""
    numbers = _NUMBERS[platform.machine()]
    file = os.memfd_create("filter", 0)
    os.write(file, b"".join([*_refusing(numbers, numbers.keys), _step(_RETURN, _ALLOW)]))
    os.lseek(file, 0, os.SEEK_SET)
    if file != descriptor:
        os.dup2(file, descriptor)
        os.close(file)


def apply(restriction: Restriction) -> None:
    """Restricts this process, and those that it starts. Raises `OSError`."""
    _drop_capabilities()
    ruleset = kernel.landlock_ruleset(_HANDLED, net=0 if restriction.network else _TCP, scoped=_SCOPES)
    for path, access in restriction.paths:
        _allow(ruleset, path, access)
    kernel.landlock_restrict(ruleset)
    os.close(ruleset)
    _filter_calls(network=restriction.network)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        # No link is followed: a command that runs at the same time may have put it there.
        descriptor = kernel.openat2(kernel.AT_FDCWD, os.fsencode(path), os.O_PATH, kernel.RESOLVE_NO_SYMLINKS)
    except OSError:  # what is not there, or cannot be reached, needs no permission
        return
    of_this = access if os.path.isdir(f"/proc/self/fd/{descriptor}") else access & _OF_FILES  # noqa: PTH112
    kernel.landlock_allow(ruleset, descriptor, of_this)
    os.close(descriptor)


def _drop_capabilities() -> None:
    for number in range(_CAPABILITIES):
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # those that do not exist are refused
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities cannot be given up")


def _filter_calls(*, network: bool) -> None:
    program = b"".join(_program(_NUMBERS[platform.machine()], network=network))
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp refused the filter")


def _program(numbers: _Numbers, *, network: bool) -> list[bytes]:
    """Refuses keys, what commands have in common with others, and sockets: all of them, or with the network
    those of the machine, which may have a path. io_uring would create them as well."""
    of_socket = [_step(_LOAD, _FIRST_ARGUMENT_AT), _step(_EQUAL, socket.AF_UNIX, 0, 1)] if network else []
    return [
        *_refusing(numbers, (numbers.io_uring_setup, *numbers.keys, *numbers.ipc)),
        _step(_EQUAL, numbers.socket, 1, 0),
        _step(_RETURN, _ALLOW),
        *of_socket,
        _step(_RETURN, _REFUSE | _EACCES),
        _step(_RETURN, _ALLOW),
    ]


def _refusing(numbers: _Numbers, refused: Iterable[int]) -> list[bytes]:
    """The beginning of a filter: some calls are as if the kernel did not have them. Other calling conventions
    have other numbers: whoever uses them is killed."""
    return [
        _step(_LOAD, _ARCH_AT),
        _step(_EQUAL, numbers.arch, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
        _step(_AT_LEAST, _X32, 0, 1),
        _step(_RETURN, _KILL),
        *(
            each
            for call in refused
            for each in (_step(_EQUAL, call, 0, 1), _step(_RETURN, _REFUSE | _ENOSYS))
        ),
    ]


def _step(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_so, if_not, value)
