"""Ends what ``mesh up`` started, when ``mesh up`` itself was killed (SIGKILL) and cannot.

    python last_will.py < ids

Reads ids of processes, one a line, until its input ends: that is when ``mesh up`` has. Then it kills
each of them with all that hangs below it. Most of Ray leaves by itself when its driver is gone; its
two agents on each node do not, as each holds the other's end of the pipe that would tell them.
"""

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil


def main(lines: Iterable[str]) -> None:
    """Waits, then kills. A process is known from the moment its id is read: ids are used again."""
    doomed: set[psutil.Process] = set()
    for line in lines:
        with suppress(psutil.NoSuchProcess):
            doomed.add(psutil.Process(int(line)))
    _each(doomed, psutil.Process.suspend)  # what they start while we look would be missed
    for process in list(doomed):
        with suppress(psutil.NoSuchProcess):
            doomed.update(process.children(recursive=True))
    _each(doomed, psutil.Process.kill)


def _each(processes: Iterable[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            do(process)


if __name__ == "__main__":
    main(sys.stdin)
