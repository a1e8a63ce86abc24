"""What is remembered for good, on a mesh of several keepers: it settles what waits with each of them."""

from pathlib import Path

import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.world import World

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

LINES = [f"line-{number}" for number in range(6)]


def test_a_decision_for_good_settles_what_waits_with_every_keeper_once_even_if_one_dies_before_it_does(
    folder: Path, model: Model
) -> None:
    world = World(folder, model, cluster={"keepers": 3}, policy={"grants": "always"})
    world.mesh.start()
    with Client(world.mesh.url) as client:
        uuids = [asked(client, line) for line in LINES]
        world.arm("approval.remembered")
        client.post(f"/approvals/{uuids[0]}", {"approved": True, "remember": "always"})
        assert not world.is_armed("approval.remembered")
        until(lambda: len(world.lines()) == len(LINES))
        until(lambda: client.get("/conversations?status=waiting_approval")["conversations"] == [])
        grants = client.get("/policy/grants")["grants"]
        assert [each["grant"]["approval"] for each in grants] == [uuids[0]]
        assert world.lines() == dict.fromkeys(LINES, 1)
    assert world.mesh.stop() == []


def asked(client: Client, line: str) -> str:
    """The approval that a new conversation waits for."""
    status, body = client.post("/conversations", {"message": f"append {line}"})
    assert status == 201, body
    uuid: str = body["result"]["approval"]["uuid"]
    return uuid
