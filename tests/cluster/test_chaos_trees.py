"""Processes of a mesh that runs the reference tree die with SIGKILL; three judges look at what is left.

The ledger: every approved line is there once. The client: every acknowledged answer and decision is still
there. The model's log and the journals: no model call is made again once its outcome was journaled, a call
is repeated and an outcome unknown only where a kill explains it, and no open turn stands still.

    CHAOS_KILLS=500 CHAOS_SEED=1 pytest tests/cluster/test_chaos_trees.py
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from mesh.core.events import AnyEvent, LlmCall, ToolResult
from tests.cluster.chaos import (
    SEED,
    at_work,
    doomed_world,
    journal,
    judge_acknowledged,
    judge_questions,
    judge_repeats,
    kill_at_random,
)
from tests.cluster.client import Client
from tests.cluster.monkey import Monkey, seconds, table, unknown_outcomes
from tests.cluster.test_chaos import (
    BEFORE_THE_CLAIM,
    KILLS,
    KNOWN_AFTER_THE_CLAIM,
    UNKNOWN_AFTER_THE_CLAIM,
    VICTIMS,
)
from tests.cluster.tree_world import (
    APPENDS,
    STEPS,
    Asked,
    Body,
    Told,
    TreeModel,
    TreePerson,
    TreeWorld,
    line,
    seen,
)
from tests.worlds.long import takes_long

POWER_CUT_EVERY = min(25, KILLS // 2)
IN_THE_LOOP = "0.3.0#1/llm/0"
"""The model call before the line that is appended without asking."""

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900 + 2 * 11 * KILLS)]


@pytest.fixture(scope="module")
def doomed() -> Iterator[TreeWorld]:
    """A mesh that is killed in part, again and again."""
    with doomed_world(TreeWorld, TreeModel()) as world:
        yield world


@pytest.fixture
def client(doomed: TreeWorld) -> Iterator[Client]:
    with Client(doomed.mesh.url) as client:
        yield client


def test_without_a_kill_every_step_of_the_tree_runs_once(doomed: TreeWorld, client: Client) -> None:
    person = TreePerson(client, doomed.lines)
    told = person.open()
    person.settle(told, person.say(told))
    assert judge(told, client, doomed) == []
    events = journal(told, doomed)
    assert sum(isinstance(event, LlmCall | ToolResult) for event in events) == STEPS
    calls = doomed.model.asked[told.conversation_id]
    assert Counter(call.step for call in calls) == {e.step: 1 for e in events if isinstance(e, LlmCall)}


@pytest.mark.parametrize("failpoint", BEFORE_THE_CLAIM)
def test_kills_where_nobody_claims_a_tool_are_not_noticed(
    doomed: TreeWorld, client: Client, failpoint: str
) -> None:
    walk = Walk(doomed, client, failpoint)
    walk.say()
    walk.approve_one()
    walk.approve_one()
    walk.finish()
    assert judge(walk.told, client, doomed) == []
    assert walk.told.unknown == []


def test_kills_after_a_decision_are_not_noticed(doomed: TreeWorld, client: Client) -> None:
    walk = Walk(doomed, client, "approval.resolved")
    walk.say(armed=False)
    walk.approve_one()
    walk.approve_one()
    walk.finish()
    assert judge(walk.told, client, doomed) == []
    assert walk.told.unknown == []


@pytest.mark.parametrize(
    ("failpoint", "decided"),
    [
        *((failpoint, []) for failpoint in KNOWN_AFTER_THE_CLAIM),
        *((failpoint, [decided] * 3) for failpoint, decided in UNKNOWN_AFTER_THE_CLAIM.items()),
    ],
)
def test_kills_between_claim_and_result_are_questions_to_a_person_only_if_the_session_died(
    doomed: TreeWorld, client: Client, failpoint: str, decided: list[str]
) -> None:
    walk = Walk(doomed, client, failpoint)
    walk.say(armed=False)
    walk.approve_one()
    walk.approve_one()
    doomed.model.traps[IN_THE_LOOP] = lambda: doomed.arm(failpoint)
    walk.finish()
    assert not doomed.is_armed(failpoint), "nobody passed it in the loop"
    assert judge(walk.told, client, doomed) == []
    assert walk.told.unknown == decided


class Walk:
    """One turn, stop by stop, with a failpoint armed before each: in the first pass, at a line in the
    sequence, at one of two lines in the parallel. Each must be passed before the next stop."""

    def __init__(self, world: TreeWorld, client: Client, failpoint: str) -> None:
        self._world = world
        self._person = TreePerson(client, world.lines)
        self._failpoint = failpoint
        self._pending: list[Body] = []
        self.told = self._person.open()

    def say(self, *, armed: bool = True) -> None:
        """Sends the message."""
        if armed:
            self._world.arm(self._failpoint)
        self._pending = self._person.say(self.told)
        self._passed()

    def approve_one(self) -> None:
        """Approves the oldest call, and decides what nobody knows because of that."""
        self._world.arm(self._failpoint)
        asked = self._pending[:1]
        while asked:
            self._pending = self._person.decide(self.told, asked)
            asked = [approval for approval in self._pending if approval["kind"] == "unknown_outcome"]
        self._passed()

    def finish(self) -> None:
        """Decides until the turn is over."""
        self._person.settle(self.told, self._pending)

    def _passed(self) -> None:
        assert not self._world.is_armed(self._failpoint), "nobody passed it"


@takes_long
def test_random_kills_in_trees_lose_nothing_and_repeat_nothing(
    doomed: TreeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_before = {asked.uuid for asked, _ in unknown_outcomes(doomed.mesh.data_dir)}
    monkey = Monkey(doomed.mesh, VICTIMS, SEED)
    with at_work(doomed.mesh.url, lambda client: converse(client, doomed)) as people:
        slowest = kill_at_random(
            monkey, KILLS, people, power_cut_every=POWER_CUT_EVERY, data_dir=doomed.mesh.data_dir
        )
    told = [each for person in people for each in person.result()]
    with Client(doomed.mesh.url) as client:
        not_run = [wanted for each in told for wanted in judge(each, client, doomed)]
    doomed.mesh.wait_ready(60)
    unknown = judge_questions(monkey, doomed.mesh.data_dir, asked_before)
    calls = [doomed.model.asked[each.conversation_id] for each in told]

    rows = Counter(kill.victim for kill in monkey.kills)
    rows["kills"] = len(monkey.kills)
    rows["conversations"] = len(told)
    rows["turns of 28 steps"] = sum(len(each.sent) for each in told)
    rows["approved lines"] = sum(len(each.sent) for each in told) * len(APPENDS)
    rows["told that it did not run"] = len(not_run)
    rows["model calls repeated"] = judge_repeats(monkey, calls, lambda call: (call.turn, call.step))
    rows["unknown outcomes"] = len(unknown)
    rows.update(Counter(f"  decided {word}" for each in told for word in each.unknown))
    rows["slowest to resume (s)"] = round(slowest)
    with capsys.disabled():
        sys.stdout.write(f"\nchaos in trees, seed {SEED}:\n{table(rows)}\n")


def converse(client: Client, world: TreeWorld) -> Told:
    """A conversation of two turns, in which the tree runs."""
    person = TreePerson(client, world.lines)
    told = person.open()
    for _ in range(2):
        person.settle(told, person.say(told))
    return told


def judge(told: Told, client: Client, world: TreeWorld) -> list[str]:
    """Fails if anything was lost or done twice; the lines whose append the person was told did not run."""
    events = journal(told, world)
    judge_acknowledged(told, client, events)
    wanted = {line(place, message) for place in APPENDS for message in told.sent}
    not_run = [
        line(event.node, told.sent[event.turn - 1])
        for event in events
        if isinstance(event, ToolResult) and event.node in APPENDS and event.is_error and not event.skipped
    ]
    lines = world.lines()
    assert {x: lines[x] for x in wanted} == {x: int(x not in not_run) for x in wanted}, told

    calls = world.model.asked[told.conversation_id]
    assert needless(calls, events) == []
    assert [call for call in calls if call.saw != seen(call.name, call.iteration, call.message)] == []
    return not_run


def needless(calls: Sequence[Asked], events: Sequence[AnyEvent]) -> list[Asked]:
    """The model calls whose outcome was known before they were made."""
    known = {(event.turn, event.step): seconds(event) for event in events if isinstance(event, LlmCall)}
    return [call for call in calls if call.at > known[call.turn, call.step]]
