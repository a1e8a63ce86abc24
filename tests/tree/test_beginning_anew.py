"""Agents that a person has begin anew."""

import asyncio
from typing import Any

from mesh.core.events import AgentStarted, AgentTold, Completed, LlmCall, NodeCompleted, ToolResult
from mesh.core.messages import User
from mesh.keeper.requests import AgentChanges, Intervene
from tests.tree.test_interventions import SEARCH, WAIT, Watched, asked, mesh, spawn
from tests.worlds.mesh import Caller, Create, calls, says, until
from tests.worlds.trees import ByNode, add, llm, sequential


class Restarting(Watched):
    async def restart(
        self, agent: str, reason: str = "too slow", caller: dict[str, str] | None = None, **changes: Any
    ) -> tuple[int, dict[str, Any]]:
        who = Caller(session_id="s1", by="ann", **(caller or {}))
        given = AgentChanges(**changes)
        return await self.world.ask(Intervene(agent, who, "modify", reason, given, restarts=True))

    async def ends_at(self, place: str) -> list[NodeCompleted]:
        return [e for e in await self.events(NodeCompleted) if e.step.startswith(place)]


async def test_an_agent_begins_anew_with_another_task_and_its_lead_is_told_what_that_brought() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[calls(("look", {}))])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "search", 2)
        status, body = await run.restart(await run.agent_at("0.search@0-0-0"), task="birds")
        assert (status, body["agent"]["place"]) == (200, "0.search@0-0-0~2")
        await asked(model, "search", 3)
        model.gates["search"].set()
        assert await run.answer() == "done"
        first, second = await run.ends_at("0.search@0-0-0")
        (told,) = await run.events(AgentTold)
        agents = await run.agents(ended=True)
    assert (first.step, first.status, first.text) == (
        "0.search@0-0-0",
        "deleted",
        "Restarted by ann: too slow",
    )
    assert (second.step, second.status) == ("0.search@0-0-0~2", "completed")
    assert second.text == "search says find birds"
    assert (told.action, told.restarts, told.changes) == ("modify", True, {"task": "birds"})
    assert agents["0.search@0-0-0~2"]["parentId"] == run.id
    assert "search says find birds" in str(model.messages["main"][-1])
    assert "Restarted" not in str(model.messages["main"][-1])


async def test_what_destructive_tools_did_is_told_to_it_and_what_it_learned_is_not() -> None:
    model = ByNode(
        main=[spawn("cats"), WAIT, says("done")],
        search=[calls(("look", {}), ("add", {"n": 1})), calls(("look", {})), says("a")],
    )
    async with mesh(model, SEARCH) as world:
        gate, is_adding = asyncio.Event(), asyncio.Event()

        async def add_slowly() -> None:
            is_adding.set()
            await gate.wait()

        world.ledger.before_add = add_slowly
        run = Restarting(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        uuid = body["result"]["approval"]["uuid"]
        deciding = asyncio.create_task(world.decide(uuid, "approve"))
        await asyncio.wait_for(is_adding.wait(), 30)
        assert (await run.restart(await run.agent_at("0.search@0-0-0")))[0] == 200
        world.ledger.before_add = None
        gate.set()
        await deciding
        (again,) = (await world.show(run.id))["pending_approvals"]
        await world.decide(again["uuid"], "reject", reason="it is done already")
        assert await run.answer() == "done"
        results = [e.step for e in await run.events(ToolResult) if e.tool == "add"]
    begun = next(m for m in model.messages["search"] if isinstance(m, User))
    assert 'You have begun anew. What was done before stays done:\n- add {"n": 1}:' in begun.text
    assert results == ["0.search@0-0-0/tool/0.1", "0.search@0-0-0~2/tool/0.1"]
    assert world.ledger.lines.count("add 1") == 1


async def test_what_begins_anew_is_not_lost_when_everything_dies() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.restart(await run.agent_at("0.search@0-0-0"), prompt="search: anew"))[0] == 200
        await world.crash()
        model.gates["search"].set()
        assert await run.answer() == "done"
        (_, end) = await run.ends_at("0.search@0-0-0")
        heard = [e.heard for e in await run.events(LlmCall) if "~2" in e.step]
    assert (end.step, end.text) == ("0.search@0-0-0~2", "a")
    assert (model.requests["search"].system, len(heard[0])) == ("search: anew", 1)


