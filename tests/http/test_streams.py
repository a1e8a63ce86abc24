"""Event streams, logs and sessions over HTTP, before a keeper in this process."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import msgspec
import pytest

from mesh.core.events import LlmCall, decode
from mesh.http import streams
from mesh.keeper import event_feeds
from mesh.llm.port import LlmRequest
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says

WITHIN_S = 30.0
LIVE = {"Accept": "text/event-stream"}


@asynccontextmanager
async def client(live: LiveMesh) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=live.url, timeout=WITHIN_S) as http:
        yield http


class Stream:
    """A stream as a client reads it; what was read before it broke off is kept."""

    def __init__(self, response: httpx.Response) -> None:
        self.events: list[dict[str, Any]] = []
        self._lines = response.aiter_lines()

    async def begin(self) -> None:
        """Its first line: it is open."""
        assert await anext(self._lines) == "retry: 1000"

    async def until(self, name: str = "") -> dict[str, Any]:
        """The next event of that name; without one, the last before the end."""
        async with asyncio.timeout(WITHIN_S):
            async for line in self._lines:
                if line.startswith("data: "):
                    self.events.append(msgspec.json.decode(line[6:]))
                    if self.events[-1]["type"] == name:
                        return self.events[-1]
        assert not name, f"the stream ended before {name}"
        return self.events[-1]

    @property
    def numbers(self) -> list[int]:
        return [event["seq"] for event in self.events if "seq" in event]


async def new(http: httpx.AsyncClient) -> str:
    return str((await http.post("/conversations")).json()["conversation"]["id"])


async def test_a_message_is_answered_by_its_turn_as_a_stream_and_so_is_a_decision() -> None:
    with LiveMesh(Spoken(calls(("add", {"n": 1})), says("one two"))) as live:
        async with client(live) as http:
            async with http.stream("POST", "/conversations", json={"message": "go"}, headers=LIVE) as first:
                asked = Stream(first)
                await asked.until()
            assert first.headers["content-type"].startswith("text/event-stream")
            assert first.headers["x-session-id"]
            assert [event["type"] for event in asked.events][-2:] == ["approval_required", "paused"]
            decided = f"/approvals/{asked.events[-2]['uuid']}"
            async with http.stream("POST", decided, json={"approved": True}, headers=LIVE) as second:
                went_on = Stream(second)
                assert (await went_on.until())["response"] == "one two"
            assert went_on.events[0]["type"] == "approval_resolved"
            assert [*asked.numbers, *went_on.numbers] == list(range(2, 11))


async def test_where_no_turn_goes_on_the_answer_is_the_ordinary_one() -> None:
    with LiveMesh(Spoken(calls(("add", {"n": 1})))) as live:
        async with client(live) as http:
            cid = (await http.post("/conversations", json={"message": "go"})).json()["conversation"]["id"]
            waits = await http.post(f"/conversations/{cid}/messages", json={"message": "x"}, headers=LIVE)
            assert waits.json()["result"]["waiting_approval"]
            bad = await http.post(f"/conversations/{cid}/messages", json={}, headers=LIVE)
            assert (bad.status_code, bad.headers["content-type"]) == (400, "application/json")
            missing = await http.post("/conversations/x/messages", json={"message": "x"}, headers=LIVE)
            assert missing.status_code == 404


async def test_a_stream_begins_where_the_client_says() -> None:
    with LiveMesh(Spoken(says("done"))) as live:
        async with client(live) as http:
            cid = (await http.post("/conversations", json={"message": "go"})).json()["conversation"]["id"]
            path = f"/conversations/{cid}/events"
            for headers, query, first in (({"Last-Event-ID": "2"}, "", 3), ({}, "?after=0", 1)):
                async with http.stream("GET", path + query, headers=headers) as response:
                    stream = Stream(response)
                    await stream.until("completed")
                    assert stream.numbers[0] == first
            for wrong in ("x", "-1", "1.5", "9" * 30):
                refused = await http.get(path, headers={"Last-Event-ID": wrong})
                assert refused.status_code == 400
                assert "Last-Event-ID" in refused.json()["error"]
            assert (await http.get("/conversations/nothing/events")).status_code == 404


async def test_a_silent_stream_has_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feeds, "WAIT_S", 0.02)
    with LiveMesh(Spoken(says("done"))) as live:
        async with client(live) as http:
            cid = await new(http)
            async with http.stream("GET", f"/conversations/{cid}/events") as response:
                lines = response.aiter_lines()
                async with asyncio.timeout(WITHIN_S):
                    beats = [line async for line in _first(lines, 6) if line.startswith(":")]
            assert beats == [": heartbeat"] * 2


async def _first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield await anext(lines)


async def test_streams_are_bounded_and_one_that_is_left_makes_room() -> None:
    with LiveMesh(Spoken(says("done")), SIMPLE + "limits: {max_streams: 1}\n") as live:
        async with client(live) as http:
            cid = await new(http)
            async with http.stream("GET", f"/conversations/{cid}/events") as response:
                await anext(response.aiter_lines())
                refused = await http.get(f"/conversations/{cid}/events")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
                assert "limits.max_streams" in refused.json()["error"]
            await _opens_again(http, f"/conversations/{cid}/events")


async def test_no_more_streams_are_open_than_the_limit_however_many_are_asked_for_at_once() -> None:
    with LiveMesh(Spoken(says("done")), SIMPLE + "limits: {max_streams: 5}\n") as live:
        unlimited = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=live.url, timeout=WITHIN_S, limits=unlimited) as http:
            cid = await new(http)
            for path in (f"/conversations/{cid}/events", "/events"):
                asked = [http.build_request("GET", path) for _ in range(60)]
                answers = await asyncio.gather(*(http.send(request, stream=True) for request in asked))
                statuses = Counter(answer.status_code for answer in answers)
                for answer in answers:
                    await answer.aclose()
                assert statuses[200] <= 5, f"{path}: {statuses}"
                assert statuses[503] >= 50, f"{path}: {statuses}"
                await _opens_again(http, path)


async def test_a_message_whose_turn_cannot_be_streamed_is_refused_before_it_is_taken() -> None:
    with LiveMesh(Spoken(says("done")), SIMPLE + "limits: {max_streams: 1}\n") as live:
        async with client(live) as http:
            cid = await new(http)
            async with http.stream("GET", f"/conversations/{cid}/events") as response:
                await anext(response.aiter_lines())
                said = {"message": "go"}
                refused = await http.post(f"/conversations/{cid}/messages", json=said, headers=LIVE)
                assert refused.status_code == 503
            shown = (await http.get(f"/conversations/{cid}")).json()["conversation"]
            assert [message["role"] for message in shown["messages"]] == ["system"]


async def test_streams_that_never_begin_leave_room_for_others() -> None:
    with LiveMesh(Spoken(says("done")), SIMPLE + "limits: {max_streams: 2}\n") as live:
        async with client(live) as http:
            cid = await new(http)
            for _ in range(3):
                assert (await http.get("/conversations/nothing/events")).status_code == 404
                said = await http.post(f"/conversations/{cid}/messages", json={}, headers=LIVE)
                assert said.status_code == 400
            for _ in range(6):  # they leave before they read anything
                _connected(live.port, f"/conversations/{cid}/events").close()
            await _opens_again(http, f"/conversations/{cid}/events")


async def _opens_again(http: httpx.AsyncClient, path: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            async with http.stream("GET", path) as response:
                if response.status_code == 200:
                    return
                await response.aread()


async def test_a_client_that_stops_reading_is_cut_off_and_slows_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_TAKEN_WITHIN_S", 3.0)
    with LiveMesh(Spoken(says("x" * 500_000)), SIMPLE + "limits: {max_streams: 2}\n") as live:
        async with client(live) as http:
            cid = await new(http)
            stuck = _connected(live.port, f"/conversations/{cid}/events?after=0")
            async with http.stream("GET", f"/conversations/{cid}/events") as quick:
                reading = asyncio.create_task(_count(quick, "event: completed", 20))
                for _ in range(20):
                    said = await http.post(f"/conversations/{cid}/messages", json={"message": "go"})
                    assert said.status_code == 200
                await asyncio.wait_for(reading, WITHIN_S)
                await _opens_again(http, f"/conversations/{cid}/events")
            stuck.close()


async def _count(response: httpx.Response, wanted: str, times: int) -> None:
    async for line in response.aiter_lines():
        times -= line == wanted
        if not times:
            return


def _connected(port: int, path: str) -> socket.socket:
    """A client that asks and then reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return connection


