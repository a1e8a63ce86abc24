"""Every process that this one started, directly or through others, so that none is left behind."""

import contextlib
import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_LAST_WILL = Path(__file__).with_name("last_will.py")


def adopt() -> None:
    """Makes processes whose parent dies children of this one, so that `sweep` finds them (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def all_of_them() -> list[psutil.Process]:
    """The descendants as of now."""
    return psutil.Process().children(recursive=True)


def sweep(known: list[psutil.Process], grace_s: float) -> None:
    """Ends the known ones and whatever they started since: asked first, killed after ``grace_s``."""
    processes = set(known) | set(all_of_them())
    for process in processes:
        _send(process, "terminate")
    psutil.wait_procs(processes, timeout=grace_s)
    survivors = processes | set(all_of_them())
    for process in survivors:
        _send(process, "kill")
    psutil.wait_procs(survivors, timeout=grace_s)


class LastWill:
    """A small process that ends the others when this one is killed before it can (`last_will`)."""

    def __enter__(self) -> Self:
        # In a session of its own: Ctrl-C in a terminal must not end it before its time.
        self._executor = subprocess.Popen(
            [sys.executable, _LAST_WILL], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._executor.kill()
        self._executor.communicate()

    def update(self) -> None:
        """Names the descendants as of now. Their parents may be gone by the time it is executed."""
        assert self._executor.stdin is not None
        pids = [process.pid for process in all_of_them() if process.pid != self._executor.pid]
        with contextlib.suppress(BrokenPipeError):
            self._executor.stdin.write("".join(f"{pid}\n" for pid in pids))
            self._executor.stdin.flush()


def _send(process: psutil.Process, what: str) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        getattr(process, what)()
