"""Of several actors of a node, those that answer carry the calls, over real connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest

from deployments import node_replicas
from deployments.channel import Channel, ConnectionLost, Endpoint
from deployments.node_replicas import Machines, NodeReplicas
from deployments.services import NODE, NodeService
from mesh.core.errors import Unavailable
from mesh.net.backoff import Backoff
from mesh.tree.turn import PassInput, PassOutput
from tests.worlds.mesh import until

TURN = PassInput(conversation_id="c", session_id="s", digest="d", turn=1, run=2, user_message="go", at="0")


class Actor:
    """A node. While it does not answer it takes what comes, as a process that is stopped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0
        self.called = 0

    async def alive(self) -> None:
        self.asked += 1
        await self.answers.wait()

    async def run(self, turn: PassInput) -> PassOutput:
        self.called += 1
        await self.answers.wait()
        return PassOutput("completed", self.name)

    async def _other(self, *arguments: Any) -> Any:
        raise AssertionError("nobody asks for this")

    hear = problems = verdict = preview = settle = cancel = _other


@asynccontextmanager
async def served(actor: Actor) -> AsyncIterator[NodeService]:
    endpoint = Endpoint(NODE.methods_of(cast(NodeService, actor)))
    address = await endpoint.listen("127.0.0.1")

    async def locate() -> Any:
        return address

    channel = Channel(locate)
    yield NODE.stub(channel, actor.name)
    channel.close()
    endpoint.close()


@pytest.fixture
async def actors() -> list[Actor]:
    return [Actor("first"), Actor("second"), Actor("third")]


@pytest.fixture
async def replicas(actors: list[Actor], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeReplicas]:
    monkeypatch.setattr(node_replicas, "ASKED_AGAIN", Backoff(first_s=0.05, longest_s=0.05, jitter=0))
    async with AsyncExitStack() as stack:
        yield NodeReplicas({a.name: await stack.enter_async_context(served(a)) for a in actors})


async def ran(replicas: NodeReplicas, times: int) -> list[str]:
    return [(await (await replicas.next()).run(TURN)).text for _ in range(times)]


async def test_those_that_answer_carry_the_calls_in_turn_and_are_asked_once_for_each(
    actors: list[Actor], replicas: NodeReplicas
) -> None:
    assert await ran(replicas, 6) == ["first", "second", "third"] * 2
    assert [actor.asked for actor in actors] == [2, 2, 2]


async def test_one_that_does_not_answer_is_left_out_until_it_does(
    actors: list[Actor], replicas: NodeReplicas
) -> None:
    actors[0].answers.clear()
    assert set(await ran(replicas, 9)) == {"second", "third"}
    actors[0].answers.set()

    async def is_back() -> bool:
        return "first" in await ran(replicas, 3)

    await until(is_back)


async def test_one_that_was_lost_in_the_middle_of_a_call_does_not_get_the_next(
    actors: list[Actor], replicas: NodeReplicas
) -> None:
    assert await ran(replicas, 3) == ["first", "second", "third"]
    first = await replicas.next()
    actors[0].answers.clear()
    running = asyncio.ensure_future(first.run(TURN))
    await until(lambda: _is(actors[0].called == 2))
    first._channel.close()  # type: ignore[attr-defined]
    with pytest.raises(ConnectionLost):
        await running
    replicas.note_lost(first)
    assert set(await ran(replicas, 4)) == {"second", "third"}


async def test_where_none_answers_none_is_called_and_the_first_that_does_again_is(
    actors: list[Actor], replicas: NodeReplicas
) -> None:
    for actor in actors:
        actor.answers.clear()
    with pytest.raises(Unavailable, match="none of the 3 replicas of the node answers"):
        await replicas.next()
    actors[1].answers.set()
    assert await ran(replicas, 2) == ["second", "second"]
    assert [actor.called for actor in actors] == [0, 2, 0]


async def _is(truth: bool) -> bool:
    return truth


async def test_the_near_one_carries_all_calls_as_long_as_it_answers(
    actors: list[Actor], replicas: NodeReplicas
) -> None:
    near = NodeReplicas(replicas._replicas, "second")
    assert set(await ran(near, 5)) == {"second"}
    actors[1].answers.clear()
    assert set(await ran(near, 4)) == {"first", "third"}
    actors[1].answers.set()

    async def is_back() -> bool:
        return set(await ran(near, 3)) == {"second"}

    await until(is_back)


async def test_what_joins_carries_calls_and_what_has_gone_does_not(
    actors: list[Actor], replicas: NodeReplicas
) -> None:
    all_of_them = dict(replicas._replicas)
    actors[0].answers.clear()
    assert set(await ran(replicas, 4)) == {"second", "third"}
    replicas.change({"second": all_of_them["second"]})
    assert set(await ran(replicas, 3)) == {"second"}
    replicas.note_lost(all_of_them["third"])  # of a call that began before it went
    replicas.change({"third": all_of_them["third"], "second": all_of_them["second"]})
    assert set(await ran(replicas, 4)) == {"second", "third"}
    replicas.change({})
    with pytest.raises(Unavailable, match="no machine"):
        await replicas.next()


async def test_machines_are_known_while_ray_does_not_answer_and_asked_for_again_later() -> None:
    now, answers = 0.0, [["one"], ["one", "two"], RuntimeError("the head is away"), ["two"]]
    asked = []

    def ask() -> list[str]:
        asked.append(now)
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    machines = Machines(ask, lambda: now)
    assert await machines.lately() == ["one"]
    assert await machines.lately() == ["one"] and asked == [0.0]
    for number, known in enumerate((["one", "two"], ["one", "two"], ["two"]), 2):
        now += 10
        await machines.lately()  # which does not wait for Ray

        async def is_known(number: int = number, known: list[str] = known) -> bool:
            return await machines.lately() == known and len(asked) == number

        await until(is_known)
    assert asked == [0, 10, 20, 30]


async def test_who_calls_does_not_wait_until_one_that_is_silent_is_given_up(
    actors: list[Actor], replicas: NodeReplicas
) -> None:
    actors[0].answers.clear()
    found = await replicas.next()
    assert replicas._silent.ids() == set(), "it waited until the first was given up"
    assert (await found.run(TURN)).text == "second"
