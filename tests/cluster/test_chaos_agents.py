"""Processes of a mesh whose agents call each other under a budget die with SIGKILL; four judges look at it.

The ledger and the journals: each append that the journal knows as done is there once, and no other. The
client: every acknowledged answer and decision is still there. The model's own bill: in each turn it is at
most what was spent and what is unsettled, and that is within the limits. The keeper, once it has recovered:
it tells the sums that the journal folds to.

    CHAOS_KILLS=500 CHAOS_SEED=1 pytest tests/cluster/test_chaos_agents.py
"""

import os
import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

import msgspec
import pytest

from mesh.core.amounts import NOTHING
from mesh.core.budget import NUSD
from mesh.core.conversation import fold
from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    Completed,
    LimitReached,
    LlmReserved,
    ToolResult,
)
from mesh.core.spending import spend_report
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
from tests.cluster.monkey import Monkey, table, unknown_outcomes
from tests.cluster.tree_world import Told, TreePerson
from tests.worlds.long import takes_long

KILLS = int(os.environ.get("CHAOS_KILLS", "6"))
POWER_CUT_EVERY = min(10, KILLS // 2)
VICTIMS = ("ray::NodeActor", "ray::KeeperActor", "ray::NodeActor", "ledger_server.py", "ray::McpSessionActor")
SUMS = ("spent", "by_agent", "by_model")
FAILPOINTS = ("llm.reserved", "agent.called", "agent.returned", "limit.recorded")

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900 + 2 * 11 * KILLS)]


@pytest.fixture(scope="module")
def doomed() -> Iterator[AgentWorld]:
    """A mesh that is killed in part, again and again."""
    with doomed_world(AgentWorld, BilledModel()) as world:
        yield world


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


@takes_long
def test_random_kills_among_called_agents_lose_nothing_and_spend_no_more_than_is_allowed(
    doomed: AgentWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_before = {asked.uuid for asked, _ in unknown_outcomes(doomed.mesh.data_dir)}
    monkey = Monkey(doomed.mesh, VICTIMS, SEED)
    with at_work(doomed.mesh.url, lambda client: converse(client, doomed)) as people:
        slowest = kill_at_random(
            monkey, KILLS, people, power_cut_every=POWER_CUT_EVERY, data_dir=doomed.mesh.data_dir
        )
    told = [each for person in people for each in person.result()]
    doomed.mesh.wait_ready(60)
    rows = Counter(kill.victim for kill in monkey.kills)
    with Client(doomed.mesh.url) as client:
        for each in told:
            rows += judge(each, client, doomed)
    unknown = judge_questions(monkey, doomed.mesh.data_dir, asked_before)
    calls = [doomed.bills.calls[each.conversation_id] for each in told]

    rows["kills"] = len(monkey.kills)
    rows["conversations"] = len(told)
    rows["model calls repeated"] = judge_repeats(monkey, calls, same_call)
    rows["unknown outcomes"] = len(unknown)
    rows["slowest to resume (s)"] = round(slowest)
    with capsys.disabled():
        sys.stdout.write(f"\nchaos among called agents, seed {SEED}:\n{table(rows)}\n")


def converse(client: Client, world: AgentWorld) -> Told:
    """A conversation of two turns, in which the agents work."""
    person = TreePerson(client, world.lines, is_answer)
    told = person.open()
    for _ in range(2):
        person.settle(told, person.say(told))
    return told


def judge(told: Told, client: Client, world: AgentWorld) -> Counter[str]:
    """Fails if anything was lost, done twice or spent beyond a limit. What happened, as rows of a table."""
    events = journal(told, world)
    conversation = judge_acknowledged(told, client, events)
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
    in_flight = [reserved for reserved in budget.open if not went_on(reserved, events[:last])]
    assert in_flight == [], told
    budget.apply(events[last])
    assert [*budget.open] == [], told
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


def same_call(call: Billed) -> Hashable:
    """Equal for two calls of the model that are one and the same call, made again."""
    return call.turn, call.name, call.message, call.results
