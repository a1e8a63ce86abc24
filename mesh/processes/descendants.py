"""Every process that this one started, directly or through others, so that none is left behind."""

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import psutil

from mesh.processes.guard import PR_SET_CHILD_SUBREAPER, prctl

_ROUNDS = 3


def adopt_orphans() -> None:
    """Makes descendants whose parent dies children of this process, so that they are still found (Linux)."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[psutil.Process]:
    """Returns the descendants as of now."""
    return psutil.Process().children(recursive=True)


def end_descendants(grace_s: float, spare: Collection[int] = ()) -> None:
    """Asks the descendants to end and kills those that have not after ``grace_s`` seconds, except for the ids
    in ``spare``."""

    def remaining() -> set[psutil.Process]:
        return {process for process in descendants() if process.pid not in spare}

    processes = remaining()
    _each(processes, psutil.Process.terminate)
    _, survivors = psutil.wait_procs(processes, timeout=grace_s)
    # In rounds: a process that is about to be killed may start another one.
    for _ in range(_ROUNDS):
        processes = set(survivors) | remaining()
        _each(processes, psutil.Process.kill)
        _, survivors = psutil.wait_procs(processes, timeout=grace_s)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie does not."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def reap(spare: Collection[int]) -> None:
    """Removes the zombies among the children, orphans that this process adopted above all; not the ids in
    ``spare``, which somebody else waits for."""
    for child in psutil.Process().children():
        if child.pid not in spare and not is_alive(child):
            with suppress(ChildProcessError):  # it was waited for meanwhile
                os.waitpid(child.pid, os.WNOHANG)


def _each(processes: Iterable[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            do(process)
