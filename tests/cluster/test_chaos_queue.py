"""Processes die while calls queue in front of a slow tool; the ledger is the judge.

Ten people share one session whose tool takes 0.3 s, so that at any moment one call runs and others wait, all
of them claimed. Whatever dies, no line is there twice, and a person is asked only about a call that ran in a
session that was killed: not about one that only waited there.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.core.events import ApprovalRequired, ToolIntent
from mesh.journal.on_disk import parse
from mesh.mcp.port import Claim
from tests.cluster.chaos import SEED, at_work
from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.monkey import Monkey, table, unknown_outcomes
from tests.cluster.person import counts, judge
from tests.cluster.test_chaos import KILLS, converse
from tests.cluster.world import World
from tests.worlds.long import takes_long

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

pytestmark = [takes_long, pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900 + 2 * 12 * KILLS)]


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
    with at_work(slow.mesh.url, lambda client: converse(client, slow), PEOPLE) as people:
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
    assert claims_asked_about(slow.mesh.data_dir) <= claims_begun(slow.mesh.data_dir)
    rows = counts(monkey.kills, told, len(unknown))
    with capsys.disabled():
        sys.stdout.write(f"\nchaos before a slow tool, seed {SEED}:\n{table(rows)}\n")


def claims_asked_about(data_dir: Path) -> set[Claim]:
    """The claims of which nobody knew the outcome."""
    found = set()
    for path in data_dir.glob("conversation_*.jsonl"):
        events, _ = parse(path.read_bytes(), path.name)
        asked = {
            (e.turn, e.step, e.attempt) for e in events if isinstance(e, ApprovalRequired) and _is_unknown(e)
        }
        conversation = path.stem.removeprefix("conversation_")
        found |= {
            Claim(e.session, f"{conversation}|{e.turn}|{e.step}", e.attempt)
            for e in events
            if isinstance(e, ToolIntent) and (e.turn, e.step, e.attempt) in asked
        }
    return found


def _is_unknown(asked: ApprovalRequired) -> bool:
    return asked.kind == "unknown_outcome"


def claims_begun(data_dir: Path) -> set[Claim]:
    """The claims that sessions wrote down when they began them."""
    files = (data_dir / "sessions").iterdir()
    lines = [line.split(" ") for path in files for line in path.read_text().splitlines()]
    return {Claim(line[1], line[3], int(line[2])) for line in lines if line[0] == "begun"}