async def test_an_agent_begins_anew_as_often_as_a_person_likes() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, limits={"agents_at_once": 1}) as world:
        run = Restarting(world)
        await run.begin()
        place = "0.search@0-0-0"
        for number, task in enumerate(("birds", "fish", "bees"), 2):
            await asked(model, "search", number - 1)
            status, body = await run.restart(await run.agent_at(place), task=task)
            place = f"0.search@0-0-0~{number}"
            assert (status, body["agent"]["place"], body["agent"]["userContent"]) == (200, place, task)
        assert (await run.restart(await run.agent_at("0.search@0-0-0")))[0] == 409
        assert (await run.step_in(await run.agent_at(place), "comment", "only tits"))[0] == 200
        model.gates["search"].set()
        assert await run.answer() == "done"
        ends = await run.ends_at("0.search@0-0-0")
    assert [end.status for end in ends] == ["deleted", "deleted", "deleted", "completed"]
    assert "only tits" in str(model.messages["search"])


async def test_an_agent_that_waits_for_a_person_begins_anew_and_its_question_is_withdrawn() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[add(1), says("a")])
    async with mesh(model, SEARCH) as world:
        run = Restarting(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        uuid = body["result"]["approval"]["uuid"]
        assert (await run.restart(await run.agent_at("0.search@0-0-0")))[0] == 200

        async def asks_again() -> Any:
            pending = (await world.show(run.id)).get("pending_approvals", [])
            return [each["uuid"] for each in pending if each["uuid"] != uuid]

        (again,) = await until(asks_again)
        assert (await world.decide(uuid, "approve"))[0] == 409
        assert (await world.decide(again, "approve"))[0] == 200
        assert await run.answer() == "done"
        _, end = await run.ends_at("0.search@0-0-0")
    assert (end.step, end.status, world.ledger.lines) == ("0.search@0-0-0~2", "completed", ["add 1"])


async def test_who_waits_beside_others_goes_on_in_the_same_pass() -> None:
    """Of two agents one asks a person and begins anew while the other one works."""
    model = ByNode(
        main=[calls(("spawn", {"agents": [{"agent": n, "task": "x"} for n in ("search", "slow")]})), WAIT],
        search=[add(1), says("a")],
    )
    model.gates["slow"] = asyncio.Event()
    slow = llm("slow", description="Slow.")
    async with mesh(model, SEARCH, slow) as world:
        run = Restarting(world)
        await run.begin()
        search = await run.agent_at("0.search@0-0-0")

        async def pending() -> Any:
            return [each["uuid"] for each in (await world.show(run.id)).get("pending_approvals", [])]

        (first,) = await until(pending)
        assert (await run.restart(search, task="birds"))[0] == 200

        async def asks_again() -> Any:
            return [uuid for uuid in await pending() if uuid != first]

        (again,) = await until(asks_again)
        deciding = asyncio.create_task(world.decide(again, "approve"))

        async def has_ended() -> Any:
            return await run.ends_at("0.search@0-0-0~2")

        await until(has_ended)
        model.gates["slow"].set()
        assert (await deciding)[0] == 200
    assert world.ledger.lines == ["add 1"]


async def test_a_called_agent_begins_anew_and_its_caller_gets_what_that_brought() -> None:
    model = ByNode(main=[calls(("search", {"task": "cats"})), says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, tree=llm("main", agents=["search"])) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.restart(await run.agent_at("0.search@0-0"), task="birds"))[0] == 200
        await asked(model, "search", 2)
        assert User("birds") in model.messages["search"]
        await world.crash()
        model.gates["search"].set()
        assert await run.answer() == "done"
        (result,) = [e for e in await run.events(ToolResult) if e.step == "0/tool/0.0"]
    assert (result.content, result.is_error) == ("a", False)


async def test_an_item_of_a_map_begins_anew() -> None:
    model = ByNode(split=[says('["cats", "dogs"]')], work=[says("a")])
    model.gates["work"] = asyncio.Event()
    tree = {
        "name": "steps",
        "type": "sequential",
        "agents": [
            llm("split", output_key="parts"),
            {"name": "each", "type": "map", "over": "parts", "agents": [llm("work", "{item}")]},
        ],
    }
    async with mesh(model, tree=tree) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "work", 2)
        assert (await run.restart(await run.agent_at("0.1.0#1"), prompt="work: anew {item}"))[0] == 200
        await asked(model, "work", 3)
        model.gates["work"].set()
        assert await run.answer() == '["a", "a"]'
        ends = await run.ends_at("0.1.0#1")
    assert [(e.step, e.status) for e in ends] == [("0.1.0#1", "deleted"), ("0.1.0#1~2", "completed")]
    assert "work: anew cats" in model.prompts
    assert User("go") in model.messages["work"]


