"""Processes die while calls queue in front of a slow tool; the ledger is the judge.

Ten people share one session whose tool takes 0.3 s, so that at any moment one call runs and others wait, all
of them claimed. Whatever dies, no line is there twice, and a person is asked only about a call that ran in a
session that was killed: one call for each such kill, at the most.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.monkey import SESSIONS, Monkey, table, unknown_outcomes
from tests.cluster.person import counts, judge
from tests.cluster.test_chaos import KILLS, SEED, at_work
from tests.cluster.world import World

PEOPLE = 10
SLOW_S = "0.3"
PAUSE_S = 6.0
"""Long enough that calls queue again between two kills."""
VICTIMS = (
    "ray::NodeActor",
    "ray::KeeperActor",
    "ray::NodeActor",
    "ray::KeeperActor",
    "ray::McpSessionActor",
    "ledger_server.py",
)

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(300 + 12 * KILLS)]


@pytest.fixture
def slow(model: Model) -> Iterator[World]:
    """A mesh whose tool takes its time."""
    with tempfile.TemporaryDirectory(prefix="mesh-queue-", ignore_cleanup_errors=True) as name:
        world = World(Path(name), model, tool_env={"LEDGER_SLOW_S": SLOW_S})
        try:
            world.mesh.start()
            yield world
        finally:
            world.mesh.kill_all()


def test_kills_while_calls_queue_run_nothing_twice_and_ask_only_about_killed_sessions(
    slow: World, capsys: pytest.CaptureFixture[str]
) -> None:
    monkey = Monkey(slow.mesh, VICTIMS, SEED)
    with at_work(slow, PEOPLE) as people:
        for _ in range(KILLS):
            monkey.pause(PAUSE_S)
            monkey.kill_one()
            for gave_up in (person for person in people if person.done()):
                gave_up.result()
    told = [each for person in people for each in person.result()]
    assert {line: times for line, times in slow.lines().items() if times > 1} == {}
    with Client(slow.mesh.url) as client:
        for each in told:
            judge(each, client, slow.lines())
    unknown = list(unknown_outcomes(slow.mesh.data_dir))
    assert [asked.uuid for asked, intent in unknown if not monkey.excuses(asked, intent)] == []
    ended = sum(kill.victim in SESSIONS for kill in monkey.kills)
    assert len(unknown) <= ended, "a call that only waited was asked about"
    rows = counts(monkey.kills, told, len(unknown))
    with capsys.disabled():
        sys.stdout.write(f"\nchaos before a slow tool, seed {SEED}:\n{table(rows)}\n")
