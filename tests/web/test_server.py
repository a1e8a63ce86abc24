"""The server between the page and the mesh: what it passes on, and what it refuses."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh.access import keys
from mesh.local.local_backend import LocalBackend
from mesh.web.listening import listen_nearby
from tests.web.world import serving
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says
from tests.worlds.ports import free_port

ADD = calls(("add", {"n": 1}))


@asynccontextmanager
async def web(*answers: Any, **config: Any) -> AsyncIterator[tuple[LiveMesh, httpx.AsyncClient]]:
    with LiveMesh(Spoken(*answers or (says("fine"),))) as live:
        async with serving(live.url, **config) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
            yield live, client


async def until(client: httpx.AsyncClient, conversation_id: str, kind: str) -> list[dict[str, Any]]:
    """The events of a conversation up to the first of a kind."""
    events: list[dict[str, Any]] = []
    async with client.stream("GET", f"/api/conversation/{conversation_id}/events?after=0") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if events[-1]["type"] == kind:
                    return events
    raise AssertionError(f"the stream ended before {kind}: {events}")


async def test_a_conversation_is_had_over_the_api_of_the_page() -> None:
    async with web(ADD, says("Added.")) as (live, client):
        sent = await client.post("/api/send", json={"message": "add one"}, headers={"X-Session-ID": "s-7"})
        assert (sent.status_code, sent.headers["x-session-id"]) == (202, "s-7")
        conversation_id = sent.json()["conversation"]["id"]
        await until(client, conversation_id, "paused")
        shown = (await client.get(f"/api/conversation/{conversation_id}")).json()["conversation"]
        approve = {"uuid": shown["pending_approval"]["uuid"], "approved": True, "edited_args": {"n": 2}}
        assert (await client.post("/api/approve", json=approve)).status_code == 202
        events = await until(client, conversation_id, "completed")
        assert events[-1]["response"] == "Added."
        assert live.mesh.ledger.lines == ["add 2"]
        more = {"conversation_id": conversation_id, "message": "thanks"}
        assert (await client.post("/api/send", json=more)).status_code == 202
        assert (
            await client.post("/api/cancel", json={"conversation_id": conversation_id})
        ).status_code == 200
        assert (await client.get("/api/tree")).json()["tree"]["name"] == "test"
        assert {tool["name"] for tool in (await client.get("/api/tools")).json()["tools"]} == {"add", "look"}


async def test_who_asks_and_the_key_of_a_request_reach_the_mesh() -> None:
    async with web(ADD, says("Added.")) as (live, client):
        keyed = {"Idempotency-Key": "k1", "Authorization": "Bearer t", "X-User": "ada"}
        first = await client.post("/api/send", json={"message": "add"}, headers=keyed)
        again = await client.post("/api/send", json={"message": "add"}, headers=keyed)
        conversation_id = first.json()["conversation"]["id"]
        assert again.json()["conversation"]["id"] == conversation_id
        asked = (await until(client, conversation_id, "approval_required"))[-1]
        await client.post(
            "/api/approve",
            json={"uuid": asked["uuid"], "approved": True},
            headers=keyed | {"Idempotency-Key": "k2"},
        )
        resolved = (await until(client, conversation_id, "approval_resolved"))[-1]
        assert resolved["by"] == "ada"
        assert len((await client.get("/api/conversations")).json()["conversations"]) == 1
        del live


async def test_a_stream_resumes_behind_the_event_that_the_browser_has() -> None:
    async with web() as (_, client):
        conversation_id = (await client.post("/api/send", json={"message": "x"})).json()["conversation"]["id"]
        seqs = [e["seq"] for e in await until(client, conversation_id, "completed") if "seq" in e]
        url = f"/api/conversation/{conversation_id}/events"
        async with client.stream("GET", url, headers={"Last-Event-ID": str(seqs[-2])}) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("id: "):
                    assert line == f"id: {seqs[-1]}"
                    break


async def test_the_stream_of_the_mesh_is_closed_when_the_browser_leaves() -> None:
    opened, closed = asyncio.Event(), asyncio.Event()

    async def mesh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n")
        opened.set()
        assert await reader.read() == b""
        closed.set()
        writer.close()

    server = await asyncio.start_server(mesh, "127.0.0.1", free_port())
    port = server.sockets[0].getsockname()[1]
    async with server, serving(f"http://127.0.0.1:{port}") as url, httpx.AsyncClient(base_url=url) as client:
        async with client.stream("GET", "/api/conversation/c/events") as stream:
            chunks = stream.aiter_bytes()  # held: one that nobody holds closes the stream
            await anext(chunks)
            assert opened.is_set() and not closed.is_set()
        await asyncio.wait_for(closed.wait(), 30)


@pytest.mark.parametrize(("sent", "is_told"), [(b": hello\n\n", True), (b'event: a\ndata: {"half', False)])
async def test_a_stream_that_breaks_says_why_and_never_completes_a_half_event(
    sent: bytes, is_told: bool
) -> None:
    async def mesh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n" % (len(sent), sent))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(mesh, "127.0.0.1", free_port())
    port = server.sockets[0].getsockname()[1]
    async with server, serving(f"http://127.0.0.1:{port}") as url, httpx.AsyncClient(base_url=url) as client:
        text = (await client.get("/api/conversation/c/events")).text
        assert text.startswith(sent.decode())
        assert ("event: cut_off" in text) is is_told
        assert is_told or text == sent.decode()


async def test_an_agent_that_is_not_there_is_said_in_words_without_its_secrets() -> None:
    agent_url = f"http://user:hidden@127.0.0.1:{free_port()}/base?key=hidden"
    async with serving(agent_url) as url, httpx.AsyncClient(base_url=url) as client:
        for path in ("/api/conversations", "/api/tree", "/api/conversation/c/events"):
            answer = await client.get(path)
            assert answer.status_code == 502
            assert "cannot be reached; is it running (mesh up)" in answer.json()["error"]
            assert "hidden" not in answer.text
        assert (await client.get("/")).status_code == 200


async def test_a_server_that_is_no_mesh_is_told_from_one() -> None:
    async with serving("http://127.0.0.1:9") as other, serving(f"{other}/static") as url:
        async with httpx.AsyncClient(base_url=url) as client:
            answer = await client.get("/api/conversation/x/events")
            assert answer.json() == {"error": "/static/conversations/x/events: Not Found"}
        async with (
            serving(f"{other}/static/vendor/README.md?") as strange,
            httpx.AsyncClient(base_url=strange) as client,
        ):
            answer = await client.get("/api/tree")
            assert answer.status_code == 502
            assert "is no mesh" in answer.json()["error"]


async def test_an_agent_that_hangs_is_given_up_in_time() -> None:
    async def mesh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mesh, "127.0.0.1", free_port())
    port = server.sockets[0].getsockname()[1]
    agent = serving(f"http://127.0.0.1:{port}", timeout_s=0.2)
    async with server, agent as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.get("/api/tree")
        assert (answer.status_code, "did not answer within 0.2 s" in answer.json()["error"]) == (
            502,
            True,
        )


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
async def test_requests_of_other_sites_are_refused(headers: dict[str, str]) -> None:
    async with web() as (_, client):
        for answer in (
            await client.post("/api/send", json={"message": "x"}, headers=headers),
            await client.get("/api/conversations", headers=headers),
        ):
            assert (answer.status_code, "another site" in answer.json()["error"]) == (403, True)
        assert (await client.get("/api/conversations")).json()["conversations"] == []


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_a_post_that_a_foreign_form_could_send_is_refused(kind: str) -> None:
    async with web() as (_, client):
        answer = await client.post("/api/send", content=b'{"message": "x"}', headers={"Content-Type": kind})
        assert answer.status_code == 415
        assert (await client.get("/api/conversations")).json()["conversations"] == []


async def test_a_name_that_is_not_ours_is_refused() -> None:
    async with web(allowed_hosts=("chat.example.com",)) as (_, client):
        for host, status in {
            "evil.example": 421,
            "evil.example:3000": 421,
            "127.0.0.1.evil.example": 421,
            "[bad": 421,
            "localhost:3000": 200,
            "LOCALHOST": 200,
            "[::1]:3000": 200,
            "10.0.0.7": 200,
            "server": 421,
            "chat.example.com": 200,
        }.items():
            assert (await client.get("/", headers={"Host": host})).status_code == status, host


async def test_every_answer_carries_the_rules_for_the_browser() -> None:
    async with web() as (_, client):
        for path in ("/", "/static/js/main.js", "/api/conversations", "/nowhere", "/static/../config.py"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] in ("no-store", "no-cache")
        assert (await client.get("/static/js/main.js")).headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/send", "no json"),
        ("/api/send", '{"message": 7}'),
        ("/api/send", '{"message": "x", "conversation_id": "../health"}'),
        ("/api/send", '{"message": "x", "surprise": 1}'),
        ("/api/approve", '{"approved": true}'),
        ("/api/approve", '{"uuid": "..", "approved": true}'),
        ("/api/approve", '{"uuid": "u", "action": "explode"}'),
        ("/api/approve", '{"uuid": "u", "answer": 7}'),
        ("/api/cancel", "{}"),
        ("/api/intervene", '{"agent_id": "..", "action": "pause"}'),
        ("/api/intervene", '{"agent_id": "a", "action": "explode"}'),
        ("/api/conversation", '{"message": "x"}'),
    ],
)
async def test_what_is_not_understood_never_reaches_the_mesh(path: str, body: str) -> None:
    async with serving("http://127.0.0.1:9") as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]


async def test_requests_are_bounded() -> None:
    async with web(max_body_bytes=2048) as (_, client):
        answer = await client.post("/api/send", json={"message": "x" * 4096})
        assert (answer.status_code, "max_body_bytes" in answer.json()["error"]) == (413, True)
        assert (await client.get("/api/conversations", params={"q": "x" * 500})).status_code == 400


async def test_streams_are_bounded_and_leave_room_for_decisions() -> None:
    async with web(max_streams=1) as (_, client):
        conversation_id = (await client.post("/api/conversation", json={})).json()["conversation"]["id"]
        async with client.stream("GET", f"/api/conversation/{conversation_id}/events?after=0") as stream:
            chunks = stream.aiter_bytes()  # held: one that nobody holds closes the stream
            await anext(chunks)
            second = await client.get(f"/api/conversation/{conversation_id}/events")
            assert (second.status_code, "max_streams" in second.json()["error"]) == (503, True)
            said = {"conversation_id": conversation_id, "message": "still heard"}
            assert (await client.post("/api/send", json=said)).status_code == 202


async def test_a_search_says_that_conversations_of_a_keeper_that_is_away_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask_reachable(backend: LocalBackend, request: Any) -> tuple[list[Any], bool]:
        return await backend.ask_all(request), False

    monkeypatch.setattr(LocalBackend, "ask_reachable", ask_reachable)
    async with web(says("a")) as (_, client):
        await client.post("/api/send", json={"message": "apples"})
        assert (await client.get("/api/conversations")).json()["incomplete"] is True
        found = (await client.get("/api/conversations", params={"q": "apples"})).json()
        assert [entry["title"] for entry in found["conversations"]] == ["apples"]
        assert found["incomplete"] is True


async def test_conversations_are_found_by_words_of_title_id_or_session() -> None:
    async with web(says("a"), says("b"), says("c")) as (_, client):
        for text in ("Red apples", "green apples", "pears"):
            await client.post("/api/send", json={"message": text})

        async def titles(q: str) -> list[str]:
            found = (await client.get("/api/conversations", params={"q": q})).json()
            assert found["searched_all"]
            return sorted(entry["title"] for entry in found["conversations"])

        assert await titles("APPLES") == ["Red apples", "green apples"]
        assert await titles("apples red") == ["Red apples"]
        assert await titles("nothing") == []
        page = (await client.get("/api/conversations", params={"limit": "1"})).json()
        assert await titles(page["conversations"][0]["id"]) == ["pears"]


async def test_a_mesh_that_asks_for_a_key_gets_that_of_the_config_or_a_persons_own(tmp_path: Path) -> None:
    chat, ann = (keys.add(tmp_path / "keys.yaml", name) for name in ("chat", "ann"))
    setting = f"{SIMPLE}auth: {{keys_file: {tmp_path / 'keys.yaml'}}}\n"
    with LiveMesh(Spoken(says("fine")), setting) as live:
        async with serving(live.url) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
            refused = await client.get("/api/tree")
            assert (refused.status_code, "API key" in refused.json()["error"]) == (401, True)
        async with serving(live.url, key=chat) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
            for token, name in (("", "chat"), ("of-the-caller", "chat"), (ann, "ann")):
                headers = {"X-User": "the boss", **({"Authorization": f"Bearer {token}"} if token else {})}
                sent = await client.post("/api/send", json={"message": "x"}, headers=headers)
                id = sent.json()["conversation"]["id"]
                path = f"/api/conversation/{id}/events?after=0"
                async with client.stream("GET", path, headers=headers) as stream:
                    said = [line async for line in _until(stream, "user_message")][-1]
                assert f'"by":"{name}"' in said
                assert ('"had_token":true' in said) is (token == "of-the-caller")
                assert chat not in said


async def _until(stream: httpx.Response, kind: str) -> AsyncIterator[str]:
    async for line in stream.aiter_lines():
        yield line
        if line.startswith("data: ") and json.loads(line.removeprefix("data: "))["type"] == kind:
            return


def test_the_next_free_port_is_taken_when_the_usual_one_is_in_use() -> None:
    usual = free_port()
    with listen_nearby(usual) as first, listen_nearby(usual) as second:
        assert first.getsockname() == ("127.0.0.1", usual)
        host, port = second.getsockname()
        assert host == "127.0.0.1" and usual < port < usual + 100
