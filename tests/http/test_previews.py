"""What a call would do, and what a decision leaves behind, over HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.tree.test_gate import Files, write
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import says
from tests.worlds.trees import config, llm

LONG = "x" * 70_000


@pytest.fixture
def live() -> Iterator[LiveMesh]:
    text = config(llm("main"), policy={"grants": "conversation"})
    with LiveMesh(Spoken(write(LONG), says("done")), text, ledger=Files()) as live:
        yield live


@pytest.fixture
def http(live: LiveMesh) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=30.0) as http:
        yield http


@pytest.fixture
def asked(http: httpx.Client) -> dict[str, Any]:
    approval: dict[str, Any] = http.post("/conversations", json={"message": "go"}).json()["result"][
        "approval"
    ]
    return approval


def test_a_preview_that_was_cut_goes_on_at_its_offset(http: httpx.Client, asked: dict[str, Any]) -> None:
    path, first = f"/approvals/{asked['uuid']}/preview", asked["preview"]
    assert http.get(path).json() == first
    rest = http.get(path, params={"offset": first["next_offset"]})
    assert rest.status_code == 200
    assert first["text"] + rest.json()["text"] == f"-old\n+{LONG}\n"


@pytest.mark.parametrize("offset", ["-1", "x", "9" * 13, "1e3", "٣"])
def test_an_offset_that_is_none_is_a_400(http: httpx.Client, asked: dict[str, Any], offset: str) -> None:
    refused = http.get(f"/approvals/{asked['uuid']}/preview", params={"offset": offset})
    assert refused.status_code == 400
    assert "offset" in refused.json()["error"]


def test_an_approval_that_is_not_there_has_no_preview(http: httpx.Client, asked: dict[str, Any]) -> None:
    assert http.get(f"/approvals/{'0' * 8}{asked['uuid'][8:]}/preview").status_code == 404
    assert http.get("/approvals/nothing/preview").status_code == 404


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"approved": True, "remember": "for ever"}, "remember"),
        ({"approved": False, "remember": "conversation"}, "remember"),
        ({"approved": True, "rule": {"tools": ["write"]}}, "rule"),
        ({"approved": True, "remember": "conversation", "rule": []}, "rule"),
        ({"approved": True, "remember": "conversation", "rule": {"paths": [["a"]]}}, "rule"),
        ({"approved": True, "remember": "conversation", "rule": {"paths": ["[" * 2_000]}}, "rule"),
        ({"approved": True, "remember": "always"}, "remember: conversation at most"),
    ],
)
def test_what_cannot_be_remembered_is_a_400_and_the_approval_still_waits(
    http: httpx.Client, asked: dict[str, Any], body: dict[str, Any], problem: str
) -> None:
    refused = http.post(f"/approvals/{asked['uuid']}", json=body)
    assert (refused.status_code, problem in json.dumps(refused.json())) == (400, True), refused.text
    accepted = http.post(f"/approvals/{asked['uuid']}", json={"approved": True, "remember": "conversation"})
    assert accepted.json()["result"]["response"] == "done"
