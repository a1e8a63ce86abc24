"""Decisions in text, which do not say what they decide, and messages that only bring a token."""

import uuid
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from mesh.a2a.client.agent import HttpAgent
from mesh.a2a.client.port import (
    ForwardedHeaders,
    OutgoingMessage,
    RelayedDecision,
    RemoteFailed,
    RemoteLost,
    RemoteTask,
)
from tests.worlds.agents import Agent, answers, cut, cut_before, no_fault, replies, served

FORWARDED = ForwardedHeaders(session_id="s1")
TOKEN = ForwardedHeaders(session_id="s1", token="t0ken-t0ken")
NO_SUCH_METHOD = replies(error={"code": -32601, "message": "no"})
UNSUPPORTED = replies(error={"code": -32004, "message": "This operation is not supported"})


def message(text: str, task: str = "", decided: RelayedDecision | None = None) -> OutgoingMessage:
    return OutgoingMessage(str(uuid.uuid4()), text, "c1", task, decided)


def yes(asked: RemoteTask) -> OutgoingMessage:
    assert asked.input_request is not None and asked.input_request.protocol == "text"
    return message(
        "",
        asked.task_id,
        RelayedDecision("a1", "approve", request_id=asked.input_request.id, protocol="text", ids=()),
    )


@pytest.fixture(params=["1.0", "0.3", "plain"])
def peer(request: pytest.FixtureRequest) -> Agent:
    return Agent(request.param, "text", once=False)


@pytest.fixture
async def agent(peer: Agent) -> AsyncIterator[HttpAgent]:
    async with served(peer.app()) as url:
        made = HttpAgent("bob", url, timeout_s=30)
        yield made
        await made.close()


async def test_a_text_decision_is_not_sent_to_another_input_request(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("ask a b"), FORWARDED)
    first = await agent.send(yes(asked), FORWARDED)
    heard = len(peer.heard)
    assert await agent.send(yes(asked), FORWARDED) == first
    assert (first.state, first.text, len(peer.heard)) == ("input-required", "May I b?", heard)


async def test_a_text_decision_is_not_sent_to_a_task_that_has_ended(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("ask a"), FORWARDED)
    await agent.cancel(asked.task_id, FORWARDED)
    heard = len(peer.heard)
    answer = await agent.send(yes(asked), FORWARDED)
    assert (answer.state, len(peer.heard)) == ("canceled", heard)


async def test_a_text_decision_that_may_have_arrived_is_never_sent_again(
    agent: HttpAgent, peer: Agent
) -> None:
    asked = await agent.send(message("ask a"), FORWARDED)
    said, heard = yes(asked), len(peer.heard)
    peer.send_faults.append(cut_before)
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    assert await agent.recover(said, FORWARDED) is None
    assert len(peer.heard) == heard


async def test_another_process_does_not_send_a_text_decision_again(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("ask a"), FORWARDED)
    heard = len(peer.heard)
    assert await agent.recover(yes(asked), FORWARDED) is None
    assert len(peer.heard) == heard


@pytest.mark.parametrize("fault", [cut, answers(503)])
async def test_a_text_decision_is_sent_if_only_the_status_request_before_it_was_lost(
    agent: HttpAgent, peer: Agent, fault: object
) -> None:
    asked = await agent.send(message("ask a"), FORWARDED)
    said = yes(asked)
    peer.faults.append(fault)  # type: ignore[arg-type]
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    found = await agent.recover(said, FORWARDED)
    assert found is not None and found.state == "completed"
    assert len(peer.ledger) == 1


async def test_a_text_decision_that_was_refused_has_failed(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("ask a"), FORWARDED)
    said = yes(asked)
    peer.send_faults += [answers(422, json={"detail": "not now"})] * 8
    for tell in (agent.send, agent.recover):
        with pytest.raises(RemoteFailed, match="not now"):
            await tell(said, FORWARDED)


async def test_a_text_decision_is_not_sent_if_the_status_request_before_it_fails(
    agent: HttpAgent, peer: Agent
) -> None:
    asked = await agent.send(message("ask a"), FORWARDED)
    heard = len(peer.heard)
    peer.faults.append(replies(error={"code": -32603, "message": "no disk"}))
    with pytest.raises(RemoteFailed, match="no disk"):
        await agent.send(yes(asked), FORWARDED)
    assert len(peer.heard) == heard


