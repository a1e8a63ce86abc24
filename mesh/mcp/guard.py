"""Runs a server so that nothing of it outlives whoever started it.

    python -I -S guard.py PARENT_PID -- command argument...

Above: `mesh.mcp.stdio`, which starts the guard as the leader of a new session. Below: the server,
in the guard's process group, with the guard's own stdin, stdout and stderr: no byte passes through
here. The guard knows no MCP. It only waits, and kills the group when

- its parent is gone, kill -9 included (PR_SET_PDEATHSIG on Linux, a look at getppid elsewhere);
- it is told to end (SIGTERM, SIGINT, SIGHUP): the group gets SIGTERM, and SIGKILL after `GRACE_S`.

The server itself is bound to the guard by PR_SET_PDEATHSIG, so that kill -9 of the guard ends it as
well. When the server exits, what it left in the group gets SIGTERM and the guard exits with the
server's status (128 + n for signal n). Not followed: a process that leaves the group on purpose.

Standard library only and nothing at import time: it starts in some 20 ms, before the server.
"""

import ctypes
import os
import signal
import sys
import time

GRACE_S = 2.0
PR_SET_PDEATHSIG = 1
PARENT_GONE = signal.SIGUSR1
STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
WATCHED = STOP | {signal.SIGCHLD, signal.SIGALRM, PARENT_GONE}


def die_with_parent(number: int) -> bool:
    """Asks the kernel for signal ``number`` when the parent dies. False where that is unknown."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) == 0)


def become(command: list[str], guard: int) -> None:
    """The server's side of the fork: never returns."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the lock of `mesh.mcp.session_file` is the guard's alone
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def release_pipes() -> None:
    """Invariant: only the server holds the pipes, so that its end is their end."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def watch(parent: int, server: int) -> int:
    """Waits for the first end of parent, server or patience. Returns the server's exit status."""
    kill_at = float("inf")
    while True:
        got = signal.sigwait(WATCHED)
        # PDEATHSIG also comes when only the *thread* that started us ends: hence the look at getppid.
        if os.getppid() != parent or time.monotonic() >= kill_at:
            os.killpg(0, signal.SIGKILL)
        ended, status = os.waitpid(server, os.WNOHANG)
        if ended:
            return status
        if got in STOP and kill_at == float("inf"):
            kill_at = time.monotonic() + GRACE_S
            os.killpg(0, signal.SIGTERM)


def main(arguments: list[str]) -> int:
    parent, command = int(arguments[0]), arguments[2:]
    # Blocked before anything else, so that no signal is lost between here and sigwait.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    notified = die_with_parent(PARENT_GONE)
    if os.getppid() != parent:
        return 1
    own = os.getpid()
    if os.getpgrp() != own:
        os.setsid()  # the group is what gets killed: it must be ours
    server = os.fork()
    if server == 0:
        become(command, own)
    release_pipes()
    interval = 1.0 if notified else 0.2
    signal.setitimer(signal.ITIMER_REAL, interval, interval)
    status = os.waitstatus_to_exitcode(watch(parent, server))
    os.killpg(0, signal.SIGTERM if os.getppid() == parent else signal.SIGKILL)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
