"""Processes of a mesh whose agents call each other under a budget die with SIGKILL; four judges look at it.

The ledger and the journals: each append that the journal knows as done is there once, and no other. The
client: every acknowledged answer and decision is still there. The model's own bill: in each turn it is at
most what was spent and what is unsettled, and that is within the limits. The keeper, once it has recovered:
it tells the sums that the journal folds to.

    CHAOS_KILLS=500 CHAOS_SEED=1 pytest tests/cluster/test_chaos_agents.py
"""

import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from mesh.core.budget import NOTHING, NUSD
from mesh.core.conversation import fold
from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    LimitReached,
    LlmReserved,
    ToolResult,
)
from mesh.core.spending import spend_report
from mesh.journal.on_disk import parse
from tests.cluster.agent_world import (
    MOST_CALLS,
    MOST_NUSD,
    SCRIBES,
    AgentWorld,
    Billed,
    BilledModel,
    is_answer,
    line,
)
from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.monkey import AS_OFTEN_AS_NEEDED, Monkey, table, unknown_outcomes
from tests.cluster.test_chaos import PEOPLE, SEED
from tests.cluster.test_chaos_trees import await_resumed
from tests.cluster.tree_world import Told, TreePerson

KILLS = int(os.environ.get("CHAOS_KILLS", "50"))
POWER_CUT_EVERY = 10
IN_A_ROW = 5
"""Kills before every open turn must have moved on: the next hits a mesh that works."""
VICTIMS = ("ray::NodeActor", "ray::KeeperActor", "ray::NodeActor", "ledger_server.py", "ray::McpSessionActor")
SUMS = ("spent", "by_agent", "by_model")
FAILPOINTS = ("llm.reserved", "agent.called", "agent.returned", "limit.recorded")

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(300 + 11 * KILLS)]


@pytest.fixture(scope="module")
def doomed() -> Iterator[AgentWorld]:
    """A mesh that is killed in part, again and again."""
    bills = BilledModel()
    with (
        tempfile.TemporaryDirectory(prefix="mesh-chaos-", ignore_cleanup_errors=True) as name,
        Model(lambda: bills) as model,
    ):
        world = AgentWorld(Path(name), bills, model, AS_OFTEN_AS_NEEDED)
        try:
            world.mesh.start()
            yield world
        finally:
            world.mesh.kill_all()


@pytest.fixture
def client(doomed: AgentWorld) -> Iterator[Client]:
    with Client(doomed.mesh.url) as client:
        yield client


@pytest.mark.parametrize("failpoint", ["", *FAILPOINTS])
def test_a_kill_around_a_called_agent_or_a_reservation_is_not_noticed(
    doomed: AgentWorld, client: Client, failpoint: str
) -> None:
    person = TreePerson(client, doomed.lines, is_answer)
    told = person.open()
    if failpoint:
        doomed.arm(failpoint)
    person.settle(told, person.say(told))
    assert not failpoint or not doomed.is_armed(failpoint), "nobody passed it"
    judge(told, client, doomed)
    assert told.unknown == []
    lines = doomed.lines()
    assert [lines[line(told.sent[0], side)] for side in SCRIBES] == [1, 1]


