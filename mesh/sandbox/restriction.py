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

from mesh.processes import kernel
from mesh.sandbox.order import Restriction

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
    ``ipc``: those of System V for shared memory, semaphores and messages, and mq_open and mq_unlink.
    ``beyond``: those by which a process starts, watches or signals others, mounts, or has memory that counts
    nowhere: fork, vfork, execve, execveat, kill, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open,
    pidfd_getfd, pidfd_send_signal, ptrace, process_vm_readv, process_vm_writev, kcmp, syslog, personality,
    chroot, pivot_root, mount, umount2, unshare, setns, perf_event_open, bpf, userfaultfd, memfd_create,
    memfd_secret, open_by_handle_at. ``modes``: those that change modes, owners, times and attributes of
    files, which Landlock does not restrict."""

    arch: int
    socket: int
    io_uring_setup: int
    keys: tuple[int, ...]
    ipc: tuple[int, ...]
    clone: int
    beyond: tuple[int, ...]
    modes: tuple[int, ...]


_NUMBERS = {
    "x86_64": _Numbers(
        0xC000003E,
        41,
        425,
        keys=(248, 249, 250),
        ipc=(29, 30, 31, *range(64, 72), 220, 240, 241),
        clone=56,
        beyond=(
            *(57, 58, 59, 322, 62, 200, 129, 297, 434, 438, 424, 101, 310, 311, 312, 103, 135, 161, 155),
            *(165, 166, 272, 308, 298, 321, 323, 319, 447, 304),
        ),
        modes=(
            *(90, 91, 268, 452, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199),
            *(463, 466),
        ),
    ),
    "aarch64": _Numbers(
        0xC00000B7,
        198,
        425,
        keys=(217, 218, 219),
        ipc=(180, 181, *range(186, 198)),
        clone=220,
        beyond=(
            *(221, 281, 129, 130, 138, 240, 434, 438, 424, 117, 270, 271, 272, 116, 92, 51, 41, 40, 39, 97),
            *(268, 241, 280, 282, 279, 447, 265),
        ),
        modes=(52, 53, 452, 54, 55, 88, 5, 6, 7, 14, 15, 16, 463, 466),
    ),
}
_X32 = 0x40000000
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_CLONE3 = 435
_CLONE_THREAD = 0x10000
_ADDR_NO_RANDOMIZE = 0x0040000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_EPERM, _EACCES, _ENOSYS = 1, 13, 38

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


def filter_for_one_process(*, keeps_modes: bool) -> bytes:
    """A filter of system calls that leaves a process nothing to do with others, nor with sockets but pairs of
    them: a last restriction, for a process that installs it itself when it has started. Threads remain.
    ``keeps_modes``: it changes no modes, owners, times or attributes of files, either."""
    numbers = _NUMBERS[platform.machine()]
    return b"".join(
        [
            *_refusing(numbers, (numbers.io_uring_setup, _CLONE3, *numbers.keys, *numbers.ipc)),
            *(
                each
                for call in (*numbers.beyond, *(numbers.modes if keeps_modes else ()), numbers.socket)
                for each in (_step(_EQUAL, call, 0, 1), _step(_RETURN, _REFUSE | _EPERM))
            ),
            _step(_EQUAL, numbers.clone, 1, 0),
            _step(_RETURN, _ALLOW),
            _step(_LOAD, _FIRST_ARGUMENT_AT),
            _step(_ANY_BIT, _CLONE_THREAD, 1, 0),
            _step(_RETURN, _REFUSE | _EPERM),
            _step(_RETURN, _ALLOW),
        ]
    )


def fix_addresses() -> None:
    """The kernel does not choose addresses at random for what this process becomes. Where it refuses, they
    are random."""
    _libc.personality(_ADDR_NO_RANDOMIZE)


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
