"""How many agents a turn starts, and how many of them work at the same time: limits and slots, end to end."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from mesh.core.agent_limits import OF_STARTED_AGENT, OF_TURN
from mesh.core.budget import Scope
from mesh.core.errors import Unavailable
from mesh.core.events import AgentStarted, AnyEvent, Event, LlmCall, NodeCompleted, ToolResult
from mesh.core.ids import new_id
from mesh.keeper.requests import Caller, Cancel, Create
from mesh.llm.port import LlmRequest
from mesh.tree.local import LocalTree
from mesh.tree.turn import Activation, PassInput, PassOutput, StartReply
from tests.worlds.mesh import WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, config, llm, parallel, sequential

SEARCH = llm("search", "find {task}")
WAIT = calls(("wait", {}))


class Counting(ByNode):
    """Counts how many model calls of the nodes other than ``main`` are made at the same time."""

    def __init__(self, **script: list[LlmCall] | LlmCall) -> None:
        super().__init__(**script)
        self.now = self.most = 0

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        counts = not request.system.startswith("main")
        self.now += counts
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0.002)
            async for event in super().stream(request):
                yield event
        finally:
            self.now -= counts


class InOrder:
    """An `Llm` for ``main``, which gives these answers one after the other, and for ``search``. ``gate``
    holds the calls of ``search``, which ``asked`` counts, until it is set."""

    def __init__(self, *answers: LlmCall) -> None:
        self._answers = iter(answers)
        self.gate = asyncio.Event()
        self.asked = 0

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if request.system.startswith("main"):
            yield next(self._answers)
            return
        self.asked += 1
        await asyncio.wait_for(self.gate.wait(), 30)
        yield says("found")

    async def close(self) -> None:
        return None


def spawn(count: int = 1, agent: str = "search", **budget: float) -> LlmCall:
    more = {"budget": budget} if budget else {}
    return calls(("spawn", {"agents": [{"agent": agent, "task": str(i), **more} for i in range(count)]}))


def lead(*agents: str, name: str = "main", **more: Any) -> dict[str, Any]:
    return llm(name, agents=list(agents), spawn={}, **more)


def mesh(
    model: Any, *agents: dict[str, Any], at_once: int = 32, tree: dict[str, Any] | None = None, **more: Any
) -> WorldMesh:
    tree = tree or lead(*(agent["name"] for agent in agents))
    limits = {"agents_at_once": at_once}
    return WorldMesh(model, config=config(tree, agents=list(agents), limits=limits, **more))


async def journal(world: WorldMesh, body: Any) -> list[AnyEvent]:
    return list(await world.journal.read(body["conversation"]["id"]))


def of(kind: type[Any], events: Sequence[AnyEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def refusals(events: Sequence[AnyEvent]) -> list[str]:
    return [event.content for event in of(ToolResult, events) if event.is_error]


# -- how many are started


async def test_a_call_over_the_limit_of_the_turn_starts_nothing_and_the_model_is_told() -> None:
    model = ByNode(main=[spawn(2), spawn(2), spawn(1), WAIT, says("done")])
    async with mesh(model, SEARCH, budget={"max_agents": 3}) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert [start.step for start in of(AgentStarted, events)] == [
        "0.search@0-0-0",
        "0.search@0-0-1",
        "0.search@2-0-0",
    ]
    assert refusals(events) == [
        "None of these 2 agents was started: this turn may start 3 (budget.max_agents), with those that "
        "they start, and has started 2. Start 1 at most."
    ]
    assert body["result"]["response"] == "done"


@pytest.mark.parametrize("count", [OF_TURN, OF_TURN + 1])
async def test_a_turn_without_a_budget_has_a_limit(count: int) -> None:
    model = ByNode(main=[spawn(count), WAIT, says("done")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert len(of(AgentStarted, events)) == (count if count <= OF_TURN else 0)
    assert len(refusals(events)) == (count > OF_TURN)


async def test_a_started_agent_has_a_limit_of_its_own_and_its_config_may_raise_it() -> None:
    model = ByNode(
        main=[calls(("spawn", {"agents": [{"agent": name, "task": "x"} for name in ("a", "b")]})), WAIT],
        a=[spawn(OF_STARTED_AGENT + 1), says("a done")],
        b=[spawn(OF_STARTED_AGENT + 1), WAIT, says("b done")],
    )
    agents = [lead("search", name="a"), lead("search", name="b", budget={"max_agents": 20}), SEARCH]
    async with mesh(model, *agents, tree=lead("a", "b")) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    started = [start.step for start in of(AgentStarted, events)]
    assert started[:2] == ["0.a@0-0-0", "0.b@0-0-1"]
    assert len(started) == 2 + OF_STARTED_AGENT + 1
    assert all(step.startswith("0.b@0-0-1.search@0-0-") for step in started[2:])
    (said,) = refusals(events)
    assert "the run at 0.a@0-0-0 may start 8" in said


async def test_agents_far_below_count_in_every_budget_above_them() -> None:
    model = ByNode(
        main=[spawn(1, "a"), WAIT, spawn(1, "a"), says("done")],
        a=[spawn(2, "search"), WAIT, says("a done")],
    )
    agents = [lead("search", name="a"), SEARCH]
    async with mesh(model, *agents, tree=lead("a"), budget={"max_agents": 3}) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert len(of(AgentStarted, events)) == 3 and len(refusals(events)) == 1


async def test_a_request_tightens_the_limit_of_its_turn() -> None:
    model = ByNode(main=[spawn(2), says("alone")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.ask(Create(new_id(), Caller(session_id="s"), "go", budget={"max_agents": 1}))
        events = await journal(world, body)
    assert not of(AgentStarted, events)
    assert "this turn may start 1" in refusals(events)[0]


async def test_the_next_turn_may_start_as_many_again() -> None:
    model = InOrder(*[spawn(1), WAIT, says("done")] * 2)
    model.gate.set()
    async with mesh(model, SEARCH, budget={"max_agents": 1}) as world:
        _, body = await world.create("go")
        _, body = await world.say(body["conversation"]["id"], "again")
        events = await journal(world, body)
    assert len(of(AgentStarted, events)) == 2 and not refusals(events)


async def test_an_agent_that_has_ended_counts_and_so_does_one_that_was_stopped() -> None:
    stop = calls(("stop", {"handle": "search@0-0-0", "reason": "enough"}))
    model = ByNode(main=[spawn(1), stop, spawn(1), says("done")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, budget={"max_agents": 1}) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert len(of(AgentStarted, events)) == 1 and len(refusals(events)) == 1


async def test_a_limit_of_agents_alone_reserves_nothing_for_model_calls() -> None:
    model = ByNode(main=[spawn(1), WAIT, says("done")])
    async with mesh(model, SEARCH, budget={"max_agents": 1}) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert not [event for event in events if type(event).__name__ == "LlmReserved"]


async def test_of_two_calls_at_the_same_time_one_gets_what_is_left_and_the_other_is_refused() -> None:
    both = calls(*(("spawn", {"agents": [{"agent": "search", "task": "x"}] * 2}) for _ in range(2)))
    model = ByNode(main=[both, WAIT, says("done")])
    async with mesh(model, SEARCH, budget={"max_agents": 3}) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert len(of(AgentStarted, events)) == 2 and len(refusals(events)) == 1
    assert body["result"]["response"] == "done"


class LostReply(WorldMesh):
    """A mesh in which the first reply to a start is lost: once it is given again, and once never."""

    def __init__(self, *given: Any, repeats: bool, **more: Any) -> None:
        super().__init__(*given, **more)
        self.repeats = repeats
        self.starts = 0

    async def start(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        self.starts += 1
        reply = await super().start(activation, events, scopes, asker)
        if self.starts > 1:
            return reply
        if not self.repeats:
            raise Unavailable("the reply was lost")
        return await super().start(activation, events, scopes, asker)


@pytest.mark.parametrize("repeats", [True, False])
async def test_a_start_whose_reply_was_lost_counts_once(repeats: bool) -> None:
    model = ByNode(main=[spawn(3), WAIT, says("done")])
    text = config(lead("search"), agents=[SEARCH], budget={"max_agents": 3}, limits={"agents_at_once": 2})
    async with LostReply(model, config=text, repeats=repeats) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert body["result"]["response"] == "done"
    assert len(of(AgentStarted, events)) == len(of(NodeCompleted, events)) == model.asked["search"] == 3
    assert not refusals(events)


# -- the budget of a spawn


async def test_the_budget_of_a_spawn_tightens_that_of_the_agent() -> None:
    model = ByNode(
        main=[spawn(2, "a", max_agents=1), WAIT, says("done")],
        a=[spawn(2), spawn(1), WAIT, says("a done")],
    )
    agents = [lead("search", name="a", budget={"max_agents": 5}), SEARCH]
    async with mesh(model, *agents, tree=lead("a")) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert len(of(AgentStarted, events)) == 4
    assert sorted(said.partition(":")[2].partition("(")[0] for said in refusals(events)) == [
        f" the run at 0.a@0-0-{i} may start 1 " for i in range(2)
    ]


async def test_the_budget_of_a_spawn_bounds_the_model_calls_of_each_agent_of_it() -> None:
    look = calls(("look", {}))
    model = ByNode(main=[spawn(2, max_llm_calls=2), WAIT, says("done")], search=[look, look, look])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    made = [event.step for event in of(LlmCall, events) if "search" in event.step]
    assert sorted(made) == [f"0.search@0-0-{i}/llm/{n}" for i in range(2) for n in range(2)]
    assert [end.forced for end in of(NodeCompleted, events)] == ["max_llm_calls"] * 2


async def test_the_budget_of_a_spawn_holds_after_a_crash() -> None:
    look = calls(("look", {}))
    model = ByNode(main=[spawn(1, max_llm_calls=1), WAIT, says("done")], search=[look, look])
    held = model.gates["search"] = asyncio.Event()
    id = new_id()
    async with mesh(model, SEARCH) as world:
        create = Create(id, Caller(session_id="s", idempotency_key="k"), "go")
        creating = asyncio.create_task(world.ask(create))

        async def is_started() -> bool:
            return bool(of(AgentStarted, list(await world.journal.read(id))))

        await until(is_started)
        await world.crash()
        await asyncio.gather(creating, return_exceptions=True)
        held.set()
        _, body = await world.ask(create)
        events = await journal(world, body)
    assert body["result"]["response"] == "done"
    assert [end.forced for end in of(NodeCompleted, events)] == ["max_llm_calls"]


@pytest.mark.parametrize(
    "budget", [{"max_agents": 0}, {"max_time_s": 1e400}, {"max_agents": 1.5}, {"more": 1}]
)
async def test_a_budget_that_cannot_be_held_is_an_error_for_the_model(budget: dict[str, float]) -> None:
    model = ByNode(main=[spawn(1, **budget), says("done")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert not of(AgentStarted, events) and "Invalid arguments for spawn" in refusals(events)[0]


@pytest.mark.parametrize("is_priced", [True, False])
async def test_a_spawn_may_limit_money_where_all_models_have_prices(is_priced: bool) -> None:
    model = ByNode(main=[says("done")])
    prices = {"prices": {"scripted": {"input": 1, "output": 1}}} if is_priced else {}
    text = config(lead("search"), agents=[SEARCH], llm={"model": "scripted", **prices})
    async with WorldMesh(model, config=text) as world:
        await world.create("go")
    schema = model.tools["main"]["spawn"].input_schema
    keys = schema["properties"]["agents"]["items"]["properties"]["budget"]["properties"]
    assert set(keys) == {"max_total_tokens", "max_llm_calls", "max_time_s", "max_agents"} | (
        {"max_cost_usd"} if is_priced else set()
    )


# -- how many work at the same time


@pytest.mark.parametrize("at_once", [1, 3, 20])
async def test_no_more_agents_work_than_there_are_slots(at_once: int) -> None:
    model = Counting(main=[spawn(20), WAIT, says("done")])
    held = model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, at_once=at_once) as world:
        creating = asyncio.create_task(world.create("go"))

        async def all_slots_are_taken() -> bool:
            return model.asked["search"] == at_once and model.asked["main"] == 2

        await until(all_slots_are_taken)
        held.set()
        _, body = await creating
        events = await journal(world, body)
    assert body["result"]["response"] == "done" and len(of(NodeCompleted, events)) == 20
    assert model.most == at_once


@pytest.mark.parametrize("at_once", [1, 2, 5])
async def test_agents_that_wait_for_agents_leave_their_slots_to_them(at_once: int) -> None:
    model = Counting(
        main=[spawn(4, "a"), WAIT, says("done")],
        a=[spawn(3, "b"), WAIT, says("a done")],
        b=[spawn(2, "search"), WAIT, says("b done")],
    )
    agents = [lead("b", name="a", budget={"max_agents": 9}), lead("search", name="b"), SEARCH]
    async with mesh(model, *agents, tree=lead("a"), at_once=at_once) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert body["result"]["response"] == "done"
    assert len(of(NodeCompleted, events)) == len(of(AgentStarted, events)) == 4 + 4 * 9
    assert model.most <= at_once


async def test_a_map_in_a_started_agent_leaves_its_slot_to_its_items() -> None:
    model = Counting(main=[spawn(2, "a"), WAIT, says("done")], items=says("x\ny\nz"))
    items = llm("items", output_key="items")
    each = {"name": "each", "type": "map", "over": "items", "agents": [llm("one", "{item}")]}
    agents = [sequential(items, each, name="a")]
    async with mesh(model, *agents, tree=lead("a"), at_once=1) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert body["result"]["response"] == "done" and model.most == 1
    ends = {end.step: end.text for end in of(NodeCompleted, events)}
    assert ends["0.a@0-0-0"] == ends["0.a@0-0-1"] == '["one says x", "one says y", "one says z"]'


async def test_items_of_a_map_that_wait_for_a_person_leave_their_slots_to_the_others() -> None:
    model = ByNode(items=says("1\n2\n3"), one=[add(1), says("added")])
    items = llm("items", output_key="items")
    each = {"name": "each", "type": "map", "over": "items", "agents": [llm("one", "{item}")]}
    async with mesh(model, tree=sequential(items, each), at_once=1) as world:
        _, body = await world.create("go")
        assert model.asked["one"] == 3
        for left in (2, 1, 0):
            _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
            assert ("pending_approval" in body["conversation"]) == (left > 0)
    assert body["result"]["response"] == '["added", "added", "added"]'


async def test_a_map_with_more_items_than_may_be_started_fails_in_words() -> None:
    model = ByNode(items=says("x\ny\nz"))
    items = llm("items", output_key="items")
    each = {
        "name": "each",
        "type": "map",
        "over": "items",
        "agents": [llm("one", "{item}")],
        "budget": {"max_agents": 2},
    }
    async with mesh(model, tree=sequential(items, each)) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert "None of these 3 agents was started: the run at 0.1 may start 2" in events[-1].message
    assert not of(AgentStarted, events)


async def test_a_report_of_agents_that_nobody_waited_for_leaves_its_slot_to_them() -> None:
    model = Counting(main=[spawn(2, "a"), says("early")], a=[spawn(2), says("too early"), says("a done")])
    agents = [lead("search", name="a"), SEARCH]
    async with mesh(model, *agents, tree=lead("a"), at_once=1) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert len(of(NodeCompleted, events)) == 6 and model.most == 1


async def test_an_agent_that_waits_for_a_person_leaves_its_slot_to_others() -> None:
    model = ByNode(main=[spawn(1, "adder"), spawn(2), WAIT, says("done")], adder=[add(1), says("added")])
    async with mesh(model, llm("adder"), SEARCH, at_once=1) as world:
        _, body = await world.create("go")
        assert body["conversation"]["status"] == "waiting_approval" and model.asked["search"] == 2
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
    assert body["result"]["response"] == "done" and world.ledger.lines == ["add 1"]


async def test_an_agent_whose_own_call_waits_for_a_person_leaves_its_slot_to_its_agents() -> None:
    model = ByNode(
        main=[spawn(1, "a"), WAIT, says("done")],
        a=[spawn(2), add(1), WAIT, says("a done")],
    )
    agents = [lead("search", name="a"), SEARCH]
    async with mesh(model, *agents, tree=lead("a"), at_once=1) as world:
        _, body = await world.create("go")
        assert body["conversation"]["status"] == "waiting_approval" and model.asked["search"] == 2
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
    assert body["result"]["response"] == "done"


def _one(agent: str) -> LlmCall:
    return calls(("spawn", {"agents": [{"agent": agent, "task": "x"}]}))


_BRANCHES = {
    "parallel": parallel(
        llm("left", agents=["search"], spawn={}),
        llm("right", agents=["mid"], spawn={}),
        name="team",
        description="A team.",
    ),
    "called": llm("team", agents=["left", "right"]),
}


@pytest.mark.parametrize("of_branches", _BRANCHES)
async def test_branches_that_share_a_slot_leave_it_to_what_the_others_wait_for(of_branches: str) -> None:
    model = ByNode(
        main=[_one("team"), WAIT, says("done")],
        team=[calls(("left", {"task": "x"}), ("right", {"task": "x"})), says("team")],
        left=[_one("search"), WAIT, says("left")],
        right=[_one("mid"), WAIT, says("right")],
        mid=[_one("leaf"), WAIT, says("mid")],
    )
    model.gates |= {"search": asyncio.Event(), "mid": asyncio.Event()}
    branches = [llm("left", agents=["search"], spawn={}), llm("right", agents=["mid"], spawn={})]
    agents = [SEARCH, lead("leaf", name="mid"), llm("leaf"), *(branches if of_branches == "called" else [])]
    tree = lead("team")
    async with mesh(model, _BRANCHES[of_branches], *agents, at_once=1, tree=tree) as world:
        id = new_id()
        asking = asyncio.create_task(world.ask(Create(id, Caller(session_id="s"), "go")))

        async def queued(name: str) -> bool:
            slots = (await world.keeper._shard.get(id)).slots if model.asked["main"] else None
            return slots is not None and any(place.endswith(f"{name}@0-0-0") for place in slots.waiting)

        # The left one takes the slot of the team again before the agent of an agent of the right one is
        # queued, and ends in it.
        await until(lambda: queued("mid"))
        model.gates["search"].set()
        await until(lambda: queued("team"))
        model.gates["mid"].set()
        _, body = await asking
    assert body["result"]["response"] == "done"


async def test_an_agent_that_is_stopped_in_the_queue_starts_no_more_and_the_next_one_does() -> None:
    stop = calls(("stop", {"handle": "search@0-0-1", "reason": "enough"}))
    wait_now = calls(("wait", {"timeout_s": 0}))
    model = ByNode(main=[spawn(3), wait_now, stop, wait_now, WAIT, says("done")])
    held = model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, at_once=1) as world:
        creating = asyncio.create_task(world.create("go"))

        async def waits_for_the_rest() -> bool:
            return model.asked["main"] == 5

        await until(waits_for_the_rest)
        held.set()
        _, body = await creating
        events = await journal(world, body)
    waited = [json.loads(each.content)["agents"] for each in of(ToolResult, events) if each.tool == "wait"]
    assert [entry["status"] for entry in waited[0]] == ["running", "queued", "queued"]
    assert [entry["status"] for entry in waited[1]] == ["running", "queued"]
    assert [entry["status"] for entry in waited[2]] == ["completed", "completed"]
    assert model.asked["search"] == 2


async def test_agents_of_branches_share_the_slots_of_the_turn() -> None:
    model = Counting(one=[spawn(6), WAIT, says("one done")], two=[spawn(6), WAIT, says("two done")])
    tree = parallel(lead("search", name="one"), lead("search", name="two"))
    async with mesh(model, SEARCH, tree=tree, at_once=2) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert len(of(NodeCompleted, events)) == 14
    assert model.most <= 4  # one and two themselves need no slot


async def test_after_a_crash_the_agents_that_were_queued_go_on() -> None:
    model = ByNode(main=[spawn(5), WAIT, says("done")])
    held = model.gates["search"] = asyncio.Event()
    id = new_id()
    async with mesh(model, SEARCH, at_once=2) as world:
        create = Create(id, Caller(session_id="s", idempotency_key="k"), "go")
        creating = asyncio.create_task(world.ask(create))

        async def two_work() -> bool:
            return model.asked["search"] == 2

        await until(two_work)
        await world.crash()
        await asyncio.gather(creating, return_exceptions=True)
        held.set()
        _, body = await world.ask(create)
        events = await journal(world, body)
    assert body["result"]["response"] == "done" and len(of(NodeCompleted, events)) == 5


async def test_a_turn_that_is_cancelled_leaves_no_slot_behind() -> None:
    model = InOrder(spawn(5), WAIT, spawn(5), WAIT, says("done"))
    async with mesh(model, SEARCH, at_once=2) as world:
        _, body = await world.create()
        id = body["conversation"]["id"]
        saying = asyncio.create_task(world.say(id, "go"))

        async def two_work() -> bool:
            return model.asked == 2

        await until(two_work)
        await world.ask(Cancel(id))
        await saying
        model.gate.set()
        _, body = await asyncio.wait_for(world.say(id, "go"), 30)
    assert body["result"]["response"] == "done"


@pytest.mark.parametrize("at_once, most", [(60, 0), (20, 2 * 40)])
async def test_only_agents_that_have_to_wait_cost_calls_for_slots_and_none_is_asked_again(
    at_once: int, most: int
) -> None:
    model = Counting(main=[spawn(60), WAIT, says("done")])

    class Counted(WorldMesh):
        asked = 0

        async def slots(self, *given: Any) -> Any:
            self.asked += 1
            return await super().slots(*given)

    text = config(lead("search"), agents=[SEARCH], limits={"agents_at_once": at_once})
    async with Counted(model, config=text) as world:
        _, body = await world.create("go")
    assert body["result"]["response"] == "done" and model.asked["search"] == 60
    assert world.asked <= most


class Dying(LocalTree):
    """A tree in which the process of the node at ``place`` is gone when ``gone`` is set. ``is_killed`` False:
    what ran in it goes on, and is only lost to everybody else."""

    def __init__(self, *given: Any, place: str, is_killed: bool) -> None:
        super().__init__(*given)
        self.place = place
        self.is_killed = is_killed
        self.gone = asyncio.Event()
        self.left_over: list[asyncio.Task[PassOutput]] = []

    async def run(self, turn: PassInput) -> PassOutput:
        if turn.at != self.place or self.left_over:
            return await super().run(turn)
        running = asyncio.create_task(super().run(turn))
        self.left_over.append(running)
        await self.gone.wait()
        if self.is_killed:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        raise Unavailable("the actor is gone", retry_after_s=0)


@pytest.mark.parametrize("place", ["0.a@0-0-0", "0.a@0-0-0.b@0-0-1", "0.a@0-0-0.b@0-0-1.search@0-0-0"])
@pytest.mark.parametrize("at_once", [1, 2, 32])
@pytest.mark.parametrize("is_killed", [True, False])
async def test_what_a_lost_process_held_is_free_for_others(place: str, at_once: int, is_killed: bool) -> None:
    model = Counting(
        main=[spawn(2, "a"), WAIT, says("done")],
        a=[spawn(2, "b"), WAIT, says("a done")],
        b=[spawn(1), WAIT, says("b done")],
    )
    model.gates["search"] = asyncio.Event()
    agents = [lead("b", name="a"), lead("search", name="b"), SEARCH]
    async with mesh(model, *agents, tree=lead("a"), at_once=at_once) as world:
        given = (world.config, [world.ledger.session()], lambda _: model, world)
        world.tree = tree = Dying(*given, place=place, is_killed=is_killed)
        creating = asyncio.create_task(world.create("go"))
        if at_once == 1 and place != "0.a@0-0-0":
            model.gates["search"].set()

        async def runs() -> bool:
            return bool(tree.left_over) and (model.asked["search"] > 0 or place != "0.a@0-0-0")

        await until(runs)
        tree.gone.set()
        model.gates["search"].set()
        _, body = await asyncio.wait_for(creating, 30)
        events = await journal(world, body)
        for task in tree.left_over:
            task.cancel()
        await asyncio.gather(*tree.left_over, return_exceptions=True)
    assert body["result"]["response"] == "done"
    ends = {end.step: end.status for end in of(NodeCompleted, events)}
    assert len(ends) == 2 + 4 + 4 and set(ends.values()) == {"completed"}
    assert model.most <= at_once or not is_killed
