"""A mesh that asks for API keys: what needs one, whose it is, and where it does not go."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Route
from starlette.types import Message, Receive, Scope, Send

from mesh.access import keys
from mesh.access.keyring import keys_of
from mesh.access.rules import rules_of
from mesh.config.model import Config, parse
from mesh.core.events import ApprovalRequired, ApprovalResolved, ConversationCreated, UserMessage
from mesh.core.ids import new_id
from mesh.core.mesh_state import MeshPart
from mesh.gateway.app import http_app
from mesh.http.access_check import AccessCheck
from mesh.http.agent_index import AgentEntry, index_app
from mesh.journal.memory import MemoryJournal
from mesh.keeper.transfer import exported_lines
from tests.worlds.live import LiveMesh, LocalBackend, Spoken
from tests.worlds.mesh import SIMPLE, ScriptedLlm, WorldMesh, calls, says
from tests.worlds.rpc import Rpc, said, state

WITHIN_S = 30.0
CARD = "/.well-known/agent-card.json"


class Door:
    """A mesh that asks for keys, of whom ``ann`` has one."""

    def __init__(self, live: LiveMesh, file: Path, key: str, http: httpx.Client) -> None:
        self.live = live
        self.file = file
        self.key = key
        self.http = http

    @property
    def ann(self) -> dict[str, str]:
        return {"X-API-Key": self.key}


@contextmanager
def door(
    folder: Path, *answers: Any, setting: str = "", journal: MemoryJournal | None = None
) -> Iterator[Door]:
    file = folder / "keys.yaml"
    key = keys.add(file, "ann")
    config = f"{SIMPLE}auth: {{keys_file: {file}}}\n{setting}"
    with (
        LiveMesh(Spoken(*(answers or (says("fine"),))), config, journal) as live,
        httpx.Client(base_url=live.url, timeout=WITHIN_S) as http,
    ):
        yield Door(live, file, key, http)


def requests_of(app: FastAPI | Starlette) -> Iterator[tuple[str, str]]:
    """A request for every route of an app."""
    for route in app.routes:
        if isinstance(route, Mount):
            yield "GET", f"{route.path}/anything"
            continue
        assert isinstance(route, Route), f"how is {route!r} asked for?"
        for method in route.methods or ():
            yield method, re.sub(r"\{[^}]*\}", "x", route.path)


def config_of(tmp_path: Path) -> Config:
    return parse(f"{SIMPLE}auth: {{keys_file: {tmp_path / 'keys.yaml'}}}\n", "test.yaml", {})


async def refusals(app: FastAPI | Starlette, expected: int, headers: dict[str, str]) -> list[str]:
    """The requests for routes of an app that are not refused, with what they are answered."""
    transport = httpx.ASGITransport(app)
    found, asked = [], [*requests_of(app), ("GET", "/nowhere"), ("OPTIONS", "/"), ("POST", "/health")]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=WITHIN_S) as http:
        for method, path in asked:
            answer = await http.request(method, path, headers=headers)
            is_told = answer.headers.get("www-authenticate") == 'Bearer realm="mesh"'
            if answer.status_code != expected or not is_told or "API key" not in (answer.text or "API key"):
                found.append(f"{method} {path}")
    assert len(asked) > 5
    return found


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": "mk_wrong"}, {"Authorization": "Bearer t"}], ids=str)
async def test_every_route_needs_a_key_but_those_that_say_whether_the_mesh_is_up(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    keys.add(tmp_path / "keys.yaml", "ann")
    config = config_of(tmp_path)
    async with WorldMesh(ScriptedLlm(says("fine"))) as mesh:
        app = http_app(LocalBackend(mesh), config, b"secret")
        assert len([*requests_of(app)]) > 40
        assert await refusals(app, 401, headers) == ["GET /health", "GET /ready"]

    async def unready() -> list[str]:
        return ["node 0"]

    index = index_app([AgentEntry("a", "what a does", unready)], rules_of([config]), keys_of([config]))
    open_ones = await refusals(index, 401, headers)
    assert sorted(open_ones) == ["GET /health", "GET /ready", "HEAD /health", "HEAD /ready"]


async def test_who_has_no_key_hears_whether_the_mesh_is_up_and_nothing_else(tmp_path: Path) -> None:
    key, config = keys.add(tmp_path / "keys.yaml", "ann"), config_of(tmp_path)

    class Half(LocalBackend):
        async def parts(self) -> list[MeshPart]:
            return [MeshPart(kind="mcp", name="vault", answers=False)]

    async def unready() -> list[str]:
        return ["mcp vault"]

    async with WorldMesh(ScriptedLlm(says("fine"))) as mesh:
        index = index_app([AgentEntry("a", "what a does", unready)], rules_of([config]), keys_of([config]))
        for app in (http_app(Half(mesh), config, b"secret"), index):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                assert (await http.get("/health")).json() == {"status": "ok"}
                refused = await http.get("/ready")
                assert (refused.status_code, refused.json()) == (503, {"error": "not ready"})
                told = (await http.get("/ready", headers={"X-API-Key": key})).json()["error"]
                assert "mcp vault" in told


def test_a_key_is_taken_from_either_header_and_no_longer_once_it_is_revoked(tmp_path: Path) -> None:
    with door(tmp_path) as at:
        for headers in (
            at.ann,
            {"Authorization": f"Bearer {at.key}"},
            {"Authorization": f"bearer  {at.key}"},
        ):
            assert at.http.get("/conversations", headers=headers).status_code == 200, headers
        for headers in (
            {"X-API-Key": at.key[:-1]},
            {"X-API-Key": ""},
            {"X-API-Key": "mk_wrong", "Authorization": f"Bearer {at.key}"},
            {"Authorization": f"Basic {at.key}"},
            {"Authorization": at.key},
            {"Cookie": f"X-API-Key={at.key}"},
        ):
            refused = at.http.get("/conversations", headers=headers)
            assert refused.status_code == 401, headers
            assert at.key[:12] not in refused.text
        assert at.http.get("/conversations", params={"X-API-Key": at.key}).status_code == 401
        bob = {"X-API-Key": keys.add(at.file, "bob")}
        keys.revoke(at.file, "ann")
        until(lambda: at.http.get("/conversations", headers=bob).status_code == 200)
        assert at.http.get("/conversations", headers=at.ann).status_code == 401


def test_the_name_of_the_key_is_journaled_and_what_the_request_says_is_not(tmp_path: Path) -> None:
    with door(tmp_path, calls(("add", {"n": 7})), says("Added.")) as at:
        bob = {"X-API-Key": keys.add(at.file, "bob"), "X-User": "the boss"}
        until(lambda: at.http.get("/tree", headers=bob).status_code == 200)
        asked = {**at.ann, "X-User": "the boss"}
        made = at.http.post("/conversations", json={"message": "go"}, headers=asked).json()
        approval = made["result"]["approval"]["uuid"]
        at.http.post(f"/approvals/{approval}", json={"approved": True}, headers=bob)
        events = at.live.run(at.live.mesh.journal.read(made["conversation"]["id"]))
        assert [event.by for event in events if isinstance(event, UserMessage | ApprovalResolved)] == [
            "ann",
            "bob",
        ]
        with Rpc(at.live.url, **at.ann) as rpc:
            task = rpc.send("go")
            events = at.live.run(at.live.mesh.journal.read(task["id"]))
            assert [event.by for event in events if isinstance(event, UserMessage)] == ["ann"]


def test_what_an_imported_conversation_says_of_people_is_told_with_whose_word_it_is(tmp_path: Path) -> None:
    with door(tmp_path) as at:
        bob = {"X-API-Key": keys.add(at.file, "bob")}
        until(lambda: at.http.get("/tree", headers=bob).status_code == 200)
        created = ConversationCreated(
            conversation_id=new_id(), session_id="s", agent="test", digest="d", seq=1
        )
        said = UserMessage(turn=1, text="go", by="ann", seq=2)
        asked = ApprovalRequired(
            turn=1, uuid="u", call_id="c", tool_name="add", tool_args={}, description="Run add", seq=3
        )
        decided = ApprovalResolved(turn=1, uuid="u", choice="approve", by="ann", seq=4)
        log = exported_lines([created, said, asked, decided])
        assert at.http.post("/conversations/import", content=log, headers=bob).status_code == 201
        events = at.live.run(at.live.mesh.journal.read(created.conversation_id))
        assert [event.by for event in events if isinstance(event, UserMessage | ApprovalResolved)] == [
            "ann (as imported by bob)"
        ] * 2


def test_a_key_is_no_token_of_the_turn_and_is_written_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with door(tmp_path) as at:
        both = {**at.ann, "Authorization": "Bearer of-the-caller"}
        alone = {"Authorization": f"Bearer {at.key}"}
        keyed = {"Idempotency-Key": "k", **alone}
        for headers, had_token in ((both, True), (alone, False), (keyed, False)):
            made = at.http.post("/conversations", json={"message": "go"}, headers=headers).json()
            events = at.live.run(at.live.mesh.journal.read(made["conversation"]["id"]))
            (message,) = [event for event in events if isinstance(event, UserMessage)]
            assert message.had_token is had_token
            assert at.key not in repr(events)
        with Rpc(at.live.url, **alone) as rpc:
            task = rpc.send("go")
            assert at.key not in json.dumps(task) + repr(at.live.run(at.live.mesh.journal.read(task["id"])))
    assert at.key not in "".join(capfd.readouterr())


def test_a_key_is_no_token_either_where_no_keys_are_asked_for() -> None:
    with (
        LiveMesh(Spoken(says("fine")), SIMPLE) as live,
        httpx.Client(base_url=live.url, headers={"Authorization": "Bearer mk_of-another-mesh"}) as http,
    ):
        made = http.post("/conversations", json={"message": "go"}, headers={"X-User": "ann"}).json()
        (message,) = [
            event
            for event in live.run(live.mesh.journal.read(made["conversation"]["id"]))
            if isinstance(event, UserMessage)
        ]
        assert (message.had_token, message.by) == (False, "ann")


def test_nobody_finds_the_conversation_of_another_by_the_same_idempotency_key(tmp_path: Path) -> None:
    with door(tmp_path) as at:
        bob = {"X-API-Key": keys.add(at.file, "bob")}
        until(lambda: at.http.get("/tree", headers=bob).status_code == 200)
        made = [
            at.http.post("/conversations", headers={**who, "Idempotency-Key": "k"}).json()["conversation"][
                "id"
            ]
            for who in (at.ann, bob, at.ann)
        ]
        assert made[0] == made[2] != made[1]


def test_the_idempotency_keys_of_one_do_not_stand_for_what_another_says(tmp_path: Path) -> None:
    with door(tmp_path, says("to ann"), says("to bob")) as at:
        bob = {"X-API-Key": keys.add(at.file, "bob")}
        until(lambda: at.http.get("/tree", headers=bob).status_code == 200)
        conversation = at.http.post("/conversations", headers=at.ann).json()["conversation"]["id"]
        answers = [
            at.http.post(
                f"/conversations/{conversation}/messages",
                json={"message": "go on"},
                headers={**who, "Idempotency-Key": "1"},
            ).json()["result"]["response"]
            for who in (at.ann, bob, at.ann)
        ]
        assert answers == ["to ann", "to bob", "to ann"]


@pytest.mark.parametrize("kind", ["all", "conversation", "session", "A2A"])
def test_a_stream_ends_when_the_key_that_opened_it_is_revoked(tmp_path: Path, kind: str) -> None:
    with door(tmp_path, calls(("add", {"n": 7}))) as at:
        bob = {"X-API-Key": keys.add(at.file, "bob")}
        until(lambda: at.http.get("/tree", headers=bob).status_code == 200)
        with Rpc(at.live.url, **at.ann) as rpc:
            task = rpc.send("go")["id"]
        path = {
            "all": "/events",
            "conversation": f"/conversations/{task}/events",
            "session": f"/api/sessions/{task}/stream",
            "A2A": f"/a2a/tasks/{task}:subscribe",
        }[kind]
        headers = {**bob, "A2A-Version": "1.0"}
        with at.http.stream("GET", path, headers=headers) as stream:
            pieces = stream.iter_bytes()
            assert next(pieces)
            keys.revoke(at.file, "bob")
            assert b"".join(pieces) is not None, "it ends, and within the client's bound"
        assert at.http.get(path, headers=headers).status_code == 401, "nor is it opened again"
        with at.http.stream("GET", path, headers={**at.ann, "A2A-Version": "1.0"}) as stream:
            assert next(stream.iter_bytes()), "nobody else is concerned"


async def test_an_app_hears_at_once_that_a_client_with_a_key_has_left(tmp_path: Path) -> None:
    key, heard = keys.add(tmp_path / "keys.yaml", "ann"), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await request.body()
        heard.append(await request.is_disconnected())

    messages = [{"type": "http.request", "body": b""}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    config = config_of(tmp_path)
    headers = [(b"host", b"localhost"), (b"x-api-key", key.encode())]
    scope = {"type": "http", "method": "POST", "path": "/a2a", "headers": headers}
    await AccessCheck(app, rules_of([config]), keys_of([config]))(scope, receive, send)
    assert heard == [True]


def test_all_bindings_of_a2a_answer_401_and_work_with_a_key(tmp_path: Path) -> None:
    with door(tmp_path) as at:
        message = {"message": said("hi")}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message}
        old = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "x"}}
        for path, content in (
            ("/a2a", body),
            ("/a2a/", old),
            ("/a2a", {**body, "method": "SendStreamingMessage"}),
            ("/a2a/message:send", message),
            ("/a2a/message:stream", message),
        ):
            refused = at.http.post(path, json=content, headers={"A2A-Version": "1.0"})
            assert (refused.status_code, "API key" in refused.json()["error"]) == (401, True), path
        for headers in (at.ann, {"Authorization": f"Bearer {at.key}"}):
            with Rpc(at.live.url, **headers) as rpc:
                assert state(rpc.send("hi")) == "COMPLETED"
                assert rpc.http.post("/a2a/message:send", json={"message": said("hi")}).status_code == 200


def test_the_card_says_that_a_key_is_needed_and_how_it_is_sent(tmp_path: Path) -> None:
    with door(tmp_path) as at:
        card = at.http.get(CARD, headers=at.ann).json()
        assert card["securitySchemes"]["meshApiKey"]["apiKeySecurityScheme"] == {
            "location": "header",
            "name": "X-API-Key",
        }
        assert [sorted(need["schemes"]) for need in card["securityRequirements"]] == [
            ["meshApiKey"],
            ["meshBearer"],
        ]
        assert [*card["security"][0]] == ["meshApiKey"], "for readers of 0.3"
        assert card["securitySchemes"]["meshApiKey"]["in"] == "header"
    with LiveMesh(Spoken(says("fine"))) as live:
        assert not {"security", "securitySchemes", "securityRequirements"} & set(
            httpx.get(live.url + CARD).json()
        )


PUBLIC = "card: {public_skills: [look], security: {sso: {httpAuthSecurityScheme: {scheme: Bearer}}}}\n"


def test_a_card_with_a_public_part_is_seen_without_a_key_and_its_rest_is_not(tmp_path: Path) -> None:
    new = {"A2A-Version": "1.0"}
    with door(tmp_path, setting=PUBLIC) as at:
        card = at.http.get(CARD).json()
        assert [skill["id"] for skill in card["skills"]] == ["look"]
        assert [sorted(need["schemes"]) for need in card["securityRequirements"]] == [["meshApiKey", "sso"]]
        assert at.http.get("/a2a/extendedAgentCard", headers=new).status_code == 401
        whole = at.http.get("/a2a/extendedAgentCard", headers=at.ann | new).json()
        assert {skill["id"] for skill in whole["skills"]} == {"look", "add"}


def test_a_page_that_may_ask_is_told_that_it_needs_a_key(tmp_path: Path) -> None:
    page = {"Origin": "https://app.example"}
    with door(tmp_path, setting="cors: {origins: ['https://app.example']}\n") as at:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
        assert at.http.options("/conversations", headers=page | asked).status_code == 204
        refused = at.http.post("/conversations", headers=page)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, page["Origin"])
        assert at.http.post("/conversations", headers=page | at.ann).status_code == 201
        evil = at.http.post("/conversations", headers=at.ann | {"Origin": "https://evil.example"})
        assert evil.status_code == 403, "a key does not help a page that may not ask"


def until(is_so: Any) -> None:
    """Waits until a change of the file of keys is noticed."""
    import time

    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
