"""Ends what ``mesh up`` started, where ``mesh up`` itself cannot.

    python last_will.py SCRATCH < ids and signals

Reads ids of processes, one a line, until its input ends: that is when ``mesh up`` was killed (SIGKILL).
Then it kills each of them with all that hangs below it. Most of Ray leaves by itself when its driver is
gone; its two agents on each node do not, as each holds the other's end of the pipe that would tell them.

A signal that asks ``mesh up`` to stop comes as one byte, its number, written by the interpreter's own
handler: it comes too where no line of Python runs there, as in Ray's native code, some of which holds
the interpreter's lock while it waits. If ``mesh up`` has not ended by `END_WITHIN_S`, it is killed as well.
"""

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

END_WITHIN_S = 9.5
SIGNALS = bytes([signal.SIGINT, signal.SIGTERM])


def main(scratch: str) -> None:
    """Waits, then kills, and removes the folder."""
    parent = psutil.Process(os.getppid())
    doomed, has_ended = _await_end(sys.stdin.fileno())
    if not has_ended:
        _each([parent], psutil.Process.suspend)
        doomed.update(_below(parent))
    _each(doomed, psutil.Process.suspend)  # what they start while we look would be missed
    for process in list(doomed):
        doomed.update(_below(process))
    _each(doomed, psutil.Process.kill)
    shutil.rmtree(scratch, ignore_errors=True)
    if not has_ended:
        print("mesh: stopped, by force", flush=True)  # noqa: T201
        parent.kill()


def _await_end(source: int) -> tuple[set[psutil.Process], bool]:
    """The processes that were named, and whether the one that named them has ended. A process is known from
    the moment its id is read: ids are used again."""
    named: set[psutil.Process] = set()
    rest, deadline = b"", None
    while select.select([source], [], [], deadline and max(0.0, deadline - time.monotonic()))[0]:
        read = os.read(source, 65536)
        if not read:
            return named, True
        if any(number in read for number in SIGNALS):
            deadline = deadline or time.monotonic() + END_WITHIN_S
        *lines, rest = (rest + read.translate(None, SIGNALS)).split(b"\n")
        for line in lines:
            with suppress(psutil.NoSuchProcess):
                named.add(psutil.Process(int(line)))
    return named, False


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [each for each in process.children(recursive=True) if each.pid != os.getpid()]
    return []


def _each(processes: Iterable[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            do(process)


if __name__ == "__main__":
    main(sys.argv[1])
