"""What every `RemoteAgent` does, in memory and over HTTP in each dialect and protocol."""

import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from mesh.a2a.client.agent import HttpAgent
from mesh.a2a.client.memory import MemoryAgent, Script
from mesh.a2a.client.port import (
    ForwardedHeaders,
    InputRequest,
    OutgoingMessage,
    RelayedDecision,
    RemoteAgent,
    RemoteApproval,
    RemoteLost,
    RemoteTask,
)
from tests.worlds.agents import Agent, cut, served

FORWARDED = ForwardedHeaders(
    session_id="s1", traceparent="00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
)


def message(
    text: str = "", task: str = "", decided: RelayedDecision | None = None, context: str = "c1"
) -> OutgoingMessage:
    return OutgoingMessage(str(uuid.uuid4()), text, context, task, decided)


def decision(question: InputRequest, how: str = "approve", *only: str) -> RelayedDecision:
    ids = tuple(one.id for one in question.approvals if not only or one.id in only)
    return RelayedDecision("a1", how, request_id=question.id, protocol=question.protocol, ids=ids)  # type: ignore[arg-type]


@dataclass
class World:
    agent: RemoteAgent
    ledger: list[str]
    lose: Callable[[], object]


WORLDS = ["memory", "1.0 mesh", "1.0 rest mesh", "0.3 mesh", "1.0 hitl", "0.3 hitl", "1.0 text", "plain text"]


@pytest.fixture(params=WORLDS)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        ledger: list[str] = []
        memory = MemoryAgent(_script(ledger))
        yield World(memory, ledger, memory.lose_next)
        return
    dialect, _, protocol = request.param.rpartition(" ")
    peer = Agent(dialect, protocol, once=protocol == "mesh")
    async with served(peer.app()) as url:
        agent = HttpAgent("peer", url, timeout_s=30)
        yield World(agent, peer.ledger, lambda: peer.send_faults.append(cut))
        await agent.close()


def _script(ledger: list[str]) -> Script:
    async def script(said: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask:
        if said.decision is not None:
            ledger.append(f"a: {said.decision.choice}")
            return RemoteTask("completed", ledger[-1], "t1", "c1")
        command, _, rest = said.text.partition(" ")
        if command == "ask":
            asked = (RemoteApproval("a?", "t1/a", "tool_call", "a", {"n": 1}),)
            return RemoteTask("input-required", "May I a?", "t1", "c1", InputRequest("t1/a", "mesh", asked))
        ledger.append(rest)
        return RemoteTask("completed", rest, "t1", "c1")

    return script


async def test_an_answer_comes_back_as_text(world: World) -> None:
    answer = await world.agent.send(message("echo hello"), FORWARDED)
    assert (answer.state, answer.text, answer.input_request) == ("completed", "hello", None)
    assert answer.task_id
    assert world.ledger == ["hello"]


async def test_a_question_waits_for_its_decision(world: World) -> None:
    asked = await world.agent.send(message("ask a"), FORWARDED)
    assert asked.state == "input-required" and asked.input_request is not None
    assert world.ledger == []
    decided = decision(asked.input_request)
    answer = await world.agent.send(message("", asked.task_id, decided), FORWARDED)
    assert (answer.state, len(world.ledger), answer.task_id) == ("completed", 1, asked.task_id)


async def test_a_message_whose_answer_was_lost_is_recovered_and_ran_once(world: World) -> None:
    said = message("echo hello", context="c2")
    await world.agent.send(message("echo warm", context="c1"), FORWARDED)
    world.lose()
    with pytest.raises(RemoteLost):
        await world.agent.send(said, FORWARDED)
    found = await world.agent.recover(said, FORWARDED)
    assert found is None or (found.state, found.text) == ("completed", "hello")
    assert world.ledger == ["warm", "hello"]


async def test_a_decision_whose_answer_was_lost_is_recovered_and_counted_once(world: World) -> None:
    asked = await world.agent.send(message("ask a"), FORWARDED)
    assert asked.input_request is not None
    said = message("", asked.task_id, decision(asked.input_request))
    world.lose()
    with pytest.raises(RemoteLost):
        await world.agent.send(said, FORWARDED)
    found = await world.agent.recover(said, FORWARDED)
    assert found is not None and found.state == "completed"
    assert len(world.ledger) == 1


async def test_a_message_that_never_arrived_can_be_withdrawn(world: World) -> None:
    said = message("echo hello", context="c3")
    assert await world.agent.withdraw(said, FORWARDED)
    assert world.ledger == []