async def test_all_conversations_can_be_followed_chosen_from_and_come_back_to() -> None:
    with LiveMesh(Spoken(says("done"))) as live:
        async with client(live) as http:
            async with http.stream("GET", "/events?type=completed") as response:
                lines = response.aiter_lines()
                assert await anext(lines) == "retry: 1000"
                # It is known where "now" is once the first heartbeat says so.
                while await anext(lines) != ": heartbeat":
                    pass
                one = (await http.post("/conversations", json={"message": "a"})).json()["conversation"]["id"]
                data, at = await _event_and_id(lines)
            assert (data["type"], data["conversation_id"]) == ("completed", one)
            two = (await http.post("/conversations", json={"message": "b"})).json()["conversation"]["id"]
            again = {"Last-Event-ID": at}
            async with http.stream("GET", "/events?type=completed", headers=again) as response:
                data, _ = await _event_and_id(response.aiter_lines())
            assert data["conversation_id"] == two
            refused = await http.get("/events?type=nonsense")
            assert refused.status_code == 400
            assert "tool_result" in refused.json()["error"]
            assert (await http.get("/events", headers={"Last-Event-ID": "x"})).status_code == 400


async def _event_and_id(lines: AsyncIterator[str]) -> tuple[dict[str, Any], str]:
    data: dict[str, Any] = {}
    async with asyncio.timeout(WITHIN_S):
        async for line in lines:
            if line.startswith("data: "):
                data = msgspec.json.decode(line[6:])
            if line.startswith("id: "):
                return data, line[4:]
    raise AssertionError("the stream ended")


