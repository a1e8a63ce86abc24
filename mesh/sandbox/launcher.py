"""The process that starts commands: a small one, which forks for each.

    python -m mesh.sandbox.launcher CONTROL

Above: `launching`, in the server, which sends an order as a file in memory, with the ends of three pipes and
of a socket. Below: `command_guard`, in the process that is forked for the order, and the command.

Forking the server itself would cost more with every module that it has loaded, and is not safe beside its
threads. Here a command costs two forks of a process that has loaded next to nothing. Its environment is
empty, so that there is nothing to be found in it.
"""

import os
import signal
import socket
import sys
import time
from contextlib import suppress

from mesh.processes.guard import PR_SET_CHILD_SUBREAPER, children, descendants, prctl
from mesh.sandbox import process_limit
from mesh.sandbox.command_guard import guard_command
from mesh.sandbox.order import order_of

_DESCRIPTORS = 5
ENDS_WITHIN_S = 8.0


def main(control: socket.socket) -> None:
    """Carries out orders until the server is gone, and then waits for the ends of the commands."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    process_limit.remove_stale_groups()
    guards: set[int] = set()
    signal.signal(signal.SIGCHLD, lambda number, frame: _clean_up(guards))
    while True:
        found, descriptors, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS)
        if not found:
            break
        # A command guard must be known before its end is noticed.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        child = os.fork()
        if child == 0:
            control.close()
            _carry_out(descriptors)
        guards.add(child)
        for descriptor in descriptors:
            os.close(descriptor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    # The command guards see the end of their sockets, too, and end their commands. Were this process gone
    # before them, nobody could find what one of them left behind.
    give_up_at = time.monotonic() + ENDS_WITHIN_S
    while guards and time.monotonic() < give_up_at:
        time.sleep(0.01)


def _carry_out(descriptors: list[int]) -> None:
    """The command guard's side of the fork. It does not end with the launcher: its socket tells it when the
    server is gone. Never returns."""
    status = 1
    try:
        request, *stdio, link = descriptors
        with os.fdopen(request, "rb") as file:
            order = order_of(file.read())
        guard_command(order, stdio, socket.socket(fileno=link))
        status = 0
    finally:
        os._exit(status)


def _clean_up(guards: set[int]) -> None:
    """Removes the zombies, and kills what a command guard leaves behind that was killed itself: its
    descendants become children of this process."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            guards.discard(ended)
    for orphan in children(os.getpid()):
        if orphan not in guards:
            for pid in (orphan, *descendants(orphan)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
