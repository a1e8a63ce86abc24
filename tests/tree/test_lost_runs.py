"""Nodes whose process is lost while the rest of the tree goes on.

What is left of a lost process lives on here, as one does that only cannot be reached any more: the worst case
for whoever comes after it. It must achieve nothing, and whoever is beside it must notice nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from mesh.core.conversation import fold
from mesh.core.errors import Unavailable
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    LlmCall,
    LlmLost,
    LlmReserved,
    NodeCompleted,
    ToolIntent,
    ToolResult,
)
from mesh.core.places import Place
from mesh.net.backoff import Backoff
from mesh.tree import steps
from mesh.tree.turn import Activation, PassInput, PassOutput, Recorder, Restarted
from tests.tree.test_budgets import Paid
from tests.tree.test_budgets import mesh as paid_mesh
from tests.tree.test_spawn import SEARCH, spawn, wait
from tests.tree.test_spawn import mesh as spawning
from tests.worlds.mesh import Ledger, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, config, llm, parallel, sequential

INLINE = {"approvals": "inline"}


@pytest.fixture(autouse=True)
def _begins_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_LOST_NODES", Backoff(first_s=0.001, longest_s=0.01))


class Losing:
    """Loses the process of a node in its first ``times`` runs, each when ``when`` has returned. ``left`` is
    what goes on of them."""

    def __init__(
        self, world: WorldMesh, path: str, when: Callable[[PassInput], Awaitable[Any]], times: int = 1
    ) -> None:
        node = world.tree._built[path].node
        self.left: list[asyncio.Task[PassOutput]] = []
        self.runs: list[PassInput] = []
        self._run, self._when, self._times = node.run, when, times
        node.run = self  # type: ignore[method-assign, assignment]

    async def __call__(self, turn: PassInput, recorder: Recorder) -> PassOutput:
        self.runs.append(turn)
        if len(self.runs) > self._times:
            return await self._run(turn, recorder)
        going = asyncio.create_task(self._run(turn, recorder))
        self.left.append(going)
        await self._when(turn)
        raise Unavailable("its process is gone")

    async def ends(self) -> list[str]:
        """How those that were lost have ended, when all have."""
        async with asyncio.timeout(30):
            return [output.status for output in await asyncio.gather(*self.left)]


class Held:
    """Holds one call of a function, the first one or a later one, until it may ``go``."""

    def __init__(self, number: int = 1) -> None:
        self.began, self.go = asyncio.Event(), asyncio.Event()
        self._before = number

    async def __call__(self) -> None:
        self._before -= 1
        if self._before:
            return
        self.began.set()
        async with asyncio.timeout(30):
            await self.go.wait()


class Holds(ByNode):
    """A model that holds one call of one node, the first one or a later one."""

    def __init__(self, name: str, number: int = 1, **script: Any) -> None:
        super().__init__(**script)
        self.name = name
        self.held = Held(number)

    async def stream(self, request: Any) -> Any:
        if request.system.startswith(f"{self.name}:"):
            await self.held()
        async for event in super().stream(request):
            yield event

    async def began(self, _: PassInput) -> None:
        await asyncio.wait_for(self.held.began.wait(), 30)


async def events_of(world: WorldMesh, body: Any) -> list[AnyEvent]:
    return list(await world.journal.read(body["conversation"]["id"]))


def of(kind: type[Any], events: list[AnyEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def test_a_lost_branch_begins_again_and_the_branch_beside_it_notices_nothing() -> None:
    model = Holds("dies")
    beside = model.gates["beside"] = asyncio.Event()
    async with WorldMesh(model, config=config(parallel(llm("dies"), llm("beside")))) as world:
        lost = Losing(world, "0.0", model.began)
        creating = asyncio.create_task(world.create("go"))
        await until(lambda: _is(lost.runs and len(lost.runs) == 2 and model.asked["dies"] == 1))
        model.held.go.set()  # what is left of the lost process gets its answer now
        assert await lost.ends() == ["completed"]
        beside.set()
        _, body = await creating
        events = await events_of(world, body)
    assert body["conversation"]["turn"]["state"] == "completed"
    assert (model.asked["beside"], world.passes) == (1, 1)
    assert [e.step for e in of(LlmCall, events) if e.node == "0.0"] == ["0.0/llm/0"]
    assert [e.node for e in of(NodeCompleted, events)] == ["0.0", "0.1"]


async def _journaled(world: WorldMesh, kind: type[Any], number: int) -> bool:
    found = [await world.journal.read(conversation) for conversation in await world.journal.sizes()]
    return any(len(of(kind, list(events))) >= number for events in found)


async def _is(it_is_so: object) -> bool:
    return bool(it_is_so)


@pytest.mark.parametrize("path", ["0.1", "0.1.0"])
async def test_what_is_left_of_a_lost_node_claims_nothing(path: str) -> None:
    """Its model answers when the new run is done, and wants the same destructive call."""
    model = Holds("adds", adds=add(1))
    inner = sequential(llm("adds"), name="inner")
    async with WorldMesh(model, config=config(parallel(llm("first"), inner, **INLINE))) as world:
        lost = Losing(world, path, model.began)
        _, body = await world.create("go")
        model.held.go.set()
        assert await lost.ends() == ["superseded"]
        events = await events_of(world, body)
    assert world.ledger.lines == ["add 1"]
    assert (len(of(ToolIntent, events)), len(of(ToolResult, events)), world.passes) == (1, 1, 1)
    assert model.asked["first"] == 1


async def test_a_tool_that_a_lost_node_had_claimed_runs_once_and_its_result_is_used() -> None:
    model, ledger = ByNode(adds=add(1)), Ledger()
    held = Held()
    ledger.before_add = held
    tree = parallel(llm("adds"), llm("beside"), **INLINE)

    async def claimed(_: PassInput) -> None:
        await asyncio.wait_for(held.began.wait(), 30)

    async with WorldMesh(model, config=config(tree), ledger=ledger) as world:
        lost = Losing(world, "0.0", claimed)
        creating = asyncio.create_task(world.create("go"))
        await until(lambda: _is(len(lost.runs) == 2))
        held.go.set()
        _, body = await creating
        await lost.ends()
        events = await events_of(world, body)
    assert ledger.lines == ["add 1"]
    assert body["conversation"]["turn"]["state"] == "completed"
    (result,) = of(ToolResult, events)
    assert result.content == '{"added": 1}'
    assert (len(of(ToolIntent, events)), of(ApprovalRequired, events)) == (1, [])
    assert (model.asked["beside"], world.passes) == (1, 1)


async def test_what_a_lost_node_did_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Holds("works", 3, works=[calls(("look", {})), calls(("look", {})), says("done")])
    monkeypatch.setattr(steps, "SEND_AHEAD_S", 0.0)  # what is not journaled when a process dies is lost

    async def has_looked(_: PassInput) -> None:
        await until(lambda: _journaled(world, ToolResult, 2))

    async with WorldMesh(model, config=config(sequential(llm("works"), llm("after")))) as world:
        lost = Losing(world, "0.0", has_looked)
        _, body = await world.create("go")
        model.held.go.set()
        await lost.ends()
        events = await events_of(world, body)
    assert body["result"]["response"] == "after says"
    assert model.asked["works"] == 4  # of three calls, the one that was being made is made again
    steps_made = [e.step for e in of(LlmCall, events) if e.node == "0.0"]
    assert steps_made == ["0.0/llm/0", "0.0/llm/1", "0.0/llm/2"]
    assert (world.ledger.lines.count("look"), world.passes) == (2, 1)


async def test_agents_that_one_process_carried_all_begin_again_and_the_lead_goes_on() -> None:
    agents = 20
    model = ByNode(main=[spawn(*map(str, range(agents))), wait(), says("done")])
    gate = model.gates["search"] = asyncio.Event()

    async def all_are_at_work(_: PassInput) -> None:
        await until(lambda: _is(model.asked["search"] >= agents))

    async with spawning(model, SEARCH) as world:
        lost = Losing(world, "search", all_are_at_work, times=agents)
        creating = asyncio.create_task(world.create("go"))
        await until(lambda: _is(model.asked["search"] == 2 * agents))
        gate.set()
        _, body = await creating
        await lost.ends()
        events = await events_of(world, body)
    assert body["result"]["response"] == "done"
    assert (model.asked["main"], world.passes, len(lost.runs)) == (3, 1, 2 * agents)
    ends = [e for e in of(NodeCompleted, events) if e.node.startswith("0.search@")]
    assert len(ends) == len({e.node for e in ends}) == agents
    assert {e.status for e in ends} == {"completed"}


async def test_what_a_lost_node_had_reserved_is_lost_once_and_it_reserves_nothing_more() -> None:
    model = Paid(dies=[calls(("look", {})), says("done")])
    gate = model.gates["dies"] = asyncio.Event()

    async def asked(_: PassInput) -> None:
        await until(lambda: _is(model.asked["dies"] == 1))

    tree = parallel(llm("dies"), llm("beside"))
    async with paid_mesh(model, tree, budget={"max_llm_calls": 9}) as world:
        lost = Losing(world, "0.0", asked)
        creating = asyncio.create_task(world.create("go"))
        await until(lambda: _is(model.asked["dies"] == 2))
        gate.set()
        _, body = await creating
        assert await lost.ends() == ["superseded"]
        events = await events_of(world, body)
    assert body["conversation"]["turn"]["state"] == "completed"
    assert [(e.step, e.attempt) for e in of(LlmLost, events)] == [("0.0/llm/0", 0)]
    reserved = [(e.step, e.attempt) for e in of(LlmReserved, events) if e.node == "0.0"]
    assert reserved == [("0.0/llm/0", 0), ("0.0/llm/0", 1), ("0.0/llm/1", 0)]
    assert world.passes == 1


async def test_what_was_asked_below_a_lost_node_is_asked_once_and_the_decision_reaches_the_new_run() -> None:
    model, gate = ByNode(adds=add(1)), asyncio.Event()
    model.gates |= {"slow": gate, "beside": gate}

    async def asked(_: PassInput) -> None:
        await until(lambda: _pending(world))

    inner = parallel(llm("adds"), llm("slow"), name="inner", approvals="ask")
    tree = parallel(inner, llm("beside"), approvals="ask")
    async with WorldMesh(model, config=config(tree)) as world:
        lost = Losing(world, "0.0", asked)
        creating = asyncio.create_task(world.create("go"))
        uuid = await until(lambda: _pending(world))
        await until(lambda: _is(len(lost.runs) == 2))
        deciding = asyncio.create_task(world.decide(uuid, "approve"))
        await until(lambda: _is(world.ledger.lines))
        gate.set()
        _, body = await creating
        await deciding
        events = await events_of(world, body)
    assert (world.ledger.lines, len(of(ApprovalRequired, events))) == (["add 1"], 1)
    assert model.asked["beside"] == 1


async def test_those_above_a_paused_node_know_what_was_journaled_below_it_before_a_process_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "SEND_AHEAD_S", 0.0)
    model = Holds("adds", 2, adds=[calls(("look", {})), add(1), says("done")])
    beside = model.gates["beside"] = asyncio.Event()
    inner = parallel(llm("adds"), llm("quick"), name="inner", approvals="ask")
    tree = parallel(inner, llm("beside"), approvals="ask")
    async with WorldMesh(model, config=config(tree)) as world:
        lost = Losing(world, "0.0.0", model.began)
        creating = asyncio.create_task(world.create("go"))
        uuid = await until(lambda: _pending(world))
        deciding = asyncio.create_task(world.decide(uuid, "approve"))
        await until(lambda: _is(world.ledger.lines))
        beside.set()
        _, body = await creating
        model.held.go.set()
        await lost.ends()
        await deciding
    assert body["conversation"]["turn"]["state"] == "completed"
    # Its second answer was on its way when the process was lost.
    assert (world.ledger.lines, model.asked["adds"], world.passes) == (["look", "add 1"], 4, 1)
    # After the decision the node goes on in the run that it was given when its process was lost.
    first, *later = [turn.run for turn in lost.runs]
    assert len(later) == 2 and later[0] == later[1] > first


async def _pending(world: WorldMesh) -> str:
    for conversation in await world.journal.sizes():
        if pending := fold(await world.journal.read(conversation)).pending:
            return pending[0].uuid
    return ""


async def test_a_node_that_is_begun_again_by_a_request_that_came_late_begins_once_more() -> None:
    """The pass around it is not unwound for that."""
    model = Holds("late")
    async with WorldMesh(model, config=config(parallel(llm("late"), llm("beside")))) as world:
        creating = asyncio.create_task(world.create("go"))
        await asyncio.wait_for(model.held.began.wait(), 30)
        (conversation,) = await world.journal.sizes()
        parent = Activation(conversation, 1, world.newest_run, "0.0")
        assert (await world.restart(parent)).ack.taken  # as one that was repeated on the way
        model.held.go.set()
        _, body = await creating
    assert body["conversation"]["turn"]["state"] == "completed"
    assert (model.asked["beside"], world.passes) == (1, 1)


async def test_a_node_whose_recorder_does_not_answer_begins_again_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ByNode(adds=add(1))
    tree = parallel(llm("adds"), llm("beside"), **INLINE)
    async with WorldMesh(model, config=config(tree)) as world:
        append, failed = world.append, list[str]()

        async def fails_once(activation: Activation, events: Any) -> Any:
            if activation.at == "0.0" and not failed:
                failed.append(activation.at)
                raise Unavailable("the keeper does not answer")
            return await append(activation, events)

        monkeypatch.setattr(world, "append", fails_once)
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert body["conversation"]["turn"]["state"] == "completed"
    assert failed and world.ledger.lines == ["add 1"]
    assert (model.asked["beside"], model.asked["adds"], world.passes) == (1, 2, 1)
    assert len(of(ToolResult, events)) == 1


async def test_a_keeper_that_does_not_answer_leads_to_a_new_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Holds("dies")
    async with WorldMesh(model, config=config(parallel(llm("dies"), llm("beside")))) as world:
        Losing(world, "0.0", model.began)
        restart, asked = world.restart, list[Place]()

        async def fails_once(lost: Activation) -> Restarted:
            asked.append(lost.place)
            if len(asked) == 1:
                raise Unavailable("the keeper does not answer", retry_after_s=0)
            return await restart(lost)

        monkeypatch.setattr(world, "restart", fails_once)
        _, body = await world.create("go")
        model.held.go.set()
    assert body["conversation"]["turn"]["state"] == "completed"
    assert (len(asked), world.passes, model.asked["beside"]) == (1, 2, 1)


async def test_a_node_that_is_lost_for_too_long_fails_the_turn_after_those_beside_it_have_ended() -> None:
    model = ByNode()

    async def at_once(_: PassInput) -> None:
        return None

    async with WorldMesh(
        model, config=config(parallel(llm("dies"), llm("beside"))), unavailable_for_s=2
    ) as world:
        lost = Losing(world, "0.0", at_once, times=10**6)
        _, body = await world.create("go")
        for each in lost.left:
            each.cancel()
        events = await events_of(world, body)
    assert body["conversation"]["turn"]["state"] == "failed"
    assert "its process is gone" in body["conversation"]["messages"][-1]["content"]
    assert [e.node for e in of(NodeCompleted, events)] == ["0.1"]
    assert (model.asked["beside"], world.passes) == (1, 1)
    assert len(lost.runs) > 3


async def test_a_node_inside_of_a_lost_one_does_not_begin_again_for_whoever_is_left_of_it() -> None:
    model = Holds("inner")
    tree = parallel(parallel(llm("inner"), llm("other"), name="outer"), llm("beside"))
    async with WorldMesh(model, config=config(tree)) as world:
        outer = Losing(world, "0.0", model.began)
        inner = Losing(world, "0.0.0", lambda _: until(lambda: _is(len(outer.runs) == 2)))
        _, body = await world.create("go")
        model.held.go.set()
        assert await outer.ends() == ["superseded"]
    assert body["conversation"]["turn"]["state"] == "completed"
    runs = [turn.run for turn in inner.runs]
    assert len(runs) == 2  # the one that was lost, and that of the new outer run
    assert runs[1] == outer.runs[1].run
    assert (model.asked["beside"], world.passes) == (1, 1)


async def test_an_agent_that_is_lost_for_good_holds_up_nobody_who_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def at_once(_: PassInput) -> None:
        pass

    losses = steps._Losses
    monkeypatch.setattr(steps, "_Losses", lambda turn: losses(msgspec.structs.replace(turn, patience_s=0.2)))
    async with spawning(ByNode(main=[spawn("cats"), wait(), says("done")]), SEARCH) as world:
        Losing(world, "search", at_once, times=1_000_000)
        status, _ = await asyncio.wait_for(world.create("go"), 30)
    assert status == 502
