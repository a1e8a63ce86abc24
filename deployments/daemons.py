"""The processes that a Ray of our own cannot be without, and whether they live.

Ray and Serve start two of them again by themselves: the Serve controller, and HAProxy with its manager. They
get `COMES_BACK_WITHIN_S` to do so. Without any of the others Ray does not recover:

- the control store (``gcs_server``) keeps everything in memory;
- the raylet ends as soon as one of its two agents dies, and all actors end with it;
- nobody restarts the dashboard.

Ray's log monitor and autoscaler monitor are missing here on purpose: a mesh on one machine uses neither.
"""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

COMES_BACK_WITHIN_S = 15.0
_SCAN_EVERY_S = 10.0
_ARGUMENTS = 3
"""The raylet's later arguments name the commands of its agents."""


@dataclass(frozen=True)
class Kind:
    """A daemon: its name for people, and what is in the first arguments of its command line. ``comes_back``:
    Ray or Serve starts it again. ``is_replaced``: one ends as another takes over, which is no death."""

    name: str
    mark: str
    comes_back: bool = False
    is_replaced: bool = False


KINDS = (
    Kind("gcs_server", "gcs/gcs_server"),
    Kind("dashboard agent", "ray::DashboardAgent"),
    Kind("runtime-env agent", "ray::RuntimeEnvAgent"),
    Kind("raylet", "raylet/raylet"),
    Kind("dashboard", "dashboard/dashboard.py"),
    Kind("Serve controller", "ray::ServeController", comes_back=True),
    Kind("HAProxy manager", "ray::HAProxyManager", comes_back=True),
    Kind("HAProxy", "/haproxy", comes_back=True, is_replaced=True),
)


def kind_of(command: Iterable[str]) -> Kind | None:
    """Which daemon a command line is of."""
    first = [*command][:_ARGUMENTS]
    return next((kind for kind in KINDS if any(kind.mark in argument for argument in first)), None)


class Daemons:
    """The daemons of one Ray, from its start on. ``below`` gives the processes to look among; to list them
    costs some milliseconds, and so is done rarely: between two lists only the known ones are looked at.

    ``died`` is told the name of each daemon whose kind Ray starts again by itself."""

    def __init__(self, below: Callable[[], list[psutil.Process]], died: Callable[[str], None]) -> None:
        self._below = below
        self._died = died
        self._known: dict[psutil.Process, Kind] = {}
        self._missing: dict[Kind, float] = {}
        self._scan_at = 0.0

    def lost(self) -> str | None:
        """Why Ray cannot go on, or None if it can. To be asked every second or so."""
        now = time.monotonic()
        dead = self._dead()
        if dead or self._missing or now >= self._scan_at:
            self._scan(now)
            dead = self._dead()  # a process may have died while the list was made
        died = {self._known.pop(process) for process in dead}
        living = set(self._known.values())
        gone = [kind for kind in KINDS if kind in died and not (kind.is_replaced and kind in living)]
        if for_good := [kind.name for kind in gone if not kind.comes_back]:
            return f"the {' and the '.join(for_good)} died"
        for kind in gone:
            self._missing[kind] = now
            self._died(kind.name)
        for kind in living & set(self._missing):
            del self._missing[kind]
        late = [kind.name for kind, since in self._missing.items() if now - since > COMES_BACK_WITHIN_S]
        return f"the {late[0]} died and was not started again" if late else None

    def look_again(self) -> None:
        """There may be new ones: the next look makes a list."""
        self._scan_at = 0.0

    def _scan(self, now: float) -> None:
        self._scan_at = now + _SCAN_EVERY_S
        for process in self._below():
            if kind := kind_of(_command(process)):
                self._known[process] = kind

    def _dead(self) -> list[psutil.Process]:
        return [process for process in self._known if not is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs. A zombie does not."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def reap(spare: Iterable[int]) -> None:
    """Takes leave of children that ended, orphans that this process adopted above all; not of those in
    ``spare``, for which others wait."""
    for child in psutil.Process().children():
        if child.pid not in spare and not is_alive(child):
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.cmdline()
    return []
