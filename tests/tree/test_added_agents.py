"""Agents that a person adds to one at work."""

import asyncio
import json
from typing import Any

from mesh.core.events import AgentsReported, AgentStarted, AgentTold, LlmCall, NodeCompleted
from mesh.core.ids import new_id
from mesh.core.messages import User
from mesh.keeper.requests import Intervene
from tests.tree.test_interventions import SEARCH, WAIT, Watched, asked, lead, mesh, spawn
from tests.worlds.mesh import Caller, Create, calls, says
from tests.worlds.trees import ByNode, add, llm

TEAM = llm("team", "{task}", description="Leads a team.", agents=["search"], spawn={})


class Adding(Watched):
    async def add(
        self, agent: str, task: str = "birds", name: str = "search", **caller: str
    ) -> tuple[int, dict[str, Any]]:
        who = Caller(session_id="s1", by="ann", **caller)
        return await self.world.ask(Intervene(agent, who, "spawn", task, adds=name))

    async def added(self) -> list[AgentStarted]:
        return [e for e in await self.events(AgentStarted) if e.by == "person"]

    async def end_of(self, start: AgentStarted) -> NodeCompleted:
        (end,) = [e for e in await self.events(NodeCompleted) if e.step == start.step]
        return end


async def test_an_agent_that_is_added_works_beside_its_lead_which_is_told_what_it_brought() -> None:
    model = ByNode(main=[says("too early"), says("too early")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "main")
        status, body = await run.add(run.id, "birds", idempotency_key="k", body_hash="h")
        assert (status, body["agent"]["userContent"]) == (200, "birds")
        await asked(model, "search")
        model.gates["main"].set()
        await run.answer()
        (start,) = await run.added()
        (told,) = await run.events(AgentTold)
        (report,) = await run.events(AgentsReported)
        end = await run.end_of(start)
        heard = [e.heard for e in await run.events(LlmCall) if e.step.startswith("0/llm")]
    assert (start.step, start.task, start.name, start.agent_path) == (
        f"0.search@u{told.seq}",
        "birds",
        "search",
        ("main", "search"),
    )
    assert (told.seq, told.by, told.action, told.text) == (start.seq - 1, "ann", "spawn", "birds")
    assert (end.status, end.text) == ("completed", "search says find birds")
    assert "search says find birds" in report.text
    assert [told.id] in [[*each] for each in heard]
    news = f"[ann has started an agent beside you, search@u{told.seq}, with this task:]\nbirds"
    assert User(news) in model.messages["main"]


async def test_an_agent_is_added_to_one_that_was_started() -> None:
    model = ByNode(main=[spawn("all", agent="team"), WAIT, says("done")], team=[says("mine"), says("ours")])
    model.gates["team"] = asyncio.Event()
    async with mesh(model, TEAM, SEARCH, tree=lead("team")) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "team")
        team = await run.agent_at("0.team@0-0-0")
        assert (await run.add(team))[0] == 200
        await asked(model, "search")
        model.gates["team"].set()
        assert await run.answer() == "done"
        (start,) = await run.added()
        end, agents = await run.end_of(start), await run.agents(ended=True)
    assert start.step.startswith("0.team@0-0-0.search@u")
    assert (end.status, agents[start.step]["parentId"]) == ("completed", team)


async def test_an_agent_that_is_added_while_its_lead_waits_for_a_person_works_at_once() -> None:
    model = ByNode(main=[add(1), says("done"), says("done")])
    async with mesh(model, SEARCH, tree=lead("search")) as world:
        run = Adding(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        assert (await run.add(run.id))[0] == 200
        await asked(model, "search")
        await world.decide(body["result"]["approval"]["uuid"], "approve")
        assert await run.answer() == "done"
        (start,) = await run.added()
        assert (await run.end_of(start)).status == "completed"
    assert world.ledger.lines == ["add 1"]


async def test_an_agent_that_was_added_is_not_lost_when_everything_dies() -> None:
    model = ByNode(main=[says("a"), says("b")])
    model.gates["main"] = model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.add(run.id))[0] == 200
        await world.crash()
        model.gates["main"].set()
        await run.answer()
        (start,) = await run.added()
        assert (await run.end_of(start)).text == "search says find birds"