@pytest.mark.parametrize("refusal", [NO_SUCH_METHOD, UNSUPPORTED])
async def test_a_text_decision_is_sent_once_to_an_agent_without_status_requests(refusal: object) -> None:
    peer = Agent("1.0", "text", once=False)
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        asked = await agent.send(message("ask a b"), FORWARDED)
        said, looks = yes(asked), 2 if refusal is NO_SUCH_METHOD else 1  # the card is read anew
        peer.faults += [refusal] * looks  # type: ignore[list-item]
        peer.send_faults.append(cut)
        with pytest.raises(RemoteLost):
            await agent.send(said, FORWARDED)
        peer.faults += [refusal] * looks  # type: ignore[list-item]
        assert await agent.recover(said, FORWARDED) is None
        await agent.close()
    assert len(peer.heard) == 2


async def test_the_same_text_may_be_a_new_input_request() -> None:
    """A question without an id and a time: nobody knows which of them stands."""
    deleted: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        status = {"state": "input-required", "message": {"parts": [{"type": "text", "text": "Delete one?"}]}}
        task = {"id": "t1", "status": status}
        error = None if asked["method"] in ("message/send", "tasks/get") else -32601
        if asked["method"] == "message/send":
            said = asked["params"]["message"]["parts"][0]
            error = None if said.get("type") == "text" else -32602
            if error is None and said["text"] == "yes":
                deleted.append("one")
                assert request.transport is not None
                request.transport.abort()
        came = {"error": {"code": error, "message": "no"}} if error else {"result": task}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], **came})

    app = web.Application()
    app.router.add_post("/a2a", answer)
    async with served(app) as url:
        agent = HttpAgent("bob", f"{url}/a2a", timeout_s=30)
        said = yes(await agent.send(message("delete"), FORWARDED))
        with pytest.raises(RemoteLost):
            await agent.send(said, FORWARDED)
        assert await agent.recover(said, FORWARDED) is None
        await agent.close()
    assert deleted == ["one"]


# --- tokens


async def test_a_token_is_brought_to_a_task_that_waits_for_one(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("auth"), FORWARDED)
    assert asked.state == "auth-required" and asked.input_request is not None
    answer = await agent.send(message("", asked.task_id), TOKEN)
    assert (answer.state, answer.text, peer.ledger) == ("completed", "welcome", ["welcome"])


async def test_a_token_is_not_brought_where_none_is_waited_for(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("auth"), FORWARDED)
    await agent.send(message("", asked.task_id), TOKEN)
    heard = len(peer.heard)
    answer = await agent.send(message("", asked.task_id), TOKEN)
    assert (answer.state, answer.text, len(peer.heard)) == ("completed", "welcome", heard)


async def test_a_token_is_sent_without_a_status_request_where_there_is_none() -> None:
    peer = Agent("1.0", "text")
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        asked = await agent.send(message("auth"), FORWARDED)
        peer.faults.append(UNSUPPORTED)
        assert (await agent.send(message("", asked.task_id), TOKEN)).text == "welcome"
        await agent.close()


async def test_http_401_while_the_agent_works_keeps_the_task(agent: HttpAgent, peer: Agent) -> None:
    """The message was taken; whoever brings the token finds what became of it, and says nothing again."""
    await agent.send(message("echo x"), FORWARDED)
    said = message("work 2")
    peer.faults += [no_fault, answers(401, text="expired", content_type="text/plain")]
    heard = len(peer.heard)
    shut = await agent.send(said, FORWARDED)
    assert shut == RemoteTask("auth-required", "expired", shut.task_id, "c1")
    assert shut.task_id.startswith("task-")
    answer = await agent.recover(said, TOKEN)
    assert answer is not None and (answer.state, answer.text) == ("completed", "done")
    assert len(peer.heard) == heard + 1


async def test_http_401_to_a_decision_refuses_it(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("ask a"), FORWARDED)
    said = yes(asked)
    for faults in (peer.faults, peer.send_faults):
        faults.append(answers(403, json={"error": "who?"}))
        shut = await agent.send(said, FORWARDED)
        assert shut == RemoteTask("auth-required", "who?", asked.task_id, "c1", refused=True)
    assert (await agent.send(said, TOKEN)).state == "completed"


async def test_http_401_to_a_status_request_leaves_the_outcome_unknown(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("ask a"), FORWARDED)
    said = yes(asked)
    peer.send_faults.append(cut)
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    peer.faults.append(answers(401, json={"error": "who?"}))
    shut = await agent.recover(said, FORWARDED)
    assert shut == RemoteTask("auth-required", "who?", asked.task_id, "c1")
    found = await agent.recover(said, TOKEN)
    assert found is not None and found.state == "completed" and len(peer.ledger) == 1
