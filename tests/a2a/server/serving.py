"""A mesh that serves A2A, and a client of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mesh.journal.memory import MemoryJournal
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says
from tests.worlds.rpc import Json, Rpc

ADD = calls(("add", {"n": 7}))


@contextmanager
def served(
    *answers: Any, setting: str = SIMPLE, model: Any = None, journal: MemoryJournal | None = None
) -> Iterator[tuple[Rpc, LiveMesh]]:
    with (
        LiveMesh(model or Spoken(*(answers or (says("hello there"),))), setting, journal) as live,
        Rpc(live.url) as rpc,
    ):
        yield rpc, live


def rest_messages(rpc: Rpc, task: Json) -> list[Json]:
    found: list[Json] = rpc.http.get(f"/conversations/{task['id']}").json()["conversation"]["messages"]
    return found
