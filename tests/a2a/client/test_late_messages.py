"""Messages that arrive late: a person's decision about them holds, and nothing happens twice."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from mesh.a2a.client.agent import HttpAgent
from mesh.a2a.client.port import ForwardedHeaders, OutgoingMessage, RemoteLost, RemoteTask
from mesh.core.events import ApprovalRequired, LlmCall
from mesh.llm.port import LlmRequest
from tests.worlds.agents import Agent, Handler, cut_before, served
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import WorldMesh, calls, says
from tests.worlds.trees import ByNode, add, config, llm, parallel

WITHIN_S = 30.0
Body = dict[str, Any]


class Relay:
    """What is between two agents. ``holds``: so many messages are kept, and whoever sent them is cut off.
    ``is_cut``: everybody is."""

    def __init__(self, to: str) -> None:
        self.holds = 0
        self.is_cut = False
        self.sent: list[Body] = []
        self._to = to
        self._held: list[tuple[str, dict[str, str], bytes]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        return app

    async def deliver(self) -> list[Body]:
        """Lets what was kept arrive at last."""
        held, self._held = self._held, []
        return [(await self._post(*each))[1] for each in held]

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        is_message = request.path == "/a2a" and b'"SendMessage"' in body
        if self.is_cut or (is_message and self.holds):
            if is_message and self.holds:
                self.holds -= 1
                self.is_cut = True
                self._held.append((request.path_qs, dict(request.headers), body))
            return await cut_before(request, _nobody)
        headers = dict(request.headers)  # with its Host: so the card names the relay
        if request.method == "GET":
            async with (
                aiohttp.ClientSession() as http,
                http.get(self._to + request.path_qs, headers=headers) as answer,
            ):
                return web.json_response(await answer.json(), status=answer.status)
        status, answered = await self._post(request.path_qs, headers, body)
        return web.json_response(answered, status=status)

    async def _post(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Body]:
        async with (
            aiohttp.ClientSession() as http,
            http.post(self._to + path, data=body, headers=headers) as answer,
        ):
            return answer.status, await answer.json(content_type=None)


async def _nobody(_: web.Request) -> web.StreamResponse:
    raise AssertionError("what is cut off reaches nobody")


class Chain:
    """A mesh (``top``) that asks another (``below``) through a relay."""

    def __init__(self, top: LiveMesh, below: LiveMesh, relay: Relay, http: httpx.AsyncClient) -> None:
        self.top, self.below, self.relay = top, below, relay
        self._http = http

    async def say(self, text: str) -> Body:
        return await self._posted("/conversations", {"message": text})

    async def decide(self, body: Body, action: str) -> Body:
        return await self._posted(f"/approvals/{body['result']['approval']['uuid']}", {"action": action})

    async def _posted(self, path: str, body: Body) -> Body:
        response = await self._http.post(self.top.url + path, json=body)
        assert response.status_code < 300, response.text
        found: Body = response.json()
        return found

    async def states(self) -> list[str | None]:
        """How the newest turns of the conversations below stand."""
        listed = (await self._http.get(f"{self.below.url}/conversations")).json()["conversations"]
        return [each.get("turn_state") for each in listed]


@asynccontextmanager
async def chain(*, asks: bool = False, model: Any = None) -> AsyncIterator[Chain]:
    """What is below adds seven when it is told anything (``asks``: and asks first), or it is ``model``."""
    bottom = config(parallel(llm("x"), approvals="ask" if asks else "inline"))
    above = Spoken(calls(("a2a_b", {"message": "go"})), says("all done"))
    with LiveMesh(model or ByNode(x=[add(7), says("added")]), bottom) as below:
        relay = Relay(below.url)
        async with served(relay.app()) as url, httpx.AsyncClient(timeout=WITHIN_S) as http:
            b = {"name": "b", "url": url, "timeout_s": 8 if model else 2}
            with LiveMesh(above, config(llm("a"), a2a=[b])) as top:
                yield Chain(top, below, relay, http)


async def test_a_message_that_arrived_after_all_is_not_sent_again_on_retry() -> None:
    async with chain() as both:
        both.relay.holds = 1
        body = await both.say("go")
        assert body["result"]["approval"]["kind"] == "unknown_outcome"
        await both.relay.deliver()
        assert both.below.mesh.ledger.lines == ["add 7"]
        both.relay.is_cut = False
        body = await both.decide(body, "retry")
        assert body["result"]["response"] == "all done"
        assert both.below.mesh.ledger.lines == ["add 7"]


async def test_a_message_that_arrives_after_a_retry_has_no_further_effect() -> None:
    async with chain() as both:
        both.relay.holds = 1
        body = await both.say("go")
        both.relay.is_cut = False
        body = await both.decide(body, "retry")
        assert body["result"]["response"] == "all done"
        await both.relay.deliver()
        assert both.below.mesh.ledger.lines == ["add 7"]


async def test_a_message_that_arrives_after_a_skip_has_no_effect() -> None:
    async with chain() as both:
        both.relay.holds = 1
        body = await both.say("go")
        both.relay.is_cut = False
        body = await both.decide(body, "skip")
        assert body["result"]["response"] == "all done"
        (answer,) = await both.relay.deliver()
        assert "withdrawn" in answer["error"]["message"], answer
        assert both.below.mesh.ledger.lines == []
        assert "working" not in await both.states()


async def test_an_input_request_of_a_skipped_message_does_not_stay_open() -> None:
    async with chain(asks=True) as both:
        both.relay.holds = 1
        body = await both.say("go")
        assert body["result"]["approval"]["kind"] == "unknown_outcome"
        await both.relay.deliver()
        assert await both.states() == ["waiting_approval"]
        both.relay.is_cut = False
        await both.decide(body, "skip")
        assert await both.states() == ["cancelled"]


async def test_while_the_agent_is_away_a_retry_asks_again_and_says_nothing_new() -> None:
    async with chain() as both:
        both.relay.holds = 1
        body = await both.say("go")
        body = await both.decide(body, "retry")
        assert body["result"]["approval"]["kind"] == "unknown_outcome"
        both.relay.is_cut = False
        body = await both.decide(body, "retry")
        assert body["result"]["response"] == "all done"
        await both.relay.deliver()
        assert both.below.mesh.ledger.lines == ["add 7"]


# -- passes that were lost and live on


@pytest.mark.parametrize("dialect", ["0.3", "1.0"])
async def test_a_message_that_is_under_way_is_awaited_when_only_the_keeper_was_lost(dialect: Any) -> None:
    """Its node lives on, and knows that the agent is at work: nobody has to be asked."""
    peer, arrived, go_on = Agent(dialect, once=False), asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request, handler: Handler) -> web.StreamResponse:
        arrived.set()
        await asyncio.wait_for(go_on.wait(), WITHIN_S)
        return await handler(request)

    peer.send_faults = [slow]
    model = ByNode(a=[calls(("a2a_b", {"message": "echo x"})), says("all done")])
    async with served(peer.app()) as url:
        setting = config(llm("a"), a2a=[{"name": "b", "url": url, "timeout_s": WITHIN_S}])
        async with WorldMesh(model, config=setting) as mesh:
            first = asyncio.create_task(mesh.create("go"))
            await asyncio.wait_for(arrived.wait(), WITHIN_S)
            (conversation,) = await mesh.keeper._shard.listing.open_turns()
            await mesh.lose_keeper()
            await until(lambda: mesh.passes == 2)
            go_on.set()
            events = await ended(mesh, conversation)
            first.cancel()  # who asked the lost keeper gets no answer
            await asyncio.gather(first, return_exceptions=True)
    assert not any(isinstance(event, ApprovalRequired) for event in events)
    assert peer.ledger == ["x"] and len(peer.heard) == 1


@pytest.mark.parametrize("lost", ["keeper", "mesh"])
async def test_an_agent_that_loses_its_keeper_while_it_works_is_awaited_without_an_approval(
    lost: str,
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    async def thinks(request: LlmRequest) -> LlmCall:
        reached.set()
        assert await asyncio.to_thread(go_on.wait, WITHIN_S)
        return says("thought about it")

    async with chain(model=Spoken(thinks, thinks)) as both:
        asked = asyncio.create_task(both.say("go"))
        assert await asyncio.to_thread(reached.wait, WITHIN_S)
        if lost == "keeper":
            both.below.run(both.below.mesh.lose_keeper())
        else:
            await asyncio.to_thread(both.below.restart)
        go_on.set()
        body = await asked
        assert body["result"]["response"] == "all done"
        result = both.top.mesh.llm.requests[-1].messages[-1].results[0]
        assert (result.content, result.is_error) == ("thought about it", False)
        assert await both.states() == ["completed"]


async def until(holds: Any) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.01)


async def ended(mesh: WorldMesh, conversation: str) -> Any:
    """The journal once the turn has ended or waits."""
    loaded = await mesh.keeper._shard.get(conversation)
    await until(lambda: not loaded.needs_pass)
    return await mesh.journal.read(conversation)


# -- agents that count no ids


async def test_a_message_that_arrives_a_little_late_is_found_where_ids_do_not_count() -> None:
    peer = Agent("1.0", once=False)
    late: list[asyncio.Task[object]] = []

    async def understood_late(request: web.Request, handler: Handler) -> web.StreamResponse:
        await request.read()

        async def later() -> None:
            await asyncio.sleep(0.1)
            await handler(request)

        late.append(asyncio.create_task(later()))
        return await cut_before(request, handler)

    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=10)
        peer.send_faults.append(understood_late)
        said = OutgoingMessage("5a1dc9b5-9b0e-4b8e-8f56-2a4e3a0c2b11", "echo x", "c1")
        with pytest.raises(RemoteLost):
            await agent.send(said, ForwardedHeaders())
        found = await agent.recover(said, ForwardedHeaders())
        await agent.close()
    await late[0]
    assert isinstance(found, RemoteTask) and (found.text, peer.ledger) == ("x", ["x"])
