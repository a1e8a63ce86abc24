"""The processes that a Ray of our own needs, and whether they are alive.

Ray and Serve restart the Serve controller, and HAProxy with its manager, by themselves. These get
`RESTART_TIMEOUT_S` to come back. Without any of the others Ray does not recover:

- the control store (``gcs_server``) keeps everything in memory;
- the raylet exits as soon as one of its two agents dies, and all actors end with it;
- nobody restarts the dashboard.

Ray's log monitor and autoscaler monitor are not in the list: a mesh on one machine uses neither.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from mesh.processes.descendants import is_alive

RESTART_TIMEOUT_S = 15.0
_SCAN_EVERY_S = 10.0
_ARGUMENTS = 3
"""How many arguments of a command line tell what it is. Later ones of the raylet name its agents'
commands."""


@dataclass(frozen=True)
class Kind:
    """A kind of daemon: its name for people, and what its command line contains. ``is_restarted``: Ray or
    Serve start it again. ``is_replaced``: one exits when another takes over, which does not count as a
    death."""

    name: str
    mark: str
    is_restarted: bool = False
    is_replaced: bool = False


KINDS = (
    Kind("gcs_server", "gcs/gcs_server"),
    Kind("dashboard agent", "ray::DashboardAgent"),
    Kind("runtime-env agent", "ray::RuntimeEnvAgent"),
    Kind("raylet", "raylet/raylet"),
    Kind("dashboard", "dashboard/dashboard.py"),
    Kind("Serve controller", "ray::ServeController", is_restarted=True),
    Kind("HAProxy manager", "ray::HAProxyManager", is_restarted=True),
    Kind("HAProxy", "/haproxy", is_restarted=True, is_replaced=True),
)


def kind_of(command: Iterable[str]) -> Kind | None:
    """Returns the kind of daemon that a command line belongs to, if any."""
    first = [*command][:_ARGUMENTS]
    return next((kind for kind in KINDS if any(kind.mark in argument for argument in first)), None)


class Daemons:
    """The daemons of one Ray, from its start on.

    ``list_processes`` returns the processes among which they are. Listing costs some milliseconds and so is
    done rarely; in between, only the known ones are looked at. ``on_death`` is called with the name of each
    daemon that died and that Ray restarts by itself.
    """

    def __init__(
        self, list_processes: Callable[[], list[psutil.Process]], on_death: Callable[[str], None]
    ) -> None:
        self._list_processes = list_processes
        self._on_death = on_death
        self._known: dict[psutil.Process, Kind] = {}
        self._missing: dict[Kind, float] = {}
        self._scan_at = 0.0

    def failure(self) -> str | None:
        """Returns why Ray cannot go on, or None if it can. To be called about every second."""
        now = time.monotonic()
        dead = self._dead()
        if dead or self._missing or now >= self._scan_at:
            self._scan(now)
            dead = self._dead()  # a process may have died while the list was made
        died = {self._known.pop(process) for process in dead}
        living = set(self._known.values())
        gone = [kind for kind in KINDS if kind in died and not (kind.is_replaced and kind in living)]
        if for_good := [kind.name for kind in gone if not kind.is_restarted]:
            return f"the {' and the '.join(for_good)} died"
        for kind in gone:
            self._missing[kind] = now
            self._on_death(kind.name)
        for kind in living & set(self._missing):
            del self._missing[kind]
        late = [kind.name for kind, since in self._missing.items() if now - since > RESTART_TIMEOUT_S]
        return f"the {late[0]} died and was not started again" if late else None

    def scan_soon(self) -> None:
        """Makes the next call of `failure` list the processes, because there may be new ones."""
        self._scan_at = 0.0

    def _scan(self, now: float) -> None:
        self._scan_at = now + _SCAN_EVERY_S
        for process in self._list_processes():
            if kind := kind_of(_command(process)):
                self._known[process] = kind

    def _dead(self) -> list[psutil.Process]:
        return [process for process in self._known if not is_alive(process)]


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.cmdline()
    return []
