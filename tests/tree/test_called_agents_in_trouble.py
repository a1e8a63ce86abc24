"""Agents that are called, when several things happen at once: returns, decisions, limits, crashes."""

import asyncio
from functools import partial
from typing import Any

import pytest

from mesh.core.events import (
    AgentStarted,
    ApprovalRequired,
    Completed,
    Error,
    LlmCall,
    ToolIntent,
    ToolResult,
)
from mesh.core.ids import new_id
from mesh.core.messages import Results
from mesh.tree.turn import PassInput, PassOutput, Recorder
from tests.worlds.mesh import Caller, Create, Show, WorldMesh, calls, says, until
from tests.worlds.trees import EXIT, ByNode, add, config, llm, loop, parallel, sequential


def caller(*agents: str, name: str = "main", **more: Any) -> dict[str, Any]:
    return llm(name, agents=list(agents), **more)


def mesh(
    model: ByNode, *agents: dict[str, Any], tree: dict[str, Any] | None = None, **more: Any
) -> WorldMesh:
    tree = tree or caller(*(agent["name"] for agent in agents))
    return WorldMesh(model, config=config(tree, agents=list(agents), **more))


def ask(*agents: str, task: str = "x") -> LlmCall:
    return calls(*((agent, {"task": task}) for agent in agents))


def returns(text: str) -> LlmCall:
    return calls(("return_to_user", {"result": text}))


def completes(text: str) -> LlmCall:
    return calls(("complete_task", {"result": text}))


async def events_of(world: WorldMesh, body: dict[str, Any]) -> list[Any]:
    return list(await world.journal.read(body["conversation"]["id"]))


async def is_returned(world: WorldMesh, conversation_id: str) -> bool:
    events = await world.journal.read(conversation_id)
    return any(isinstance(e, ToolResult) and e.ends_turn for e in events)


# -- what they read


async def test_an_agent_below_the_root_reads_the_turns_before_however_it_is_called() -> None:
    model = ByNode(main=[ask("middle"), says("done")], middle=[ask("reader"), says("read")])
    middle, reader = llm("middle", agents=["reader"]), llm("reader", "{history}")
    async with mesh(model, middle, reader, tree=sequential(caller("middle"))) as world:
        _, body = await world.create("first question")
        await world.say(body["conversation"]["id"], "second")
    assert "first question" in model.prompts[-3]


async def test_agents_in_a_circle_read_the_turns_before_if_one_of_them_does() -> None:
    model = ByNode(main=[ask("ping"), says("done")], ping=[ask("pong"), says("x")])
    ping, pong = llm("ping", agents=["pong"]), llm("pong", "{history}", agents=["ping"])
    async with mesh(model, ping, pong, tree=sequential(caller("ping"))) as world:
        _, body = await world.create("first question")
        await world.say(body["conversation"]["id"], "second")
    assert any("first question" in prompt for prompt in model.prompts if prompt.startswith("pong"))


# -- return_to_user


async def test_the_next_turn_is_not_told_that_the_agent_which_answered_was_cancelled() -> None:
    model = ByNode(main=[ask("a"), says("never")], a=[returns("this is it")])
    async with mesh(model, llm("a", can_return_to_user=True)) as world:
        _, body = await world.create("go")
        await world.say(body["conversation"]["id"], "next")
    told = [
        result.content
        for message in model.messages["main"]
        if isinstance(message, Results)
        for result in message.results
    ]
    assert told
    assert not any("cancelled by the user" in content for content in told)


async def test_while_a_destructive_tool_is_awaited_nothing_is_pending_and_nothing_can_be_decided() -> None:
    model = ByNode(
        main=[ask("adder", "asker", "quick")], adder=[add(1)], asker=[add(2)], quick=[returns("first")]
    )
    model.gates["quick"] = asyncio.Event()
    going, running = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        running.set()
        await going.wait()

    agents = (llm("adder"), llm("asker"), llm("quick", can_return_to_user=True))
    async with mesh(model, *agents) as world:
        world.ledger.before_add = slow
        id_ = new_id()
        created = asyncio.create_task(world.ask(Create(id_, Caller(session_id="s1"), "go")))

        async def pending(count: int) -> list[Any]:
            status, body = await world.ask(Show(id_))
            found = body["conversation"].get("pending_approvals", []) if status == 200 else []
            return found if len(found) == count else []

        asked = await until(lambda: pending(2))
        first = next(a for a in asked if a["asked_by"] == "adder")
        other = next(a for a in asked if a["asked_by"] == "asker")
        deciding = asyncio.create_task(world.decide(first["uuid"], "approve"))
        await asyncio.wait_for(running.wait(), 30)
        model.gates["quick"].set()

        await until(partial(is_returned, world, id_))
        shown = await world.show(id_)
        assert shown.get("pending_approvals", []) == []
        assert shown["turn"]["state"] == "working"
        status, _ = await world.decide(other["uuid"], "approve")
        assert status == 409
        going.set()
        _, body = await created
        await deciding
        events = await world.journal.read(id_)
    assert body["result"]["response"] == "first"
    assert world.ledger.lines == ["add 1"]
    results = [e for e in events if isinstance(e, ToolResult) and e.tool == "add"]
    assert [(e.step, e.is_error) for e in results] == [("0.adder@0-0/tool/0.0", False)]