async def test_who_may_start_no_more_agents_gets_none() -> None:
    model = ByNode(main=[spawn("all", agent="team"), WAIT, says("done")])
    model.gates["team"] = asyncio.Event()
    team = {**TEAM, "budget": {"max_agents": 1}}
    async with mesh(model, team, SEARCH, tree=lead("team", budget={"max_agents": 3})) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "team")
        at = await run.agent_at("0.team@0-0-0")
        assert (await run.add(at))[0] == 200
        status, body = await run.add(run.id, name="team")
        assert status == 200
        status, body = await run.add(run.id, name="team")
        assert (status, "may start 3" in body["error"]) == (409, True)
        status, body = await run.add(at)
        assert (status, "max_agents" in body["error"]) == (409, True)
        model.gates["team"].set()
        assert await run.answer() == "done"
        assert len(await run.added()) == 2
        assert len([e for e in await run.events(AgentTold) if e.action == "spawn"]) == 2


async def test_what_starts_no_agents_or_no_such_agent_gets_none() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, TEAM, tree=lead("search")) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "search")
        search = await run.agent_at("0.search@0-0-0")
        for agent, name, status, words in (
            (search, "search", 409, "starts no agents"),
            (run.id, "team", 400, "starts no agent team, but: search"),
            (new_id(), "search", 404, ""),
        ):
            refused, body = await run.add(agent, name=name)
            assert (refused, words in body["error"]) == (status, True)
        model.gates["search"].set()
        assert await run.answer() == "done"
        assert (await run.add(run.id))[0] == 409
        assert await run.added() == []


async def test_a_request_with_a_key_adds_one_agent() -> None:
    model = ByNode(main=[says("a"), says("b")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "main")
        once = {"idempotency_key": "k", "body_hash": "h"}
        both = await asyncio.gather(run.add(run.id, **once), run.add(run.id, **once))
        assert [status for status, _ in both] == [200, 200]
        assert (await run.add(run.id))[0] == 200  # without a key, it is another one
        model.gates["main"].set()
        await run.answer()
        assert len({start.step for start in await run.added()}) == 2
        assert (await run.add(run.id, **once))[0] == 200
        assert len(await run.added()) == 2


async def test_an_agent_that_was_added_is_deleted_like_any_other() -> None:
    model = ByNode(main=[says("a"), says("b")])
    model.gates["main"] = model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "main")
        await run.add(run.id)
        await asked(model, "search")
        (start,) = await run.added()
        assert (await run.step_in(start.id, "delete", "enough"))[0] == 200
        model.gates["main"].set()
        await run.answer()
        end = await run.end_of(start)
        (report,) = await run.events(AgentsReported)
    assert (end.status, end.text) == ("deleted", "Deleted by ann: enough")
    told = json.loads(report.text[report.text.index("{") : report.text.rindex("}") + 1])
    assert told["agents"][0]["result"] == "Deleted by ann: enough"


async def test_the_model_may_tell_and_wait_for_an_agent_that_a_person_has_added() -> None:
    model = ByNode(main=[calls(("look", {})), calls(("wait", {})), says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.add(run.id))[0] == 200
        model.gates["main"].set()
        assert await run.answer() == "done"
        assert await run.events(AgentsReported) == []
    assert "search says find birds" in str(model.messages["main"])


async def test_a_denied_agent_ends_with_why() -> None:
    model = ByNode(main=[says("a"), says("b")])
    model.gates["main"] = asyncio.Event()
    closed = {"name": "closed", "kinds": ["agent"], "decide": "deny", "say": "no searching today"}
    async with mesh(model, SEARCH, policy={"rules": [closed]}) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.add(run.id))[0] == 200
        model.gates["main"].set()
        await run.answer()
        (start,) = await run.added()
        end = await run.end_of(start)
    assert (end.status, "no searching today" in end.text, model.asked["search"]) == ("failed", True, 0)


async def test_an_agent_that_is_added_waits_for_its_slot() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done"), says("done")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, limits={"agents_at_once": 1}) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.add(run.id))[0] == 200
        assert model.asked["search"] == 1
        model.gates["search"].set()
        assert await run.answer() == "done"
        (start,) = await run.added()
        assert (await run.end_of(start)).status == "completed"
