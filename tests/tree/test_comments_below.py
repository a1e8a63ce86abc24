"""A comment about a node that has no model of its own: every model that is at work below it reads it."""

import asyncio
from typing import Any

import pytest

from mesh.core.events import AgentTold, LlmCall
from tests.tree.test_interventions import SEARCH, WAIT, Watched, asked, lead, mesh, spawn
from tests.worlds.mesh import calls, says, until
from tests.worlds.trees import ByNode, add, llm, parallel, sequential, tool

COMMENT = "only tabbies"


async def heard(run: Watched) -> dict[str, list[str]]:
    """By the place of who read it, the texts of what was new to it; each of them once."""
    told = {each.id: each for each in await run.events(AgentTold)}
    found: dict[str, list[str]] = {}
    for call in await run.events(LlmCall):
        for id in call.heard:
            assert told[id].step == call.node
            found.setdefault(call.node, []).append(told[id].text)
    return found


async def test_each_model_at_work_reads_it_once_and_none_that_begins_later() -> None:
    model = ByNode(a=[calls(("look", {})), says("a")], b=[says("b")])
    tree = sequential(parallel(llm("a"), llm("b")), llm("after"), name="all")
    async with mesh(model, tree=tree) as world:
        model.gates |= {name: asyncio.Event() for name in "ab"}
        run = Watched(world)
        await run.begin()
        await asked(model, "a")
        await asked(model, "b")
        status, body = await run.step_in(run.id, "comment", COMMENT)
        assert (status, body["agent"]["userComment"]) == (200, COMMENT)
        for gate in model.gates.values():
            gate.set()
        await run.answer()
        assert await heard(run) == {"0.0.0": [COMMENT], "0.0.1": [COMMENT]}
        told = await run.events(AgentTold)
        assert {(each.by, each.from_person, each.action) for each in told} == {("ann", True, "comment")}
    assert model.asked == {"a": 2, "b": 2, "after": 1}


async def test_now_breaks_off_the_calls_of_all_of_them() -> None:
    model = ByNode(a=[says("a")], b=[says("b")])
    async with mesh(model, tree=parallel(llm("a"), llm("b"))) as world:
        model.gates |= {name: asyncio.Event() for name in "ab"}
        run = Watched(world)
        await run.begin()
        await asked(model, "a")
        await asked(model, "b")
        assert (await run.step_in(run.id, "comment", COMMENT, now=True))[0] == 200
        await asked(model, "a", 2)
        await asked(model, "b", 2)
        for gate in model.gates.values():
            gate.set()
        await run.answer()
        answers = [(call.node, len(call.heard)) for call in await run.events(LlmCall)]
    assert sorted(answers) == [("0.0", 1), ("0.1", 1)]


async def test_agents_of_these_models_read_it_too() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")])
    model.gates["search"] = asyncio.Event()
    tree = sequential(lead("search"), name="all")
    async with mesh(model, SEARCH, tree=tree) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search", 2)
        assert (await run.step_in(run.id, "comment", COMMENT))[0] == 200
        model.gates["search"].set()
        await run.answer()
        places = ("0.0", "0.0.search@0-0-0", "0.0.search@0-0-1")
        assert await heard(run) == {place: [COMMENT] for place in places}


async def test_of_a_called_agent_without_a_model_those_inside_read_it_and_nobody_else() -> None:
    model = ByNode(main=[spawn("x", agent="team"), WAIT, says("done")])
    model.gates["second"] = asyncio.Event()
    team = sequential(llm("first"), llm("second"), name="team") | {"description": "A team."}
    async with mesh(model, team) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "second")
        agent = await run.agent_at("0.team@0-0-0")
        status, body = await run.step_in(agent, "comment", COMMENT)
        assert (status, body["agent"]["userComment"]) == (200, COMMENT)
        model.gates["second"].set()
        await run.answer()
        assert await heard(run) == {"0.team@0-0-0.1": [COMMENT]}


@pytest.mark.parametrize("others_work", [False, True])
async def test_a_model_that_waits_for_a_person_reads_it_after_the_decision(others_work: bool) -> None:
    """Between passes, and while a pass goes on in which it has paused."""
    model = ByNode(a=[add(1), says("a")], b=[says("b")])
    if others_work:
        model.gates["b"] = asyncio.Event()
    async with mesh(model, tree=parallel(llm("a"), llm("b"), approvals="ask")) as world:
        run = Watched(world)
        await run.begin()

        async def asks() -> Any:
            return (await world.show(run.id)).get("pending_approvals")

        (waits,) = await until(asks)
        await asked(model, "b")
        assert (await run.step_in(run.id, "comment", COMMENT))[0] == 200
        await world.crash()
        for gate in model.gates.values():
            gate.set()
        await world.decide(waits["uuid"], "approve")
        await run.answer()
        expected = {"0.0": [COMMENT]} | ({"0.1": [COMMENT]} if others_work else {})
        assert await heard(run) == expected
        assert world.ledger.lines.count("add 1") <= 1


async def test_where_no_model_is_at_work_it_is_refused() -> None:
    tree = sequential(llm("first"), tool("adds", "add", n=1), name="all")
    async with mesh(ByNode(first=[says("1")]), tree=tree) as world:
        run = Watched(world)
        await run.begin()

        async def asks() -> Any:
            return (await world.show(run.id)).get("pending_approvals")

        await until(asks)
        status, body = await run.step_in(run.id, "comment", COMMENT)
        told = "no model of agent all, or below it, is at work that could read this"
        assert (status, body["error"]) == (409, told)
        assert await run.events(AgentTold) == []


async def test_a_comment_with_a_key_is_read_once_by_each() -> None:
    model = ByNode(a=[says("a")], b=[says("b")])
    async with mesh(model, tree=parallel(llm("a"), llm("b"))) as world:
        model.gates |= {name: asyncio.Event() for name in "ab"}
        run = Watched(world)
        await run.begin()
        await asked(model, "a")
        await asked(model, "b")
        for _ in range(2):
            status, _ = await run.step_in(run.id, "comment", COMMENT, idempotency_key="k", body_hash="h")
            assert status == 200
        for gate in model.gates.values():
            gate.set()
        await run.answer()
        assert await heard(run) == {"0.0": [COMMENT], "0.1": [COMMENT]}


async def test_other_changes_of_what_a_model_reads_are_refused() -> None:
    model = ByNode(a=[says("a")])
    model.gates["a"] = asyncio.Event()
    async with mesh(model, tree=sequential(llm("a"), name="all")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "a")
        assert (await run.modify(run.id, task="another"))[0] == 409
        assert (await run.modify(run.id, metadata={"for": "people"}))[0] == 200
        model.gates["a"].set()
        assert await run.answer() == "a"
