"""Runs a command so that nothing of it outlives the process that started it.

    python -I -S guard.py PARENT_PID [MEMORY_BYTES] -- command argument...

Above: `mesh.mcp.stdio`, which starts the guard as the leader of a new session. Below: the command, in the
guard's process group and with the guard's own stdin, stdout and stderr: no byte passes through here. The
guard only waits, and ends everything below it when

- its parent is gone, ``kill -9`` included (PR_SET_PDEATHSIG on Linux, polling of getppid elsewhere);
- it is told to stop (SIGTERM, SIGINT, SIGHUP): the group gets SIGTERM, and SIGKILL after `GRACE_S`;
- it is told to kill (`KILL_NOW`);
- the command and its descendants together use more memory than they may, or are more than `MOST_PROCESSES`.

The memory of each process is bounded by the kernel, so that one that asks for too much at once is refused
(in Python, MemoryError). What is shared, and what several processes use together, is looked at every
`LOOK_S`.

The command itself is bound to the guard by PR_SET_PDEATHSIG, so that ``kill -9`` of the guard ends it as
well. When the command exits, what it left behind gets SIGTERM, then SIGKILL, and the guard exits with the
command's status (128 + n for signal n). On Linux a process that leaves the group is followed, because orphans
become children of the guard; not if the guard itself is killed.

`mesh.sandbox.command_guard` does the same for one command in a sandbox, and uses the functions here. It
is another program because it is forked and not started, has a time and limits of its own, and reports how
the command ended.

Runs as a script, with the standard library only: so it starts in some 20 ms, and needs no `mesh` on its path.
What else this package needs of ``prctl(2)`` is therefore here too.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

GRACE_S = 2.0
"""How long a command that was told to stop may take, before it is killed."""
LEFT_GRACE_S = 0.2
"""How long what a command left behind may take."""
KILL_WITHIN_S = 1.0
LOOK_S = 0.25
MOST_PROCESSES = 512
PARENT_GONE = signal.SIGUSR1
KILL_NOW = signal.SIGUSR2
STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
WATCHED = STOP | {signal.SIGCHLD, signal.SIGALRM, PARENT_GONE, KILL_NOW}

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def guarded(command: Sequence[str], memory: int = 0) -> list[str]:
    """The command that runs another one below a guard whose parent is this process. The process that runs it
    has to lead a session. ``memory`` is a bound in bytes; 0 for none."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(memory), "--", *command]


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


def run_command(command: list[str], guard: int, memory: int) -> None:
    """The child's side of the fork: becomes the command. Never returns."""
    signal_on_parent_death(signal.SIGKILL)()
    if os.getppid() != guard:  # it died before the kernel was asked
        os._exit(1)
    # A lock that the guard inherited (`mesh.mcp.session_file`) must be the guard's alone: a process that the
    # command starts could otherwise hold it for ever.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file behind
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


class Guarded:
    """The command, with all processes below this one: its descendants, also those that left its group."""

    def __init__(self, pid: int, memory: int) -> None:
        self._pid = pid
        self._memory = memory
        self.status: int | None = None

    def watch(self, parent: int) -> int:
        """Waits until the command exits, and returns its status. Kills everything if the parent is gone, or
        the command does not stop in time, or is over a bound."""
        kill_at = float("inf")
        while True:
            received = signal.sigwait(WATCHED)
            if os.getppid() != parent or time.monotonic() >= kill_at:
                self.kill()
                os.killpg(0, signal.SIGKILL)
            self.reap()
            if received == KILL_NOW:
                self.kill()
            elif received == signal.SIGALRM and (why := self.excess()):
                os.write(2, f"killed: {why}\n".encode())
                self.kill()
            if self.status is not None:
                return self.status
            if received in STOP and kill_at == float("inf"):
                kill_at = time.monotonic() + GRACE_S
                os.killpg(0, signal.SIGTERM)

    def reap(self) -> None:
        """Removes the zombies, adopted orphans among them, and notes the command's status."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    self.status = ended[1]

    def excess(self) -> str:
        """Which bound the processes are over, in words; empty if none."""
        pids = list(islice(descendants(), MOST_PROCESSES + 1))
        if len(pids) > MOST_PROCESSES:
            return f"it has more than {MOST_PROCESSES} processes"
        # What processes share counts in the resident memory of each. The exact number costs a thousand times
        # as much, so it is asked for only when it may matter.
        if not self._memory or sum(map(resident, pids)) <= self._memory:
            return ""
        used = sum(map(proportional, pids))
        bound = f"limits.tool_memory_bytes allows {self._memory >> 20} MiB"
        return f"it used {used >> 20} MiB of memory; {bound}" if used > self._memory else ""

    def end_rest(self) -> None:
        """Ends what the command left behind."""
        os.killpg(0, signal.SIGTERM)
        give_up_at = time.monotonic() + LEFT_GRACE_S
        while self._lives() and time.monotonic() < give_up_at:
            time.sleep(0.005)
        self.kill()

    def kill(self) -> None:
        """Kills all of them, again and again: one that is about to be killed may start another. Gives up on
        what does not die, which nobody can end."""
        give_up_at = time.monotonic() + KILL_WITHIN_S
        while self._lives() and time.monotonic() < give_up_at:
            for pid in descendants():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def _lives(self) -> bool:
        self.reap()
        return any(True for _ in descendants())


def descendants(of: int | None = None) -> Iterator[int]:
    """Yields the ids of all processes below one, or below this one; none where the kernel does not tell."""
    todo = [of or os.getpid()]
    while todo:
        for pid in children(todo.pop()):
            todo.append(pid)
            yield pid


def children(pid: int) -> list[int]:
    """Returns the children of a process that are seen before it ends."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib starts slowly
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def resident(pid: int) -> int:
    """Returns the bytes that a process has in memory; 0 if it has ended."""
    with suppress(OSError, IndexError):
        return int(_read(f"/proc/{pid}/statm").split()[1]) * resource.getpagesize()
    return 0


def proportional(pid: int) -> int:
    """Returns the bytes that a process has in memory or swapped out, where what it shares counts in part."""
    try:
        lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    except OSError:
        return resident(pid)
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss:", "SwapPss:")))


def _read(path: str) -> str:
    with open(path) as file:  # noqa: PTH123 - pathlib starts slowly
        return file.read()


def main(arguments: list[str]) -> int:
    """Runs the command and returns its exit status."""
    split = arguments.index("--")
    parent, memory = (*map(int, arguments[:split]), 0)[:2]
    # Blocked before anything else, so that no signal is lost between here and sigwait.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    is_notified = signal_on_parent_death(PARENT_GONE)()
    if os.getppid() != parent:
        return 1
    own = os.getpid()
    if os.getpgrp() != own:
        os.setsid()  # the group is what gets killed, so it must not be the parent's
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        run_command(arguments[split + 1 :], own, memory)
    release_pipes()
    # The timer wakes `watch`, which then checks the parent, the bounds and the deadline for stopping.
    interval = LOOK_S if is_notified else LOOK_S / 2
    signal.setitimer(signal.ITIMER_REAL, interval, interval)
    guarded = Guarded(child, memory)
    status = os.waitstatus_to_exitcode(guarded.watch(parent))
    guarded.end_rest()
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