async def test_no_destructive_call_is_claimed_once_an_agent_has_returned_to_the_user() -> None:
    model = ByNode(a=[returns("first")], b=[add(1), says("never")], c=[add(2), says("never")])
    model.gates |= {"a": asyncio.Event(), "b": asyncio.Event()}
    tree = parallel(llm("a", can_return_to_user=True), llm("b"), llm("c"))
    going = asyncio.Event()

    async def slow() -> None:
        model.gates["a"].set()
        await going.wait()

    async with mesh(model, tree=tree) as world:
        world.ledger.before_add = slow

        async def lost(turn: PassInput) -> PassOutput:
            """The way to the node breaks when the pass is cancelled; what it started goes on."""
            return await asyncio.shield(world.tree.run(turn))

        world.run = lost  # type: ignore[method-assign]
        id_ = new_id()
        created = asyncio.create_task(world.ask(Create(id_, Caller(session_id="s1"), "go")))
        await until(partial(is_returned, world, id_))
        model.gates["b"].set()
        for _ in range(20):
            await asyncio.sleep(0.005)
        going.set()
        _, body = await created
        events = await events_of(world, body)
    assert body["result"]["response"] == "first"
    assert [e.step for e in events if isinstance(e, ToolIntent)] == ["0.2/tool/0.0"]
    assert world.ledger.lines == ["add 2"]
    assert [e.content for e in events if isinstance(e, ToolResult) and e.tool == "add"] == ['{"added": 2}']


async def test_a_pass_is_cancelled_once_when_an_agent_returns_to_the_user() -> None:
    model = ByNode(a=[returns("first")], b=[add(1), says("never")])
    model.gates["a"] = asyncio.Event()
    tree = parallel(llm("a", can_return_to_user=True), llm("b"))
    cancels = 0

    async def is_cancelled() -> bool:
        return cancels > 0

    async def slow() -> None:
        model.gates["a"].set()
        await until(is_cancelled)
        await asyncio.sleep(0.05)  # for a second time

    async with mesh(model, tree=tree) as world:
        world.ledger.before_add = slow

        async def counting(turn: PassInput) -> PassOutput:
            nonlocal cancels
            running = asyncio.create_task(world.tree.run(turn))
            while not running.done():
                try:
                    await asyncio.shield(running)
                except asyncio.CancelledError:
                    cancels += not running.done()
                    running.cancel()
            return await running

        world.run = counting  # type: ignore[method-assign]
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert body["result"]["response"] == "first"
    assert [e.is_error for e in events if isinstance(e, ToolResult) and e.tool == "add"] == [False]
    assert cancels == 1


async def test_of_two_agents_that_return_to_the_user_the_first_in_the_journal_answers() -> None:
    model = ByNode(main=[ask("a", "b"), says("never")], a=[returns("from a")], b=[returns("from b")])
    agents = (llm("a", can_return_to_user=True), llm("b", can_return_to_user=True))
    async with mesh(model, *agents) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    ends = [e.content for e in events if isinstance(e, ToolResult) and e.ends_turn]
    assert body["result"]["response"] == ends[0]
    assert sum(isinstance(e, Completed) for e in events) == 1


# -- decisions


async def test_an_approved_agent_that_asks_in_its_turn_needs_no_pass_besides() -> None:
    model = ByNode(main=[ask("boss"), says("done")], boss=[add(1), says("added")])
    async with mesh(model, llm("boss", destructiveHint=True)) as world:
        _, body = await world.create("go")
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
        assert world.passes == 2
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
        assert world.passes == 3
    assert body["result"]["response"] == "done"


async def test_a_branch_that_is_decided_while_it_pauses_goes_on_beside_its_siblings() -> None:
    model = ByNode(
        main=[ask("adder", "asker", "slow"), says("done")],
        adder=[add(1), says("added")],
        asker=[add(2), says("asked")],
    )
    model.gates["slow"] = asyncio.Event()
    deciding: list[asyncio.Task[Any]] = []
    async with mesh(model, llm("adder"), llm("asker"), llm("slow")) as world:
        node = world.tree._built["adder"].node
        run = node.run

        async def decided_on_the_way_back(turn: PassInput, recorder: Recorder) -> PassOutput:
            output = await run(turn, recorder)
            if output.status == "paused" and not deciding:
                await recorder.append(turn.activation, [*turn.pending, *output.events])
                asked = next(e for e in output.events if isinstance(e, ApprovalRequired))
                deciding.append(asyncio.create_task(world.decide(asked.uuid, "approve")))
                await asyncio.sleep(0.05)  # a person is quicker than the way back
            return output

        node.run = decided_on_the_way_back  # type: ignore[method-assign]
        created = asyncio.create_task(world.create("go"))

        async def added() -> bool:
            return world.ledger.lines == ["add 1"]

        try:
            await until(added)
        finally:
            model.gates["slow"].set()
        await created
        await asyncio.gather(*deciding)


