"""People step in with hundreds of agents of one turn, ten times a second, while processes die with SIGKILL.

Four judges look at it. The client: what was acknowledged is in the journal. The journal: whatever is told is
new to one model call, and after the delete of an agent nothing of it is claimed or recorded. The ledger: no
line is there twice, and none of a deleted agent but of a call that was claimed before. The model's log: what
an agent is told is in the input of that one model call, and once in that of each later one.

    CHAOS_KILLS_AMONG_AGENTS=500 CHAOS_SEED=1 pytest tests/cluster/test_chaos_interventions.py
"""

import itertools
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    LlmCall,
    LlmSettled,
    NodeCompleted,
    ToolIntent,
    ToolResult,
)
from mesh.core.places import Place, StepKey
from mesh.journal.on_disk import parse
from tests.cluster.chaos import SEED, at_work, doomed_world, kill_at_random
from tests.cluster.client import PATIENCE_S, Client
from tests.cluster.monkey import DAEMON, Monkey, seconds, table
from tests.cluster.steered_world import WORKERS, Asked, SteeredModel, SteeredWorld, worker_at
from tests.worlds.long import takes_long

KILLS = int(os.environ.get("CHAOS_KILLS_AMONG_AGENTS", "6"))
PEOPLE = 8
EVERY_S = 0.1 * PEOPLE
"""How long each of them waits before the next intervention."""
POWER_CUT_EVERY = min(13, KILLS // 2)
VICTIMS = (
    "ray::NodeActor",
    "ray::KeeperActor",
    "ray::NodeActor",
    "ray::McpSessionActor",
    "ledger_server.py",
    "guard.py",
    "ray::ServeReplica",
    "haproxy -db",
    "ray::ServeController",
    DAEMON,
)
ACTIONS = ("comment", "modify", "pause", "resume", "delete")
OFTEN = (45, 15, 15, 20, 5)

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900 + 30 * KILLS)]


@dataclass(frozen=True)
class Done:
    """An intervention with an agent at a place. ``text`` is told by no other one; ``status`` is how it was
    answered."""

    place: str
    action: str
    text: str
    status: int


@pytest.fixture
def doomed() -> Iterator[SteeredWorld]:
    """A mesh that is killed in part, again and again."""
    with doomed_world(SteeredWorld, SteeredModel()) as world:
        yield world


class People:
    """They step in with agents that they know of, each time with another text."""

    def __init__(self, agents: Mapping[str, str]) -> None:
        self._agents = dict(agents)  # the ids, by place
        self._deleted: set[str] = set()
        self._dice = random.Random(SEED)
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def step_in(self, client: Client) -> Done:
        """One intervention with one agent, whatever becomes of it meanwhile."""
        time.sleep(EVERY_S)
        with self._lock:
            place = self._dice.choice([*self._agents])
            (action,) = self._dice.choices(ACTIONS, OFTEN)
            text, now = f"told-{next(self._numbers)}.", self._dice.random() < 0.3
        body: dict[str, Any] = {"action": action, "now": now and action != "delete"}
        if action == "comment":
            body["text"] = text
        else:
            body["reason"] = text
        if action == "modify":
            body["changes"] = {"task": "Go on as before."}
        status, reply = client.post(f"/agent/{self._agents[place]}/intervene", body)
        is_refused = status == 409 and place in self._deleted
        with self._lock:
            if action == "delete":
                self._deleted.add(place)
        assert status == 200 or is_refused or "deleted" in reply["error"], (place, body, status, reply)
        return Done(place, action, text, status)


