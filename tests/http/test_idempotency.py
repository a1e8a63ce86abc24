"""One Idempotency-Key is one request: its method, its path and its body."""

from collections.abc import Iterator

import httpx
import pytest

from mesh.core.events import ApprovalResolved
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says

WITHIN_S = 30.0
KEY = {"Idempotency-Key": "k1"}


@pytest.fixture
def live() -> Iterator[LiveMesh]:
    asks_twice = calls(("add", {"n": 1}), ("add", {"n": 2}))
    with LiveMesh(Spoken(asks_twice, says("done"))) as mesh:
        yield mesh


@pytest.fixture
def http(live: LiveMesh) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=WITHIN_S) as client:
        yield client


def asked(http: httpx.Client) -> tuple[str, str]:
    """A conversation and the approval that it waits for."""
    body = http.post("/conversations", json={"message": "add"}).json()
    return body["conversation"]["id"], body["result"]["approval"]["uuid"]


def test_a_key_that_decided_one_approval_does_not_decide_another(http: httpx.Client, live: LiveMesh) -> None:
    cid, first = asked(http)
    one = http.post(f"/approvals/{first}", json={"approved": True}, headers=KEY)
    second = one.json()["result"]["approval"]["uuid"]
    other = http.post(f"/approvals/{second}", json={"approved": True}, headers=KEY)
    assert other.status_code == 409, other.text
    assert "another path" in other.json()["error"]
    shown = http.get(f"/conversations/{cid}").json()["conversation"]
    assert shown["pending_approval"]["uuid"] == second
    again = http.post(f"/approvals/{first}", json={"approved": True}, headers=KEY)
    assert (again.status_code, again.json()) == (200, one.json())
    assert live.mesh.ledger.lines == ["add 1"]


def test_a_key_of_one_route_is_refused_on_every_other_one(http: httpx.Client) -> None:
    cid, uuid = asked(http)
    body = {"approved": False, "message": "add"}
    assert http.post(f"/approvals/{uuid}", json=body, headers=KEY).status_code == 200
    others = (
        f"conversations/{cid}/messages",
        f"api/sessions/{cid}/chat",
        f"api/sessions/{cid}/approvals/{uuid}",
    )
    for path in others:
        assert http.post(f"/{path}", json=body, headers=KEY).status_code == 409, path
    created = {"Idempotency-Key": "k2"}
    made = http.post("/conversations", json=body, headers=created).json()["conversation"]
    said = http.post(f"/conversations/{made['id']}/messages", json=body, headers=created)
    assert said.status_code == 409


def test_a_request_without_a_key_gets_one_that_nobody_gets_twice(http: httpx.Client, live: LiveMesh) -> None:
    _, uuid = asked(http)
    http.post(f"/approvals/{uuid}", json={"approved": True})
    journal = live.run(live.mesh.journal.read(http.get("/conversations").json()["conversations"][0]["id"]))
    (decided,) = (event for event in journal if isinstance(event, ApprovalResolved))
    assert len(decided.idempotency_key.removeprefix("~")) * 4 >= 128


def test_a_session_is_created_once_for_a_key(http: httpx.Client) -> None:
    first = http.post("/api/sessions", json={"model": "m"}, headers=KEY)
    again = http.post("/api/sessions", json={"model": "m"}, headers=KEY)
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["x-session-id"] == first.headers["x-session-id"]
    assert len(http.get("/conversations").json()["conversations"]) == 1
    assert http.post("/api/sessions", json={"model": "other"}, headers=KEY).status_code == 409
    assert http.post("/conversations", json={"model": "m"}, headers=KEY).status_code == 409
    other = http.post("/api/sessions", json={"model": "m"}, headers={"Idempotency-Key": "k2"})
    assert other.json()["id"] != first.json()["id"]


def test_sessions_without_a_key_are_each_another(http: httpx.Client) -> None:
    assert http.post("/api/sessions").json()["id"] != http.post("/api/sessions").json()["id"]