async def test_a_crash_in_the_middle_of_a_stream_loses_and_repeats_nothing() -> None:
    with LiveMesh(Spoken(says("one two three"))) as live:
        async with client(live) as http:
            cid = await new(http)
            path, numbers = f"/conversations/{cid}/events", [1]
            for _ in range(3):
                async with http.stream("GET", path, headers={"Last-Event-ID": str(numbers[-1])}) as response:
                    stream = Stream(response)
                    await stream.begin()
                    await http.post(f"/conversations/{cid}/messages", json={"message": "go"})
                    await asyncio.to_thread(live.restart)
                    with suppress(httpx.TransportError):
                        await stream.until()
                numbers += stream.numbers
            async with http.stream("GET", path, headers={"Last-Event-ID": str(numbers[-1])}) as response:
                stream = Stream(response)
                while (stream.numbers or numbers)[-1] < 10:
                    await stream.until("completed")
            assert [*numbers, *stream.numbers] == list(range(1, 11))


# -- logs


async def test_a_conversation_is_carried_to_another_mesh_and_goes_on_there() -> None:
    with LiveMesh(Spoken(calls(("add", {"n": 1})), says("there"))) as here:
        async with client(here) as http:
            cid = (await http.post("/conversations", json={"message": "go"})).json()["conversation"]["id"]
            log = await http.get(f"/conversations/{cid}/log")
            assert log.headers["content-type"].startswith("application/x-ndjson")
            assert [decode(line).seq for line in log.content.splitlines()] == [1, 2, 3, 4, 5]
            assert (await http.post("/conversations/import", content=log.content)).status_code == 409
    with LiveMesh(Spoken(says("on it goes"))) as there:
        async with client(there) as http:
            taken = await http.post("/conversations/import", content=log.content)
            assert taken.status_code == 201
            shown = taken.json()["conversation"]
            assert (shown["id"], shown["status"]) == (cid, "active")
            assert "carried to another mesh" in shown["messages"][-1]["content"]
            said = await http.post(f"/conversations/{cid}/messages", json={"message": "more"})
            assert said.json()["result"]["response"] == "on it goes"
            assert not there.mesh.ledger.lines


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "line 1"),
        (b"nonsense\n", "line 1 is no event"),
        (b'{"type":"completed","response":"x"}\n', "line 1: a conversation begins with"),
        (b'%b\n{"type":"text_delta","text":"x"}\n', "line 2: TextDelta is never in a journal"),
        (b"%b\n{}\n", "line 2 is no event"),
        (b'%b\n{"type":"user_message","text":"\xff"}\n', "line 2 is no event: not UTF-8"),
        (
            b'%b\n{"type":"tool_intent","run":1,"tool":"t","arguments":{"a":' + b"[" * 100_000,
            "line 2 is no event",
        ),
        (
            b'{"type":"conversation_created","conversation_id":"../x","session_id":"s","agent":"a","digest":"d"}',
            "uuid",
        ),
        (b"%b\n%b\n", "more than one conversation_created"),
        (
            b'%b\n{"type":"agent_started","name":"x","kind":"llm","step":"0' + b".0" * 900 + b'"}',
            "line 2: a step has at most 2000 characters and 100 points",
        ),
    ],
)
async def test_what_cannot_be_imported_is_refused_with_its_line(content: bytes, why: str) -> None:
    created = (
        b'{"type":"conversation_created","conversation_id":"9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d",'
        b'"session_id":"s","agent":"a","digest":"d","seq":1}'
    )
    with LiveMesh(Spoken(says("done"))) as live:
        async with client(live) as http:
            refused = await http.post("/conversations/import", content=content.replace(b"%b", created))
            assert refused.status_code == 400
            assert why in refused.json()["error"]


# -- sessions


