"""Ports for servers under test."""

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache

_EACH = 1_000
_LOCK_FILE = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def free_port() -> int:
    """A port that nobody listens on now. Nobody else takes it before it is used: it is one of those of this
    process, below those that the system gives to outgoing connections, and comes again only after all others
    of these."""
    while True:
        port = next(_own_ports())
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port


@cache
def _own_ports() -> Iterator[int]:
    """The ports of this process, in turn. Runs of tests side by side have others, as a mesh takes seconds
    from the choice of its ports to their use."""
    for first in range(20_000, 30_000, _EACH):
        try:
            lock = os.open(f"{tempfile.gettempdir()}/mesh-test-ports-{first}", _LOCK_FILE, 0o600)
        except PermissionError:  # of another user
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return itertools.cycle(range(first, first + _EACH))  # locked until the process ends
    raise RuntimeError("too many runs of tests at the same time: no ports are left")
