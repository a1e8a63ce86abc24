"""Nodes of a tree that are no agents: people see them, and step in with them as with agents."""

import asyncio
from typing import Any

import pytest

from mesh.core.events import AgentTold, LlmCall, NodeCompleted, ToolResult
from mesh.keeper.requests import FollowAgents
from tests.tree.test_beginning_anew import Restarting
from tests.tree.test_interventions import SEARCH, WAIT, Watched, asked, held, mesh, spawn
from tests.worlds.mesh import says, until
from tests.worlds.trees import ByNode, add, llm, loop, parallel, sequential, tool

PIPELINE = sequential(llm("first"), llm("second"), llm("third"), name="all")


async def seen(run: Watched, *, ended: bool = True) -> dict[str, str]:
    """How each node stands, by name: its detail, or else its status."""
    agents = (await run.agents(ended=ended)).values()
    return {agent["name"]: agent.get("detail") or agent["status"] for agent in agents}


async def waits_for_a_person(run: Watched) -> str:
    async def asks() -> Any:
        return (await run.world.show(run.id)).get("pending_approvals")

    (waits,) = await until(asks)
    return str(waits["uuid"])


async def test_the_nodes_of_a_sequence_are_there_from_the_beginning_and_begin_in_turn() -> None:
    model = ByNode()
    model.gates |= {name: asyncio.Event() for name in ("first", "second")}
    async with mesh(model, tree=PIPELINE) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "first")
        at_first = {"all": "running", "first": "running", "second": "queued", "third": "queued"}
        assert await seen(run) == at_first
        first = (await run.agents())["0.0"]
        assert (first["parentId"], first["kind"]) == (run.id, "llm")
        model.gates["first"].set()
        await asked(model, "second")

        async def goes_on() -> bool:
            return await seen(run) == at_first | {"first": "completed", "second": "running"}

        await until(goes_on)
        model.gates["second"].set()
        await run.answer()
        assert {*(await seen(run)).values()} == {"completed"}


async def test_the_nodes_of_a_loop_are_those_of_its_iteration() -> None:
    model = ByNode()
    model.gates |= {name: asyncio.Event() for name in ("work", "judge")}
    async with mesh(model, tree=loop(llm("work"), llm("judge"), max_iterations=3)) as world:
        run = Watched(world)
        await run.begin()

        async def at_work(*places: str) -> None:
            async def are_these() -> bool:
                return {*await run.agents()} == {"0", *places}

            await until(are_these)

        for number in (1, 2, 3):
            await asked(model, "work", number)
            model.gates["judge"].clear()
            await at_work(f"0.0#{number}", f"0.1#{number}")
            model.gates["work"].set()
            await asked(model, "judge", number)
            model.gates["work"].clear()
            await at_work(f"0.1#{number}")
            model.gates["judge"].set()
        await run.answer()
        all_of_them = {"0", *(f"0.{i}#{n}" for n in (1, 2, 3) for i in (0, 1))}
        assert {*await run.agents(ended=True)} == all_of_them


async def test_a_node_that_has_not_begun_reads_with_its_first_model_call_what_it_was_told() -> None:
    model = ByNode()
    model.gates["first"] = asyncio.Event()
    async with mesh(model, tree=PIPELINE) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "first")
        assert (await run.step_in(await run.agent_at("0.2"), "comment", "be brief"))[0] == 200
        status, body = await run.modify(await run.agent_at("0.1"), prompt="second: another prompt")
        assert (status, body["agent"]["status"]) == (200, "modified")
        await world.crash()
        model.gates["first"].set()
        await run.answer()
        told = {each.id: each.step for each in await run.events(AgentTold)}
        heard = {call.step: [told[id] for id in call.heard] for call in await run.events(LlmCall)}
    assert heard == {"0.0/llm/0": [], "0.1/llm/0": ["0.1"], "0.2/llm/0": ["0.2"]}
    assert "second: another prompt" in model.prompts
    assert "be brief" in str(model.messages["third"]) and "be brief" not in str(model.messages["second"])


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("deleted", ["first", "second", "third"])
async def test_after_a_node_that_is_deleted_a_sequence_goes_on_with_the_next(
    deleted: str, dies: bool
) -> None:
    model = ByNode()
    model.gates["first"] = asyncio.Event()
    async with mesh(model, tree=PIPELINE) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "first")
        place = {"first": "0.0", "second": "0.1", "third": "0.2"}[deleted]
        status, body = await run.step_in(await run.agent_at(place), "delete", "no need")
        assert (status, body["agent"]["result"]) == (200, "Deleted by ann: no need")
        if dies:
            await world.crash()
        model.gates["first"].set()
        assert await run.answer() == ("second says" if deleted == "third" else "third says")
        assert (await seen(run))[deleted] == "deleted"
        (end,) = [e for e in await run.events(NodeCompleted) if e.status == "deleted"]
        assert (end.name, end.step) == (deleted, place)
        asked_for = {call.node for call in await run.events(LlmCall)}
    assert place not in asked_for


async def test_of_two_branches_one_is_deleted_while_it_asks_a_person_and_the_other_goes_on() -> None:
    model = ByNode(a=[add(1), says("a")], b=[says("b")])
    async with mesh(model, tree=parallel(llm("a"), llm("b"), approvals="ask")) as world:
        run = Watched(world)
        await run.begin()
        uuid = await waits_for_a_person(run)
        assert (await seen(run))["a"] == "awaiting_user"
        assert (await run.step_in(await run.agent_at("0.0"), "delete", "too risky"))[0] == 200
        assert await run.answer() == "b"
        assert (await world.decide(uuid, "approve"))[0] == 409
    assert world.ledger.lines == []


