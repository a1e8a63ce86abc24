"""Kills random processes of a mesh at random moments, and remembers which and when."""

import logging
import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from mesh.core.events import AnyEvent, ApprovalRequired, ToolIntent
from mesh.journal.on_disk import parse
from tests.worlds.process import MeshProcess

UP_AGAIN_WITHIN_S = 240.0
RECOVERY_S = 20.0
"""For how long after a kill calls may still meet the gap that it left."""
EVERYTHING = "everything at once"
DAEMON = "a daemon of Ray"
"""One of `DAEMONS`: without it Ray is started anew, so they share a turn."""
DAEMONS = (
    "gcs/gcs_server --",
    "raylet/raylet --",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
    "dashboard/dashboard.py --",
)
AS_OFTEN_AS_NEEDED = {"MESH_MAX_RESTARTS": "100000"}
"""The environment of a mesh whose daemons are killed more often than it would stand."""
SESSIONS = ("ray::McpSessionActor", "ledger_server.py", "guard.py", *DAEMONS, EVERYTHING)
"""The kills that end a session with a tool server, or its server: who else dies may be asked what it knew."""
_PROGRESS_EVERY = 25

_log = logging.getLogger("chaos")


@dataclass(frozen=True)
class Kill:
    """``at`` is Unix time, in seconds."""

    victim: str
    at: float


class Monkey:
    """Its dice are seeded: the same seed takes the same victims at the same intervals."""

    def __init__(self, mesh: MeshProcess, victims: Sequence[str], seed: int) -> None:
        self._mesh = mesh
        self._victims = victims
        self._dice = random.Random(seed)
        self._bag: list[str] = []
        self._daemons: list[str] = []
        self._began = time.monotonic()
        self.kills: list[Kill] = []

    def pause(self, longest_s: float = 2.0) -> None:
        """A random moment is a random time after the one before."""
        time.sleep(self._dice.uniform(0, longest_s))

    def kill_one(self) -> None:
        """Kills a process of the next kind, as soon as there is one; every kind gets its turn."""
        self._bag = self._bag or self._dice.sample(self._victims, len(self._victims))
        kind = self._bag.pop()
        if kind == DAEMON:
            self._kill_a_daemon()
        else:
            self._kill_as_soon_as_there_is_one(kind)

    def _kill_a_daemon(self) -> None:
        """Returns when the mesh is up again."""
        self._daemons = self._daemons or self._dice.sample(DAEMONS, len(DAEMONS))
        driver = self._mesh.driver()
        self._kill_as_soon_as_there_is_one(self._daemons.pop())
        driver.wait(UP_AGAIN_WITHIN_S)
        self._mesh.wait_ready(UP_AGAIN_WITHIN_S)

    def _kill_as_soon_as_there_is_one(self, kind: str) -> None:
        deadline = time.monotonic() + UP_AGAIN_WITHIN_S
        while not self._kill(kind):
            assert time.monotonic() < deadline, f"{kind} does not come up again"
            time.sleep(0.05)

    def cut_power(self) -> None:
        """Kills all of the mesh at once and starts it again; returns when it is up."""
        self._killed(EVERYTHING)
        self._mesh.kill_all()
        self._mesh.start()

    def _kill(self, kind: str) -> bool:
        found = self._mesh.find(kind)
        if found:
            try:
                self._dice.choice(found).kill()
            except psutil.NoSuchProcess:
                return False
            self._killed(kind)
        return bool(found)

    def _killed(self, kind: str) -> None:
        self.kills.append(Kill(kind, time.time()))
        if len(self.kills) % _PROGRESS_EVERY == 0:
            took = time.monotonic() - self._began
            _log.info("%d kills in %.0f s, the last of %s", len(self.kills), took, kind)

    def excuses(self, asked: ApprovalRequired, intent: ToolIntent) -> bool:
        """Whether a kill can be why nobody knew the outcome of a call."""
        return self.was_near(seconds(intent), seconds(asked), SESSIONS)

    def was_near(self, first: float, last: float, victims: Collection[str] | None = None) -> bool:
        """Whether a kill, of one of these victims or of any, can be why something went wrong between two
        moments, in Unix time."""
        return any(
            first - RECOVERY_S <= kill.at <= last and (victims is None or kill.victim in victims)
            for kill in self.kills
        )


def unknown_outcomes(data_dir: Path) -> Iterable[tuple[ApprovalRequired, ToolIntent]]:
    """Every question of this kind in all journals, with the claim it is about."""
    for path in data_dir.glob("conversation_*.jsonl"):
        events, _ = parse(path.read_bytes(), path.name)
        for event in events:
            if isinstance(event, ApprovalRequired) and event.kind == "unknown_outcome":
                yield event, _claim(events, event)


def table(rows: Counter[str]) -> str:
    """Two columns for people."""
    return "\n".join(f"  {name:<28} {count:>6}" for name, count in rows.items())


def _claim(events: Sequence[AnyEvent], asked: ApprovalRequired) -> ToolIntent:
    return next(
        e for e in events if isinstance(e, ToolIntent) and (e.step, e.attempt) == (asked.step, asked.attempt)
    )


def seconds(event: AnyEvent) -> float:
    """When it happened, in Unix time."""
    return datetime.fromisoformat(event.time).timestamp()