@takes_long
def test_whatever_dies_what_people_were_told_of_their_interventions_holds(
    doomed: SteeredWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    monkey = Monkey(doomed.mesh, VICTIMS, SEED)
    with Client(doomed.mesh.url) as client:
        conversation = begun(client)
        people = People(agents_at_work(client, conversation))
        with at_work(doomed.mesh.url, people.step_in, PEOPLE) as steering:
            kill_at_random(
                monkey, KILLS, steering, power_cut_every=POWER_CUT_EVERY, data_dir=doomed.mesh.data_dir
            )
        done = [each for person in steering for each in person.result()]
        doomed.mesh.wait_ready(60)
        let_all_go_on(client, conversation)
        doomed.model.is_over.set()
        assert answer_of(client, conversation) == "all have ended"
    events = parse((doomed.mesh.data_dir / f"conversation_{conversation}.jsonl").read_bytes(), "journal")[0]
    told = judge_acknowledged(done, events)
    deleted = judge_deleted(events)
    judge_heard(done, told, events, doomed.model.asked)
    judge_lines(doomed.lines(), events, deleted)
    judge_repeats(doomed.model.asked, events)
    rows = Counter(kill.victim for kill in monkey.kills)
    rows["kills"] = len(monkey.kills)
    rows["interventions"] = len(done)
    rows.update(Counter(f"  {each.action}" for each in done if each.status == 200))
    rows["agents deleted"] = len(deleted)
    rows["model calls"] = sum(map(len, doomed.model.asked.values()))
    rows["lines"] = doomed.lines().total()
    with capsys.disabled():
        sys.stdout.write(f"\nchaos of interventions, seed {SEED}:\n{table(rows)}\n")


# -- the turn


def begun(client: Client) -> str:
    """The id of a conversation whose agents are all at work."""
    status, body = client.post("/conversations", {})
    assert status == 201, body
    conversation: str = body["conversation"]["id"]
    status, body = client.post(f"/conversations/{conversation}/messages", {"message": "go"}, waits=False)
    assert status == 202, body
    deadline = time.monotonic() + PATIENCE_S
    while len(agents_at_work(client, conversation)) < WORKERS:
        assert time.monotonic() < deadline, "the agents do not start"
        time.sleep(0.2)
    return conversation


def agents_at_work(client: Client, conversation: str) -> dict[str, str]:
    """The ids of the workers that have not ended, by place."""
    agents = client.get(f"/agent/tree?conversation={conversation}")
    return {agent["place"]: id for id, agent in agents.items() if agent.get("parentId")}


def let_all_go_on(client: Client, conversation: str) -> None:
    """Resumes every agent that is paused."""
    for id, agent in client.get(f"/agent/tree?conversation={conversation}").items():
        if agent.get("detail") == "paused":
            status, body = client.post(f"/agent/{id}/intervene", {"action": "resume"})
            assert status == 200, body


def answer_of(client: Client, conversation: str) -> str:
    """The answer of the turn, once it has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        turn = client.get(f"/conversations/{conversation}")["conversation"]["turn"]
        if turn["state"] == "completed":
            answer: str = turn["response"]
            return answer
        assert time.monotonic() < deadline, f"the turn does not end: {turn}"
        time.sleep(0.2)


# -- the judges


def judge_acknowledged(done: Sequence[Done], events: Sequence[AnyEvent]) -> dict[str, AgentTold]:
    """What was acknowledged is in the journal, once, about its agent. By text."""
    found = [event for event in events if isinstance(event, AgentTold) and event.text]
    told = {event.text: event for event in found}
    assert len(found) == len(told)
    for each in done:
        if each.status == 200:
            assert (told[each.text].step, told[each.text].action) == (each.place, each.action), each
    return told


def judge_deleted(events: Sequence[AnyEvent]) -> dict[str, int]:
    """After the delete of an agent nothing of it is in the journal but its end, what its calls cost, and the
    results of calls that were claimed before. By place, the number of the event that deleted it."""
    deleted: dict[str, int] = {}
    claimed: set[str] = set()
    for event in events:
        if event.node in deleted:
            is_end = isinstance(event, NodeCompleted) and event.status == "deleted"
            is_result = isinstance(event, ToolResult) and event.step in claimed
            assert is_end or is_result or isinstance(event, LlmSettled), event
        if isinstance(event, ToolIntent):
            claimed.add(event.step)
        if isinstance(event, AgentTold) and event.action == "delete":
            deleted[event.step] = event.seq
    return deleted


def judge_heard(
    done: Sequence[Done],
    told: Mapping[str, AgentTold],
    events: Sequence[AnyEvent],
    asked: Mapping[str, Sequence[Asked]],
) -> None:
    """What was told is new to one model call, and in the input of each that follows it, once. An agent that
    was deleted may not have come to it. Of a process that died there may be later calls without it, whose
    answers count for nothing: those were made before the answer to the one that has it."""
    ends = {event.step: event.status for event in events if isinstance(event, NodeCompleted)}
    heard = [(id, event) for event in events if isinstance(event, LlmCall) for id in event.heard]
    by = dict(heard)
    assert len(by) == len(heard)
    for each in done:
        if each.status != 200 or each.action not in ("comment", "modify"):
            continue
        answer = by.get(told[each.text].id)
        if answer is None:
            assert ends[each.place] == "deleted", each
            continue
        first = StepKey(answer.step).number
        for call in asked[each.place]:
            count = call.told.count(each.text)
            assert count <= (call.answers >= first), (each, call)
            assert count or call.answers <= first or call.at < seconds(answer), (each, call)
        assert any(each.text in call.told for call in asked[each.place] if call.answers == first), each


def judge_lines(lines: Counter[str], events: Sequence[AnyEvent], deleted: Mapping[str, int]) -> None:
    """Each line of a call that ran is there once; none was claimed after its agent was deleted."""
    assert {text: count for text, count in lines.items() if count > 1} == {}
    claims = {event.arguments["line"]: event for event in events if isinstance(event, ToolIntent)}
    for text in lines:
        claim = claims[text]
        assert claim.seq < deleted.get(claim.node, claim.seq + 1), text
    ran = {
        e.step for e in events if isinstance(e, ToolResult) and e.tool == "ledger_append" and not e.is_error
    }
    assert {claim.arguments["line"] for claim in claims.values() if claim.step in ran} <= lines.keys()


def judge_repeats(asked: Mapping[str, Sequence[Asked]], events: Sequence[AnyEvent]) -> None:
    """No model call was made after its answer was journaled; and all workers were started once."""
    starts = Counter(event.step for event in events if isinstance(event, AgentStarted))
    assert starts == Counter(map(worker_at, range(WORKERS)))
    known = {event.step: seconds(event) for event in events if isinstance(event, LlmCall)}
    again = [
        call
        for calls in asked.values()
        for call in calls
        if call.at > known.get(Place(call.place).model_call(call.answers).text, call.at)
    ]
    assert again == []