# -- ends


async def test_exit_loop_in_a_called_agent_ends_its_own_loop_and_not_that_of_its_caller() -> None:
    model = ByNode(main=[ask("worker"), says("round")], inner=[EXIT])
    worker = loop(llm("inner", can_exit_loop=True), name="worker", max_iterations=5)
    tree = loop(caller("worker"), name="outer", max_iterations=3)
    async with mesh(model, worker, tree=tree) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert body["result"]["response"] == "round"
    places = [e.step for e in events if isinstance(e, AgentStarted)]
    assert places == ["0.0#1.worker@0-0", "0.0#2.worker@0-0", "0.0#3.worker@0-0"]
    assert model.asked == {"main": 6, "inner": 3}


async def test_when_a_child_completes_the_task_a_destructive_call_beside_it_is_awaited() -> None:
    model = ByNode(main=[ask("both"), says("done")], a=[completes("42")], b=[add(1), says("never")])
    model.gates["a"] = asyncio.Event()

    async def slow() -> None:
        model.gates["a"].set()
        await asyncio.sleep(0.05)

    both = parallel(llm("a", can_complete_task=True), llm("b"), name="both", approvals="inline")
    async with mesh(model, both) as world:
        world.ledger.before_add = slow
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert body["result"]["response"] == "done"
    assert world.ledger.lines == ["add 1"]
    results = {e.tool: (e.seq, e.content) for e in events if isinstance(e, ToolResult)}
    assert results["add"][1] == '{"added": 1}'
    assert results["both"][1] == "42"
    assert results["add"][0] < results["both"][0]


async def test_a_model_that_calls_itself_without_end_in_every_call_is_bounded() -> None:
    model = ByNode(main=[ask(*["again"] * 3)] * 50, again=[ask(*["again"] * 3)] * 50)
    async with mesh(model, llm("again", agents=["again"]), limits={"max_llm_calls": 10}) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert isinstance(events[-1], Error)
    made = sum(isinstance(e, LlmCall) for e in events)
    assert made <= 10 + 3**4 * 10


async def test_a_hundred_calls_in_one_answer_run_eight_at_a_time() -> None:
    most = now = 0

    class Counting(ByNode):
        async def stream(self, request: Any) -> Any:
            nonlocal most, now
            now += request.system.startswith("a:")
            most = max(most, now)
            await asyncio.sleep(0)
            async for event in super().stream(request):
                yield event
            now -= request.system.startswith("a:")

    async with mesh(Counting(main=[ask(*["a"] * 100), says("done")]), llm("a")) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert body["result"]["response"] == "done"
    assert most == 8
    assert sum(isinstance(e, AgentStarted) for e in events) == 100


async def test_a_timeout_of_the_caller_ends_the_agents_that_it_called() -> None:
    model = ByNode(main=[ask("slow"), says("never")])
    model.gates["slow"] = asyncio.Event()
    tree = sequential(caller("slow", timeout_s=0.2))
    async with mesh(model, llm("slow"), tree=tree) as world:
        _, body = await world.create("go")
        model.gates["slow"].set()
        events = await events_of(world, body)
    assert isinstance(events[-1], Error)
    assert "timeout_s" in events[-1].message
    assert not any(isinstance(e, LlmCall) and "slow" in e.step for e in events)


async def test_a_called_agent_that_takes_too_long_is_an_error_result_and_what_it_began_is_journaled() -> None:
    async def late() -> None:
        await asyncio.sleep(0.4)

    slow = parallel(llm("slow", timeout_s=0.2), llm("beside"), name="both", approvals="inline")
    model = ByNode(main=[ask("both"), says("done")], slow=[add(1), says("never")])
    async with mesh(model, slow) as world:
        world.ledger.before_add = late
        _, body = await world.create("go")
    assert body["result"]["response"] == "done"


# -- what clients see


async def test_an_approval_of_a_called_agent_waits_at_the_place_of_its_caller_in_the_tree() -> None:
    model = ByNode(main=[ask("worker"), says("done")], inner=[add(1), says("added")])
    worker = sequential(llm("first"), llm("inner"), name="worker")
    async with mesh(model, worker, tree=sequential(llm("zero"), caller("worker"))) as world:
        _, body = await world.create("go")
    assert body["conversation"]["pipeline_state"]["paused_node_path"] == [1]


@pytest.mark.parametrize("name", ["nobody", "again"])
async def test_unknown_agents_are_refused_with_the_names_there_are(name: str) -> None:
    model = ByNode(main=[ask(name), says("sorry")])
    async with mesh(model, llm("search")) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    refused = next(e for e in events if isinstance(e, ToolResult))
    assert refused.is_error
    assert "search" in refused.content
