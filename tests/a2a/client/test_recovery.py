"""Finding out what came of a message after the connection, or the process that sent it, was lost."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from mesh.a2a.client import agent as agent_module
from mesh.a2a.client.agent import HttpAgent
from mesh.a2a.client.memory import MemoryAgent
from mesh.a2a.client.port import (
    ForwardedHeaders,
    InputRequest,
    OutgoingMessage,
    RelayedDecision,
    RemoteFailed,
    RemoteLost,
    RemoteTask,
)
from tests.worlds.agents import (
    Agent,
    Fault,
    Handler,
    answers,
    cut,
    cut_before,
    no_fault,
    replies,
    served,
)
from tests.worlds.ports import free_port

CRASHED = answers(500, text="Internal Server Error")
FORWARDED = ForwardedHeaders(session_id="s1")


def message(
    text: str, task: str = "", decided: RelayedDecision | None = None, context: str = "c1"
) -> OutgoingMessage:
    return OutgoingMessage(str(uuid.uuid4()), text, context, task, decided)


def approval(question: InputRequest | None, *only: str) -> RelayedDecision:
    assert question is not None
    return RelayedDecision(
        "a1",
        "approve",
        request_id=question.id,
        protocol=question.protocol,
        ids=only or tuple(one.id for one in question.approvals),
    )


@pytest.fixture
async def agent(url: str) -> AsyncIterator[HttpAgent]:
    made = HttpAgent("bob", url, timeout_s=30)
    yield made
    await made.close()


async def test_a_message_is_sent_again_to_an_agent_that_counts_message_ids(
    agent: HttpAgent, peer: Agent
) -> None:
    said = message("echo x")
    for fault in (cut, cut_before):
        peer.faults.append(fault)
        with pytest.raises(RemoteLost):
            await agent.send(said, FORWARDED)
    found = await agent.recover(said, FORWARDED)
    assert found is not None and found.text == "x"
    assert peer.ledger == ["x"]


async def test_another_process_recovers_as_well(agent: HttpAgent, peer: Agent, url: str) -> None:
    said = message("echo x")
    peer.faults.append(cut)
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    other = HttpAgent("bob", url, timeout_s=30)
    found = await other.recover(said, FORWARDED)
    assert found is not None and (found.text, peer.ledger) == ("x", ["x"])
    await other.close()


@pytest.mark.parametrize("once", [True, False])
async def test_a_task_is_asked_about_again_when_what_carries_the_question_broke(
    agent: HttpAgent, peer: Agent, once: bool
) -> None:
    peer.once = once
    said = message("work 2")
    peer.faults += [no_fault, CRASHED]
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    found = await agent.recover(said, FORWARDED)
    assert found is not None and (found.text, peer.ledger) == ("done", ["done"])
    assert len(peer.heard) == 1


@pytest.mark.parametrize("nothing", [replies(error={"code": -32603, "message": "locked"}), answers(429)])
async def test_a_status_request_without_a_usable_answer_is_repeated(
    agent: HttpAgent, peer: Agent, nothing: Fault
) -> None:
    peer.faults += [no_fault, nothing, nothing]
    answer = await agent.send(message("work 2"), FORWARDED)
    assert (answer.text, len(peer.heard), peer.ledger) == ("done", 1, ["done"])


async def test_the_outcome_of_a_working_task_is_unknown_if_its_status_cannot_be_requested(
    agent: HttpAgent, peer: Agent
) -> None:
    peer.once = False
    said = message("work 2")
    peer.faults += [no_fault, *[replies(error={"code": -32001, "message": "no such task"})] * 9]
    with pytest.raises(RemoteLost, match="no such task"):
        await agent.send(said, FORWARDED)
    assert await agent.recover(said, FORWARDED) is None


async def test_a_message_is_recovered_although_another_call_found_the_agent_down(
    agent: HttpAgent, peer: Agent
) -> None:
    async def crashes(request: web.Request, handler: Handler) -> web.StreamResponse:
        await handler(request)
        agent._profile = None  # as the other one's failure leaves it
        return web.Response(status=500, text="Internal Server Error")

    said = message("echo x")
    peer.faults.append(crashes)
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    found = await agent.recover(said, FORWARDED)
    assert found is not None and (found.text, peer.ledger) == ("x", ["x"])


async def test_the_card_of_an_agent_is_fetched_again_if_it_could_not_be_fetched(
    url: str, peer: Agent
) -> None:
    agent = HttpAgent("bob", f"{url}/a2a", timeout_s=30)
    said = message("echo x")
    peer.card_faults.append(CRASHED)
    peer.faults.append(CRASHED)
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    peer.card_faults.append(CRASHED)
    found = await agent.recover(said, FORWARDED)
    assert found is not None and (found.text, peer.ledger) == ("x", ["x"])
    await agent.close()


async def test_an_agent_whose_card_can_never_be_had_is_asked_as_one_without_a_card(
    url: str, peer: Agent
) -> None:
    peer.once, peer.card_faults = False, [CRASHED] * 100
    agent = HttpAgent("bob", f"{url}/a2a", timeout_s=30)
    said = message("work 3")
    assert (await agent.send(said, FORWARDED)).text == "done"
    cards = sum(path.endswith("agent-card.json") for path, _ in peer.requests)
    assert cards == 1, "a guess is good for a while"
    lost = message("echo x", context="c2")
    peer.faults.append(cut)
    with pytest.raises(RemoteLost):
        await agent.send(lost, FORWARDED)
    found = await agent.recover(lost, FORWARDED)
    assert found is not None and (found.text, peer.ledger) == ("x", ["done", "x"])
    await agent.close()


async def test_a_base_url_whose_card_could_not_be_fetched_is_not_reported_as_without_an_agent(
    agent: HttpAgent, peer: Agent
) -> None:
    peer.card_faults.append(CRASHED)
    with pytest.raises(RemoteFailed, match="its card could not be had"):
        await agent.send(message("echo x"), FORWARDED)
    assert (await agent.send(message("echo x"), FORWARDED)).text == "x"


@pytest.mark.parametrize("dialect", ["1.0", "1.0 rest"])
async def test_a_task_is_found_by_its_context_where_ids_do_not_count(dialect: str) -> None:
    peer = Agent(dialect, once=False)  # type: ignore[arg-type]
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        await agent.send(message("echo other", context="c2"), FORWARDED)
        said = message("work 2")
        peer.faults.append(cut)
        with pytest.raises(RemoteLost):
            await agent.send(said, FORWARDED)
        found = await agent.recover(said, FORWARDED)
        await agent.close()
    assert found is not None and (found.state, found.text) == ("completed", "done")
    assert peer.ledger == ["other", "done"]
    assert len(peer.heard) == 2


async def test_what_left_no_trace_cannot_be_known(agent: HttpAgent, peer: Agent) -> None:
    peer.once = False
    said = message("echo x")
    peer.faults.append(cut_before)
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    assert await agent.recover(said, FORWARDED) is None
    assert peer.heard == []


@pytest.mark.parametrize("dialect", ["0.3", "plain"])
@pytest.mark.parametrize("has_card", [True, False])
async def test_older_agents_cannot_be_asked_for_a_message(dialect: str, has_card: bool) -> None:
    peer = Agent(dialect, once=False)  # type: ignore[arg-type]
    peer.has_card = has_card
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url if has_card else f"{url}/a2a", timeout_s=30)
        peer.faults.append(cut)
        said = message("echo x")
        with pytest.raises(RemoteLost):
            await agent.send(said, FORWARDED)
        assert await agent.recover(said, FORWARDED) is None
        await agent.close()
    assert len(peer.heard) <= 1


@pytest.mark.parametrize("dialect", ["1.0", "0.3"])
@pytest.mark.parametrize("protocol", ["mesh", "hitl"])
async def test_a_decision_that_did_not_arrive_is_sent_again(dialect: str, protocol: str) -> None:
    peer = Agent(dialect, protocol, once=False)  # type: ignore[arg-type]
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        asked = await agent.send(message("ask a"), FORWARDED)
        decided = message("", asked.task_id, approval(asked.input_request))
        peer.faults.append(cut_before)
        with pytest.raises(RemoteLost):
            await agent.send(decided, FORWARDED)
        found = await agent.recover(decided, FORWARDED)
        await agent.close()
    assert found is not None and found.state == "completed"
    assert len(peer.ledger) == 1


@pytest.mark.parametrize("protocol", ["mesh", "hitl", "text"])
async def test_a_decision_that_arrived_is_not_sent_again(protocol: str) -> None:
    peer = Agent("1.0", protocol, once=False)  # type: ignore[arg-type]
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        asked = await agent.send(message("ask a"), FORWARDED)
        decided = message("", asked.task_id, approval(asked.input_request))
        peer.send_faults.append(cut)
        with pytest.raises(RemoteLost):
            await agent.send(decided, FORWARDED)
        found = await agent.recover(decided, FORWARDED)
        await agent.close()
    assert found is not None and found.state == "completed"
    assert len(peer.heard) == 2


async def test_the_next_question_is_not_answered_with_the_last_decision() -> None:
    """In words, "yes" to the first of two questions must not become "yes" to the second."""
    peer = Agent("1.0", "text", once=False)
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        asked = await agent.send(message("ask a b"), FORWARDED)
        decided = message("", asked.task_id, approval(asked.input_request))
        peer.send_faults.append(cut)
        with pytest.raises(RemoteLost):
            await agent.send(decided, FORWARDED)
        found = await agent.recover(decided, FORWARDED)
        await agent.close()
    assert found is not None and found.state == "input-required" and found.input_request is not None
    assert found.input_request.id != asked.input_request.id  # type: ignore[union-attr]
    assert (found.text, len(peer.heard)) == ("May I b?", 2)


async def test_a_text_decision_that_arrives_late_is_not_sent_twice() -> None:
    peer = Agent("1.0", "text", once=False)
    late: list[asyncio.Task[object]] = []

    async def understood_late(request: web.Request, handler: Handler) -> web.StreamResponse:
        await request.read()

        async def later() -> None:
            await asyncio.sleep(0.1)
            await handler(request)

        late.append(asyncio.create_task(later()))
        return await cut_before(request, handler)

    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        asked = await agent.send(message("ask a b"), FORWARDED)
        decided = message("", asked.task_id, approval(asked.input_request))
        peer.send_faults.append(understood_late)
        with pytest.raises(RemoteLost):
            await agent.send(decided, FORWARDED)
        found = await agent.recover(decided, FORWARDED)
        await agent.close()
    await late[0]
    assert found is not None and (found.state, found.text) == ("input-required", "May I b?")
    assert len(peer.heard) == 2


async def test_one_of_several_decisions_is_recovered_by_itself(agent: HttpAgent, peer: Agent) -> None:
    peer.once = False
    asked = await agent.send(message("ask a b"), FORWARDED)
    first = message("", asked.task_id, approval(asked.input_request, "task-1/a"))
    peer.faults.append(cut_before)
    with pytest.raises(RemoteLost):
        await agent.send(first, FORWARDED)
    found = await agent.recover(first, FORWARDED)
    assert found is not None and found.input_request is not None
    assert [one.id for one in found.input_request.approvals] == ["task-1/b"]
    assert await agent.recover(first, FORWARDED) == found
    assert len(peer.heard) == 2


async def test_a_token_that_did_not_arrive_is_brought_again(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("auth"), FORWARDED)
    said = message("", asked.task_id)
    peer.faults.append(cut_before)
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    found = await agent.recover(said, ForwardedHeaders(token="t0ken"))
    assert found is not None and (found.state, found.text) == ("completed", "welcome")


async def test_an_agent_that_comes_back_is_waited_for(peer: Agent) -> None:
    port = free_port()
    agent = HttpAgent("bob", f"http://127.0.0.1:{port}", timeout_s=30)
    said = message("echo x")
    recovering = asyncio.create_task(agent.recover(said, FORWARDED))
    done, _ = await asyncio.wait([recovering], timeout=0.3)
    assert not done
    peer.faults += [answers(503), CRASHED, cut_before]
    async with served(peer.app(), port):
        found = await asyncio.wait_for(recovering, 30)
    assert found is not None and (found.text, peer.ledger) == ("x", ["x"])
    await agent.close()


async def test_an_agent_that_stays_away_leaves_the_outcome_open() -> None:
    agent = HttpAgent("bob", f"http://127.0.0.1:{free_port()}", timeout_s=0.5)
    async with asyncio.timeout(30):
        assert await agent.recover(message("echo x"), FORWARDED) is None
    await agent.close()


NOTHING = [
    *[replies(error={"code": code, "message": "no"}) for code in (-32001, -32601, -32603, -32004, -32000)],
    replies("hello"),
    replies({"task": {"id": "other", "status": {"state": "TASK_STATE_WORKING"}}}),
    answers(text="<html>", content_type="text/html"),
    answers(404, text="gone"),
]


@pytest.mark.parametrize("nothing", NOTHING)
@pytest.mark.parametrize("protocol", ["mesh", "hitl", "text"])
async def test_a_failed_status_request_leaves_the_outcome_unknown(protocol: str, nothing: Fault) -> None:
    peer = Agent("1.0", protocol)  # type: ignore[arg-type]
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        asked = await agent.send(message("ask a"), FORWARDED)
        peer.faults += [nothing] * 3
        assert (
            await agent.recover(message("", asked.task_id, approval(asked.input_request)), FORWARDED) is None
        )
        await agent.close()
    assert len(peer.heard) == 1


@pytest.mark.parametrize("nothing", NOTHING)
async def test_a_failed_listing_of_tasks_leaves_the_outcome_unknown(nothing: Fault) -> None:
    peer = Agent("1.0", once=False)
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        said = message("echo x")
        peer.faults.append(cut)
        with pytest.raises(RemoteLost):
            await agent.send(said, FORWARDED)
        peer.faults += [nothing] * 3
        assert await agent.recover(said, FORWARDED) is None
        await agent.close()
    assert peer.ledger == ["x"]


async def test_a_message_that_is_sent_again_and_refused_has_failed(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("ask a"), FORWARDED)
    peer.send_faults.append(replies(error={"code": -32603, "message": "no disk"}))
    with pytest.raises(RemoteFailed, match="no disk"):
        await agent.recover(message("", asked.task_id, approval(asked.input_request)), FORWARDED)


class FastClock:
    """The clock of the running event loop, which a test can put forward."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._time, self._ahead = self._loop.time, 0.0
        self._loop.time = self.time  # type: ignore[method-assign]

    def time(self) -> float:
        return self._time() + self._ahead

    def forward(self, seconds: float) -> None:
        self._ahead += seconds

    async def hang(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The agent does what it was asked, and says nothing. Time flies until the client gives up."""
        await handler(request)
        while True:
            self.forward(1)
            await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> FastClock:
    """As fast as the requests of a client allow. What it measures may be a few of its seconds too long."""
    monkeypatch.setattr(agent_module, "CANCEL_S", 100.0)
    return FastClock()


async def test_a_send_and_its_recovery_have_one_deadline(url: str, peer: Agent, clock: FastClock) -> None:
    agent = HttpAgent("bob", url, timeout_s=1000)
    asked = await agent.send(message("ask a"), FORWARDED)
    said = message("", asked.task_id, approval(asked.input_request))
    peer.faults += [clock.hang] * 10
    started = clock.time()
    with pytest.raises(RemoteFailed, match="no answer within 1000 s"):
        await agent.send(said, FORWARDED)
    assert 990 < clock.time() - started < 1070
    assert await agent.recover(said, FORWARDED) is None
    assert 1090 < clock.time() - started < 1200
    assert await agent.recover(said, FORWARDED) is None  # another one, later
    assert 1900 < clock.time() - started < 2200
    await agent.close()


async def test_what_is_left_of_a_send_is_for_its_recovery(url: str, peer: Agent, clock: FastClock) -> None:
    agent = HttpAgent("bob", url, timeout_s=1000)
    asked = await agent.send(message("ask a"), FORWARDED)
    said = message("", asked.task_id, approval(asked.input_request))

    async def slow(request: web.Request, handler: Handler) -> web.StreamResponse:
        clock.forward(450)
        return await cut_before(request, handler)

    peer.faults += [slow, *[clock.hang] * 5]
    started = clock.time()
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    assert await agent.recover(said, FORWARDED) is None
    assert 890 < clock.time() - started < 1000
    await agent.close()


async def test_a_message_whose_task_is_known_is_found_by_it(url: str, peer: Agent) -> None:
    """Where ids do not count and nobody can ask for a context."""
    peer.dialect, peer.once = "0.3", False
    agent = HttpAgent("bob", url, timeout_s=30)
    said = message("work 2")
    peer.faults += [no_fault, cut]
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    found = await agent.recover(said, FORWARDED)
    assert found is not None and (found.text, len(peer.heard)) == ("done", 1)
    await agent.close()


async def test_in_memory_a_message_id_counts_once_and_its_loss_is_recovered() -> None:
    ran: list[str] = []

    async def script(said: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask:
        ran.append(said.text)
        return RemoteTask("completed", said.text, "t1")

    agent, forgetful = MemoryAgent(script), MemoryAgent(script, forgets=True)
    said = message("x")
    agent.lose_next()
    with pytest.raises(RemoteLost):
        await agent.send(said, FORWARDED)
    assert await agent.recover(said, FORWARDED) == RemoteTask("completed", "x", "t1")
    assert (ran, len(agent.sent)) == (["x"], 2)
    assert await forgetful.recover(said, FORWARDED) is None
    await agent.cancel("t1", FORWARDED)
    await agent.close()
    assert agent.cancelled == ["t1"] and agent.closed
