"""Every process that this one started, directly or through others, so that none is left behind."""

import contextlib
import ctypes
import sys

import psutil

_PR_SET_CHILD_SUBREAPER = 36


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


def _send(process: psutil.Process, what: str) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        getattr(process, what)()
