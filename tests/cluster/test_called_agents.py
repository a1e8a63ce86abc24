"""Agents that are called or started, on Ray: an actor for each replica, one that starts on use, and nodes
that die."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh.core.events import AgentTold, LlmCall, NodeCompleted
from mesh.journal.on_disk import parse
from tests.cluster.model import LISTENS, Model
from tests.cluster.monkey import AS_OFTEN_AS_NEEDED
from tests.cluster.rest import created, until
from tests.cluster.world import World
from tests.worlds.long import takes_long
from tests.worlds.process import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

MAIN = {"name": "main", "type": "llm", "agents": ["writer", "spare", "listener"], "spawn": {}}
AGENTS = [
    {"name": "writer", "type": "llm", "prompt": "You write.", "replicas": 2},
    {"name": "spare", "type": "llm", "prompt": "You are there if needed.", "replicas": 0},
    {"name": "listener", "type": "llm", "prompt": LISTENS, "replicas": 2},
]


@pytest.fixture(scope="module")
def doomed(model: Model) -> Iterator[World]:
    """A mesh whose root agent calls two others, and whose nodes are killed."""
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        limits = {"max_tool_iterations": 1000}  # the listener reads until it is told something
        world = World(Path(name), model, AS_OFTEN_AS_NEEDED, agent=MAIN, agents=AGENTS, limits=limits)
        with running(world.mesh):
            yield world


@pytest.fixture
def api(doomed: World) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=doomed.mesh.url, timeout=60) as client:
        yield client


def nodes(world: World) -> int:
    return len(world.mesh.find("ray::NodeActor"))


def test_called_agents_have_actors_of_their_own_and_one_without_replicas_starts_on_use(
    doomed: World, api: httpx.Client
) -> None:
    assert nodes(doomed) == 1 + 2 + 2
    body = created(api, "use spare hello")
    assert body["result"]["response"] == "done: echo: hello"
    assert nodes(doomed) == 1 + 2 + 2 + 1


@pytest.mark.parametrize("failpoint", ["agent.called", "agent.returned"])
def test_a_kill_where_an_agent_is_called_or_returns_is_not_noticed(
    doomed: World, api: httpx.Client, failpoint: str
) -> None:
    doomed.arm(failpoint)
    body = created(api, f"use writer append {failpoint}")
    assert not doomed.is_armed(failpoint), "nobody passed it"
    assert body["result"]["approval"]["agent_path"] == ["main", "writer"]
    doomed.arm(failpoint)
    uuid = body["result"]["approval"]["uuid"]
    decided = api.post(f"/approvals/{uuid}", json={"approved": True})
    assert decided.status_code == 200, decided.text
    assert not doomed.is_armed(failpoint), "nobody passed it"
    assert decided.json()["result"]["response"].startswith("done: done: ")
    assert doomed.lines()[failpoint] == 1


@pytest.mark.parametrize("times", ["the first time", "the second time"])
def test_what_an_agent_is_told_reaches_the_very_actor_that_it_works_on(
    doomed: World, api: httpx.Client, times: str
) -> None:
    body = created(api, f"advise listener {times}")
    path = doomed.mesh.data_dir / f"conversation_{body['conversation']['id']}.jsonl"
    events, _ = parse(path.read_bytes(), path.name)
    assert f"[main tells you, while you work:]\\n{times}" in body["result"]["response"]
    (told,) = (event for event in events if isinstance(event, AgentTold))
    assert (told.step, told.text) == ("0.listener@0-0-0", times)
    calls = [event for event in events if isinstance(event, LlmCall) and event.node == told.step]
    # It reads the ledger until then, and answers what it is told.
    assert [call.heard for call in calls if call.heard] == [(told.id,)]
    assert (calls[-1].heard, calls[-1].text) == (
        (told.id,),
        f"echo: [main tells you, while you work:]\n{times}",
    )


def at_work(api: httpx.Client, conversation: str, name: str) -> str | None:
    """The id of the agent with this name, if it works."""
    agents = api.get("/agent/tree", params={"conversation": conversation}).json()
    return next((id for id, agent in agents.items() if agent["name"] == name), None)


@pytest.mark.parametrize(
    ("message", "step_in", "answer"),
    [
        (
            "use listener hello",
            {"action": "comment", "text": "enough"},
            "[ann tells you, while you work:]\nenough",
        ),
        ("start listener", {"action": "delete", "reason": "enough"}, "Deleted by ann: enough"),
    ],
)
def test_a_person_steps_in_while_an_agent_works(
    api: httpx.Client, message: str, step_in: dict[str, str], answer: str
) -> None:
    begun = api.post("/conversations", json={"message": message}, headers={"Prefer": "respond-async"})
    conversation = begun.json()["conversation"]["id"]
    agent = until(lambda: at_work(api, conversation, "listener"))
    replied = api.post(f"/agent/{agent}/intervene", json=step_in, headers={"X-User": "ann"})
    assert (replied.status_code, replied.json()["success"]) == (200, True)

    def response() -> str:
        turn = api.get(f"/conversations/{conversation}").json()["conversation"]["turn"]
        return str(turn.get("response", ""))

    assert answer in until(response)
    assert api.get("/agent/tree", params={"conversation": conversation}).json() == {}


def test_who_is_paused_stays_paused_whatever_dies_and_goes_on_from_there(
    doomed: World, api: httpx.Client
) -> None:
    begun = api.post(
        "/conversations", json={"message": "use listener hi"}, headers={"Prefer": "respond-async"}
    )
    conversation = begun.json()["conversation"]["id"]
    agent = until(lambda: at_work(api, conversation, "listener"))

    def step_in(**body: Any) -> httpx.Response:
        headers = {"X-User": "ann", "Idempotency-Key": f"{conversation}-{body['action']}"}
        return until(lambda: _taken(api.post(f"/agent/{agent}/intervene", json=body, headers=headers)))

    def turn() -> dict[str, str]:
        shown = api.get(f"/conversations/{conversation}")
        found: dict[str, str] = shown.json()["conversation"]["turn"] if shown.status_code == 200 else {}
        return found

    assert step_in(action="pause").json()["agent"]["detail"] == "paused"
    until(lambda: turn().get("state") == "paused")
    killed = [doomed.mesh.kill(name) for name in ("ray::NodeActor", "ray::KeeperActor")]
    assert all(killed)
    until(lambda: turn().get("state") == "paused")
    made = len(answers_at(doomed, conversation, "0.listener@0-0"))
    step_in(action="modify", changes={"task": "enough"})
    assert (turn().get("state"), len(answers_at(doomed, conversation, "0.listener@0-0"))) == ("paused", made)
    step_in(action="resume")
    response = until(lambda: turn().get("response"))
    assert "[ann gives you another task, while you work:]\nenough" in response
    heard = [call.heard for call in answers_at(doomed, conversation, "0.listener@0-0") if call.heard]
    assert len(heard) == 1


@pytest.mark.chaos
@takes_long  # in short, the test above kills as much
def test_who_is_added_and_who_begins_anew_are_not_lost_whatever_dies(
    doomed: World, api: httpx.Client
) -> None:
    begun = api.post(
        "/conversations", json={"message": "start listener"}, headers={"Prefer": "respond-async"}
    )
    conversation = begun.json()["conversation"]["id"]
    first = until(lambda: at_work(api, conversation, "listener"))

    def asked(path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"X-User": "ann", "Idempotency-Key": f"{path}-{body.get('action', 'spawn')}"}
        taken = until(lambda: _taken(api.post(path, json=body, headers=headers)))
        shown: dict[str, Any] = taken.json()["agent"]
        return shown

    def kill() -> None:
        """Each of them, as soon as there is one: those that died before may still be starting again."""
        for name in ("ray::NodeActor", "ray::KeeperActor"):
            until(lambda name=name: doomed.mesh.kill(name))

    added = asked(f"/agent/{conversation}/spawn", {"agent": "listener", "task": "and this"})
    assert added["place"].startswith("0.listener@u")
    kill()
    anew = asked(
        f"/agent/{first}/intervene", {"action": "modify", "restart": True, "changes": {"task": "all over"}}
    )
    assert (anew["place"], anew["userContent"]) == ("0.listener@0-0-0~2", "all over")
    kill()
    for agent in (added, anew):
        asked(f"/agent/{agent['agentId']}/intervene", {"action": "comment", "text": "enough"})
    path = doomed.mesh.data_dir / f"conversation_{conversation}.jsonl"

    def ends() -> dict[str, str]:
        events, _ = parse(path.read_bytes(), path.name)
        found = {e.step: e.status for e in events if isinstance(e, NodeCompleted) and "@" in e.step}
        return found if len(found) == 3 else {}

    assert until(ends) == {
        "0.listener@0-0-0": "deleted",
        "0.listener@0-0-0~2": "completed",
        added["place"]: "completed",
    }
    until(lambda: api.get(f"/conversations/{conversation}").json()["conversation"]["turn"].get("response"))


def _taken(response: httpx.Response) -> httpx.Response | None:
    """The reply, unless the mesh is just starting again."""
    assert response.status_code in (200, 502, 503), response.text
    return response if response.status_code == 200 else None


def answers_at(world: World, conversation: str, place: str) -> list[LlmCall]:
    path = world.mesh.data_dir / f"conversation_{conversation}.jsonl"
    events, _ = parse(path.read_bytes(), path.name)
    return [event for event in events if isinstance(event, LlmCall) and event.node == place]
