"""People step in at the worst moment: while something is reserved, claimed, checked or on its way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from mesh.core.errors import Unavailable
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    Event,
    LimitReached,
    LlmCall,
    LlmLost,
    LlmReserved,
    LlmSettled,
    NodeCompleted,
    ToolResult,
    Usage,
    Validation,
)
from mesh.keeper.requests import Cancel, Complete
from mesh.llm.port import LlmRequest
from mesh.tree import nodes_below
from mesh.tree.turn import Activation, PassInput, PassOutput
from tests.tree.test_interventions import SEARCH, WAIT, Watched, asked, held, lead, mesh, spawn
from tests.tree.test_validation import CheckedMesh
from tests.worlds.mesh import Caller, Create, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, llm, sequential, tool

LOOK = calls(("look", {}))
SEARCH_AND_OTHER = calls(
    ("spawn", {"agents": [{"agent": name, "task": name} for name in ("search", "other")]})
)
OTHER = llm("other", description="Does other things.")


def of_ten_tokens(answer: LlmCall) -> LlmCall:
    return msgspec.structs.replace(answer, usage=Usage(10, 10))


async def settled(run: Watched) -> str:
    """The state of the turn once it does not work any more."""

    async def state() -> Any:
        state = (await run.world.show(run.id))["turn"]["state"]
        return state if state != "working" else None

    return str(await until(state))


def slow_appends(world: WorldMesh, action: str, before: asyncio.Event, seconds: float) -> None:
    """The append of an intervention sets an event, and takes a while after that."""
    append = world.append

    async def slowly(activation: Activation, events: Sequence[AnyEvent]) -> Any:
        if any(isinstance(event, AgentTold) and event.action == action for event in events):
            before.set()
            await asyncio.sleep(seconds)
        return await append(activation, events)

    world.append = slowly  # type: ignore[method-assign]


class Deaf:
    """A node that takes no news for a while."""

    def __init__(self, world: WorldMesh, name: str) -> None:
        self._node = world.tree._nodes[name]
        self._hear = self._node.hear
        self._node.hear = self._hears_nothing  # type: ignore[method-assign]

    async def _hears_nothing(self, *_: Any) -> Any:
        await asyncio.wait_for(asyncio.Event().wait(), 30)

    def hears_again(self) -> None:
        self._node.hear = self._hear  # type: ignore[method-assign]


# -- budgets


async def test_a_call_that_is_broken_off_makes_no_other_one_wait_for_it() -> None:
    """There is room for one call at a time, and for what the first one may have cost."""
    model = ByNode(main=[of_ten_tokens(says("done"))])
    model.gates["main"] = asyncio.Event()
    tree = llm("main", budget={"max_total_tokens": 2_400})
    async with mesh(model, tree=tree, llm={"model": "scripted", "max_tokens": 600}) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.step_in(run.id, "comment", "in French", now=True))[0] == 200
        await asked(model, "main", 2)
        model.gates["main"].set()
        assert await run.answer() == "done"
        assert [event.attempt for event in await run.events(LlmLost)] == [0]


async def two_searches(world: WorldMesh, model: ByNode) -> Watched:
    """Of two agents, one is asked, and the other one waits for room in the budget."""
    run = Watched(world)
    await run.begin()
    await asked(model, "search")

    async def both_started() -> bool:
        return len(await run.events(AgentStarted)) == 2

    await until(both_started)
    return run


def with_room_for_one() -> tuple[ByNode, dict[str, Any]]:
    script = {"main": [spawn("cats", "dogs"), WAIT, says("done")], "search": [says("a")]}
    model = ByNode(**{name: [*map(of_ten_tokens, answers)] for name, answers in script.items()})
    model.gates["search"] = asyncio.Event()
    more = {
        "tree": lead("search", budget={"max_total_tokens": 2_200}),
        "llm": {"model": "scripted", "max_tokens": 1_500},
    }
    return model, more


async def test_who_is_paused_while_it_waits_for_its_budget_asks_no_model() -> None:
    model, more = with_room_for_one()
    async with mesh(model, SEARCH, **more) as world:
        run = await two_searches(world, model)
        for place in ("0.search@0-0-0", "0.search@0-0-1"):
            assert (await run.step_in(await run.agent_at(place), "pause"))[0] == 200
        model.gates["search"].set()
        await held(run)
        assert model.asked["search"] == 1
        for place in ("0.search@0-0-0", "0.search@0-0-1"):
            assert (await run.step_in(await run.agent_at(place), "resume"))[0] == 200
        assert await run.answer() == "done"


async def test_what_was_reserved_for_a_prompt_that_is_out_of_date_is_given_back() -> None:
    model, more = with_room_for_one()
    async with mesh(model, SEARCH, **more) as world:
        run = await two_searches(world, model)
        places = {"0.search@0-0-0", "0.search@0-0-1"}
        (waiting,) = places - {event.node for event in await run.events(LlmReserved)}
        assert (await run.step_in(await run.agent_at(waiting), "comment", "go", now=True))[0] == 200
        model.gates["search"].set()
        assert await run.answer() == "done"
        assert [event.node for event in await run.events(LlmSettled)] == [waiting]
        heard = [event.node for event in await run.events(LlmCall) if event.heard]
    assert heard == [waiting]


async def test_a_model_without_a_price_is_none_for_an_agent_under_a_limit_of_money() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    search = llm("search", "find", description="Finds.", budget={"max_cost_usd": 1})
    free = llm("free", model="gpt-9", description="Is free.")
    priced = {"model": "scripted", "prices": {"scripted": {"input": 1, "output": 1}}}
    async with mesh(model, search, free, tree=lead("search"), llm=priced) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        status, body = await run.modify(await run.agent_at("0.search@0-0-0"), model="gpt-9")
        assert (status, "what the model gpt-9 costs" in body["error"]) == (409, True)
        model.gates["search"].set()
        assert await run.answer() == "done"
        assert await run.events(LimitReached) == []


# -- what must not begin


async def test_a_claim_that_is_prepared_while_its_agent_is_paused_is_not_made() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[add(1), says("a")])
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        toolbox = world.tree._built["search"].toolbox
        assert toolbox is not None
        identity, begun, goes_on = toolbox.identity, asyncio.Event(), asyncio.Event()

        async def slowly(tool: Any) -> Any:
            begun.set()
            await asyncio.wait_for(goes_on.wait(), 30)
            return await identity(tool)

        toolbox.identity = slowly  # type: ignore[method-assign]
        deciding = asyncio.create_task(world.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(begun.wait(), 30)
        agent = await run.agent_at("0.search@0-0-0")
        assert (await run.step_in(agent, "pause"))[0] == 200
        goes_on.set()
        await held(run)
        assert world.ledger.lines == []
        await deciding
        await run.step_in(agent, "resume")
        assert await run.answer() == "done"
    assert world.ledger.lines == ["add 1"]


async def test_agents_that_a_person_agrees_to_start_when_who_starts_them_goes_on() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    async with mesh(model, SEARCH, tree=lead("search", spawn={"review": "ask"})) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        assert (await run.step_in(run.id, "pause"))[0] == 200
        await world.decide(body["result"]["approval"]["uuid"], "approve")
        await held(run)
        assert await run.events(AgentStarted) == []
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"


async def test_a_rejection_ends_a_paused_turn_when_it_goes_on() -> None:
    model = ByNode(main=[add(1), says("done")])
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        assert (await run.step_in(run.id, "pause"))[0] == 200
        _, body = await world.decide(body["result"]["approval"]["uuid"], "reject")
        assert body["conversation"]["turn"]["state"] == "paused"
        await run.step_in(run.id, "resume")
        assert "cancelled" in await run.answer()


async def test_an_answer_is_not_checked_while_its_agent_is_paused() -> None:
    async def polite(arguments: Any) -> str:
        return "true"

    model = ByNode(main=[says("please")])
    model.gates["main"] = asyncio.Event()
    tree = llm("main", validate=[{"check": "polite"}])
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.step_in(run.id, "pause"))[0] == 200
        model.gates["main"].set()
        await held(run)
        assert await run.events(Validation) == []
        await run.step_in(run.id, "resume")
        assert await run.answer() == "please"


async def test_a_result_that_is_checked_while_its_agent_is_paused_does_not_end_the_turn() -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def polite(arguments: Any) -> str:
        begun.set()
        await asyncio.wait_for(goes_on.wait(), 30)
        return "true"

    model = ByNode(main=[calls(("return_to_user", {"result": "this"}))])
    tree = llm("main", validate=[{"check": "polite"}], can_return_to_user=True)
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        run = Watched(world)
        await run.begin()
        await asyncio.wait_for(begun.wait(), 30)
        assert (await run.step_in(run.id, "pause"))[0] == 200
        goes_on.set()
        assert await settled(run) == "paused"
        await run.step_in(run.id, "resume")
        assert await run.answer() == "this"


class HeldAtItsEnd(ByNode):
    """The last answer of ``main`` waits."""

    def __init__(self, **script: list[LlmCall]) -> None:
        super().__init__(**script)
        self.goes_on = asyncio.Event()

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if request.system.startswith("main") and self.asked["main"]:
            await asyncio.wait_for(self.goes_on.wait(), 30)
        async for event in super().stream(request):
            yield event


async def test_a_lead_that_is_paused_with_its_last_answer_keeps_its_agents() -> None:
    model = HeldAtItsEnd(main=[spawn("cats"), says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, tree=lead("search", spawn={"unwaited": "delete"})) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.step_in(run.id, "pause"))[0] == 200
        model.goes_on.set()
        model.gates["search"].set()
        await held(run)
        assert [e for e in await run.events(NodeCompleted) if e.status == "deleted"] == []
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"


async def test_tools_of_a_pipeline_that_was_paused_in_the_queue_do_not_run() -> None:
    looker = sequential(tool("t1", "look"), tool("t2", "look"), name="looker", description="Looks.")
    both = calls(("spawn", {"agents": [{"agent": name, "task": name} for name in ("search", "looker")]}))
    model = ByNode(main=[both, WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, looker, limits={"agents_at_once": 1}) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.looker@0-0-1")
        assert (await run.step_in(agent, "pause"))[0] == 200
        model.gates["search"].set()
        await held(run)
        assert world.ledger.lines == []
        await run.step_in(agent, "resume")
        assert await run.answer() == "done"
    assert world.ledger.lines == ["look", "look"]


async def test_a_paused_conversation_is_not_completed() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        await run.step_in(run.id, "pause")
        model.gates["main"].set()
        await held(run)
        status, body = await world.ask(Complete(run.id))
        assert (status, "a person has paused" in body["error"]) == (409, True)
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"


# -- on its way


async def test_what_an_agent_brings_just_after_its_delete_is_not_recorded() -> None:
    """It could be journaled between the delete and the end of the agent, if these were two appends."""
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[LOOK, LOOK, says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search", 2)
        cats, append = await run.agent_at("0.search@0-0-0"), world.append

        async def and_wait(activation: Activation, events: Sequence[AnyEvent]) -> Any:
            ack = await append(activation, events)
            if any(isinstance(event, AgentTold) for event in events):
                model.gates["search"].set()
                await asyncio.sleep(0.3)  # longer than the agent takes to answer and to send that
            return ack

        world.append = and_wait  # type: ignore[method-assign]
        assert (await run.step_in(cats, "delete", "no"))[0] == 200
        assert await run.answer() == "done"
        assert not [e for e in await run.events(LlmCall) if e.node == "0.search@0-0-0"]


async def test_who_waited_for_an_agent_that_is_deleted_as_the_pass_ends_goes_on() -> None:
    any_of_them = calls(("wait", {"until": "any"}))
    model = ByNode(main=[spawn("cats", "dogs"), any_of_them, says("done")], search=[LOOK, says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, tree=lead("search", spawn={"unwaited": "delete"})) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search", 2)
        cats, dogs = await run.agent_at("0.search@0-0-0"), await run.agent_at("0.search@0-0-1")
        for each in (cats, dogs):
            assert (await run.step_in(each, "pause"))[0] == 200
        slow_appends(world, "delete", model.gates["search"], 0.1)
        assert (await run.step_in(cats, "delete", "no"))[0] == 200
        assert await run.answer() == "done"


@pytest.mark.parametrize("reply_s", [0, 0.02])
async def test_who_is_resumed_just_as_it_pauses_goes_on_while_others_work(reply_s: float) -> None:
    team = llm("team", agents=["search"], description="Is a team.")
    both = calls(("spawn", {"agents": [{"agent": name, "task": name} for name in ("team", "other")]}))
    model = ByNode(
        main=[both, WAIT, says("done")],
        team=[calls(("search", {"task": "cats"})), says("t")],
        search=[LOOK, says("a")],
    )
    model.gates["search"], model.gates["other"] = asyncio.Event(), asyncio.Event()
    async with mesh(model, SEARCH, team, OTHER, tree=lead("team", "other")) as world:
        node = world.tree._nodes["team"]
        returns = node.run

        async def late(turn: PassInput) -> PassOutput:
            output = await returns(turn)
            await asyncio.sleep(reply_s)
            return output

        node.run = late  # type: ignore[method-assign]
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        await asked(model, "other")
        cats = await run.agent_at("0.team@0-0-0.search@0-0")
        assert (await run.step_in(cats, "pause"))[0] == 200
        slow_appends(world, "resume", model.gates["search"], 0.05)
        assert (await run.step_in(cats, "resume"))[0] == 200

        async def looked() -> bool:
            return world.ledger.lines == ["look"]

        await until(looked)
        model.gates["other"].set()
        assert await run.answer() == "done"


@pytest.mark.parametrize("action", ["pause", "comment"])
async def test_what_did_not_arrive_is_handed_down_again_when_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, action: Any
) -> None:
    monkeypatch.setattr(nodes_below, "HEAR_WITHIN_S", 0.3)
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[LOOK, says("a")])
    model.gates["search"] = asyncio.Event()
    key = {"idempotency_key": "k1", "body_hash": "h1"}
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        deaf = Deaf(world, "search")
        assert (await run.step_in(agent, action, "only tabbies", **key))[0] == 503
        deaf.hears_again()
        assert (await run.step_in(agent, action, "only tabbies", **key))[0] == 200
        model.gates["search"].set()
        if action == "pause":
            await held(run)
            assert world.ledger.lines == []
            await run.step_in(agent, "resume")
        assert await run.answer() == "done"
        heard = [e.heard for e in await run.events(LlmCall) if e.heard]
    assert len(heard) == (action == "comment")


async def test_one_agent_that_takes_no_news_keeps_nobody_else_from_going_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes_below, "HEAR_WITHIN_S", 0.3)
    model = ByNode(main=[SEARCH_AND_OTHER, WAIT, says("done")], search=[LOOK, says("a")])
    model.gates["search"], model.gates["other"] = asyncio.Event(), asyncio.Event()
    async with mesh(model, SEARCH, OTHER) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        await asked(model, "other")
        assert (await run.step_in(run.id, "pause"))[0] == 200
        model.gates["search"].set()

        async def answered() -> bool:
            return any(e.step == "0.search@0-0-0/llm/0" for e in await run.events(LlmCall))

        await until(answered)
        deaf = Deaf(world, "other")
        await run.step_in(run.id, "resume")
        deaf.hears_again()

        async def looked() -> bool:
            return world.ledger.lines == ["look"]

        await until(looked)
        model.gates["other"].set()
        assert await run.answer() == "done"


async def test_interventions_with_one_agent_act_in_the_order_in_which_they_are_journaled() -> None:
    model = ByNode(main=[LOOK, says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        hear = world.hear

        async def slowly(digest: str, activation: Activation, news: AgentTold, is_durable: bool) -> Any:
            if news.action == "resume":
                await asyncio.sleep(0.1)
            return await hear(digest, activation, news, is_durable)

        world.hear = slowly  # type: ignore[method-assign]
        await run.step_in(run.id, "pause")
        resuming = asyncio.create_task(run.step_in(run.id, "resume"))
        await asyncio.sleep(0.02)
        assert (await run.step_in(run.id, "pause"))[0] == 200
        await resuming
        model.gates["main"].set()
        assert (await settled(run), world.ledger.lines) == ("paused", [])
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"


# -- time


async def test_the_timeout_of_a_paused_agent_does_not_run() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, tree=lead("search", timeout_s=0.6)) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.step_in(run.id, "pause"))[0] == 200
        await asyncio.sleep(0.8)
        model.gates["search"].set()
        await held(run)
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"


async def test_a_wait_of_a_paused_agent_does_not_time_out() -> None:
    briefly = calls(("wait", {"timeout_s": 0.5}))
    model = ByNode(main=[spawn("cats"), briefly, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.step_in(run.id, "pause"))[0] == 200
        await asyncio.sleep(0.7)
        model.gates["search"].set()
        await held(run)
        assert [e for e in await run.events(ToolResult) if e.tool == "wait"] == []
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"
        (waited,) = [e for e in await run.events(ToolResult) if e.tool == "wait"]
    assert "timed_out" not in waited.content


async def test_a_timeout_that_is_over_and_waits_for_a_tool_cannot_be_changed_any_more() -> None:
    runs, goes_on = asyncio.Event(), asyncio.Event()
    search = llm("search", "find", description="Finds.", timeout_s=0.5)
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[add(1), says("a")])
    async with mesh(model, search) as world:

        async def waits() -> None:
            runs.set()
            await asyncio.wait_for(goes_on.wait(), 30)

        world.ledger.before_add = waits
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        deciding = asyncio.create_task(world.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(runs.wait(), 30)
        await asyncio.sleep(0.7)
        status, _ = await run.modify(await run.agent_at("0.search@0-0-0"), timeout_s=60.0)
        assert status in (200, 409)
        goes_on.set()
        await deciding
        assert await run.answer() == "done"


async def test_a_longer_timeout_holds_for_the_pass_that_runs() -> None:
    model = ByNode(first=[says("one")])
    model.gates["first"] = asyncio.Event()
    async with mesh(model, tree=sequential(llm("first"), timeout_s=0.6)) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "first")
        assert (await run.modify(run.id, timeout_s=30.0))[0] == 200
        await asyncio.sleep(0.8)
        model.gates["first"].set()
        assert await run.answer() == "one"


async def test_a_pause_arrives_once_its_agent_has_begun_even_if_nobody_waits_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes_below, "HEAR_WITHIN_S", 0.3)
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[LOOK, says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        node = world.tree._nodes["search"]
        ready, begins, inside = node.ready, asyncio.Event(), asyncio.Event()

        async def slowly() -> None:
            inside.set()
            await asyncio.wait_for(begins.wait(), 30)
            await ready()

        node.ready = slowly  # type: ignore[method-assign]
        run = Watched(world)
        await run.begin()
        await asyncio.wait_for(inside.wait(), 30)
        assert (await run.step_in(run.id, "pause"))[0] == 503
        begins.set()
        await asked(model, "search")
        model.gates["search"].set()
        await held(run)
        assert world.ledger.lines == []
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"


async def test_a_pause_that_is_asked_for_again_after_a_resume_pauses_nobody() -> None:
    model = ByNode(
        main=[SEARCH_AND_OTHER, WAIT, says("done")],
        search=[LOOK, says("a")],
        other=[add(1), says("b")],
    )
    model.gates["search"] = asyncio.Event()
    key = {"idempotency_key": "k1", "body_hash": "h1"}
    async with mesh(model, SEARCH, OTHER) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        assert (await run.step_in(agent, "pause", **key))[0] == 200
        model.gates["search"].set()
        await held(run, "waiting_approval")
        model.gates["search"].clear()
        assert (await run.step_in(agent, "resume"))[0] == 200
        await asked(model, "search", 2)
        assert (await run.step_in(agent, "pause", **key))[0] == 200
        model.gates["search"].set()

        async def completed() -> bool:
            return bool((await run.agents(ended=True))["0.search@0-0-0"]["status"] == "completed")

        await until(completed)


async def test_what_acts_now_acts_once_however_often_it_is_asked_for() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    key = {"idempotency_key": "k1", "body_hash": "h1"}
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.step_in(run.id, "comment", "x", now=True, **key))[0] == 200
        await asked(model, "main", 2)
        assert (await run.step_in(run.id, "comment", "x", now=True, **key))[0] == 200
        model.gates["main"].set()
        assert await run.answer() == "done"
    assert model.asked["main"] == 2


# -- deleting


async def test_an_item_that_is_deleted_in_the_queue_keeps_nobody_waiting() -> None:
    each = {"name": "each", "type": "map", "over": "items", "agents": [llm("item", "{item}")]}
    model = ByNode(plan=[says('["a", "b", "c"]')])
    model.gates["item"] = asyncio.Event()
    tree = sequential(llm("plan", output_key="items"), each)
    async with mesh(model, tree=tree, limits={"agents_at_once": 1}) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "item")
        assert (await run.step_in(await run.agent_at("0.1.0#2"), "delete", "no"))[0] == 200
        model.gates["item"].set()
        assert await run.answer() == '["item says a", null, "item says c"]'


async def test_a_delete_whose_reply_was_lost_holds_when_it_is_asked_for_again() -> None:
    model = ByNode(main=[calls(("search", {"task": "cats"})), says("done")], search=[LOOK, says("a")])
    model.gates["search"] = asyncio.Event()
    key = {"idempotency_key": "k1", "body_hash": "h1"}
    async with mesh(model, SEARCH, tree=llm("main", agents=["search"])) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0")
        append, lost = world.append, list[str]()

        async def loses_one(activation: Activation, events: Sequence[AnyEvent]) -> Any:
            ack = await append(activation, events)
            if not lost and any(isinstance(e, AgentTold) for e in events):
                lost.append("reply")
                raise Unavailable("the reply was lost")
            return ack

        world.append = loses_one  # type: ignore[method-assign]
        await run.step_in(agent, "delete", "no", **key)
        status, body = await run.step_in(agent, "delete", "no", **key)
        assert (status, body["agent"]["status"], lost) == (200, "deleted", ["reply"])
        model.gates["search"].set()
        assert await run.answer() == "done"
        (result,) = await run.events(ToolResult)
    assert (world.ledger.lines, result.content) == ([], "Deleted by ann: no")


async def test_an_answer_that_comes_while_its_agent_is_being_deleted_is_none() -> None:
    model = ByNode(main=[calls(("search", {"task": "cats"})), says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, tree=llm("main", agents=["search"])) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0")
        slow_appends(world, "delete", model.gates["search"], 0.1)
        status, body = await run.step_in(agent, "delete", "no")
        assert (status, body["agent"]["status"]) == (200, "deleted")
        assert await run.answer() == "done"
        (result,) = await run.events(ToolResult)
    assert (result.content, result.is_error) == ("Deleted by ann: no", True)


async def while_add_runs(model: ByNode, tree: dict[str, Any], *agents: dict[str, Any]) -> Any:
    """Yields the run, what lets the tool end, and the decision, once the tool runs."""
    async with mesh(model, *agents, tree=tree) as world:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def waits() -> None:
            begun.set()
            await asyncio.wait_for(goes_on.wait(), 30)

        world.ledger.before_add = waits
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        deciding = asyncio.create_task(world.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(begun.wait(), 30)
        yield run, goes_on
        goes_on.set()
        await deciding


@pytest.mark.parametrize("both", [False, True])
async def test_who_called_what_is_deleted_goes_on_once_its_tool_has_ended(both: bool) -> None:
    mid = llm("mid", agents=["search"], description="Is in the middle.")
    model = ByNode(
        main=[calls(("mid", {"task": "m"})), says("done")],
        mid=[calls(("search", {"task": "cats"})), says("m")],
        search=[add(1), says("a")],
    )
    async for run, goes_on in while_add_runs(model, llm("main", agents=["mid"]), SEARCH, mid):
        places = ["0.mid@0-0.search@0-0", "0.mid@0-0"] if both else ["0.mid@0-0"]
        for place in places:
            assert (await run.step_in(await run.agent_at(place), "delete", "no"))[0] == 200
        await asyncio.sleep(0.1)
        assert model.asked["main"] == 1
        goes_on.set()
        assert await run.answer() == "done"
        results = {e.step: e.content for e in await run.events(ToolResult)}
        assert results["0.mid@0-0.search@0-0/tool/0.0"] == '{"added": 1}'
        assert results["0/tool/0.0"] == "Deleted by ann: no"


async def test_a_turn_that_is_cancelled_while_the_tool_of_a_deleted_agent_ends_asks_no_model_again() -> None:
    model = ByNode(main=[calls(("search", {"task": "cats"})), says("done")], search=[add(1), says("a")])
    async for run, goes_on in while_add_runs(model, llm("main", agents=["search"]), SEARCH):
        assert (await run.step_in(await run.agent_at("0.search@0-0"), "delete", "no"))[0] == 200
        cancelling = asyncio.create_task(run.world.ask(Cancel(run.id)))
        await asyncio.sleep(0.1)
        goes_on.set()
        assert (await asyncio.wait_for(cancelling, 30))[0] == 200
        assert model.asked["main"] == 1


async def test_what_was_deleted_while_it_waited_for_a_person_is_told_while_others_work() -> None:
    both = calls(("search", {"task": "cats"}), ("other", {"task": "dogs"}))
    model = ByNode(main=[both, says("done")], search=[add(1), says("a")])
    model.gates["other"] = asyncio.Event()
    async with mesh(model, SEARCH, OTHER, tree=llm("main", agents=["search", "other"])) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "other")

        async def is_asked() -> bool:
            return bool((await world.show(run.id)).get("pending_approvals"))

        await until(is_asked)
        assert (await run.step_in(await run.agent_at("0.search@0-0"), "delete", "no"))[0] == 200

        async def is_told() -> bool:
            return any(e.content == "Deleted by ann: no" for e in await run.events(ToolResult))

        await until(is_told)
        model.gates["other"].set()
        assert await run.answer() == "done"
