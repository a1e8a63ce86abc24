"""Nodes that share a process (``isolation: shared``): each has its own address, and all die together."""

from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.person import Person
from tests.cluster.rest import until
from tests.cluster.world import World
from tests.worlds.process import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

AGENT = {
    "name": "steps",
    "type": "sequential",
    "agents": [
        {"name": "plan", "type": "llm", "prompt": "Plan.", "tools": []},
        {"name": "writer", "type": "llm"},
        {"name": "apart", "type": "llm", "resources": {"num_cpus": 0.1}, "tools": []},
        {"name": "twice", "type": "llm", "replicas": 2, "tools": []},
    ],
}


def test_light_nodes_of_an_agent_are_one_process_and_a_kill_of_it_loses_and_repeats_nothing(
    folder: Path, model: Model
) -> None:
    world = World(folder, model, agent=AGENT, cluster={"isolation": "shared"})
    with running(world.mesh), Client(world.mesh.url) as client:
        assert len(world.mesh.find("ray::NodeActor")) == 1 + 1 + 2
        parts = client.get("/status")["parts"]
        assert {part["name"] for part in parts if part["kind"] == "node"} == {
            "0 steps/0",
            "0.0 plan/0",
            "0.1 writer/0",
            "0.2 apart/0",
            "0.3 twice/0",
            "0.3 twice/1",
        }
        person = Person(client, world.lines)
        waiting = person.open()
        approval = person.ask_to_append(waiting)
        world.mesh.kill("ray::NodeActor")  # while it waits
        person.settle(waiting, approval)
        assert world.lines() == Counter(waiting.lines)
        _, begun = client.post("/conversations", {"message": "sleep 2"}, waits=False)
        assert world.mesh.kill("ray::NodeActor") == 4  # in the middle of a turn
        path = f"/conversations/{begun['conversation']['id']}"
        ended = until(lambda: client.get(path)["conversation"]["turn"].get("response"))
        assert ended == "slept 2"
