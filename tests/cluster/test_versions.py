"""Versions of an agent, and actors that come and go: an open turn ends with the tree it began on."""

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.world import World

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

BEFORE = {
    "name": "steps",
    "type": "sequential",
    "agents": [{"name": "keeper", "type": "llm", "prompt": "before", "replicas": 0}],
}
AFTER = {
    "name": "other",
    "type": "sequential",
    "agents": [{"name": name, "type": "llm", "prompt": "after"} for name in ("renamed", "new")],
}


def test_a_turn_ends_with_the_tree_it_began_on_as_long_as_that_is_known_and_the_next_has_the_newest(
    folder: Path, model: Model
) -> None:
    """And Ctrl-C, to the process alone and to all that is in its foreground, ends all."""
    cluster = {"idle_timeout_s": 3}
    world = World(folder, model, agent=BEFORE, cluster=cluster)
    world.mesh.start()
    with Client(world.mesh.url) as client:
        assert nodes(world) == 1  # the one with `replicas: 0` was not needed yet
        known, forgotten = (asked(client, line) for line in ("one", "two"))
        assert nodes(world) == 2
        assert len(configs(world)) == 1
        until(lambda: nodes(world) == 1)  # it left
        third = asked(client, "three")  # and comes back
    assert world.mesh.stop(signal.SIGINT) == []

    elsewhere = folder / "elsewhere.txt"
    change(world, AFTER, {str(world.ledger): str(elsewhere), "You keep a ledger.": "You are new."})
    world.mesh.start()
    with Client(world.mesh.url) as client:
        status, body = client.post(f"/approvals/{known}", {"approved": True})
        assert status == 200, body
        assert body["result"]["response"].startswith("done: ")
        assert world.lines() == {"one": 1}
        before, id = body["conversation"]["version"], body["conversation"]["id"]
        _, next_turn = client.post(f"/conversations/{id}/messages", {"message": "append four"})
        newest = next_turn["conversation"]["version"]
        found = {each["version"]: each for each in client.get("/versions")["versions"]}
        assert list(found) == [newest, before]
        assert found[before]["conversations"] == {"waiting_approval": 2}
        assert (found[newest]["conversations"], found[newest]["problems"]) == ({"waiting_approval": 1}, [])
        until(lambda: nodes(world) == 3)  # the old tree's actors left, the new tree's stay

        old = next(path for path in configs(world) if "before" in path.read_text())
        old.unlink()
        for keeper in world.mesh.find("ray::KeeperActor"):
            keeper.kill()
        status, body = client.post(f"/approvals/{forgotten}", {"approved": True})
        assert status == 502
        assert f"version {before} of agent" in body["error"] and "not known here any more" in body["error"]
        shown = client.get(f"/conversations/{body['conversation']['id']}")["conversation"]
        assert [message["content"] for message in shown["messages"]][:2] == [
            "You keep a ledger.",
            "append two",
        ]
        assert world.lines() == {"one": 1}
        assert third not in (known, forgotten)
        assert not elsewhere.exists()
        new = client.post("/conversations", {})[1]["conversation"]
        assert new["messages"][0]["content"] == "You are new."
    assert world.mesh.stop(signal.SIGINT, group=True) == []


def asked(client: Client, line: str) -> str:
    """The approval that a new conversation waits for."""
    status, body = client.post("/conversations", {"message": f"append {line}"})
    assert status == 201, body
    uuid: str = body["result"]["approval"]["uuid"]
    return uuid


def nodes(world: World) -> int:
    return len(world.mesh.find("ray::NodeActor"))


def configs(world: World) -> list[Path]:
    return sorted((world.mesh.data_dir / "configs").glob("*.yaml"))


def change(world: World, tree: dict[str, Any], texts: dict[str, str]) -> None:
    """Another tree, and other texts in place of these."""
    text = world.mesh.config.read_text()
    for before, after in texts.items():
        text = text.replace(before, after)
    world.mesh.config.write_text(yaml.safe_dump({**yaml.safe_load(text), "agent": tree}))
