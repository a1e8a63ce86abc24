"""What is remembered for good, over HTTP: listed, revoked, with the name of whoever revoked it."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mesh.access import keys
from mesh.policy.book_file import FILE, FileGrantBook
from tests.policy.test_book import granted
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says

WITHIN_S = 30.0


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveMesh]:
    found = LiveMesh(Spoken(says("done")))
    found.mesh.grant_book = FileGrantBook(tmp_path)
    with found:
        yield found


@pytest.fixture
def http(live: LiveMesh) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=WITHIN_S) as http:
        yield http


def test_grants_are_listed_with_their_numbers_and_end_when_they_are_revoked(
    live: LiveMesh, http: httpx.Client, tmp_path: Path
) -> None:
    assert http.get("/policy/grants").json() == {"grants": []}
    for id in "ab":
        live.run(live.mesh.grant_book.add(granted(id)))
    listed = http.get("/policy/grants").json()["grants"]
    assert [(each["number"], each["grant"]["id"], each["grant"]["by"]) for each in listed] == [
        (1, "a", "ann"),
        (2, "b", "ann"),
    ]
    assert listed[0]["grant"]["rule"]["paths"] == ["/docs/a.md"]
    revoked = http.delete("/policy/grants/a", headers={"X-User": "bob"})
    assert (revoked.status_code, revoked.json()["id"]) == (200, "a")
    assert [each["number"] for each in http.get("/policy/grants").json()["grants"]] == [2]
    assert [each.id for each in live.run(live.mesh.grant_book.grants("coder"))] == ["b"]
    [line] = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()][2:]
    assert (line["revoked"]["id"], line["revoked"]["by"]) == ("a", "bob")


@pytest.mark.parametrize("id", ["nothing", "a" * 5_000, "%00", "..%2f.."])
def test_what_is_not_there_is_a_404_in_json(http: httpx.Client, id: str) -> None:
    refused = http.delete(f"/policy/grants/{id}")
    assert refused.status_code == 404
    assert len(refused.json()["error"]) < 6_000


def test_a_header_that_is_not_understood_is_a_400_and_revokes_nothing(
    live: LiveMesh, http: httpx.Client
) -> None:
    live.run(live.mesh.grant_book.add(granted("a")))
    refused = http.delete("/policy/grants/a", headers={"X-Session-ID": "no session!"})
    assert (refused.status_code, "X-Session-ID" in refused.json()["error"]) == (400, True)
    assert len(http.get("/policy/grants").json()["grants"]) == 1


def test_a_damaged_book_says_which_line_it_is(http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("nonsense\n")
    for answer in (http.get("/policy/grants"), http.delete("/policy/grants/a")):
        assert (answer.status_code, f"{FILE}:1: " in answer.json()["error"]) == (500, True)


def test_with_keys_nobody_without_one_sees_or_revokes_and_the_key_says_who_did(tmp_path: Path) -> None:
    file, book = tmp_path / "keys.yaml", FileGrantBook(tmp_path)
    key = keys.add(file, "carol")
    found = LiveMesh(Spoken(says("done")), f"{SIMPLE}auth: {{keys_file: {file}}}\n")
    found.mesh.grant_book = book
    with found as live, httpx.Client(base_url=live.url, timeout=WITHIN_S) as http:
        live.run(book.add(granted("a")))
        for refused in (http.get("/policy/grants"), http.delete("/policy/grants/a")):
            assert (refused.status_code, "API key" in refused.json()["error"]) == (401, True)
        assert http.delete("/policy/grants/a", headers={"X-API-Key": key, "X-User": "bob"}).status_code == 200
    last = json.loads((tmp_path / FILE).read_text().splitlines()[-1])
    assert last["revoked"]["by"] == "carol"


def test_pages_of_other_sites_revoke_nothing(live: LiveMesh, http: httpx.Client) -> None:
    live.run(live.mesh.grant_book.add(granted("a")))
    refused = http.delete("/policy/grants/a", headers={"Origin": "https://evil.example"})
    assert refused.status_code == 403
    assert len(http.get("/policy/grants").json()["grants"]) == 1


def test_a_decision_is_remembered_for_good_in_every_conversation_until_it_is_revoked() -> None:
    add = calls(("add", {"n": 1}))
    llm = Spoken(add, says("1"), add, says("2"), add, says("3"))
    with (
        LiveMesh(llm, f"{SIMPLE}policy: {{grants: always}}\n") as live,
        httpx.Client(base_url=live.url, timeout=WITHIN_S) as http,
    ):
        asked = http.post("/conversations", json={"message": "add"}).json()["result"]["approval"]
        decision = {"approved": True, "remember": "always"}
        decided = http.post(f"/approvals/{asked['uuid']}", json=decision, headers={"X-User": "ann"})
        assert decided.json()["result"]["response"] == "1"
        [listed] = http.get("/policy/grants").json()["grants"]
        grant = listed["grant"]
        assert (grant["id"], grant["approval"], grant["by"]) == (asked["uuid"], asked["uuid"], "ann")
        assert grant["rule"] == asked["suggested_rule"]
        again = http.post("/conversations", json={"message": "add"}).json()
        assert again["result"]["response"] == "2"
        assert http.delete(f"/policy/grants/{grant['id']}").status_code == 200
        third = http.post("/conversations", json={"message": "add"}).json()
        assert third["result"]["waiting_approval"]
        assert live.mesh.ledger.lines == ["add 1", "add 1"]


ADD = calls(("add", {"n": 1}))


def asked_for(http: httpx.Client) -> str:
    uuid: str = http.post("/conversations", json={"message": "add"}).json()["result"]["approval"]["uuid"]
    return uuid


def test_a_decision_says_until_when_it_is_remembered() -> None:
    with (
        LiveMesh(Spoken(ADD, says("1")), f"{SIMPLE}policy: {{grants: always}}\n") as live,
        httpx.Client(base_url=live.url, timeout=WITHIN_S) as http,
    ):
        uuid = asked_for(http)
        decision = {"approved": True, "remember": "always", "until": "2100-01-31T18:00:00+01:00"}
        assert http.post(f"/approvals/{uuid}", json=decision).status_code == 200
        [listed] = http.get("/policy/grants").json()["grants"]
        assert listed["grant"]["until"] == "2100-01-31T17:00:00.000Z"


def test_once_its_end_has_passed_it_is_asked_again_and_not_listed(tmp_path: Path) -> None:
    live = LiveMesh(Spoken(ADD, says("1"), ADD, says("2"), ADD), f"{SIMPLE}policy: {{grants: always}}\n")
    live.mesh.grant_book = FileGrantBook(tmp_path)
    live.mesh.keepers[0] = live.mesh._new_keeper()
    with live, httpx.Client(base_url=live.url, timeout=WITHIN_S) as http:
        uuid, end = asked_for(http), "2100-01-31T18:00:00Z"
        decision = {"approved": True, "remember": "always", "until": end}
        assert http.post(f"/approvals/{uuid}", json=decision).status_code == 200
        again = http.post("/conversations", json={"message": "add"}).json()
        assert again["result"]["response"] == "2"
        file = tmp_path / FILE
        file.write_text(file.read_text().replace("2100-", "2020-"))
        assert http.get("/policy/grants").json() == {"grants": []}
        assert asked_for(http) != uuid


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"remember": "always", "until": "2020-01-01T00:00:00Z"}, "2020-01-01T00:00:00Z has passed"),
        ({"remember": "always", "until": "2100-01-01T00:00:00"}, "is no time with a zone"),
        ({"remember": "always", "until": "2100-01-01"}, "is no time with a zone"),
        ({"remember": "always", "until": "2100-13-01T00:00:00Z"}, "is no time with a zone"),
        ({"remember": "always", "until": "9999-12-31T23:59:59-23:00"}, "is no time with a zone"),
        ({"remember": "always", "until": "tomorrow" * 99}, "is no time with a zone"),
        ({"remember": "always", "until": 7}, "is a time with a zone"),
        (
            {"remember": "conversation", "until": "2100-01-01T00:00:00Z"},
            'goes with \\"remember\\": \\"always\\"',
        ),
        ({"until": "2100-01-01T00:00:00Z"}, 'goes with \\"remember\\": \\"always\\"'),
    ],
)
def test_an_end_that_is_none_is_refused_and_the_approval_still_waits(
    more: dict[str, object], problem: str
) -> None:
    with (
        LiveMesh(Spoken(ADD, says("1")), f"{SIMPLE}policy: {{grants: always}}\n") as live,
        httpx.Client(base_url=live.url, timeout=WITHIN_S) as http,
    ):
        uuid = asked_for(http)
        refused = http.post(f"/approvals/{uuid}", json={"approved": True, **more})
        assert (refused.status_code, problem in refused.text) == (400, True), refused.text
        assert http.get("/policy/grants").json() == {"grants": []}
        assert http.post(f"/approvals/{uuid}", json={"approved": True}).status_code == 200


def test_a_rule_with_an_exception_that_cannot_be_used_is_refused_and_the_approval_still_waits() -> None:
    with (
        LiveMesh(Spoken(ADD, says("1"), ADD), f"{SIMPLE}policy: {{grants: always}}\n") as live,
        httpx.Client(base_url=live.url, timeout=WITHIN_S) as http,
    ):
        uuid = asked_for(http)
        for remember in ("conversation", "always"):
            for unless in ({"tools": ["re:("]}, {"command": [""]}, {"paths": [""]}, {"args": {"n": "re:("}}):
                rule = {"tools": ["x"], "unless": unless}
                decision = {"approved": True, "remember": remember, "rule": rule}
                refused = http.post(f"/approvals/{uuid}", json=decision)
                assert (refused.status_code, "rule: unless." in refused.text) == (400, True), refused.text
        many = {"tools": ["x"], "unless": {"paths": [f"{n}" for n in range(40)]}}
        refused = http.post(f"/approvals/{uuid}", json={"approved": True, "remember": "always", "rule": many})
        assert (refused.status_code, "over 32 patterns" in refused.text) == (400, True)
        assert http.get("/policy/grants").json() == {"grants": []}
        assert http.post(f"/approvals/{uuid}", json={"approved": True}).status_code == 200
        assert asked_for(http) != uuid


def test_a_line_with_a_rule_that_cannot_be_used_breaks_no_conversation(tmp_path: Path) -> None:
    live = LiveMesh(Spoken(ADD, says("1"), ADD), f"{SIMPLE}policy: {{grants: always}}\n")
    live.mesh.grant_book = FileGrantBook(tmp_path)
    live.mesh.keepers[0] = live.mesh._new_keeper()
    with live, httpx.Client(base_url=live.url, timeout=WITHIN_S) as http:
        uuid = asked_for(http)
        assert (
            http.post(f"/approvals/{uuid}", json={"approved": True, "remember": "always"}).status_code == 200
        )
        file = tmp_path / FILE
        line = json.loads(file.read_text())
        line["granted"]["rule"]["unless"] = {"tools": ["re:("]}
        file.write_text(json.dumps(line, separators=(",", ":")) + "\n")
        assert asked_for(http) != uuid


def test_with_edited_arguments_only_a_rule_that_is_given_is_remembered() -> None:
    with (
        LiveMesh(Spoken(ADD, says("2")), f"{SIMPLE}policy: {{grants: always}}\n") as live,
        httpx.Client(base_url=live.url, timeout=WITHIN_S) as http,
    ):
        uuid = asked_for(http)
        edited = {"approved": True, "remember": "always", "edited_args": {"n": 2}}
        refused = http.post(f"/approvals/{uuid}", json=edited)
        assert (refused.status_code, "not as it was edited" in refused.text) == (400, True), refused.text
        assert http.get("/policy/grants").json() == {"grants": []}
        rule = {"tools": ["add"], "args": {"n": 2}}
        assert http.post(f"/approvals/{uuid}", json={**edited, "rule": rule}).status_code == 200
        [listed] = http.get("/policy/grants").json()["grants"]
        assert listed["grant"]["rule"]["args"] == {"n": 2}
