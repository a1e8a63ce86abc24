"""Watches over one command: from its start until nothing of it is left.

It runs in a process of its own, forked by the `launcher`, and is told to end the command by a byte, or by
the end, of its socket, through which it also says what came of it. Processes that lose their parent become
its children, wherever they went, so that it finds them. In a namespace of processes, the kernel ends them
with the first process of it.

`mesh.processes.guard` does the same for a server that a client starts; what both need is there.

The memory of one process is bounded by the kernel. What all of them use, and how many they are, is looked
at every `LOOK_S`.
"""

import os
import resource
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from mesh.processes.guard import (
    PR_SET_CHILD_SUBREAPER,
    children,
    descendants,
    prctl,
    proportional,
    resident,
    signal_on_parent_death,
)
from mesh.sandbox import process_limit, restriction
from mesh.sandbox.order import CommandLimits, End, Order
from mesh.sandbox.temporary_folder import excess_in, remove_folder

LOOK_S = 0.1
GRACE_S = 1.0
"""How long a command that was told to stop may take, before it is killed."""
LEFT_GRACE_S = 0.2
"""How long what a command left behind may take."""
KILL_WITHIN_S = 5.0


def guard_command(order: Order, stdio: Sequence[int], link: socket.socket) -> None:
    """Runs the command, and writes its `End` to the socket."""
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    own = os.getpid()
    group = process_limit.make_group(order.limits.processes)
    child = os.fork()
    if child == 0:
        become(order, stdio, own, group)
    for descriptor in stdio:
        os.close(descriptor)
    end = GuardedCommand(child, order).watch(link.fileno(), wake)
    if group is not None:
        process_limit.remove_group(group)
    if order.temporary:
        remove_folder(order.temporary)
    # Where the server is gone, nobody wants to know.
    with suppress(BrokenPipeError, ConnectionResetError):
        link.sendall(end.to_json())


def become(order: Order, stdio: Sequence[int], guard: int, group: str | None) -> None:
    """The command's side of the fork. Never returns."""
    try:
        signal_on_parent_death(signal.SIGKILL)()
        if os.getppid() != guard:  # it died before the kernel was asked
            return
        os.setsid()
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if order.filter_at is not None:
            restriction.hand_over_filter(order.filter_at)
        _expect_nothing_of_python()
        if group is not None:
            process_limit.enter_group(group)
        elif os.geteuid() != 0:
            process_limit.limit_user(order.limits.processes)
        _limit(order.limits)
        os.chdir(order.cwd)
        if order.has_fixed_addresses:
            restriction.fix_addresses()
        if order.restriction is not None:
            restriction.apply(order.restriction)
        os.execve(order.argv[0], order.argv, order.env)
    except OSError as error:
        os.write(2, f"sandbox: the command was not started: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(126)


def _expect_nothing_of_python() -> None:
    """Python ignores some signals, and whoever it starts would, too."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _limit(limits: CommandLimits) -> None:
    for number, value in (
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_FSIZE, limits.file_size),
        (resource.RLIMIT_CORE, 0),
        *([(resource.RLIMIT_AS, limits.address_space)] if limits.address_space else ()),
        *([(resource.RLIMIT_CPU, limits.cpu_s)] if limits.cpu_s else ()),
    ):
        hard = resource.getrlimit(number)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # Over the first of them, a process is told that its time is over; over the second, it is killed.
        most = least + 1 if number == resource.RLIMIT_CPU and least == value else least
        resource.setrlimit(number, (least, most))


class GuardedCommand:
    """The command, with all processes below its guard."""

    def __init__(self, pid: int, order: Order) -> None:
        self._pid = pid
        self._limits = order.limits
        self._wrappers = order.wrappers
        self._temporary = order.temporary
        self._timeout_s = order.timeout_s
        self._status: int | None = None
        self._stopped = ""
        self._stop_at = time.monotonic() + order.timeout_s
        self._look_at = time.monotonic() + LOOK_S
        self._kill_at = float("inf")

    def watch(self, link: int, wake: int) -> End:
        """Waits until the command ends, or ends it. Nothing of it is left then, except what the kernel cannot
        kill."""
        events = select.poll()
        events.register(wake, select.POLLIN)
        events.register(link, select.POLLIN)
        while True:
            next_s = min(self._stop_at, self._look_at, self._kill_at) - time.monotonic()
            for descriptor, _ in events.poll(max(0.0, next_s * 1000)):
                if descriptor == wake:
                    os.read(wake, 4096)
                else:
                    events.unregister(link)
                    self._stop("it was cancelled")
            self._reap()
            if self._status is not None or self._must_be_killed():
                break
        self._end_rest()
        return End(self._status, self._stopped)

    def _must_be_killed(self) -> bool:
        """Whether the command uses too much, or does not stop. Tells it to stop when its time is over."""
        now = time.monotonic()
        if now >= self._stop_at:
            self._stop_at = float("inf")
            self._stop(f"it ran longer than {self._timeout_s:g} s")
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            if excess := self._excess():
                self._stopped = self._stopped or excess
                return True
        return now >= self._kill_at

    def _stop(self, why: str) -> None:
        self._stopped = self._stopped or why
        if self._kill_at == float("inf"):
            self._kill_at = time.monotonic() + GRACE_S
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        """Sends a signal to all processes but those of the sandbox, which would kill the others at once."""
        spared = set(self._of_sandbox())
        for pid in descendants():
            if pid not in spared:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def _of_sandbox(self) -> list[int]:
        found, level = [], [self._pid]
        for _ in range(self._wrappers):
            found += level
            level = [child for pid in level for child in children(pid)]
        return found

    def _reap(self) -> None:
        """Removes the zombies, adopted orphans among them, and notes the command's status."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    self._status = os.waitstatus_to_exitcode(ended[1])

    def _excess(self) -> str:
        """Which limit the processes are over, in words; empty if none."""
        pids = list(islice(descendants(), self._limits.processes + self._wrappers + 1))
        if len(pids) > self._limits.processes + self._wrappers:
            return f"it had more than {self._limits.processes} processes"
        if self._limits.temporary and (found := excess_in(self._temporary, self._limits.temporary)):
            return f"there were {found} in its temporary folder"
        # What processes share counts in the resident memory of each. The exact number costs a thousand times
        # as much, so it is asked for only when it may matter.
        if sum(map(resident, pids)) <= self._limits.memory:
            return ""
        if sum(map(proportional, pids)) <= self._limits.memory:
            return ""
        return f"its processes used more than {self._limits.memory >> 20} MiB of memory"

    def _end_rest(self) -> None:
        """Ends what is left: gently if the command ended by itself, and otherwise by force."""
        if self._status is not None and self._lives():
            self._signal(signal.SIGTERM)
            give_up_at = time.monotonic() + LEFT_GRACE_S
            while self._lives() and time.monotonic() < give_up_at:
                time.sleep(0.005)
        give_up_at = time.monotonic() + KILL_WITHIN_S
        while self._lives() and time.monotonic() < give_up_at:
            # Whole groups first, which the kernel kills at once: of a command that does nothing but start
            # processes, one after the other is too slow. Again and again: one that is about to be killed may
            # start another.
            for group in {*self._groups()}:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            for pid in descendants():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def _groups(self) -> Iterator[int]:
        """The process groups of the command; not that of the guard, with the launcher in it."""
        for pid in descendants():
            with suppress(ProcessLookupError):
                if (group := os.getpgid(pid)) != os.getpgrp():
                    yield group

    def _lives(self) -> bool:
        self._reap()
        return any(True for _ in descendants())
