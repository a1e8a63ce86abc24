"""Runs a command so that nothing of it outlives the process that started it.

    python -I -S guard.py PARENT_PID -- command argument...

Above: `mesh.mcp.stdio`, which starts the guard as the leader of a new session. Below: the command, in the
guard's process group and with the guard's own stdin, stdout and stderr: no byte passes through here. The
guard only waits, and ends the group when

- its parent is gone, ``kill -9`` included (PR_SET_PDEATHSIG on Linux, polling of getppid elsewhere);
- it is told to stop (SIGTERM, SIGINT, SIGHUP): the group gets SIGTERM, and SIGKILL after `GRACE_S`.

The command itself is bound to the guard by PR_SET_PDEATHSIG, so that ``kill -9`` of the guard ends it as
well. When the command exits, what it left behind in the group gets SIGTERM, and the guard exits with the
command's status (128 + n for signal n). A process that leaves the group on purpose is not followed.

Runs as a script, with the standard library only: so it starts in some 20 ms, and needs no `mesh` on its path.
What else this package needs of ``prctl(2)`` is therefore here too.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

GRACE_S = 2.0
"""How long a command that was told to stop may take, before it is killed."""
PARENT_GONE = signal.SIGUSR1
STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
WATCHED = STOP | {signal.SIGCHLD, signal.SIGALRM, PARENT_GONE}

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> bool:
    """Changes an attribute of this process. Returns False where that is not possible, as on any system other
    than Linux."""
    return _prctl_of_linux()(option, value)


def signal_on_parent_death(number: int) -> Callable[[], bool]:
    """Returns a function that asks the kernel to send this process signal ``number`` when its parent dies.

    In two steps, for a ``preexec_fn``: loading the C library between fork and exec is not safe in a process
    with threads. Two pitfalls remain for the caller: the parent may be dead already, and the signal also
    comes when only the *thread* that started this process ends. `os.getppid` tells.
    """
    call = _prctl_of_linux()
    return lambda: call(PR_SET_PDEATHSIG, number)


def _prctl_of_linux() -> Callable[[int, int], bool]:
    if not sys.platform.startswith("linux"):
        return lambda option, value: False
    libc = ctypes.CDLL(None)
    return lambda option, value: bool(libc.prctl(option, value, 0, 0, 0) == 0)


def run_command(command: list[str], guard: int) -> None:
    """The child's side of the fork: becomes the command. Never returns."""
    signal_on_parent_death(signal.SIGKILL)()
    if os.getppid() != guard:  # it died before the kernel was asked
        os._exit(1)
    # A lock that the guard inherited (`mesh.mcp.session_file`) must be the guard's alone: a process that the
    # command starts could otherwise hold it for ever.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # Python ignores SIGPIPE and the guard blocks signals; a command expects neither.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)  # the statuses that a shell uses


def release_pipes() -> None:
    """Lets go of stdin and stdout, so that they end when the command closes them."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def watch(parent: int, child: int) -> int:
    """Waits until the command exits, and returns its status. Kills the group if the parent is gone, or the
    command does not stop in time."""
    kill_at = float("inf")
    while True:
        received = signal.sigwait(WATCHED)
        if os.getppid() != parent or time.monotonic() >= kill_at:
            os.killpg(0, signal.SIGKILL)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if received in STOP and kill_at == float("inf"):
            kill_at = time.monotonic() + GRACE_S
            os.killpg(0, signal.SIGTERM)


def main(arguments: list[str]) -> int:
    """Runs the command and returns its exit status."""
    parent, command = int(arguments[0]), arguments[2:]
    # Blocked before anything else, so that no signal is lost between here and sigwait.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    is_notified = signal_on_parent_death(PARENT_GONE)()
    if os.getppid() != parent:
        return 1
    own = os.getpid()
    if os.getpgrp() != own:
        os.setsid()  # the group is what gets killed, so it must not be the parent's
    child = os.fork()
    if child == 0:
        run_command(command, own)
    release_pipes()
    # The timer wakes `watch`, which then checks the parent and the deadline for stopping.
    interval = 1.0 if is_notified else 0.2
    signal.setitimer(signal.ITIMER_REAL, interval, interval)
    status = os.waitstatus_to_exitcode(watch(parent, child))
    os.killpg(0, signal.SIGTERM if os.getppid() == parent else signal.SIGKILL)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
