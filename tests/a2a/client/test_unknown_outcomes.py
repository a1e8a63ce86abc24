"""A mesh whose other agent fails, over HTTP: what a person is asked, and what only the model sees."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.worlds.agents import Agent, answers, cut_before, served
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says
from tests.worlds.trees import config, llm

CRASHED = answers(500, text="Internal Server Error")
WITHIN_S = 30.0
Body = dict[str, Any]


class Person:
    """Talks to the mesh that asks the peer."""

    def __init__(self, http: httpx.AsyncClient, live: LiveMesh, model: Spoken) -> None:
        self.live = live
        self.model = model
        self._http = http

    async def say(self, text: str) -> Body:
        return await self._posted("/conversations", {"message": text})

    async def decide(self, body: Body, decision: Body) -> Body:
        return await self._posted(f"/approvals/{body['result']['approval']['uuid']}", decision)

    def told(self) -> tuple[str, bool]:
        """What the model was told that came of its call."""
        last = self.model.requests[-1].messages[-1].results[0]
        return last.content, last.is_error

    async def _posted(self, path: str, body: Body) -> Body:
        response = await self._http.post(self.live.url + path, json=body)
        assert response.status_code < 300, response.text
        found: Body = response.json()
        return found


@asynccontextmanager
async def asking(peer: Agent, message: str, path: str = "", **more: Any) -> AsyncIterator[Person]:
    """A mesh in a thread of its own, whose model tells the peer something."""
    model = Spoken(calls(("a2a_b", {"message": message})), says("all done"))
    async with served(peer.app()) as url, httpx.AsyncClient(timeout=WITHIN_S) as http:
        b = {"name": "b", "url": url + path, "timeout_s": 3, **more}
        with LiveMesh(model, config(llm("a"), a2a=[b])) as live:
            yield Person(http, live, model)


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("path", ["", "/a2a"])
async def test_http_500_of_a_harmless_agent_is_an_error_that_the_model_sees(once: bool, path: str) -> None:
    peer = Agent(once=once)
    peer.faults = [CRASHED] * 100
    peer.card_faults = [CRASHED] * 100 if path else []
    async with asking(peer, "echo x", path, destructiveHint=False) as person:
        body = await person.say("go")
        assert body["result"]["response"] == "all done"
        content, is_error = person.told()
        assert is_error and "HTTP 500" in content


async def test_http_500_of_a_harmless_agent_that_is_well_again_is_nothing_that_anybody_sees() -> None:
    peer = Agent()
    peer.send_faults = [CRASHED]
    async with asking(peer, "echo x", destructiveHint=False) as person:
        await person.say("go")
        assert person.told() == ("x", False)
        assert peer.ledger == ["x"]


@pytest.mark.parametrize("hint", [{}, {"destructiveHint": True}])
async def test_http_500_of_any_other_agent_leaves_the_outcome_open(hint: Body) -> None:
    peer = Agent()
    peer.send_faults = [CRASHED] * 100
    async with asking(peer, "echo x", **hint) as person:
        body = await person.say("go")
        if hint:
            assert body["result"]["approval"]["kind"] == "tool_call"
            body = await person.decide(body, {"approved": True})
        assert body["result"]["approval"]["kind"] == "unknown_outcome"


async def test_a_decision_that_a_harmless_agent_met_with_http_500_is_still_asked_about() -> None:
    peer = Agent()
    async with asking(peer, "ask a", destructiveHint=False) as person:
        body = await person.say("go")
        peer.send_faults = [CRASHED] * 100
        body = await person.decide(body, {"approved": True})
        assert body["result"]["approval"]["kind"] == "unknown_outcome"


async def test_a_connection_to_a_harmless_agent_that_was_lost_leaves_the_outcome_open() -> None:
    peer = Agent(once=False)
    peer.send_faults = [cut_before]
    async with asking(peer, "echo x", destructiveHint=False) as person:
        body = await person.say("go")
        assert body["result"]["approval"]["kind"] == "unknown_outcome"


async def test_http_500_of_a_harmless_agent_that_is_a_node_fails_the_node() -> None:
    peer = Agent()
    peer.send_faults = [CRASHED] * 100
    async with served(peer.app()) as url, httpx.AsyncClient(timeout=WITHIN_S) as http:
        node = {"name": "b", "type": "a2a", "url": url, "timeout_s": 3, "destructiveHint": False}
        with LiveMesh(Spoken(says("")), config(node)) as live:
            response = await http.post(f"{live.url}/conversations", json={"message": "echo x"})
            assert (response.status_code, "HTTP 500" in response.json()["error"]) == (502, True)
