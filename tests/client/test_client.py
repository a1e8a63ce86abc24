"""The client of a mesh: what it is asked it does once, what happens it sees once and in order."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

import mesh.client.rest as client_module
from mesh.client.conversation_ids import conversation_id
from mesh.client.rest import Connected, Disconnected, MeshClient, MeshUnreachable, RequestRefused
from mesh.core.approvals import Decision
from mesh.core.errors import Unavailable
from mesh.core.events import ApprovalRequired, Completed, Error, Paused, TextDelta, ToolResult, UserMessage
from mesh.journal.portable import read_lines
from mesh.local.local_backend import LocalBackend
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says

ADD = calls(("add", {"n": 3}))
TOKEN = "s3cret"


@pytest.fixture
def live() -> Iterator[Callable[..., LiveMesh]]:
    started: list[LiveMesh] = []

    def start(*answers: Any, **more: Any) -> LiveMesh:
        mesh = LiveMesh(Spoken(*answers), **more)
        mesh.__enter__()
        started.append(mesh)
        return mesh

    yield start
    for mesh in started:
        mesh.__exit__(None, None, None)


async def until(stream: AsyncIterator[Any], kind: type, seen: list[Any]) -> None:
    """Reads up to the first of this kind."""
    async with asyncio.timeout(30):
        async for item in stream:
            seen.append(item)
            if isinstance(item, kind):
                return


def seqs(seen: list[Any]) -> list[int]:
    return [item.seq for item in seen if getattr(item, "seq", 0)]


async def test_a_turn_is_seen_from_its_message_to_its_answer(live: Callable[..., LiveMesh]) -> None:
    mesh = live(says("Hello there"))
    async with MeshClient(mesh.url) as client:
        identifier = await client.create()
        seen: list[Any] = []
        async with aclosing(client.events(identifier, 0)) as stream:
            await until(stream, Connected, seen)
            await client.say(identifier, "hi")
            await until(stream, Completed, seen)
        assert seqs(seen) == list(range(1, len(seqs(seen)) + 1))
        assert [item.text for item in seen if isinstance(item, UserMessage)] == ["hi"]
        assert "".join(item.text for item in seen if isinstance(item, TextDelta)) == "Hello there"
        assert seen[-1].response == "Hello there"


async def test_the_beginning_of_an_id_is_not_enough_while_a_keeper_is_away(
    live: Callable[..., LiveMesh], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_reachable(backend: LocalBackend, request: Any) -> tuple[list[Any], bool]:
        return await backend.ask_all(request), False

    mesh = live(says("Hello there"))
    async with MeshClient(mesh.url) as client:
        identifier = await client.create()
        assert await conversation_id(client, identifier[:8], mesh.url) == identifier
        monkeypatch.setattr(LocalBackend, "ask_reachable", ask_reachable)
        with pytest.raises(Unavailable, match="give the whole id"):
            await conversation_id(client, identifier[:8], mesh.url)
        assert await conversation_id(client, identifier, mesh.url) == identifier


async def test_a_message_may_have_a_budget(live: Callable[..., LiveMesh]) -> None:
    mesh = live(says("Hello there"))
    async with MeshClient(mesh.url) as client:
        identifier = await client.create()
        await client.say(identifier, "hi", budget={"max_llm_calls": 3})
        with pytest.raises(RequestRefused, match="max_llm_calls") as refused:
            await client.say(identifier, "hi", budget={"max_llm_calls": 0})
        assert refused.value.status == 400
        lines = (await client.log(identifier)).decode().splitlines()
    opened = next(json.loads(line) for line in lines if "user_message" in line)
    assert opened["budget"] == {"max_llm_calls": 3}


async def test_an_approval_is_decided_with_other_arguments(live: Callable[..., LiveMesh]) -> None:
    mesh = live(ADD, says("Added."))
    async with MeshClient(mesh.url, user="änn") as client:
        identifier = await client.create()
        seen: list[Any] = []
        async with aclosing(client.events(identifier, 0)) as stream:
            await until(stream, Connected, seen)
            await client.say(identifier, "add")
            await until(stream, Paused, seen)
            (asked,) = [item for item in seen if isinstance(item, ApprovalRequired)]
            with pytest.raises(RequestRefused) as refused:
                await client.decide(Decision(asked.uuid, "approve", {"n": "x"}))
            assert refused.value.status == 400
            await client.decide(Decision(asked.uuid, "approve", {"n": 4}))
            await until(stream, ToolResult, seen)
        assert mesh.mesh.ledger.lines == ["add 4"]


async def test_a_mesh_that_restarts_is_come_back_to_and_each_event_seen_once(
    live: Callable[..., LiveMesh],
) -> None:
    mesh = live(ADD, says("Added."))
    async with MeshClient(mesh.url) as client:
        identifier = await client.create()
        seen: list[Any] = []
        async with aclosing(client.events(identifier, 0)) as stream:
            await until(stream, Connected, seen)
            await client.say(identifier, "add")
            await until(stream, Paused, seen)
            await asyncio.to_thread(mesh.restart)
            (asked,) = [item for item in seen if isinstance(item, ApprovalRequired)]
            await client.decide(Decision(asked.uuid, "approve"))
            await until(stream, Completed, seen)
        assert [type(item) for item in seen if isinstance(item, Connected | Disconnected)][-2:] == [
            Disconnected,
            Connected,
        ]
        assert seqs(seen) == list(range(1, len(seqs(seen)) + 1))
        assert mesh.mesh.ledger.lines == ["add 3"]


async def test_a_message_whose_answer_was_lost_is_sent_again_and_counts_once(
    live: Callable[..., LiveMesh],
) -> None:
    mesh = live(says("ok"))
    async with MeshClient(mesh.url) as client:
        identifier = await client.create()
        mesh.down()
        saying = asyncio.create_task(client.say(identifier, "hi"))
        await asyncio.to_thread(mesh.up)
        await asyncio.wait_for(saying, 30)
        await client.say(identifier, "again", key="k1")
        await client.say(identifier, "again", key="k1")
        seen: list[Any] = []
        async with aclosing(client.events(identifier, 0)) as stream:
            await until(stream, Completed, seen)
            await until(stream, Completed, seen)
        assert [item.text for item in seen if isinstance(item, UserMessage)] == ["hi", "again"]


async def test_a_turn_that_waits_can_be_cancelled(live: Callable[..., LiveMesh]) -> None:
    mesh = live(ADD)
    async with MeshClient(mesh.url) as client:
        identifier = await client.create()
        seen: list[Any] = []
        async with aclosing(client.events(identifier, 0)) as stream:
            await until(stream, Connected, seen)
            await client.say(identifier, "add")
            await until(stream, Paused, seen)
            await client.cancel(identifier)
            await until(stream, Completed, seen)
        assert seen[-1].stopped_by_person
        await client.cancel(identifier)  # nothing runs: that is fine too


async def test_what_is_there_can_be_read(live: Callable[..., LiveMesh]) -> None:
    mesh = live(says("Hello"))
    async with MeshClient(mesh.url) as client:
        identifier = await client.create()
        seen: list[Any] = []
        async with aclosing(client.events(identifier, 0)) as stream:
            await until(stream, Connected, seen)
            await client.say(identifier, "hi")
            await until(stream, Completed, seen)
        assert [m.content for m in (await client.show(identifier)).messages if m.role != "system"] == [
            "hi",
            "Hello",
        ]
        assert [entry.id for entry in (await client.page(5)).conversations] == [identifier]
        assert {tool.name: tool.destructive_hint for tool in await client.tools()} == {
            "add": True,
            "look": False,
        }
        assert [(node.path, node.name) for node in (await client.tree()).walk()] == [("0", "test")]
        assert [(agent.path, agent.name) for agent in await client.agents()] == [("0", "test")]
        assert await client.trees_of_called_agents() == []
        done = [action.action for action in await client.actions(identifier)]
        assert done == ["agent_start", "llm_call", "agent_complete"]
        report = await client.spend(identifier)
        assert report.spent == (await client.show(identifier)).spent
        assert [agent.agent_path for agent in report.by_agent] == [("test",)]
        log = await client.log(identifier)
        events, faults = read_lines(log.splitlines())
        assert (seqs(events), faults) == (seqs(seen), [])


async def test_a_conversation_is_carried_to_another_mesh(live: Callable[..., LiveMesh]) -> None:
    here, there = live(says("Hello")), live(says("Again"))
    async with MeshClient(here.url) as client, MeshClient(there.url) as other:
        identifier = await client.create()
        log = await client.log(identifier)
        assert await other.import_log(log) == identifier
        with pytest.raises(RequestRefused) as refused:
            await other.import_log(log)
        assert refused.value.status == 409


async def test_a_conversation_that_is_not_there_is_refused(live: Callable[..., LiveMesh]) -> None:
    mesh = live(says("x"))
    async with MeshClient(mesh.url) as client:
        for work in (client.show("no/such?thing"), client.log("nope"), client.say("nope", "hi")):
            with pytest.raises(RequestRefused) as refused:
                await work
            assert refused.value.status == 404
        with pytest.raises(RequestRefused):
            await anext(client.events("nope", 0))


async def test_nobody_there_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RETRY_FOR_S", 0.3)
    async with asyncio.timeout(30), MeshClient("http://ann:pass@127.0.0.1:1", TOKEN) as client:
        with pytest.raises(MeshUnreachable) as gone:
            await client.tree()
        assert str(gone.value) == "http://127.0.0.1:1: nobody answers"
        with pytest.raises(MeshUnreachable):
            async with aclosing(client.events("x", 0)) as events:
                async for item in events:
                    assert isinstance(item, Disconnected)


@asynccontextmanager
async def server(answer: Callable[[bytes], list[bytes]]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An HTTP server that answers each request with these bytes and hangs up; its URL, and what it got."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        for piece in answer(asked[-1]):
            writer.write(piece)
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", asked


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(seq: int, kind: str, more: str = "") -> bytes:
    return b'id: %d\ndata: {"type":"%b","seq":%d%b}\n\n' % (seq, kind.encode(), seq, more.encode())


async def test_it_asks_for_what_comes_after_the_last_event_also_after_one_it_does_not_know() -> None:
    def answer(request: bytes) -> list[bytes]:
        if b"last-event-id: 0" in request.lower():
            return [STREAM, event(1, "user_message", ',"text":"hi"'), event(2, "from_the_future")]
        assert b"last-event-id: 2\r" in request.lower()
        return [STREAM, event(2, "from_the_future"), event(3, "completed", ',"response":"ok"')]

    async with server(answer) as (url, _), MeshClient(url) as client:
        seen: list[Any] = []
        async with aclosing(client.events("x", 0)) as stream:
            await until(stream, Completed, seen)
    assert [type(item).__name__ for item in seen] == [
        "Connected",
        "UserMessage",
        "Disconnected",
        "Connected",
        "Completed",
    ]


async def test_what_takes_the_place_of_events_that_the_store_has_lost_is_no_repetition() -> None:
    def answer(request: bytes) -> list[bytes]:
        if b"last-event-id: 0" in request.lower():
            told = event(1, "user_message", ',"text":"hi"')
            return [STREAM, told, event(2, "paused", ',"run":1'), event(3, "answered")]
        assert b"last-event-id: 3\r" in request.lower()
        loss = event(2, "store_went_back", ',"lost_up_to":3,"message":"lost"')
        return [STREAM, loss, event(3, "error", ',"message":"ended"')]

    async with server(answer) as (url, _), MeshClient(url) as client:
        seen: list[Any] = []
        async with aclosing(client.events("x", 0)) as stream:
            await until(stream, Error, seen)
    assert seqs(seen) == [1, 2, 3, 2, 3]


async def test_the_token_goes_along_and_something_else_than_a_mesh_is_said_to_be_that() -> None:
    page = b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"
    async with server(lambda _: [page]) as (url, asked), MeshClient(url, TOKEN) as client:
        with pytest.raises(RequestRefused, match="HTTP 404; is this a mesh"):
            await client.tree()
    assert b"authorization: bearer s3cret" in asked[0].lower()
