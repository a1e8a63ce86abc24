"""Budgets: what a run may spend, how a limit ends it, and that no crash and no crowd spends more."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from mesh.core.budget import NUSD
from mesh.core.conversation import fold
from mesh.core.errors import LlmError
from mesh.core.events import (
    AnyEvent,
    Completed,
    Event,
    LimitReached,
    LlmCall,
    LlmReserved,
    LlmSettled,
    ToolResult,
    Usage,
)
from mesh.core.messages import Results
from mesh.llm.models import bare_model
from mesh.llm.port import LlmRequest
from mesh.mcp.memory import execution
from tests.worlds.mesh import WorldMesh, calls, says
from tests.worlds.providers import FORMATS, provider
from tests.worlds.trees import ByNode, config, llm, parallel

RUNS = int(os.environ.get("BUDGET_RUNS", "12"))
"""How often the tests with chance run; for once BUDGET_RUNS=200."""
PREFIXES = {"openai": "openai:", "anthropic": "claude-", "gemini": "gemini-"}
PRICES = {"scripted": {"input": 1.0, "output": 2.0}}


class Paid(ByNode):
    """A model that charges for what it reads and writes, and keeps the bill."""

    def __init__(self, *, output: int = 100, **script: Any) -> None:
        super().__init__(**script)
        self.output = output
        self.bill: list[LlmCall] = []
        self.asked_with: list[LlmRequest] = []

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        self.asked_with.append(request)
        async for event in super().stream(request):
            assert isinstance(event, LlmCall)
            usage = Usage(50, min(self.output, request.max_tokens or self.output))
            self.bill.append(msgspec.structs.replace(event, usage=usage))
            yield self.bill[-1]


def mesh(model: Any, tree: dict[str, Any], *agents: dict[str, Any], **more: Any) -> WorldMesh:
    paid = {"model": "scripted", "prices": PRICES}
    return WorldMesh(model, config=config(tree, agents=list(agents), **{"llm": paid, **more}))


def held(events: list[AnyEvent], limits: dict[str, tuple[str, int]]) -> None:
    """The invariant: at every prefix of the journal, every scope stays within its limits."""
    for length in range(len(events) + 1):
        spending = fold(events[:length]).budget_use
        for place, (kind, limit) in limits.items():
            assert getattr(spending.use(place).total, kind) <= limit, (length, place)


LOOKS = [calls(("look", {})) for _ in range(20)]


async def test_without_a_budget_nothing_is_reserved() -> None:
    async with mesh(Paid(), llm("main")) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert not [e for e in events if isinstance(e, LlmReserved)]


async def test_a_call_under_a_budget_is_reserved_before_and_settled_after() -> None:
    async with mesh(Paid(), llm("main"), budget={"max_cost_usd": 1}) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    kinds = [type(event) for event in events]
    assert kinds.index(LlmReserved) < kinds.index(LlmCall)
    reserved = next(e for e in events if isinstance(e, LlmReserved))
    spending = fold(events).budget_use
    assert reserved.nusd >= spending.use("0").spent.nusd == (50 * 1000 + 100 * 2000)
    assert spending.use("0").held.nusd == 0


async def test_of_n_model_calls_the_last_is_an_answer_without_tools() -> None:
    model = Paid(main=[*LOOKS[:2], says("enough")])
    async with mesh(model, llm("main"), budget={"max_llm_calls": 3}) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert len(model.bill) == 3
    assert [request.answer_only for request in model.asked_with] == [False, False, True]
    assert body["result"]["response"] == "enough"
    assert next(e for e in events if isinstance(e, Completed)).forced == "max_llm_calls"
    last = model.asked_with[-1].messages[-1]
    assert isinstance(last, Results) and "last answer" in last.results[-1].content


async def test_the_last_answer_is_given_in_text_also_if_the_model_calls_a_tool() -> None:
    model = Paid(main=LOOKS)
    async with mesh(model, llm("main"), budget={"max_llm_calls": 3}) as world:
        _, body = await world.create("go")
    assert len(model.bill) == 3
    assert world.ledger.lines == ["look", "look"]
    assert body["conversation"]["turn"]["state"] == "completed"


@pytest.mark.parametrize("on_limit", ["stop", "fail"])
async def test_a_limit_may_stop_or_fail_the_turn_instead(on_limit: str) -> None:
    model = Paid(main=LOOKS)
    budget = {"max_llm_calls": 2, "on_limit": on_limit}
    async with mesh(model, llm("main"), budget=budget) as world:
        _, body = await world.create("go")
    assert len(model.bill) == 2
    state, text = body["conversation"]["turn"]["state"], body["conversation"]["messages"][-1]["content"]
    assert "max_llm_calls" in text
    assert state == ("completed" if on_limit == "stop" else "failed")


@pytest.mark.parametrize("on_limit", ["stop", "fail", "ask"])
async def test_the_budget_of_a_node_ends_its_calls_and_not_the_default_of_the_config(on_limit: str) -> None:
    model = Paid(main=LOOKS)
    tree = llm("main", budget={"max_llm_calls": 12})
    async with mesh(model, tree, budget={"on_limit": on_limit}) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert len(model.bill) == (11 if on_limit == "ask" else 12)
    reached = [event.limit for event in events if isinstance(event, LimitReached)]
    assert reached == ([] if on_limit == "ask" else ["max_llm_calls"])
    state = body["conversation"]["status" if on_limit == "ask" else "turn"]
    assert state == "waiting_approval" or state["state"] == ("completed" if on_limit == "stop" else "failed")


@pytest.mark.parametrize("choice", ["approve", "reject"])
async def test_a_person_may_be_asked_for_as_much_again(choice: str) -> None:
    model = Paid(main=[*LOOKS[:3], says("done")])
    budget = {"max_llm_calls": 2, "on_limit": "ask"}
    async with mesh(model, llm("main"), budget=budget) as world:
        _, body = await world.create("go")
        approval = body["conversation"]["pending_approval"]
        assert (approval["kind"], approval["tool_args"]) == ("limit", {"max_llm_calls": 2})
        assert len(model.bill) == 1
        _, body = await world.decide(approval["uuid"], choice)
        if choice == "approve":
            assert len(model.bill) == 3
            assert body["conversation"]["pending_approval"]["uuid"] != approval["uuid"]
            edited = {"max_llm_calls": 10}
            again = body["conversation"]["pending_approval"]["uuid"]
            _, body = await world.decide(again, "approve", edited=edited)
            assert body["result"]["response"] == "done"
        else:
            assert model.asked_with[-1].answer_only
            assert body["conversation"]["turn"]["state"] == "completed"


async def test_what_a_person_allows_instead_has_to_be_an_amount() -> None:
    model = Paid(main=LOOKS)
    async with mesh(model, llm("main"), budget={"max_llm_calls": 2, "on_limit": "ask"}) as world:
        _, body = await world.create("go")
        uuid = body["conversation"]["pending_approval"]["uuid"]
        for edited in (
            {},
            {"max_llm_calls": "5"},
            {"max_llm_calls": -1},
            {"max_cost_usd": 5},
            {"max_llm_calls": True},
        ):
            status, refused = await world.decide(uuid, "approve", edited=edited)
            assert (status, "max_llm_calls" in refused["error"]) == (400, True)


async def test_a_call_is_granted_a_shorter_answer_where_the_whole_does_not_fit() -> None:
    model = Paid(main=says("short"))
    async with mesh(model, llm("main"), budget={"max_total_tokens": 2000}) as world:
        await world.create("go")
    assert 256 <= (model.asked_with[0].max_tokens or 0) < 2000


async def test_the_model_is_told_once_that_most_of_the_budget_is_used() -> None:
    model = Paid(main=LOOKS)
    async with mesh(model, llm("main"), budget={"max_llm_calls": 10}) as world:
        await world.create("go")
    told = [
        sum("Come to an end" in r.content for m in q.messages if isinstance(m, Results) for r in m.results)
        for q in model.asked_with
    ]
    assert told == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]


async def test_a_called_agent_at_its_own_limit_answers_and_its_caller_is_told() -> None:
    model = Paid(
        main=[calls(("search", {"task": "x"})), says("done")], search=[*LOOKS[:2], says("all I have")]
    )
    search = llm("search", budget={"max_llm_calls": 3})
    async with mesh(model, llm("main", agents=["search"]), search) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    result = next(e for e in events if isinstance(e, ToolResult) and e.tool == "search")
    assert result.forced == "max_llm_calls"
    assert result.content.startswith("all I have") and "max_llm_calls" in result.content
    assert body["result"]["response"] == "done"


async def test_at_the_limit_of_the_turn_a_called_agent_returns_what_it_has_and_the_root_answers() -> None:
    model = Paid(main=[calls(("search", {"task": "x"})), says("the answer")], search=LOOKS)
    async with mesh(
        model, llm("main", agents=["search"]), llm("search"), budget={"max_llm_calls": 4}
    ) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert len(model.bill) == 4
    assert body["result"]["response"] == "the answer"
    assert [e.then for e in events if isinstance(e, LimitReached)] == ["stop", "answer"]


async def test_a_provider_that_refuses_costs_nothing_and_one_that_breaks_off_stays_unsettled() -> None:
    class Fails(Paid):
        async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
            name = request.system.partition(":")[0]
            self.asked_with.append(request)
            raise LlmError(name, was_free=name == "free", is_final=name == "free")
            yield

    tree = parallel(
        llm("free", budget={"max_llm_calls": 9}),
        llm("broken", budget={"max_llm_calls": 9}),
        on_error="continue",
    )
    model = Fails()
    async with mesh(model, tree, budget={"max_llm_calls": 20}) as world:
        _, body = await asyncio.wait_for(world.create("go"), 30)
        events = await world.journal.read(body["conversation"]["id"])
    spending = fold(events).budget_use
    assert spending.use("0.0").total.calls == 0
    assert spending.use("0.1").held.calls == 4
    assert len([e for e in events if isinstance(e, LlmSettled)]) == 1


@pytest.mark.parametrize("seed", range(RUNS))
async def test_thirty_two_agents_at_once_never_exceed_a_budget_for_forty_calls(seed: int) -> None:
    chance = random.Random(seed)

    class Slow(Paid):
        async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
            await asyncio.sleep(chance.random() * 0.02)
            async for event in super().stream(request):
                yield event

    agents = [f"a{i}" for i in range(32)]
    script = {name: [calls(("look", {})), says("ok")] for name in agents}
    everybody = calls(*((name, {"task": "x"}) for name in agents))
    model = Slow(main=[everybody, says("done")], **script)
    tree = llm("main", agents=agents)
    async with mesh(
        model,
        tree,
        *(llm(name) for name in agents),
        budget={"max_llm_calls": 40},
        limits={"max_parallel_calls": 32},
    ) as world:
        _, body = await asyncio.wait_for(world.create("go"), 60)
        events = await world.journal.read(body["conversation"]["id"])
    assert len(model.bill) == 40
    held(events, {"0": ("calls", 40)})
    assert body["result"]["response"] == "done"


@pytest.mark.parametrize("seed", range(RUNS))
async def test_whatever_crashes_the_bill_stays_within_the_budget(seed: int) -> None:
    chance = random.Random(seed)
    crash: list[int] = sorted(chance.sample(range(12), 3))

    class Crashing(Paid):
        async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
            async for event in super().stream(request):
                await asyncio.sleep(0)
                if crash and len(self.bill) > crash[0]:
                    crash.pop(0)
                    died.set()
                    await asyncio.sleep(60)
                yield event

    died = asyncio.Event()
    agents = [llm("a"), llm("b")]
    both = calls(("a", {"task": "1"}), ("b", {"task": "2"}))
    looks = [calls(("look", {})), says("ok")]
    model = Crashing(main=[both, both, both, says("done")], a=looks, b=looks)
    limit = 40_000_000
    tree, budget = llm("main", agents=["a", "b"]), {"max_cost_usd": limit / NUSD}
    async with mesh(model, tree, *agents, budget=budget) as world:
        created = asyncio.create_task(world.create("go"))
        while not created.done():
            waiting = asyncio.create_task(died.wait())
            await asyncio.wait({created, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if died.is_set():
                died.clear()
                created.cancel()
                await world.crash()
                created = asyncio.create_task(_ended(world))
        events = await _journal(world)
    bill = sum((call.usage.input * 1000 + call.usage.output * 2000) for call in model.bill)
    spending = fold(events).budget_use
    assert bill <= spending.use("0").total.nusd <= limit
    held(events, {"0": ("nusd", limit)})


async def _journal(world: WorldMesh) -> list[AnyEvent]:
    (id_,) = await world.journal.sizes()
    return list(await world.journal.read(id_))


async def _ended(world: WorldMesh) -> None:
    while True:
        events = await _journal(world)
        if not fold(events).turn_open:
            return
        await asyncio.sleep(0.01)


async def test_a_tool_is_told_what_its_turn_has_spent_and_what_is_left() -> None:
    told: list[Any] = []

    async def look(arguments: dict[str, Any]) -> str:
        told.append(execution.get())
        return "seen"

    model = Paid(main=[calls(("look", {})), says("done")])
    async with mesh(model, llm("main"), budget={"max_llm_calls": 5, "max_cost_usd": 1}) as world:
        world.ledger.offered.offer([(tool, look) for tool, _ in world.ledger.pairs() if tool.name == "look"])
        await world.create("go")
    (context,) = told
    assert (context.spent["max_llm_calls"], context.left["max_llm_calls"]) == (1, 3)
    # The answer that called the tool is not journaled yet: it counts with its bound.
    assert 0.000_25 <= context.spent["max_cost_usd"] <= 1 - context.left["max_cost_usd"]


@pytest.mark.parametrize("wire", FORMATS)
async def test_agents_and_budgets_are_the_same_over_every_providers_wire(wire: str) -> None:
    """The real SDKs, and a server that speaks their formats and keeps the bill."""
    main, search = (f"{prefix}{name}" for name in ("main", "search") for prefix in [PREFIXES[wire]])
    usage = {"input": 100, "output": 10}
    rules = [
        {
            "match": {"model": bare_model(main), "from": "user"},
            "answer": {"tool_calls": [{"name": "search", "arguments": {"task": "cats"}}], "usage": usage},
        },
        {"match": {"model": bare_model(main)}, "answer": {"text": "Found.", "usage": usage}},
        {
            "match": {"model": bare_model(search), "from": "user"},
            "answer": {"tool_calls": [{"name": "look", "arguments": {}}], "usage": usage},
        },
        {"match": {"model": bare_model(search)}, "answer": {"text": "All I have.", "usage": usage}},
    ]
    tree = llm("main", model=main, agents=["search"])
    agent = llm("search", model=search, budget={"max_llm_calls": 2})
    prices = {name: {"input": 1.0, "output": 2.0} for name in (bare_model(main), bare_model(search))}
    async with provider(wire, {"rules": rules}) as (stub, model):
        options = {"llm": {"model": main, "prices": prices}, "budget": {"max_cost_usd": 1.0}}
        async with WorldMesh(model, config=config(tree, agents=[agent], **options)) as world:
            _, body = await world.create("go")
            events = await world.journal.read(body["conversation"]["id"])
    assert (body["result"]["response"], len(stub.calls)) == ("Found.", 4)
    result = next(e for e in events if isinstance(e, ToolResult) and e.tool == "search")
    assert (result.forced, result.content.startswith("All I have.")) == ("max_llm_calls", True)
    use = fold(events).budget_use
    assert (use.use("0").spent.nusd, use.use("0").held.nusd) == (4 * (100 * 1000 + 10 * 2000), 0)
    assert use.use("0.search@0-0").spent.calls == 2
