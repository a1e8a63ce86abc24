"""Processes of a mesh die with SIGKILL while hundreds of agents of one turn work; three judges look at it.

The ledger: every line is there once. The client: every turn ends with the answer in which nothing is missing,
so that no agent is lost. The model's log and the journals: no model call is made again once its answer was
journaled, each agent starts and ends once, and the agents beside a lost actor go on.

    CHAOS_KILLS=100 CHAOS_SEED=1 CHAOS_WORKERS=8 CHAOS_LEAVES=4 pytest tests/cluster/test_chaos_living_tree.py
"""

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest

from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    LlmCall,
    NodeCompleted,
    ToolResult,
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
from tests.cluster.living_world import (
    Asked,
    LivingModel,
    LivingWorld,
    answer_to,
    appending,
    line,
    model_calls,
    places_of_agents,
)
from tests.cluster.monkey import (
    DAEMON,
    Kill,
    Monkey,
    seconds,
    table,
    unknown_outcomes,
)
from tests.cluster.stalls import LostActor, figures, kill_node, stalled
from tests.cluster.tree_world import Told, TreePerson
from tests.worlds.long import takes_long

GOES_ON_WITHIN_S = 120.0
"""What is lost with an actor, and what is beside it: see docs/agents-that-start-agents.md."""

KILLS = int(os.environ.get("CHAOS_KILLS", "8"))
PEOPLE = 2
POWER_CUT_EVERY = min(13, KILLS // 2)
FAILPOINTS = ("agents.started", "agent.returned", "llm.reserved", "tool.claimed")
OF_NODES = (KILLS - len(FAILPOINTS)) // 4
"""How many of the kills are of nodes alone, one at a time: to see what the others do."""
AT_RANDOM = KILLS - len(FAILPOINTS) - OF_NODES
VICTIMS = (
    "ray::NodeActor",
    "ray::KeeperActor",
    "ray::McpSessionActor",
    "ledger_server.py",
    "guard.py",
    "The inside of a call of ``python``",
    "mesh.sandbox.launcher",
    "ray::ServeReplica",
    "haproxy -db",
    "ray::ServeController",
    DAEMON,
)

# In short, `test_chaos_agents` and `test_called_agents` kill around agents, and `test_chaos` at random.
pytestmark = [takes_long, pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900 + 2 * 15 * KILLS)]


@pytest.fixture(scope="module")
def doomed() -> Iterator[LivingWorld]:
    """A mesh that is killed in part, again and again."""
    with doomed_world(LivingWorld, LivingModel()) as world:
        yield world


def test_without_a_kill_every_agent_of_the_tree_works_once(doomed: LivingWorld) -> None:
    with Client(doomed.mesh.url) as client:
        told = TreePerson(client, doomed.lines, is_answer).open()
        converse_once(client, doomed, told)
        rows = judge(told, client, doomed)
    assert rows["told that it did not run"] == 0
    assert len(doomed.model.asked[told.conversation_id]) == model_calls()


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_kill_around_an_agent_that_starts_or_ends_is_not_noticed(
    doomed: LivingWorld, failpoint: str
) -> None:
    with Client(doomed.mesh.url) as client:
        told = TreePerson(client, doomed.lines, is_answer).open()
        doomed.arm(failpoint)
        converse_once(client, doomed, told)
        assert not doomed.is_armed(failpoint), "nobody passed it"
        rows = judge(told, client, doomed)
    assert rows["told that it did not run"] == 0
    assert told.unknown == []


