"""Processes die at random around calls of a tool that has a check, and of one that has none.

The ledger is the judge: what was approved is there once. With a check that knows the truth, nobody is ever
asked what came of a call; without one, a person is, after kills alone.

    CHAOS_KILLS=100 CHAOS_SEED=1 pytest tests/cluster/test_chaos_checks.py
"""

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.core.events import AnyEvent, ToolIntent, ToolResult
from mesh.journal.on_disk import parse
from tests.cluster.chaos import SEED, at_work, judge_questions
from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.monkey import AS_OFTEN_AS_NEEDED, Monkey, table
from tests.cluster.person import counts, judge
from tests.cluster.test_chaos import converse
from tests.cluster.test_chaos_queue import claims_begun
from tests.cluster.world import CHECKED, World
from tests.worlds.long import takes_long

KILLS = int(os.environ.get("CHAOS_KILLS", "6"))
PEOPLE = 2
VICTIMS = (
    "ledger_server.py",
    "ray::McpSessionActor",
    "ledger_server.py",
    "ray::NodeActor",
    "guard.py",
    "ray::KeeperActor",
)
SLOW_S = 0.5
"""So long a call takes, in which a kill meets it."""
CALLS_WITHIN_S = 180.0

pytestmark = [takes_long, pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900 + 2 * 20 * KILLS)]


@pytest.mark.parametrize("has_check", [True, False], ids=["with a check", "without"])
def test_with_a_check_that_knows_nobody_is_asked_what_came_of_a_call(
    model: Model, has_check: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with world(model, has_check=has_check) as doomed:
        monkey = Monkey(doomed.mesh, VICTIMS, SEED)
        with at_work(doomed.mesh.url, lambda client: converse(client, doomed), PEOPLE) as people:
            for _ in range(KILLS):
                await_call(doomed.mesh.data_dir)
                monkey.pause(SLOW_S)
                monkey.kill_one()
                for gave_up in (person for person in people if person.done()):
                    gave_up.result()
        told = [each for person in people for each in person.result()]
        with Client(doomed.mesh.url) as client:
            for each in told:
                judge(each, client, doomed.lines())
        asked = judge_questions(monkey, doomed.mesh.data_dir, set())
        found = checks(doomed.mesh.data_dir)
    rows = counts(monkey.kills, told, len(asked)) + found
    with capsys.disabled():
        named = "with a check" if has_check else "without one"
        sys.stdout.write(f"\nchaos around a tool {named}, seed {SEED}:\n{table(rows)}\n")
    assert not (has_check and asked)
    assert has_check or not found


@contextmanager
def world(model: Model, *, has_check: bool) -> Iterator[World]:
    """A mesh whose slow tool has a check, or none."""
    with tempfile.TemporaryDirectory(prefix="mesh-checks-", ignore_cleanup_errors=True) as name:
        made = World(
            Path(name),
            model,
            AS_OFTEN_AS_NEEDED,
            {"LEDGER_SLOW_S": str(SLOW_S), **(CHECKED if has_check else {})},
        )
        try:
            made.mesh.start()
            yield made
        finally:
            made.mesh.kill_all()


def await_call(data_dir: Path) -> None:
    """Waits until a session begins a call."""
    before, deadline = len(claims_begun(data_dir)), time.monotonic() + CALLS_WITHIN_S
    while len(claims_begun(data_dir)) <= before:
        assert time.monotonic() < deadline, "no call begins"
        time.sleep(0.01)


def checks(data_dir: Path) -> Counter[str]:
    """What checks found, by outcome, in all journals."""
    journals = data_dir.glob("conversation_*.jsonl")
    events: list[AnyEvent] = [event for path in journals for event in parse(path.read_bytes(), path.name)[0]]
    told = [event.found for event in events if isinstance(event, ToolIntent | ToolResult) and event.found]
    return Counter(f"  a check found {found.outcome}" for found in told)
