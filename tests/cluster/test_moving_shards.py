"""Shards move between machines, deployments and clusters: what waits there goes on, and one owner answers."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.test_join import machine, placed, running_ray
from tests.cluster.test_postgres import GAPS, approve, ask, new_database
from tests.cluster.world import World
from tests.worlds.long import takes_long
from tests.worlds.postgres import PostgresServer
from tests.worlds.process import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

WITHIN_S = 240.0
HELD = "select host, count(*) from mesh.shard where host <> '' group by host order by host"


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.mark.chaos
@takes_long  # in short, `tests/journal/test_shard_moves.py` moves shards, and `test_losses` loses machines
def test_a_machine_that_joins_gets_shards_and_when_it_is_lost_its_conversations_answer_soon(
    folder: Path, model: Model, database: PostgresServer
) -> None:
    url = new_database(database)
    env = {"RAY_AUTH_MODE": "disabled", "STORE_URL": url, **model.env}

    def spread() -> list[int]:
        return sorted(count for _, count in database.execute(url, HELD))

    with running_ray(folder, env) as address:
        joins = {"RAY_ADDRESS": address, "STORE_URL": url}
        world = World(folder / "mesh", model, joins, store="${STORE_URL}")
        with running(world.mesh), Client(world.mesh.url) as client:
            assert spread() == [64]
            with machine(folder, address, {"second": 1}, env):
                until(lambda: spread() == [32, 32], WITHIN_S)
                waiting = [ask(client, f"line {number}") for number in range(12)]
                first, second = placed(address, "KeeperActor")
                assert first["machine"] != second["machine"]
                # A keeper that is silent, which is all that a machine has of conversations.
                lost = psutil.Process(
                    max(first, second, key=lambda keeper: "second" in keeper["machine_has"])["pid"]
                )
                lost.suspend()
                try:
                    answers = [approve(client, asked) for asked in waiting]
                    assert all(answer["response"].startswith("done: ") for answer in answers)
                    assert spread() == [64]
                finally:
                    lost.resume()
                # It finds out that it has lost its shards, and gets its share again.
                until(lambda: spread() == [32, 32], WITHIN_S)
                again = [ask(client, f"again {number}") for number in range(12)]
            answers = [approve(client, asked) for asked in again]
            assert all(answer["response"].startswith("done: ") for answer in answers)
            until(lambda: spread() == [64], WITHIN_S)
        assert set(world.lines().values()) == {1} and len(world.lines()) == 24
        assert database.execute(url, GAPS) == []


@pytest.mark.chaos
@takes_long  # in short, `test_deploy` has one deployment after the other, and the next test two at a time
def test_of_several_deployments_on_a_cluster_the_newest_serves_whatever_becomes_of_the_others(
    folder: Path, model: Model
) -> None:
    def deployment(name: str) -> World:
        same = {"data_dir": str(first.mesh.data_dir), "port": first.mesh.port, "mcp": mcp_of(first)}
        return World(folder / name, model, joins, description=name, **same)

    with running_ray(folder, {"RAY_AUTH_MODE": "disabled", **model.env}) as address:
        joins = {"RAY_ADDRESS": address}
        first = World(folder / "first", model, joins)
        first.mesh.start()
        with Client(first.mesh.url) as client:
            asked = [ask(client, f"line {number}") for number in range(2)]
        # Of the first one only `mesh up` dies: its actors stay on the cluster.
        for process in first.mesh.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        first.mesh.wait(30)
        second, third = deployment("second"), deployment("third")
        second.mesh.start()
        with Client(second.mesh.url) as client:
            assert "second" in httpx.get(f"{second.mesh.url}/.well-known/agent-card.json").text
            assert approve(client, asked[0])["response"].startswith("done: ")
            with running(third.mesh):
                second.mesh.stop(signal.SIGINT)
                assert "Traceback" not in second.mesh.log.read_text()
                assert "third" in httpx.get(f"{third.mesh.url}/.well-known/agent-card.json").text
                assert approve(client, asked[1])["response"].startswith("done: ")
                assert httpx.get(f"{third.mesh.url}/ready", timeout=60).status_code == 200
        assert first.lines() == {"line 0": 1, "line 1": 1}


def test_two_clusters_on_one_database_both_answer_and_the_newer_one_has_the_shards(
    model: Model, database: PostgresServer
) -> None:
    url = new_database(database)
    with (
        tempfile.TemporaryDirectory(prefix="mesh-a-", ignore_cleanup_errors=True) as a,
        tempfile.TemporaryDirectory(prefix="mesh-b-", ignore_cleanup_errors=True) as b,
    ):
        first = World(Path(a), model, {"STORE_URL": url}, store="${STORE_URL}")
        second = World(Path(b), model, {"STORE_URL": url}, store="${STORE_URL}")
        with running(first.mesh), Client(first.mesh.url) as one:
            asked = [ask(one, f"line {number}") for number in range(6)]
            with running(second.mesh), Client(second.mesh.url) as other:
                for number, each in enumerate(asked[:4]):
                    client = other if number % 2 else one
                    assert approve(client, each)["response"].startswith("done: ")
                epochs = database.execute(url, "select max(epoch) from mesh.shard")
                assert [one.get(f"/conversations/{each['conversation']}") for each in asked]
                assert database.execute(url, "select max(epoch) from mesh.shard") == epochs  # nobody fences
            for each in asked[4:]:
                assert approve(one, each)["response"].startswith("done: ")
            lines = first.lines() + second.lines()
            assert set(lines.values()) == {1} and len(lines) == 6
        assert database.execute(url, GAPS) == []


def mcp_of(world: World) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(world.mesh.config.read_text())["mcp"]
    return found