async def test_one_of_two_branches_is_paused_and_the_other_ends() -> None:
    model = ByNode(a=[says("a")], b=[says("b")])
    model.gates["a"] = asyncio.Event()
    async with mesh(model, tree=parallel(llm("a"), llm("b"))) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "a")
        node = await run.agent_at("0.0")
        assert (await run.step_in(node, "pause"))[0] == 200
        model.gates["a"].set()
        await held(run)
        assert await seen(run) == {"branches": "running", "a": "paused", "b": "completed"}
        assert (await run.step_in(node, "resume"))[0] == 200
        assert await run.answer() == "a\nb"
    assert model.asked == {"a": 1, "b": 1}


async def test_a_node_of_nodes_is_deleted_with_all_of_them_in_one_append() -> None:
    model = ByNode(a=[says("a")], b=[says("b")])
    model.gates |= {name: asyncio.Event() for name in "ab"}
    tree = sequential(parallel(llm("a"), llm("b")), llm("after"), name="all")
    async with mesh(model, tree=tree) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "a")
        await asked(model, "b")
        assert (await run.step_in(await run.agent_at("0.0"), "delete", "no"))[0] == 200
        assert await run.answer() == "after says"
        assert {call.node for call in await run.events(LlmCall)} == {"0.1"}
        ends = {agent["name"]: agent["result"] for agent in (await run.agents(ended=True)).values()}
    assert (
        ends["branches"] == "Deleted by ann: no" and ends["a"] == ends["b"] == "what it worked for has ended"
    )


async def test_a_comment_about_a_node_of_nodes_is_for_the_models_below_it_and_for_no_other() -> None:
    model = ByNode(a=[says("a")], b=[says("b")], c=[says("c")])
    model.gates |= {name: asyncio.Event() for name in "abc"}
    tree = parallel(parallel(llm("a"), llm("b"), name="two"), llm("c"), name="all")
    async with mesh(model, tree=tree) as world:
        run = Watched(world)
        await run.begin()
        for name in "abc":
            await asked(model, name)
        assert (await run.step_in(await run.agent_at("0.0"), "comment", "be brief"))[0] == 200
        comments = {a["name"]: a.get("userComment") for a in (await run.agents()).values()}
        for gate in model.gates.values():
            gate.set()
        await run.answer()
        heard = {call.node for call in await run.events(LlmCall) if call.heard}
    assert heard == {"0.0.0", "0.0.1"}
    assert comments == {"all": None, "two": "be brief", "a": "be brief", "b": "be brief", "c": None}


async def test_a_tool_that_must_not_be_broken_off_is_waited_for_when_its_node_is_deleted() -> None:
    model = ByNode(after=[says("done")])
    async with mesh(model, tree=sequential(tool("adds", "add", n=1), llm("after"))) as world:
        run = Watched(world)
        await run.begin()
        uuid, runs, may_end = await waits_for_a_person(run), asyncio.Event(), asyncio.Event()

        async def before_add() -> None:
            runs.set()
            await may_end.wait()

        world.ledger.before_add = before_add
        decided = asyncio.create_task(world.decide(uuid, "approve"))
        await asyncio.wait_for(runs.wait(), 10)
        assert (await run.step_in(await run.agent_at("0.0"), "delete", "no"))[0] == 200
        assert model.asked["after"] == 0
        may_end.set()
        await decided
        assert await run.answer() == "done"
        results = await run.events(ToolResult)
    assert world.ledger.lines == ["add 1"] and [each.step for each in results] == ["0.0/tool/0.0"]


async def test_what_cannot_be_meant_of_a_node_is_refused_with_the_reason() -> None:
    model = ByNode()
    tree = sequential(tool("adds", "add", n=1), llm("after"), name="all")
    async with mesh(model, tree=tree) as world:
        run = Restarting(world)
        await run.begin()
        await waits_for_a_person(run)
        tool_node, after = await run.agent_at("0.0"), await run.agent_at("0.1")
        status, body = await run.step_in(tool_node, "comment", "hi")
        assert (status, body["error"]) == (
            409,
            "no model of agent adds, or below it, is at work that could read this",
        )
        status, body = await run.restart(after)
        assert (status, body["error"]) == (
            409,
            "after is a node of an agent, and only agents begin anew; above it is all",
        )
        assert (await run.step_in(run.id, "delete"))[0] == 200
        status, body = await run.step_in(after, "comment", "hi")
        assert status == 409 and "was deleted" in body["error"]


async def test_an_agent_that_waits_for_a_slot_is_queued_also_for_those_who_follow() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[says("found")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, limits={"agents_at_once": 1}) as world:
        run = Watched(world)
        before = await world.keeper.follow(FollowAgents())
        await run.begin()
        await asked(model, "search")
        cats, dogs = (await run.agents())["0.search@0-0-0"], (await run.agents())["0.search@0-0-1"]
        assert (cats.get("detail"), dogs["detail"], "startedAt" in dogs) == (None, "queued", False)
        assert (await run.step_in(dogs["agentId"], "comment", "only puppies"))[0] == 200
        changes = await world.keeper.follow(FollowAgents(before.cursor))
        stand = {agent.user_content: agent.detail or agent.status for agent in changes.agents}
        assert (stand["cats"], stand["dogs"]) == ("running", "queued")
        model.gates["search"].set()
        assert await run.answer() == "done"
        changes = await world.keeper.follow(FollowAgents(changes.cursor))
        stand = {agent.user_content: agent.detail or agent.status for agent in changes.agents}
        assert (stand["cats"], stand["dogs"]) == ("completed", "completed")
        heard = {call.node: len(call.heard) for call in await run.events(LlmCall)}
    assert heard["0.search@0-0-1"] == 1
