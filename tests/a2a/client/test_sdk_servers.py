"""Agents made with a2a-sdk, as others make them: its handler, its JSON-RPC, HTTP+JSON and 0.3 routes."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from starlette.applications import Starlette

from mesh.a2a.client.agent import HttpAgent
from mesh.a2a.client.port import ForwardedHeaders, OutgoingMessage, RelayedDecision
from mesh.a2a.extensions import HITL
from tests.worlds.ports import free_port

FORWARDED = ForwardedHeaders(session_id="s1", token="t0ken-t0ken")
TOOLS = [{"id": "tool-1", "call_id": "call-1", "name": "deploy", "args": {"n": 3, "to": "prod"}}]


class Deployer(AgentExecutor):
    """Asks before it does what it is told; waits when told so."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.cancelled: list[str] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        text = context.get_user_input()
        decision: Any = context.message.metadata
        if HITL in decision:
            approved = decision[HITL]["approvals"][0]["approved"]
            await self._finish(updater, f"{'deployed' if approved else 'left alone'} ({text})")
        elif text == "deploy":
            message = updater.new_agent_message([pb.Part(text="Allow?")])
            request: dict[str, Any] = {"type": "tool_approval_request", "hint": "Allow?", "tools": TOOLS}
            message.metadata.update({HITL: request})
            await updater.requires_input(message)
        elif text == "wait":
            await updater.start_work()
            await asyncio.sleep(30)
        else:
            await self._finish(updater, f"heard {text}")

    async def _finish(self, updater: TaskUpdater, text: str) -> None:
        self.ledger.append(text)
        await updater.add_artifact([pb.Part(text=text)])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None and context.context_id is not None
        self.cancelled.append(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str, *interfaces: tuple[str, str, str]) -> pb.AgentCard:
    return pb.AgentCard(
        name="deployer",
        description="deploys",
        version="1",
        capabilities=pb.AgentCapabilities(extensions=[pb.AgentExtension(uri=HITL)]),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[pb.AgentSkill(id="d", name="d", description="d", tags=["d"])],
        supported_interfaces=[
            pb.AgentInterface(url=url + path, protocol_binding=binding, protocol_version=version)
            for path, binding, version in interfaces
        ],
    )


class _Quiet(uvicorn.Server):
    """Signals are the test's, not the server's."""

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


@asynccontextmanager
async def deployed(executor: Deployer, *interfaces: tuple[str, str, str]) -> AsyncIterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    about = card(url, *interfaces)
    handler = DefaultRequestHandler(executor, InMemoryTaskStore(), about)
    routes = [
        *create_agent_card_routes(about),
        *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
        *create_rest_routes(handler, path_prefix="/rest"),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes), "127.0.0.1", port, log_level="critical", timeout_graceful_shutdown=0
    )
    server = _Quiet(config)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(30):
        while not server.started:
            assert not serving.done()
            await asyncio.sleep(0.01)
    try:
        yield url
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 30)
        await handler.aclose()


WAYS = {
    "1.0": ("/rpc", "JSONRPC", "1.0"),
    "1.0 rest": ("/rest", "HTTP+JSON", "1.0"),
    "0.3": ("/rpc", "JSONRPC", "0.3"),
}


@pytest.fixture
def executor() -> Deployer:
    return Deployer()


@pytest.fixture(params=[*WAYS, "endpoint"])
async def agent(request: pytest.FixtureRequest, executor: Deployer) -> AsyncIterator[HttpAgent]:
    way = WAYS.get(request.param, WAYS["1.0"])
    async with deployed(executor, way) as url:
        where = url if request.param in WAYS else f"{url}/rpc"
        made = HttpAgent("deployer", where, timeout_s=30)
        yield made
        await made.close()


def message(
    text: str, task: str = "", decided: RelayedDecision | None = None, context: str = ""
) -> OutgoingMessage:
    return OutgoingMessage(str(uuid.uuid4()), text, context or str(uuid.uuid4()), task, decided)