async def test_an_item_of_a_map_that_begins_anew_is_told_its_other_task() -> None:
    model = ByNode(split=[says('["cats"]')], work=[says("a")])
    model.gates["work"] = asyncio.Event()
    each = {"name": "each", "type": "map", "over": "parts", "agents": [llm("work", "{item}")]}
    async with mesh(model, tree=sequential(llm("split", output_key="parts"), each)) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "work")
        assert (await run.restart(await run.agent_at("0.1.0#1"), task="birds"))[0] == 200
        await asked(model, "work", 2)
        model.gates["work"].set()
        assert await run.answer() == '["a"]'
    assert User("[ann gives you another task, while you work (too slow):]\nbirds") in model.messages["work"]


async def test_the_root_agent_does_not_begin_anew_alone() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main")) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "main")
        status, body = await run.restart(run.id)
        assert (status, "send it again" in body["error"]) == (409, True)
        model.gates["main"].set()
        assert await run.answer() == "done"
        assert len(await run.events(Completed)) == 1


async def test_a_restart_with_a_key_counts_once() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "search")
        search, once = await run.agent_at("0.search@0-0-0"), {"idempotency_key": "k", "body_hash": "h"}
        both = await asyncio.gather(run.restart(search, caller=once), run.restart(search, caller=once))
        assert [status for status, _ in both] == [200, 200]
        await asked(model, "search", 2)
        assert (await run.restart(search, caller=once))[0] == 200
        model.gates["search"].set()
        assert await run.answer() == "done"
        starts = [e.step for e in await run.events(AgentStarted)]
    assert starts == ["0.search@0-0-0", "0.search@0-0-0~2"]


async def test_an_agent_deleted_after_it_has_begun_anew_is_deleted() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.restart(await run.agent_at("0.search@0-0-0")))[0] == 200
        await asked(model, "search", 2)
        assert (await run.step_in(await run.agent_at("0.search@0-0-0~2"), "delete", "no"))[0] == 200
        model.gates["search"].set()
        assert await run.answer() == "done"
        ends = await run.ends_at("0.search@0-0-0")
    assert [end.text for end in ends] == ["Restarted by ann: too slow", "Deleted by ann: no"]
    assert "Deleted by ann: no" in str(model.messages["main"][-1])


async def test_who_waits_for_a_slot_begins_anew_when_it_has_one() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, limits={"agents_at_once": 1}) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.restart(await run.agent_at("0.search@0-0-1"), task="birds"))[0] == 200
        assert model.asked["search"] == 1
        model.gates["search"].set()
        assert await run.answer() == "done"
        ends = {end.step: end.status for end in await run.ends_at("0.search")}
    assert ends == {
        "0.search@0-0-0": "completed",
        "0.search@0-0-1": "deleted",
        "0.search@0-0-1~2": "completed",
    }
    assert "search: find dogs" not in model.prompts


async def test_who_is_paused_begins_anew_at_once() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "search")
        search = await run.agent_at("0.search@0-0-0")
        assert (await run.step_in(search, "pause"))[0] == 200
        assert (await run.restart(search))[0] == 200
        model.gates["search"].set()
        assert await run.answer() == "done"
        _, end = await run.ends_at("0.search@0-0-0")
    assert (end.step, end.status) == ("0.search@0-0-0~2", "completed")


async def test_what_works_below_ends_with_who_begins_anew() -> None:
    team = llm("team", "{task}", description="Leads.", agents=["search"], spawn={})
    model = ByNode(
        main=[spawn("all", agent="team"), WAIT, says("done")], team=[spawn("cats"), WAIT, says("found")]
    )
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, team, tree=llm("main", agents=["team"], spawn={})) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.restart(await run.agent_at("0.team@0-0-0")))[0] == 200
        await asked(model, "search", 2)
        agents = await run.agents(ended=True)
        model.gates["search"].set()
        assert await run.answer() == "done"
    assert agents["0.team@0-0-0.search@0-0-0"]["status"] == "deleted"
    assert agents["0.team@0-0-0~2.search@0-0-0"]["status"] == "running"


async def test_a_fork_begins_anew_with_what_it_was_told() -> None:
    fork = calls(("fork", {"prompt": "look twice"}))
    model = ByNode(main=[fork, WAIT, says("done")])
    held = asyncio.Event()
    stream = model.stream

    async def stream_slowly(request: Any) -> Any:
        if "look twice" in str(request.messages[-1]):
            model.asked["fork"] += 1
            await asyncio.wait_for(held.wait(), 30)
            yield says("seen")
            return
        async for event in stream(request):
            yield event

    model.stream = stream_slowly  # type: ignore[method-assign]
    async with mesh(model, tree=llm("main", spawn={"fork": True})) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "fork")
        assert (await run.restart(await run.agent_at("0.self@0-0-0")))[0] == 200
        await asked(model, "fork", 2)
        held.set()
        assert await run.answer() == "done"
        _, end = await run.ends_at("0.self@0-0-0")
    assert (end.step, end.text) == ("0.self@0-0-0~2", "seen")