def test_agents_beside_a_lost_actor_go_on(doomed: LivingWorld, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of these kills is of another node, and the next one comes when it was started again."""
    dice = random.Random(SEED)
    lost: list[LostActor] = []
    with at_work(doomed.mesh.url, lambda client: converse(client, doomed), PEOPLE) as people:
        while len(lost) < OF_NODES:
            nodes = doomed.mesh.find("ray::NodeActor")
            for node in dice.sample(nodes, min(len(nodes), OF_NODES - len(lost))):
                time.sleep(dice.uniform(1, 3))
                lost.append(kill_node(doomed, node))
                raise_for_whom_gave_up(people)
    told = [each for person in people for each in person.result()]
    rows = Counter(actor.name for actor in lost)
    rows["kills"] = len(lost)
    rows["turns"] = sum(len(each.sent) for each in told)
    with Client(doomed.mesh.url) as client:
        for each in told:
            rows += judge(each, client, doomed)
    calls = [doomed.model.asked[each.conversation_id] for each in told]
    monkey = Monkey(doomed.mesh, (), SEED)
    monkey.kills = [Kill(actor.name, actor.at) for actor in lost]
    rows["model calls repeated"] = judge_repeats(monkey, calls, lambda call: (call.turn, call.step))
    stalls = stalled(lost, told, doomed)
    with capsys.disabled():
        sys.stdout.write(
            f"\nkills of nodes in a living tree, seed {SEED}:\n{table(rows)}\n{figures(stalls)}\n"
        )
    assert max((stall.others_s for stall in stalls), default=0) < GOES_ON_WITHIN_S
    assert max((stall.own_s for stall in stalls), default=0) < GOES_ON_WITHIN_S


def test_random_kills_in_a_living_tree_lose_nobody_and_repeat_nothing(
    doomed: LivingWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_before = {asked.uuid for asked, _ in unknown_outcomes(doomed.mesh.data_dir)}
    monkey = Monkey(doomed.mesh, VICTIMS, SEED)
    with at_work(doomed.mesh.url, lambda client: converse(client, doomed), PEOPLE) as people:
        slowest = kill_at_random(
            monkey,
            AT_RANDOM,
            people,
            power_cut_every=POWER_CUT_EVERY,
            data_dir=doomed.mesh.data_dir,
        )
    told = [each for person in people for each in person.result()]
    doomed.mesh.wait_ready(60)
    rows = Counter(kill.victim for kill in monkey.kills)
    rows["kills"] = len(monkey.kills)
    rows["turns"] = sum(len(each.sent) for each in told)
    with Client(doomed.mesh.url) as client:
        for each in told:
            rows += judge(each, client, doomed)
    unknown = judge_questions(monkey, doomed.mesh.data_dir, asked_before)
    calls = [doomed.model.asked[each.conversation_id] for each in told]
    rows["model calls repeated"] = judge_repeats(monkey, calls, lambda call: (call.turn, call.step))
    rows["unknown outcomes"] = len(unknown)
    rows.update(Counter(f"  decided {word}" for each in told for word in each.unknown))
    rows["slowest to resume (s)"] = round(slowest)
    with capsys.disabled():
        sys.stdout.write(f"\nchaos in a living tree, seed {SEED}:\n{table(rows)}\n")


# -- at work


def is_answer(message: str, response: str) -> bool:
    """Whether a turn may be answered so."""
    return response == answer_to(message)


def converse(client: Client, world: LivingWorld) -> Told:
    """A conversation of two turns, in which all agents work."""
    told = TreePerson(client, world.lines, is_answer).open()
    for _ in range(2):
        converse_once(client, world, told)
    return told


def converse_once(client: Client, world: LivingWorld, told: Told) -> None:
    """One turn."""
    person = TreePerson(client, world.lines, is_answer)
    person.settle(told, person.say(told))


def raise_for_whom_gave_up(people: Sequence[Future[list[Told]]]) -> None:
    """Fails as soon as a person gives up."""
    for gave_up in (person for person in people if person.done()):
        gave_up.result()


# -- the judges


def judge(told: Told, client: Client, world: LivingWorld) -> Counter[str]:
    """Fails if anything was lost or done twice. What happened, as rows of a table."""
    events = journal(told, world)
    judge_acknowledged(told, client, events)
    judge_lines(told, world, events)
    for turn in range(1, len(told.sent) + 1):
        judge_agents([event for event in events if event.turn == turn])
    calls = world.model.asked[told.conversation_id]
    assert needless(calls, events) == []
    return Counter(
        {
            "agents": sum(isinstance(event, AgentStarted) for event in events),
            "lines": len(told.sent) * len(appending()),
            "model calls": len(calls),
            "told that it did not run": len(not_run(told, events)),
        }
    )


def judge_lines(told: Told, world: LivingWorld, events: Sequence[AnyEvent]) -> None:
    """Each line is in the ledger once, unless the model was told that its append did not run."""
    wanted = {line(place, message) for place in appending() for message in told.sent}
    missing = not_run(told, events)
    lines = world.lines()
    assert {x: lines[x] for x in wanted} == {x: int(x not in missing) for x in wanted}, told


def not_run(told: Told, events: Sequence[AnyEvent]) -> set[str]:
    """The lines of which the model was told that they were not appended."""
    places = set(appending())
    return {
        line(event.node, told.sent[event.turn - 1])
        for event in events
        if isinstance(event, ToolResult) and event.node in places and event.is_error and not event.skipped
    }


def judge_agents(events: Sequence[AnyEvent]) -> None:
    """In a turn, each agent started once and has completed; each step of a model has one answer."""
    agents = Counter(places_of_agents())
    assert Counter(event.step for event in events if isinstance(event, AgentStarted)) == agents
    ends = {event.step: event.status for event in events if isinstance(event, NodeCompleted)}
    assert {place: ends.get(place) for place in agents} == dict.fromkeys(agents, "completed")
    answers = Counter(event.step for event in events if isinstance(event, LlmCall))
    assert (len(answers), answers.total()) == (model_calls(), model_calls())


def needless(calls: Sequence[Asked], events: Sequence[AnyEvent]) -> list[Asked]:
    """The model calls whose answer was journaled before they were made."""
    known = {(event.turn, event.step): seconds(event) for event in events if isinstance(event, LlmCall)}
    return [call for call in calls if call.at > known[call.turn, call.step]]
