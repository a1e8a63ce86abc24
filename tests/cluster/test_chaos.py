"""Processes die with SIGKILL while people work; the ledger is the judge.

Whatever dies, a line that was approved is in the ledger once. Where nobody can know whether a tool
ran, the conversation says so and a person decides: that is allowed only after a kill.

    CHAOS_KILLS=500 CHAOS_SEED=1 pytest tests/cluster/test_chaos.py
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster.chaos import SEED, at_work, judge_questions
from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.monkey import AS_OFTEN_AS_NEEDED, DAEMON, Monkey, table, unknown_outcomes
from tests.cluster.person import Person, Told, converse, counts, judge
from tests.cluster.world import World

KILLS = int(os.environ.get("CHAOS_KILLS", "6"))
GONE_WITHIN_S = 180.0
VICTIMS = (
    "ray::NodeActor",
    "ray::KeeperActor",
    "ray::McpSessionActor",
    "ledger_server.py",
    "guard.py",
    "ray::ServeReplica",
    "haproxy -db",
    "ray::ServeController",
    DAEMON,
)
BEFORE_THE_CLAIM = (
    "llm.returned",
    "keeper.pass_returned",
    "journal.before_append",
    "journal.after_append",
)
KNOWN_AFTER_THE_CLAIM = ("tool.claimed", "mcp.before_call", "tool.returned")
"""The node dies, or the session before it begins the call: it is known whether the call ran."""
UNKNOWN_AFTER_THE_CLAIM = {
    "server.before_append": "retry",
    "server.after_append": "skip",
    "mcp.after_call": "skip",
}
"""The session or its server dies while it runs the call, and what a person finds."""

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900 + 2 * 9 * KILLS)]


@pytest.fixture(scope="module")
def doomed(model: Model) -> Iterator[World]:
    """A mesh that is killed in part, again and again; not the one that other tests share."""
    with tempfile.TemporaryDirectory(prefix="mesh-chaos-", ignore_cleanup_errors=True) as name:
        world = World(Path(name), model, env=AS_OFTEN_AS_NEEDED)
        world.mesh.start()
        yield world
        world.mesh.kill_all()


@pytest.mark.parametrize("failpoint", BEFORE_THE_CLAIM)
def test_a_kill_while_a_message_is_taken_is_not_noticed(doomed: World, failpoint: str) -> None:
    with Client(doomed.mesh.url) as client:
        person = Person(client, doomed.lines)
        told = person.open()
        doomed.arm(failpoint)
        approval = person.ask_to_append(told)
        assert not doomed.is_armed(failpoint), "nobody passed it"
        person.settle(told, approval)
        judge(told, client, doomed.lines())
        assert not told.not_run
        assert told.unknown == []


@pytest.mark.parametrize("failpoint", ["approval.resolved", *BEFORE_THE_CLAIM, *KNOWN_AFTER_THE_CLAIM])
def test_a_kill_while_a_decision_is_taken_is_not_noticed(doomed: World, failpoint: str) -> None:
    """Also after the claim: a session knows what it ran, and what the one before it did not begin."""
    assert approved_with(doomed, failpoint).unknown == []


@pytest.mark.parametrize(("failpoint", "decided"), UNKNOWN_AFTER_THE_CLAIM.items())
def test_a_session_that_dies_between_claim_and_result_is_a_question_to_a_person(
    doomed: World, failpoint: str, decided: str
) -> None:
    assert approved_with(doomed, failpoint).unknown == [decided]


def approved_with(doomed: World, failpoint: str) -> Told:
    """A line that was approved, with the first process that passes a failpoint dead, and judged."""
    with Client(doomed.mesh.url) as client:
        person = Person(client, doomed.lines)
        told = person.open()
        approval = person.ask_to_append(told)
        doomed.arm(failpoint)
        person.settle(told, approval)
        assert not doomed.is_armed(failpoint), "nobody passed it"
        judge(told, client, doomed.lines())
        assert not told.not_run
        return told


def test_random_kills_lose_nothing_and_repeat_nothing(
    doomed: World, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_before = {asked.uuid for asked, _ in unknown_outcomes(doomed.mesh.data_dir)}
    monkey = Monkey(doomed.mesh, VICTIMS, SEED)
    with at_work(doomed.mesh.url, lambda client: converse(client, doomed.lines)) as people:
        for _ in range(KILLS):
            monkey.pause()
            monkey.kill_one()
            for gave_up in (person for person in people if person.done()):
                gave_up.result()
    told = [each for person in people for each in person.result()]
    with Client(doomed.mesh.url) as client:
        for each in told:
            judge(each, client, doomed.lines())
    doomed.mesh.wait_ready(60)
    unknown = judge_questions(monkey, doomed.mesh.data_dir, asked_before)
    rows = counts(monkey.kills, told, len(unknown))
    with capsys.disabled():
        sys.stdout.write(f"\nchaos, seed {SEED}:\n{table(rows)}\n")


def test_after_a_power_cut_everything_goes_on(doomed: World) -> None:
    with Client(doomed.mesh.url) as client:
        person = Person(client, doomed.lines)
        waits = person.open()
        approval = person.ask_to_append(waits)
        open_turn = person.open()
        path = f"/conversations/{open_turn.conversation_id}"
        taken = httpx.post(
            f"{doomed.mesh.url}{path}/messages",
            json={"message": "sleep 0.5"},
            headers={"Prefer": "respond-async"},
        )
        assert taken.status_code == 202
        open_turn.sent.append("sleep 0.5")
        with at_work(doomed.mesh.url, lambda client: converse(client, doomed.lines)) as people:
            Monkey(doomed.mesh, VICTIMS, SEED).pause()
            doomed.mesh.kill_all()
            doomed.mesh.start()
        person.settle(waits, approval)
        deadline = time.monotonic() + 20
        while client.get(path)["conversation"]["messages"][-1]["role"] != "assistant":
            assert time.monotonic() < deadline, "the open turn does not end"
            time.sleep(0.1)
        open_turn.answers.append("slept 0.5")
        for each in (waits, open_turn, *(each for person in people for each in person.result())):
            judge(each, client, doomed.lines())


def test_a_kill_of_mesh_up_itself_leaves_nothing_running(doomed: World) -> None:
    """The last one here: the mesh of this module is down after it."""
    os.kill(doomed.mesh.pid, signal.SIGKILL)
    doomed.mesh.wait(GONE_WITHIN_S)
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := doomed.mesh.left_behind()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