async def test_it_answers(agent: HttpAgent) -> None:
    answer = await agent.send(message("hello"), FORWARDED)
    assert (answer.state, answer.text) == ("completed", "heard hello")


async def test_its_context_is_the_one_we_gave(agent: HttpAgent) -> None:
    said = message("hello")
    assert (await agent.send(said, FORWARDED)).context_id == said.context_id


@pytest.mark.parametrize(("how", "outcome"), [("approve", "deployed (yes)"), ("reject", "left alone (no)")])
async def test_it_asks_by_the_hitl_extension_and_is_answered(
    agent: HttpAgent, executor: Deployer, how: Any, outcome: str
) -> None:
    asked = await agent.send(message("deploy"), FORWARDED)
    assert asked.state == "input-required" and asked.input_request is not None
    one = asked.input_request.approvals[0]
    assert (asked.input_request.protocol, one.id, one.tool_name, one.description) == (
        "hitl",
        "tool-1",
        "deploy",
        'Allow?\ndeploy\n  n = 3\n  to = "prod"',
    )
    assert one.tool_args == {"n": 3, "to": "prod"}
    decided = RelayedDecision("a1", how, request_id=asked.input_request.id, protocol="hitl", ids=(one.id,))
    said = message("", asked.task_id, decided, asked.context_id)
    answer = await agent.send(said, FORWARDED)
    assert (answer.state, answer.text, executor.ledger) == ("completed", outcome, [outcome])
    found = await agent.recover(said, FORWARDED)
    assert found is not None and (found.text, len(executor.ledger)) == (outcome, 1)


async def test_a_decision_that_it_never_got_is_sent_by_recovery(agent: HttpAgent, executor: Deployer) -> None:
    asked = await agent.send(message("deploy"), FORWARDED)
    assert asked.input_request is not None
    decided = RelayedDecision(
        "a1", "approve", request_id=asked.input_request.id, protocol="hitl", ids=("tool-1",)
    )
    found = await agent.recover(message("", asked.task_id, decided, asked.context_id), FORWARDED)
    assert found is not None and found.text == "deployed (yes)"


async def test_a_message_that_it_got_is_found_by_its_context(executor: Deployer) -> None:
    for name in ("1.0", "1.0 rest"):
        async with deployed(executor, WAYS[name]) as url:
            agent = HttpAgent("deployer", url, timeout_s=30)
            said = message(f"hello {name}")
            assert await agent.recover(said, FORWARDED) is None
            await agent.send(said, FORWARDED)
            found = await agent.recover(said, FORWARDED)
            assert found is not None and found.text == f"heard hello {name}"
            await agent.close()
    assert len(executor.ledger) == 2


async def test_it_is_asked_to_stop_when_its_time_is_over(executor: Deployer) -> None:
    async with deployed(executor, WAYS["1.0"]) as url:
        agent = HttpAgent("deployer", url, timeout_s=33)
        agent._cancel_s = 30  # which leaves 3 s for the answer
        with pytest.raises(Exception, match="agent deployer: no answer within 33 s"):
            await agent.send(message("wait"), FORWARDED)
        assert len(executor.cancelled) == 1
        await agent.close()


async def test_the_best_of_several_interfaces_is_taken(executor: Deployer) -> None:
    for offered, version in (
        (["0.3", "1.0 rest", "1.0"], "1.0"),
        (["0.3", "1.0 rest"], "1.0"),
        (["0.3"], "0.3"),
    ):
        async with deployed(executor, *[WAYS[name] for name in offered]) as url:
            agent = HttpAgent("deployer", url, timeout_s=30)
            await agent.send(message("hello"), FORWARDED)
            assert agent._profile is not None and agent._profile.endpoints[0].version == version
            assert agent._profile.endpoints[0].rest == ("1.0" not in offered and "1.0 rest" in offered)
            await agent.close()
