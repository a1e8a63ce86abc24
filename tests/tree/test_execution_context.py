"""What the tool calls of a tree tell their servers: where they stand, and a key that every retry repeats."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from mesh.core.actions import actions
from mesh.core.errors import ToolSessionError, Unavailable
from mesh.core.events import AgentStarted, UserMessage
from mesh.core.execution import ExecutionContext
from mesh.mcp.memory import MemorySession, execution
from mesh.mcp.meta import meta_of
from mesh.mcp.port import Tool
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says
from tests.worlds.trees import ByNode, config, llm

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ADD = ("add", {"n": 1})
LOOK = ("look", {})


def told_to(mesh: WorldMesh, name: str = "look") -> list[ExecutionContext]:
    """The contexts of the calls of a tool from now on."""
    seen: list[ExecutionContext] = []

    def noting(function: Callable[[dict[str, Any]], Awaitable[Any]]) -> Any:
        async def noted(arguments: dict[str, Any]) -> Any:
            context = execution.get()
            assert context is not None
            seen.append(context)
            return await function(arguments)

        return noted

    def wrapped(tool: Tool, function: Any) -> Any:
        return (tool, noting(function) if tool.name == name else function)

    mesh.ledger.offered.offer([wrapped(tool, function) for tool, function in mesh.ledger.pairs()])
    return seen


async def nonce_of(mesh: WorldMesh, id: str) -> str:
    """That of the first turn."""
    return next(e.nonce for e in await mesh.journal.read(id) if isinstance(e, UserMessage))


async def test_a_call_says_where_it_stands() -> None:
    async with WorldMesh(ScriptedLlm(calls(LOOK), says("ok"))) as mesh:
        seen = told_to(mesh)
        _, body = await mesh.create("go", traceparent=TRACE, token="secret-token")
        id = body["conversation"]["id"]
        message = next(e for e in await mesh.journal.read(id) if isinstance(e, UserMessage))
    (context,) = seen
    assert context.idempotency_key == f"{id}|1.{message.nonce}|0/tool/0.0"
    assert (context.trace_id, context.traceparent) == (TRACE[3:35], TRACE)
    assert (context.depth, context.agent_path) == (1, ("test",))
    assert (context.started_at, context.deadline > context.started_at) == (message.time, True)
    assert (context.spent, context.left) == ({}, {})
    assert "secret-token" not in str(meta_of(context))


async def test_a_turn_stays_in_its_trace_after_a_crash() -> None:
    model = ScriptedLlm(calls(("add", {"n": 1})), calls(LOOK), says("ok"))
    async with WorldMesh(model) as mesh:
        _, body = await mesh.create("go", traceparent=TRACE)
        await mesh.crash()
        seen = told_to(mesh)
        await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        found = [*actions(await mesh.journal.read(body["conversation"]["id"]))]
    (context,) = seen
    assert (context.trace_id, context.traceparent) == (TRACE[3:35], TRACE)
    assert {action.trace_id for action in found} == {TRACE[3:35]}


async def test_what_is_no_trace_context_is_in_no_journal() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"))) as mesh:
        _, body = await mesh.create("go", traceparent="secret-token")
        events = await mesh.journal.read(body["conversation"]["id"])
    assert "secret-token" not in str(events)


async def test_a_call_of_a_called_agent_has_its_path_its_depth_and_its_start() -> None:
    model = ByNode(main=[calls(("search", {"task": "cats"})), says("ok")], search=[calls(LOOK), says("x")])
    text = config(llm("main", agents=["search"]), agents=[llm("search")])
    async with WorldMesh(model, config=text) as mesh:
        seen = told_to(mesh)
        _, body = await mesh.create("go")
        id = body["conversation"]["id"]
        started = next(e for e in await mesh.journal.read(id) if isinstance(e, AgentStarted))
        nonce = await nonce_of(mesh, id)
    (context,) = seen
    assert context.idempotency_key == f"{id}|1.{nonce}|0.search@0-0/tool/0.0"
    assert (context.depth, context.agent_path) == (2, ("main", "search"))
    assert (context.started_at, context.traceparent) == (started.time, "")
    assert len(context.trace_id) == 32


async def test_a_node_with_a_timeout_has_an_earlier_deadline_than_the_turn() -> None:
    text = config(llm("a", timeout_s=5))
    async with WorldMesh(ByNode(a=[calls(LOOK), says("ok")]), config=text) as mesh:
        seen = told_to(mesh)
        await mesh.create("go")
    async with WorldMesh(ByNode(a=[calls(LOOK), says("ok")]), config=config(llm("a"))) as mesh:
        later = told_to(mesh)
        await mesh.create("go")
    assert seen[0].deadline < later[0].deadline


async def test_a_claimed_call_that_is_retried_repeats_its_key() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("ok"))) as mesh:
        seen = told_to(mesh, "add")
        _, body = await mesh.create("go")
        session = mesh.ledger.offered

        async def lost(*call: Any, **more: Any) -> Any:
            await MemorySession.call(session, *call, **more)
            raise ToolSessionError("the connection broke", may_have_run=True)

        async def settle(claim: Any) -> Any:
            raise ToolSessionError("nobody knows", may_have_run=True)

        session.call, session.settle = lost, settle  # type: ignore[method-assign]
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "retry")
        id = body["conversation"]["id"]
        nonce = await nonce_of(mesh, id)
    assert [context.idempotency_key for context in seen] == [f"{id}|1.{nonce}|0/tool/0.0"] * 2


async def test_an_unclaimed_call_that_is_repeated_by_another_pass_repeats_its_key() -> None:
    async with WorldMesh(ScriptedLlm(calls(LOOK), says("ok"))) as mesh:
        seen = told_to(mesh)
        session, lost = mesh.ledger.offered, []

        async def call(*call: Any, **more: Any) -> Any:
            outcome = await MemorySession.call(session, *call, **more)
            if not lost:
                lost.append(outcome)
                raise Unavailable("the pass is lost here", retry_after_s=0)
            return outcome

        session.call = call  # type: ignore[method-assign]
        await mesh.create("go")
    first, second = seen
    assert replace(first, deadline="") == replace(second, deadline="")
    assert first.idempotency_key


async def test_the_calls_of_an_answer_and_of_other_conversations_have_other_keys() -> None:
    answers = [calls(LOOK, LOOK), says("ok")]
    async with WorldMesh(ScriptedLlm(*answers, *answers)) as mesh:
        seen = told_to(mesh)
        await mesh.create("go")
        await mesh.create("go")
    assert len(seen) == 4
    assert len({context.idempotency_key for context in seen}) == 4
    assert len({context.trace_id for context in seen}) == 2
