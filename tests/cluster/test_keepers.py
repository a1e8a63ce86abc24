"""A mesh of several keepers: what is remembered for good settles what waits with each of them, and what they
have is listed while one is away."""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.world import World
from tests.worlds.process import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

KEEPERS = 3
LINES = [f"line-{number}" for number in range(6)]


@pytest.fixture(scope="module")
def several(model: Model) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        world = World(Path(name), model, cluster={"keepers": KEEPERS}, policy={"grants": "always"})
        with running(world.mesh):
            yield world


def test_a_decision_for_good_settles_what_waits_with_every_keeper_once_even_if_one_dies_before_it_does(
    several: World,
) -> None:
    with Client(several.mesh.url) as client:
        uuids = [asked(client, line) for line in LINES]
        several.arm("approval.remembered")
        client.post(f"/approvals/{uuids[0]}", {"approved": True, "remember": "always"})
        assert not several.is_armed("approval.remembered")
        until(lambda: len(several.lines()) == len(LINES))
        until(lambda: client.get("/conversations?status=waiting_approval")["conversations"] == [])
        grants = client.get("/policy/grants")["grants"]
        assert [each["grant"]["approval"] for each in grants] == [uuids[0]]
        assert several.lines() == dict.fromkeys(LINES, 1)


def test_each_keeper_tells_what_it_has_measured(several: World) -> None:
    with Client(several.mesh.url) as client:
        client.post("/conversations", {"message": "hello"})
    # A keeper that has just been killed gets its shard back from the one that took it over.
    until(lambda: sorted(shards_of_keepers(measured(several)).values()) == [1] * KEEPERS)
    samples = measured(several)
    gauges = {each.name: each.value for each in samples if not each.labels["keeper"]}
    assert (gauges["mesh_shards_without_keeper"], gauges["mesh_keepers_away"]) == (0, 0)
    assert sum(each.value for each in samples if each.name == "mesh_turns_total") >= 1


def measured(world: World) -> list[Sample]:
    text = httpx.get(f"{world.mesh.url}/metrics", timeout=60).text
    return [each for family in text_string_to_metric_families(text) for each in family.samples]


def shards_of_keepers(samples: list[Sample]) -> dict[str, float]:
    return {each.labels["keeper"]: each.value for each in samples if each.name == "mesh_shards"}


def test_while_a_keeper_is_away_the_conversations_of_the_others_are_listed(several: World) -> None:
    with Client(several.mesh.url) as client:
        for _ in range(20):  # each keeper has some of them
            client.post("/conversations", {})
        whole = client.get("/conversations?limit=500")
        away = several.mesh.find("ray::KeeperActor")[0]
        away.send_signal(signal.SIGSTOP)
        try:
            some = client.get("/conversations?limit=500")
            assert some["incomplete"] is True
            assert 0 < some["summary"]["total"] < whole["summary"]["total"]
            ids = {each["id"] for each in whole["conversations"]}
            assert ids > {each["id"] for each in some["conversations"]} > set()
        finally:
            away.send_signal(signal.SIGCONT)
        until(lambda: client.get("/conversations?limit=500") == whole)


def asked(client: Client, line: str) -> str:
    """The approval that a new conversation waits for."""
    status, body = client.post("/conversations", {"message": f"append {line}"})
    assert status == 201, body
    uuid: str = body["result"]["approval"]["uuid"]
    return uuid
