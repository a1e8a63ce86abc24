"""Every process that this one started, directly or through others, so that none is left behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Self

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 3
_LAST_WILL = Path(__file__).with_name("last_will.py")


def adopt() -> None:
    """Makes processes whose parent dies children of this one, so that `sweep` finds them (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def all_of_them() -> list[psutil.Process]:
    """The descendants as of now."""
    return psutil.Process().children(recursive=True)


def sweep(grace_s: float, spare: Collection[int] = ()) -> None:
    """Ends them and whatever they start meanwhile, but for the ids in ``spare``: asked first, killed after
    ``grace_s``."""

    def rest() -> set[psutil.Process]:
        return {process for process in all_of_them() if process.pid not in spare}

    processes = rest()
    for process in processes:
        _send(process, signal.SIGTERM)
    _, survivors = psutil.wait_procs(processes, timeout=grace_s)
    for _ in range(_ROUNDS):
        processes = set(survivors) | rest()
        for process in processes:
            _send(process, signal.SIGKILL)
        _, survivors = psutil.wait_procs(processes, timeout=grace_s)


class LastWill:
    """A small process that ends the others when this one cannot (`last_will`): killed, or asked by a signal
    to stop while it runs no Python. Within a ``with`` in the main thread; the folder ``scratch`` goes too."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def __enter__(self) -> Self:
        # In a session of its own: Ctrl-C in a terminal must not end it before its time.
        self._executor = subprocess.Popen(
            [sys.executable, _LAST_WILL, self._scratch], stdin=subprocess.PIPE, start_new_session=True
        )
        os.set_blocking(self._pipe, False)
        self._wakeup_before = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        self._executor.kill()
        self._executor.communicate()

    @property
    def pid(self) -> int:
        return self._executor.pid

    def disown(self) -> None:
        """To be called in a forked child: only the parent's end may be what executes the will."""
        signal.set_wakeup_fd(-1)
        assert self._executor.stdin is not None
        self._executor.stdin.close()

    def update(self) -> None:
        """Names the descendants as of now. Their parents may be gone by the time it is executed."""
        pids = [process.pid for process in all_of_them() if process.pid != self._executor.pid]
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, "".join(f"{pid}\n" for pid in pids).encode())

    @property
    def _pipe(self) -> int:
        assert self._executor.stdin is not None
        return self._executor.stdin.fileno()


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
