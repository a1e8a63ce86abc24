"""News for a node that has several actors reaches the one that runs the call, over real connections."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from deployments import remote
from deployments.blueprint import Blueprint, Placement
from deployments.channel import Channel, Endpoint
from deployments.remote import RemoteNode
from deployments.services import NODE, NodeService
from mesh.core.errors import Unavailable
from mesh.core.events import AgentTold
from mesh.core.places import Place
from mesh.tree.nodes_below import NodesBelow
from mesh.tree.turn import Activation, Hearing, PassInput, PassOutput
from tests.worlds.mesh import until

PLACES = [f"0.web@0-0-{index}" for index in range(4)]


class Actor:
    """A node that runs its calls until it is let, and keeps what each of them has heard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.let = asyncio.Event()
        self.running: set[Activation] = set()
        self.heard: list[tuple[Activation, str, bool]] = []

    async def run(self, turn: PassInput) -> PassOutput:
        self.running.add(turn.activation)
        await asyncio.wait_for(self.let.wait(), 30)
        return PassOutput("completed", self.name)

    async def hear(self, activation: Activation, news: AgentTold, is_durable: bool) -> Hearing:
        assert activation in self.running
        self.heard.append((activation, news.text, is_durable))
        return "taken"

    async def _other(self, *arguments: Any) -> Any:
        raise AssertionError("nobody asks for this")

    problems = verdict = preview = settle = cancel = _other

    async def alive(self) -> None:
        """It answers."""


def input_at(place: str) -> PassInput:
    return PassInput(
        conversation_id="c", session_id="s", digest="d", turn=1, run=2, user_message="go", at=place
    )


async def test_news_reaches_the_very_actor_that_runs_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = [Actor("left"), Actor("right")]
    endpoints = [Endpoint(NODE.methods_of(cast(NodeService, actor))) for actor in actors]
    addresses = [await endpoint.listen("127.0.0.1") for endpoint in endpoints]
    channels: list[Channel] = []

    def stub(blueprint: Blueprint, path: str, replica: str) -> NodeService:
        async def locate() -> Any:
            return addresses[int(replica)]

        channels.append(Channel(locate))
        return NODE.stub(channels[-1], path)

    monkeypatch.setattr(remote, "node_stub", stub)
    nodes = {"web": Placement("web", len(actors), {})}
    node = RemoteNode(Blueprint("a", "d", "", "x", Path(), 1, nodes, 1.0), "web")
    below = NodesBelow(lambda _: [])
    calls = [asyncio.create_task(below.run(node, input_at(place))) for place in PLACES]
    async with asyncio.timeout(30):

        async def all_run() -> bool:
            return sum(len(actor.running) for actor in actors) == len(PLACES)

        await until(all_run)
        assert all(actor.running for actor in actors)
        for place in PLACES:
            running = below.around(Place(f"{place}.0"))
            assert running is not None
            news = AgentTold(turn=1, step=place, id="0/tool/1.0", text=place)
            assert await running.hear(news, is_durable=True) == "taken"
        for actor in actors:
            assert {(activation.at, True) for activation in actor.running} == {
                (text, durable) for _, text, durable in actor.heard
            }
            actor.let.set()
        await asyncio.gather(*calls)
    with pytest.raises(Unavailable, match="nothing was called"):
        await node.hear(input_at(PLACES[0]).activation, news, True)
    for channel in channels:
        channel.close()
    for endpoint in endpoints:
        endpoint.close()