def test_random_kills_among_called_agents_lose_nothing_and_spend_no_more_than_is_allowed(
    doomed: AgentWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_before = {asked.uuid for asked, _ in unknown_outcomes(doomed.mesh.data_dir)}
    monkey = Monkey(doomed.mesh, VICTIMS, SEED)
    resumed: list[float] = []
    with at_work(doomed, PEOPLE) as people:
        for number in range(KILLS):
            monkey.pause()
            if number % POWER_CUT_EVERY == POWER_CUT_EVERY // 2:
                monkey.cut_power()
            else:
                monkey.kill_one()
            if number % IN_A_ROW == 0:
                resumed.append(await_resumed(doomed))
            for gave_up in (person for person in people if person.done()):
                gave_up.result()
    told = [each for person in people for each in person.result()]
    doomed.mesh.wait_ready(60)
    rows = Counter(kill.victim for kill in monkey.kills)
    with Client(doomed.mesh.url) as client:
        for each in told:
            rows += judge(each, client, doomed)
    unknown = [pair for pair in unknown_outcomes(doomed.mesh.data_dir) if pair[0].uuid not in asked_before]
    assert [asked.uuid for asked, intent in unknown if not monkey.excuses(asked, intent)] == []
    again = [pair for each in told for pair in repeats(doomed.bills.calls[each.conversation_id])]
    assert [pair for pair in again if not monkey.was_near(pair[0].at, pair[1].at)] == []

    rows["kills"] = len(monkey.kills)
    rows["conversations"] = len(told)
    rows["model calls repeated"] = len(again)
    rows["unknown outcomes"] = len(unknown)
    rows["slowest to resume (s)"] = round(max(resumed))
    with capsys.disabled():
        sys.stdout.write(f"\nchaos among called agents, seed {SEED}:\n{table(rows)}\n")


@contextmanager
def at_work(world: AgentWorld, people: int) -> Iterator[list[Future[list[Told]]]]:
    """People who have the agents work, conversation after conversation, until the end of the block; each
    finishes the conversation that is under way."""
    over = threading.Event()

    def work() -> list[Told]:
        told: list[Told] = []
        with Client(world.mesh.url) as client:
            person = TreePerson(client, world.lines, is_answer)
            while not over.is_set():
                told.append(person.open())
                for _ in range(2):
                    person.settle(told[-1], person.say(told[-1]))
        return told

    with ThreadPoolExecutor(people) as pool:
        try:
            yield [pool.submit(work) for _ in range(people)]
        finally:
            over.set()


def judge(told: Told, client: Client, world: AgentWorld) -> Counter[str]:
    """Fails if anything was lost, done twice or spent beyond a limit. What happened, as rows of a table."""
    path = world.mesh.data_dir / f"conversation_{told.conversation_id}.jsonl"
    events = parse(path.read_bytes(), path.name)[0]
    conversation = client.get(f"/conversations/{told.conversation_id}")["conversation"]
    said = [m["content"] for m in conversation["messages"] if m["role"] == "user"]
    answered = [m["content"] for m in conversation["messages"] if m["role"] == "assistant"]
    assert said == told.sent, told
    assert answered == [told.answers[message] for message in told.sent], told
    assert conversation["status"] == "active"
    resolved = {event.uuid for event in events if isinstance(event, ApprovalResolved)}
    assert set(told.decided) <= resolved, told

    wanted = {line(message, side) for message in told.sent for side in SCRIBES}
    lines = world.lines()
    done = appended(events)
    assert {x: lines[x] for x in wanted} == {x: done[x] for x in wanted}, told

    rows = Counter[str]()
    for turn in range(1, len(told.sent) + 1):
        rows += judge_spending(turn, events, world, told)
    report = client.get(f"/conversations/{told.conversation_id}/spend")
    folded = msgspec.json.decode(msgspec.json.encode(spend_report(events, "main")))
    assert [report[key] for key in SUMS] == [folded[key] for key in SUMS], told
    assert conversation["spent"] == folded["spent"], told
    use = fold(events).budget_use.use("0")
    assert told_amounts(report["turn"]["spent"]) == pytest.approx((use.spent.nusd / NUSD, use.spent.calls))
    assert told_amounts(report["turn"]["unsettled"]) == pytest.approx((use.held.nusd / NUSD, use.held.calls))
    assert told_amounts(report["turn"]["reserved"]) == (0, 0), told
    rows["turns"] = len(told.sent)
    rows["lines"] = sum(done.values())
    rows["called agents"] = sum(isinstance(event, AgentStarted) for event in events)
    rows["limits reached"] = sum(isinstance(event, LimitReached) for event in events)
    return rows


def judge_spending(turn: int, events: Sequence[AnyEvent], world: AgentWorld, told: Told) -> Counter[str]:
    """The invariant at every prefix of the journal up to the end of a turn; and there, that no reservation is
    left of a call in flight, and the model's bill."""
    last = max(index for index, event in enumerate(events) if event.turn == turn and _ends(event))
    for length in range(1, last + 2):
        use = fold(events[:length]).budget_use.use("0").total
        assert (use.nusd <= MOST_NUSD, use.calls <= MOST_CALLS) == (True, True), (told, length)
    budget = fold(events[:last]).budget_use
    in_flight = [key for key, reserved in budget.open.items() if not went_on(reserved, events[:last])]
    assert in_flight == [], told
    budget.apply(events[last])
    assert budget.open == {}, told
    assert budget.overrun == NOTHING, told
    counted, bill = budget.use("0").total, world.bills.bill(told.conversation_id, turn)
    assert bill.nusd <= counted.nusd, (told, turn, bill, counted)
    assert bill.tokens <= counted.tokens and bill.calls <= counted.calls, (told, turn, bill, counted)
    unsettled = budget.use("0").held.calls
    return Counter({"model calls": bill.calls, "reservations unsettled": unsettled})


def _ends(event: AnyEvent) -> bool:
    return isinstance(event, Completed)


def told_amounts(amounts: dict[str, float]) -> tuple[float, float]:
    """Cost and model calls, as the keeper tells them."""
    return amounts["max_cost_usd"], amounts["max_llm_calls"]


def went_on(reserved: LlmReserved, events: Sequence[AnyEvent]) -> bool:
    """Whether the step of a reservation that nothing settled went on: its call is lost, and not in flight."""
    return any((e.turn, e.step) == (reserved.turn, reserved.step) and e.seq > reserved.seq for e in events)


def appended(events: Sequence[AnyEvent]) -> Counter[str]:
    """The lines that the journal knows as appended."""
    asked = {
        (event.turn, event.step): event.tool_args["line"]
        for event in events
        if isinstance(event, ApprovalRequired) and event.tool_name == "ledger_append"
    }
    return Counter(
        asked[event.turn, event.step]
        for event in events
        if isinstance(event, ToolResult)
        and (event.turn, event.step) in asked
        and (event.skipped or not event.is_error)
    )


def repeats(calls: Sequence[Billed]) -> list[tuple[Billed, Billed]]:
    """Each model call that had been made before, after the one before it."""
    last: dict[tuple[int, str, str, int], Billed] = {}
    found = []
    for call in calls:
        key = (call.turn, call.name, call.message, call.results)
        if key in last:
            found.append((last[key], call))
        last[key] = call
    return found
