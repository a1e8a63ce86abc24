"""Our own mesh as the other agent: over HTTP, found by its card."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from mesh.a2a.client.agent import HttpAgent
from mesh.a2a.client.port import (
    ForwardedHeaders,
    InputRequest,
    OutgoingMessage,
    RelayedDecision,
    RemoteFailed,
    RemoteTask,
)
from mesh.core.events import LlmCall
from mesh.core.messages import Results
from mesh.llm.port import LlmRequest
from tests.worlds.live import LiveMesh
from tests.worlds.mesh import ScriptedLlm, calls, says

FORWARDED = ForwardedHeaders(
    session_id="s1", traceparent="00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
)


async def adds_what_it_is_told(request: LlmRequest) -> LlmCall:
    """``add 1 2``: both at once; then it says what came of it."""
    last = request.messages[-1]
    if isinstance(last, Results):
        return says("done: " + ", ".join(result.content for result in last.results))
    said = last.text
    numbers = said.split()[1:]
    return calls(*[("add", {"n": int(n)}) for n in numbers]) if numbers else says(f"you said {said}")


@pytest.fixture
def mesh() -> Iterator[LiveMesh]:
    with LiveMesh(ScriptedLlm(adds_what_it_is_told)) as live:
        yield live


@pytest.fixture(params=["card", "endpoint"])
async def agent(mesh: LiveMesh, request: pytest.FixtureRequest) -> AsyncIterator[HttpAgent]:
    made = HttpAgent("mesh", mesh.url if request.param == "card" else f"{mesh.url}/a2a", timeout_s=30)
    yield made
    await made.close()


def message(
    text: str, asked: RemoteTask | None = None, decided: RelayedDecision | None = None
) -> OutgoingMessage:
    task, context = (asked.task_id, asked.context_id) if asked else ("", str(uuid.uuid4()))
    return OutgoingMessage(str(uuid.uuid4()), text, context, task, decided)


def question_of(answer: RemoteTask) -> InputRequest:
    assert answer.state == "input-required" and answer.input_request is not None, answer
    return answer.input_request


async def test_it_answers(agent: HttpAgent) -> None:
    answer = await agent.send(message("hello"), FORWARDED)
    assert (answer.state, answer.text) == ("completed", "you said hello")


async def test_it_asks_again_and_again_and_takes_edits_and_reasons(agent: HttpAgent, mesh: LiveMesh) -> None:
    asked = await agent.send(message("add 1 2"), FORWARDED)
    first = question_of(asked)
    assert first.protocol == "mesh"
    assert [(one.tool_name, repr(one.tool_args)) for one in first.approvals] == [("add", "{'n': 1}")]
    one = RelayedDecision(
        "a1",
        "approve",
        request_id=first.id,
        protocol="mesh",
        ids=(first.approvals[0].id,),
        edited_args={"n": 10},
    )
    rest = await agent.send(message("", asked, one), FORWARDED)
    second = question_of(rest)
    assert second.id != first.id and second.approvals[0].tool_args == {"n": 2}
    other = RelayedDecision(
        "a1",
        "reject",
        request_id=second.id,
        protocol="mesh",
        ids=(second.approvals[0].id,),
        reason="too much",
    )
    answer = await agent.send(message("", rest, other), FORWARDED)
    assert answer.state == "completed" and "too much" in answer.text
    assert mesh.mesh.ledger.lines == ["add 10"]


async def test_a_message_sent_twice_counts_once(agent: HttpAgent, mesh: LiveMesh) -> None:
    said = message("add 1")
    asked = await agent.send(said, FORWARDED)
    again = await agent.recover(said, FORWARDED)
    assert again is not None and again.task_id == asked.task_id
    assert question_of(again).id == question_of(asked).id


async def test_a_decision_whose_answer_was_lost_with_the_keeper_is_recovered(
    agent: HttpAgent, mesh: LiveMesh
) -> None:
    asked = await agent.send(message("add 1"), FORWARDED)
    waiting = question_of(asked)
    decided = RelayedDecision(
        "a1", "approve", request_id=waiting.id, protocol="mesh", ids=(waiting.approvals[0].id,)
    )
    said = message("", asked, decided)
    for _ in range(2):
        answer = await agent.recover(said, FORWARDED)
        assert answer is not None and answer.state == "completed"
    assert mesh.mesh.ledger.lines == ["add 1"]


async def test_it_is_waited_for_while_it_restarts(agent: HttpAgent, mesh: LiveMesh) -> None:
    said = message("hello")
    await agent.send(said, FORWARDED)
    await asyncio.to_thread(mesh.restart)
    answer = await agent.recover(said, FORWARDED)
    assert answer is not None and answer.text == "you said hello"


async def test_what_waits_there_can_be_called_off(agent: HttpAgent, mesh: LiveMesh) -> None:
    asked = await agent.send(message("add 1"), FORWARDED)
    await agent.cancel(asked.task_id, FORWARDED)
    waiting = question_of(asked)
    late = message(
        "",
        asked,
        RelayedDecision(
            "a1", "approve", request_id=waiting.id, protocol="mesh", ids=(waiting.approvals[0].id,)
        ),
    )
    answer = await agent.recover(late, FORWARDED)
    assert answer is not None and answer.state == "canceled"
    assert mesh.mesh.ledger.lines == []


async def test_a_message_that_was_withdrawn_before_it_came_is_refused(
    agent: HttpAgent, mesh: LiveMesh
) -> None:
    said = message("add 1")
    assert await agent.withdraw(said, FORWARDED)
    assert await agent.withdraw(said, FORWARDED), "as often as one likes"
    with pytest.raises(RemoteFailed, match="was withdrawn before it came"):
        await agent.send(said, FORWARDED)
    mesh.restart()
    with pytest.raises(RemoteFailed, match="was withdrawn before it came"):
        await agent.recover(said, FORWARDED)
    assert mesh.mesh.ledger.lines == []


async def test_a_message_that_is_withdrawn_after_it_came_leaves_nothing_that_waits(
    agent: HttpAgent, mesh: LiveMesh
) -> None:
    said = message("add 1")
    asked = await agent.send(said, FORWARDED)
    question_of(asked)
    assert await agent.withdraw(said, FORWARDED)
    found = await agent.recover(
        OutgoingMessage(str(uuid.uuid4()), "", asked.context_id, asked.task_id), FORWARDED
    )
    assert found is not None and found.state == "canceled"
    assert mesh.mesh.ledger.lines == []


async def test_what_has_ended_is_not_changed_when_its_message_is_withdrawn(agent: HttpAgent) -> None:
    said = message("hello")
    answer = await agent.send(said, FORWARDED)
    assert await agent.withdraw(said, FORWARDED)
    assert await agent.recover(said, FORWARDED) == answer


async def test_withdrawing_from_an_agent_that_is_away_fails(agent: HttpAgent, mesh: LiveMesh) -> None:
    await agent.send(message("hello"), FORWARDED)
    mesh.down()
    assert not await agent.withdraw(message("add 1"), FORWARDED)
    mesh.up()
