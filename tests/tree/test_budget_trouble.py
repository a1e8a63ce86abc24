"""Budgets where something goes wrong: failed branches, strange reports, hostile journals."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from mesh.core.agent_limits import AgentsStarted
from mesh.core.budget import (
    Amount,
    BudgetUse,
    CallRequest,
    Granted,
    Reached,
    admitted,
    limit_question,
    scope_of,
)
from mesh.core.conversation import fold
from mesh.core.errors import LlmError, Unavailable
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    Event,
    LlmCall,
    LlmLost,
    LlmReserved,
    NodeCompleted,
    Paused,
    RemoteQuestion,
    ToolResult,
    Usage,
    UserMessage,
)
from mesh.core.spend_of_runs import spend_of
from mesh.keeper import keeper
from mesh.llm.port import LlmRequest
from mesh.tree.turn import PassInput, PassOutput, Recorder, ReserveReply
from tests.tree.test_budgets import LOOKS, Paid, mesh
from tests.worlds.mesh import WorldMesh, calls, says, until
from tests.worlds.trees import llm, parallel

OPENED = UserMessage(turn=1, text="go", time="2026-01-01T00:00:00.000Z")


def after(*events: AnyEvent) -> BudgetUse:
    return BudgetUse().after([OPENED, *events])


def asked(args: dict[str, Any], step: str = "0/limit/max_llm_calls", **more: Any) -> ApprovalRequired:
    return ApprovalRequired(
        turn=1,
        step=step,
        uuid="u",
        call_id="",
        tool_name="budget",
        tool_args=args,
        description="",
        kind="limit",
        **more,
    )


def decided(step: str = "0/limit/max_llm_calls", edited: dict[str, Any] | None = None) -> ApprovalResolved:
    return ApprovalResolved(turn=1, step=step, uuid="u", choice="approve", edited_args=edited)


@pytest.mark.parametrize(
    "more", ["x", None, [1], {}, True, -5, 0, float("nan"), float("inf"), 1e308], ids=repr
)
def test_what_is_no_amount_raises_no_limit(more: Any) -> None:
    args = {"max_llm_calls": more}
    assert after(asked(args), decided()).raised == {}
    assert after(asked({"max_llm_calls": 2}), decided(edited=args)).raised == {}


def test_a_limit_of_another_agent_raises_none_of_ours() -> None:
    question = RemoteQuestion("context", "q", "mesh")
    theirs = asked({"max_llm_calls": 100}, "0/tool/0.0", remote_task_id="t", remote_question=question)
    assert after(theirs, decided("0/tool/0.0")).raised == {}
    assert not after(theirs).is_asked("0", "max_llm_calls")


def test_what_people_allow_a_conversation_holds_in_its_later_turns() -> None:
    step = "0/limit/max_conversation_cost_usd"
    question = asked({"max_conversation_cost_usd": 1}, step)
    spending = after(question, decided(step), Completed(turn=1, response=""), UserMessage(turn=2, text="on"))
    assert spending.raised == {("0", "max_conversation_cost_usd"): 1}


def charged(usage: Usage, nusd: int, *, bound: int = 100) -> BudgetUse:
    """After a call of a model that says it used this, reserved with a bound."""
    reserved = LlmReserved(
        turn=1, step="0/llm/0", run=1, tokens=bound, max_output=50, input_bytes=100, nusd=bound
    )
    return after(reserved, LlmCall(turn=1, step="0/llm/0", model="scripted", usage=usage, cost_nusd=nusd))


@pytest.mark.parametrize("usage", [Usage(), Usage(-1000, -1000)])
def test_a_provider_that_does_not_say_what_it_charges_may_have_charged_the_bound(usage: Usage) -> None:
    assert charged(usage, -5).use("0").total == Amount(100, 100, 1)


def test_absurd_numbers_are_counted_without_a_failure() -> None:
    spending = charged(Usage(10**400, 1), 10**400, bound=10**400)
    spend = spend_of(spending, AgentsStarted(), scope_of("0", {"max_cost_usd": 1}), 1, OPENED.time)
    assert spend.spent["max_cost_usd"] > 1


def test_a_pause_ends_also_where_a_late_result_lets_the_turn_go_on() -> None:
    def at(second: int) -> str:
        return f"2026-01-01T00:00:{second:02}.000Z"

    spending = after(
        Paused(turn=1, run=1, time=at(10)),
        ToolResult(turn=1, step="0/tool/0.0", call_id="", tool="t", content="", time=at(20)),
        Paused(turn=1, run=2, time=at(30)),
        msgspec.structs.replace(decided("0/tool/0.1"), time=at(40)),
    )
    assert spending.time_s("0", at(50)) == 30


def test_who_has_waited_long_enough_is_told_the_limit_that_is_short() -> None:
    in_flight = LlmReserved(turn=1, step="0.1/llm/0", run=1, tokens=900, max_output=500)
    scopes = [scope_of("0", {"max_llm_calls": 50, "max_total_tokens": 1500})]
    request = CallRequest(
        step="0.2/llm/0", model="m", input_bytes=600, max_output=4096, scopes=scopes, waits=False
    )
    decision = admitted(after(in_flight), request, 1, OPENED.time)
    assert isinstance(decision, Reached) and decision.limit == "max_total_tokens"


@pytest.mark.parametrize(
    "limits", [{"max_llm_calls": 0}, {"max_cost_usd": 1e-7}, {"max_total_tokens": 0}], ids=str
)
def test_a_limit_that_no_call_fits_is_raised_by_what_one_needs(limits: dict[str, float]) -> None:
    scopes = [scope_of("0", limits)]
    request = CallRequest(
        step="0/llm/0",
        model="m",
        input_bytes=600,
        max_output=4096,
        scopes=scopes,
        on_limit="ask",
        nusd_input=1_000_000_000,
        nusd_output=2_000_000_000,
    )
    spending = after()
    for _ in range(2):  # of calls, the last one is left alone
        reached = admitted(spending, request, 1, OPENED.time)
        if isinstance(reached, Reached):
            question = msgspec.structs.replace(limit_question(reached, request), uuid="u")
            spending = spending.after([question, decided(question.step)])
    assert isinstance(admitted(spending, request, 1, OPENED.time), Granted)


def test_a_model_whose_first_attempt_was_lost_is_told_again_that_most_is_used() -> None:
    scopes = [scope_of("0", {"max_llm_calls": 9})]
    request = CallRequest(step="0/llm/0", model="m", input_bytes=9, max_output=9, scopes=scopes, warn_at=0.0)
    first = admitted(after(), request, 1, OPENED.time)
    assert isinstance(first, Granted) and first.reserved.warned
    again = msgspec.structs.replace(request, attempt=1)
    second = admitted(after(first.reserved), again, 2, OPENED.time)
    assert isinstance(second, Granted) and second.reserved.warned == first.reserved.warned


async def test_an_ordinary_call_leaves_the_last_tenth_of_the_time_alone() -> None:
    model = Paid()
    async with mesh(model, llm("main"), budget={"max_time_s": 10}) as world:
        await world.create("go")
    assert model.asked_with[0].timeout_s <= 9


async def test_a_call_whose_grant_was_lost_on_the_way_is_bounded_by_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Paid()
    async with mesh(model, llm("main"), budget={"max_time_s": 10}) as world:
        reserve = world.reserve

        async def twice(*request: Any) -> ReserveReply:
            await reserve(*request)
            return await reserve(*request)

        monkeypatch.setattr(world, "reserve", twice)
        await world.create("go")
    assert model.asked_with[0].timeout_s <= 9


class Broken(Paid):
    """One of its nodes loses each answer."""

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if request.system.startswith("broken"):
            raise LlmError("the stream broke off")
        async for event in super().stream(request):
            yield event


@pytest.mark.parametrize("kind", ["children", "called agents"])
async def test_nobody_waits_for_the_lost_call_of_a_branch_that_has_failed(kind: str) -> None:
    both = calls(("broken", {"task": "x"}), ("other", {"task": "x"}))
    model = Broken(main=[both, says("done")])
    agents = [llm("broken"), llm("other")]
    if kind == "children":
        tree, called, most = parallel(*agents, on_error="continue"), [], 4600
    else:
        tree, called, most = llm("main", agents=["broken", "other"]), agents, 5300
    budget = {"max_total_tokens": most, "on_limit": "stop"}
    async with mesh(model, tree, *called, budget=budget) as world:
        _, body = await asyncio.wait_for(world.create("go"), 30)
    assert body["conversation"]["turn"]["state"] == "completed"


@pytest.mark.parametrize("kind", ["children", "called agents"])
async def test_nobody_waits_for_the_call_of_a_node_whose_process_died(kind: str) -> None:
    both = calls(("dies", {"task": "x"}), ("other", {"task": "x"}))
    model = Paid(main=[both, says("done")])
    gate = model.gates["dies"] = asyncio.Event()
    agents = [llm("dies"), llm("other")]
    if kind == "children":
        tree, called, most, path = parallel(*agents), [], 4600, "0.0"
    else:
        tree, called, most, path = llm("main", agents=["dies", "other"]), agents, 5300, "dies"
    async with mesh(model, tree, *called, budget={"max_total_tokens": most, "on_limit": "stop"}) as world:
        node = world.tree._built[path].node
        run = node.run

        async def dies_once(turn: PassInput, recorder: Recorder) -> PassOutput:
            if gate.is_set():
                return await run(turn, recorder)
            alive = asyncio.create_task(run(turn, recorder))
            await until(lambda: _is_waiting(model))
            alive.cancel()
            gate.set()
            raise Unavailable("its process is gone")

        node.run = dies_once  # type: ignore[method-assign]
        _, body = await asyncio.wait_for(world.create("go"), 30)
        events = await world.journal.read(body["conversation"]["id"])
    assert body["conversation"]["turn"]["state"] == "completed"
    (lost,) = [e for e in events if isinstance(e, LlmLost)]
    assert lost.step in {e.step for e in events if isinstance(e, LlmReserved)}


async def _is_waiting(model: Paid) -> bool:
    return model.asked["dies"] == 1


async def test_nothing_is_reserved_for_a_node_that_gave_up_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Paid(slow=[calls(("add", {"n": 1})), says("done")])
    gate = model.gates["slow"] = asyncio.Event()
    tree = parallel(llm("slow"), llm("hasty", timeout_s=0.2), on_error="continue")
    async with mesh(model, tree, budget={"max_total_tokens": 4600, "on_limit": "stop"}) as world:
        reserve = world.reserve

        async def by_an_actor(
            *request: Any,
        ) -> ReserveReply:  # it goes on when its caller does not wait any more
            return await asyncio.shield(reserve(*request))

        async def longer() -> None:
            await asyncio.sleep(0.2)

        monkeypatch.setattr(world, "reserve", by_an_actor)
        world.ledger.before_add = longer
        created = asyncio.create_task(world.create("go"))
        await until(lambda: _ended(world, "0.1"))
        gate.set()
        _, body = await created
        events = await world.journal.read(body["conversation"]["id"])
    assert world.ledger.lines == ["add 1"]
    assert {e.node for e in events if isinstance(e, LlmReserved)} == {"0.0"}


async def _ended(world: WorldMesh, node: str) -> bool:
    for id_ in await world.journal.sizes():
        events = await world.journal.read(id_)
        return any(isinstance(e, NodeCompleted) and e.node == node for e in events)
    return False


class Over(Paid):
    """One of its nodes uses more than anybody reserved."""

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        output = 9000 if request.system.startswith("greedy") else 10
        async for event in super().stream(request):
            assert isinstance(event, LlmCall)
            yield msgspec.structs.replace(event, usage=Usage(90, output))


@pytest.mark.parametrize("kind", ["children", "called agents"])
async def test_a_branch_whose_limit_is_raised_goes_on_while_others_run(kind: str) -> None:
    both = calls(("slow", {"task": "x"}), ("greedy", {"task": "x"}))
    model = Over(main=[both, says("done")], greedy=LOOKS[:1])
    gate = model.gates["slow"] = asyncio.Event()
    agents = [llm("slow"), llm("greedy")]
    tree = parallel(*agents) if kind == "children" else llm("main", agents=["slow", "greedy"])
    called = [] if kind == "children" else agents
    budget = {"max_total_tokens": 10_000, "on_limit": "ask"}
    async with mesh(model, tree, *called, budget=budget) as world:
        created = asyncio.create_task(world.create("go"))
        uuid = await until(lambda: _pending(world))
        deciding = asyncio.create_task(world.decide(uuid, "approve", edited={"max_total_tokens": 100_000}))
        await until(lambda: _asked_twice(model))
        gate.set()
        await asyncio.gather(created, deciding)


async def _asked_twice(model: Paid) -> bool:
    return model.asked["greedy"] == 2


async def _pending(world: WorldMesh) -> str:
    for id_ in await world.journal.sizes():
        if pending := fold(await world.journal.read(id_)).pending:
            return pending[0].uuid
    return ""


class Held(Paid):
    """The second call of ``search`` waits until it is let."""

    def __init__(self, **script: Any) -> None:
        super().__init__(**script)
        self.is_let = asyncio.Event()

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if request.system.startswith("search") and self.asked["search"]:
            self.gates["search"] = self.is_let
        async for event in super().stream(request):
            yield event


async def test_a_call_that_waits_for_room_does_not_hold_up_the_agent_whose_end_makes_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "_LISTEN_S", 1000.0)
    spawns = calls(("spawn", {"agents": [{"agent": "search", "task": "x"}]}))
    model = Held(
        main=[
            spawns,
            calls(("wait", {"timeout_s": 0.1})),
            calls(("look", {})),
            calls(("wait", {})),
            says("done"),
        ],
        search=[calls(("look", {}))],
    )
    lead = llm("main", agents=["search"], spawn={})
    search = llm("search", "find {task}", description="Finds.")
    waiting = asyncio.Event()
    async with mesh(model, lead, search, budget={"max_total_tokens": 5600}) as world:
        reserve = world.reserve

        async def watched(activation: Any, events: Any, request: CallRequest) -> ReserveReply:
            if not request.at_once:
                waiting.set()
            return await reserve(activation, events, request)

        monkeypatch.setattr(world, "reserve", watched)
        creating = asyncio.create_task(world.create("go"))
        await asyncio.wait_for(waiting.wait(), 30)
        model.is_let.set()
        _, body = await asyncio.wait_for(creating, 30)
    assert body["result"]["response"] == "done"
