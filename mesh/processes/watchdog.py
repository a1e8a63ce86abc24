"""A small process that ends the descendants of another one when that cannot do it itself.

    python -P watchdog.py SCRATCH < ids and signals

`Watchdog` starts it and writes to its stdin; `main` is what runs in it.

It reads ids of processes, one a line, until its input ends: that is when the writer was killed (SIGKILL).
Then it kills each of them with everything below it. Most of Ray leaves by itself when its driver is gone. Its
two agents on each node do not, because each holds the other's end of the pipe that would tell them.

A signal that asks the writer to stop arrives as one byte, its number, written by the interpreter's own
handler (`signal.set_wakeup_fd`). So it arrives even where no line of Python runs, as in Ray's native code,
some of which keeps the interpreter's lock while it waits. If the writer has not ended `STOP_TIMEOUT_S` later,
it is killed as well.

Runs as a script and imports nothing of `mesh`.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

STOP_TIMEOUT_S = 9.5
"""A little less than the 10 s after which container runtimes and people send SIGKILL."""
_STOP_SIGNALS = bytes([signal.SIGINT, signal.SIGTERM])


class Watchdog:
    """The process, seen from the one it watches. Use it in a ``with`` statement in the main thread.
    ``scratch`` is a folder that is removed as well when it acts."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def __enter__(self) -> Self:
        # In a session of its own: Ctrl-C in a terminal, which reaches a whole group, must not end it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, self._scratch], stdin=subprocess.PIPE, start_new_session=True
        )
        # A pipe that is full must not make the writer wait, least of all in a signal handler.
        os.set_blocking(self._pipe, False)
        self._wakeup_before = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close_in_child(self) -> None:
        """To be called in a forked child. If it kept its copy of the pipe, the end of the parent would not be
        noticed."""
        signal.set_wakeup_fd(-1)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def update(self) -> None:
        """Names the descendants as of now. To be called regularly: when they have to be ended, their parents
        may be gone already, and with them the way to find them."""
        own = psutil.Process().children(recursive=True)
        pids = [process.pid for process in own if process.pid != self._process.pid]
        with suppress(BrokenPipeError):  # the watchdog was killed: no reason to end the mesh as well
            os.write(self._pipe, "".join(f"{pid}\n" for pid in pids).encode())

    @property
    def _pipe(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()


def main(scratch: str) -> None:
    """Waits until it has to act, kills what was named, and removes the folder."""
    writer = psutil.Process(os.getppid())
    named, has_ended = _read_names(sys.stdin.fileno())
    if not has_ended:
        _each([writer], psutil.Process.suspend)
        named.update(_below(writer))
    # Suspended first: what they start while the list is made would be missed.
    _each(named, psutil.Process.suspend)
    for process in list(named):
        named.update(_below(process))
    _each(named, psutil.Process.kill)
    shutil.rmtree(scratch, ignore_errors=True)
    if not has_ended:
        print("mesh: stopped, by force", flush=True)  # noqa: T201
        writer.kill()


def _read_names(source: int) -> tuple[set[psutil.Process], bool]:
    """Returns the processes that were named, and whether the writer has ended; if not, its time to stop is
    up.

    A process is looked up as soon as its id was read, because ids are used again.
    """
    named: set[psutil.Process] = set()
    rest, deadline = b"", None
    while select.select([source], [], [], deadline and max(0.0, deadline - time.monotonic()))[0]:
        read = os.read(source, 65536)
        if not read:
            return named, True
        if any(number in read for number in _STOP_SIGNALS):
            deadline = deadline or time.monotonic() + STOP_TIMEOUT_S
        *lines, rest = (rest + read.translate(None, _STOP_SIGNALS)).split(b"\n")
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
