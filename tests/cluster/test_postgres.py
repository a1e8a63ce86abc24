"""A mesh whose conversations are in PostgreSQL: what is acknowledged stays, whatever dies."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh.store.postgres.migrate import migrate
from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.world import World
from tests.worlds.postgres import PostgresServer
from tests.worlds.process import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

CONVERSATIONS = 12
GAPS = """
    select conversation from mesh.event group by conversation
    having min(seq) <> 1 or max(seq) <> count(*)
    union all
    select c.id from mesh.conversation c
    where c.seq <> (select count(*) from mesh.event e where e.agent = c.agent and e.conversation = c.id)
"""


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def url(database: PostgresServer) -> str:
    return new_database(database)


@pytest.fixture(scope="module")
def world(url: str, model: Model) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        # The URL comes from the environment of each actor, as a password does.
        found = World(
            Path(name), model, {"STORE_URL": url}, store="${STORE_URL}", cluster={"keepers": 2, "gateways": 1}
        )
        with running(found.mesh):
            yield found


@contextmanager
def frozen(database: PostgresServer) -> Iterator[None]:
    database.freeze()
    try:
        yield
    finally:
        database.thaw()


def test_a_conversation_is_in_the_database_and_the_data_folder_is_not_touched(
    world: World, database: PostgresServer, url: str
) -> None:
    with Client(world.mesh.url) as client:
        asked = ask(client, "first")
        assert approve(client, asked)["response"].startswith("done: ")
    assert world.lines()["first"] == 1
    found = database.execute(
        url, f"select line from mesh.event where conversation = '{asked['conversation']}'"
    )
    kinds = [json.loads(line)["type"] for (line,) in found]
    assert kinds[0] == "conversation_created" and "tool_result" in kinds
    data = {path.name for path in world.mesh.data_dir.iterdir()}
    assert not any(name.startswith(("conversation_", "index", "grants", "configs")) for name in data), data


def test_what_waits_for_a_person_goes_on_after_the_keepers_died_and_then_everything(
    world: World, database: PostgresServer, url: str
) -> None:
    with Client(world.mesh.url) as client:
        waiting = [ask(client, f"kept-{number}") for number in range(CONVERSATIONS)]
        assert world.mesh.kill("ray::KeeperActor") == 2
        answers = [approve(client, asked) for asked in waiting[:4]]
        world.mesh.kill_all()
        world.mesh.start()
        answers += [approve(client, asked) for asked in waiting[4:]]
        assert all(answer["response"].startswith("done: ") for answer in answers)
        listed = client.get("/conversations?limit=100")
        assert {asked["conversation"] for asked in waiting} <= {
            each["id"] for each in listed["conversations"]
        }
    assert [world.lines()[f"kept-{number}"] for number in range(CONVERSATIONS)] == [1] * CONVERSATIONS
    assert database.execute(url, GAPS) == []


def test_one_stream_follows_the_conversations_of_all_shards_and_resumes(world: World) -> None:
    with (
        httpx.Client(base_url=world.mesh.url, timeout=60) as api,
        api.stream("GET", "/events?type=conversation_created") as stream,
    ):
        lines = stream.iter_lines()
        created = {api.post("/conversations", json={}).json()["conversation"]["id"] for _ in range(16)}
        seen: set[str] = set()
        last = ""  # an id stands behind the events up to it
        while not (last and created <= seen):
            line = next(lines)
            if line.startswith("data:"):
                seen.add(json.loads(line.removeprefix("data:"))["conversation_id"])
            if line.startswith("id:"):
                last = line.removeprefix("id:").strip() if created <= seen else ""
        more = api.post("/conversations", json={}).json()["conversation"]["id"]
        resumed = {"Last-Event-ID": last}
        with api.stream("GET", "/events?type=conversation_created", headers=resumed) as again:
            found = next(line for line in again.iter_lines() if line.startswith("data:"))
            assert json.loads(found.removeprefix("data:"))["conversation_id"] == more


def test_lists_are_shown_while_every_keeper_is_away(world: World) -> None:
    with Client(world.mesh.url) as client:
        created = client.post("/conversations", {})[1]["conversation"]["id"]
        keepers = world.mesh.find("ray::KeeperActor")
        for keeper in keepers:
            keeper.suspend()
        try:
            listed = client.get("/conversations")
            assert listed["conversations"][0]["id"] == created
        finally:
            for keeper in keepers:
                keeper.resume()


def test_a_decision_that_meets_a_dead_database_is_taken_once_it_is_back(
    world: World, database: PostgresServer, url: str
) -> None:
    with Client(world.mesh.url) as client, ThreadPoolExecutor(CONVERSATIONS) as pool:
        waiting = [ask(client, f"lost-{number}") for number in range(CONVERSATIONS)]
        calls_before = len(waiting)
        database.kill()
        # The client sends again what was answered with 503.
        decided: list[Future[dict[str, Any]]] = [
            pool.submit(decide, world.mesh.url, each) for each in waiting
        ]
        database.start()
        answers = [each.result(timeout=120) for each in decided]
        assert all(answer["response"].startswith("done: ") for answer in answers)
    assert calls_before == CONVERSATIONS
    assert [world.lines()[f"lost-{number}"] for number in range(CONVERSATIONS)] == [1] * CONVERSATIONS
    assert database.execute(url, GAPS) == []


def test_while_the_database_is_silent_requests_get_503_and_what_to_do(
    world: World, database: PostgresServer
) -> None:
    with httpx.Client(base_url=world.mesh.url, timeout=60) as api:
        created = api.post("/conversations", json={}).json()["conversation"]["id"]
        with frozen(database):
            refused = api.post(
                f"/conversations/{created}/messages", json={"message": "append late", "wait": False}
            )
            listed = api.get("/conversations")
        for response in (refused, listed):
            assert response.status_code == 503, response.text
            assert int(response.headers["Retry-After"]) >= 1
            assert "does not answer" in response.json()["error"] or "nobody knows" in response.json()["error"]
            assert "@" not in response.text and "postgres:" not in response.text.replace("postgres://127", "")
        until(lambda: api.get("/conversations").status_code == 200)
        until(lambda: api.get(f"/conversations/{created}").status_code == 200)


def new_database(server: PostgresServer) -> str:
    """The URL of a new database with its tables."""
    url = server.create_database()
    asyncio.run(migrate(url, "mesh"))
    return url


def ask(client: Client, line: str) -> dict[str, str]:
    """A new conversation that waits for the approval of an append."""
    status, body = client.post("/conversations", {"message": f"append {line}"})
    assert status == 201, body
    return {"conversation": body["conversation"]["id"], "uuid": body["result"]["approval"]["uuid"]}


def approve(client: Client, asked: dict[str, str]) -> dict[str, Any]:
    status, body = client.post(f"/approvals/{asked['uuid']}", {"approved": True})
    assert status == 200, body
    result: dict[str, Any] = body["result"]
    return result


def decide(url: str, asked: dict[str, str]) -> dict[str, Any]:
    with Client(url) as client:
        return approve(client, asked)