async def test_a_session_is_a_conversation_with_one_stream() -> None:
    with LiveMesh(Spoken(calls(("add", {"n": 1})), says("one two"))) as live:
        async with client(live) as http:
            made = await http.post(
                "/api/sessions", json={"provider": "x", "model": "y", "workspacePath": "/"}
            )
            assert (made.status_code, made.json()["model"]) == (201, "scripted")
            path = f"/api/sessions/{made.json()['id']}"
            async with http.stream("GET", f"{path}/stream") as response:
                stream = Stream(response)
                await stream.begin()
                second = await http.get(f"{path}/stream")
                assert second.status_code == 409
                assert "open elsewhere" in second.json()["error"]
                assert (await http.post(f"{path}/chat", json={"message": "go"})).status_code == 202
                asked = await stream.until("approval_required")
                assert (await stream.until("paused"))["turn"] == 1
                assert (await http.post(f"{path}/chat", json={"message": "x"})).status_code == 409
                decided = await http.post(f"{path}/approvals/{asked['uuid']}", json={"approved": True})
                assert decided.status_code == 202
                assert (await stream.until("completed"))["response"] == "one two"
            await _opens_again(http, f"{path}/stream")
            resumed = await http.post(f"{path}/resume")
            assert resumed.json()["conversation"]["messages"][-1]["content"] == "one two"


async def test_a_question_in_a_session_is_answered_with_a_text() -> None:
    config = "name: test\nllm: {model: scripted}\nagent: {name: a, type: llm, can_ask_user: true}\n"
    asks = calls(("ask_user", {"question": "Which colour?"}))
    with LiveMesh(Spoken(asks, says("Blue, then.")), config) as live:
        async with client(live) as http:
            session = (await http.post("/api/sessions")).json()["id"]
            waits = await http.post(f"/conversations/{session}/messages", json={"message": "paint"})
            uuid = waits.json()["result"]["approval"]["uuid"]
            path = f"/api/sessions/{session}/approvals/{uuid}"
            assert (await http.post(path, json={"answer": "blue"})).status_code == 202
            async with http.stream("GET", f"/conversations/{session}/events?after=0") as response:
                stream = Stream(response)
                await stream.begin()
                assert (await stream.until("tool_result"))["content"] == "blue"
                assert (await stream.until("completed"))["response"] == "Blue, then."


async def test_wrong_requests_to_sessions_are_refused_in_words() -> None:
    with LiveMesh(Spoken(calls(("add", {"n": 1})))) as live:
        async with client(live) as http:
            assert (await http.post("/api/sessions", json={"model": 7})).status_code == 400
            assert (await http.post("/api/sessions/none/resume")).status_code == 404
            assert (await http.post("/api/sessions/none/chat", json={"message": "x"})).status_code == 404
            one, two = [(await http.post("/api/sessions")).json()["id"] for _ in range(2)]
            await http.post(f"/conversations/{one}/messages", json={"message": "go"})
            shown = (await http.get(f"/conversations/{one}")).json()["conversation"]
            uuid = shown["pending_approval"]["uuid"]
            stranger = await http.post(f"/api/sessions/{two}/approvals/{uuid}", json={"approved": True})
            assert stranger.status_code == 404
            unclear = await http.post(f"/api/sessions/{one}/approvals/{uuid}", json={})
            assert unclear.status_code == 400


async def test_a_turn_is_cancelled_over_http() -> None:
    asked = asyncio.Event()

    async def endless(_: LlmRequest) -> LlmCall:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    with LiveMesh(Spoken(endless)) as live:
        async with client(live) as http:
            cid = await new(http)
            async with http.stream("GET", f"/conversations/{cid}/events") as response:
                going = asyncio.create_task(
                    http.post(f"/conversations/{cid}/messages", json={"message": "go"})
                )
                await Stream(response).until("node_started")
                cancelled = await http.post(f"/conversations/{cid}/cancel")
            assert cancelled.json()["result"]["response"] == "Operation cancelled by user."
            assert (await going).status_code == 200


async def test_the_tree_is_shown() -> None:
    tree = """
name: test
llm: {model: scripted}
agent: {name: team, type: sequential, agents: [{name: a, type: llm}, {name: b, type: llm, model: other}]}
"""
    with LiveMesh(Spoken(says("done")), tree) as live:
        async with client(live) as http:
            assert (await http.get("/tree")).json()["tree"] == {
                "name": "team",
                "type": "sequential",
                "path": "0",
                "agents": [
                    {"name": "a", "type": "llm", "path": "0.0", "model": "scripted"},
                    {"name": "b", "type": "llm", "path": "0.1", "model": "other"},
                ],
            }
