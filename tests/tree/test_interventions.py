"""People who step in while agents work: they tell an agent something, or delete it."""

import asyncio
from typing import Any

import pytest

from mesh.core.events import (
    AgentTold,
    AnyEvent,
    ApprovalResolved,
    Completed,
    LlmCall,
    LlmReserved,
    NewsAction,
    NodeCompleted,
    ToolResult,
    now,
)
from mesh.core.ids import new_id
from mesh.core.messages import User
from mesh.keeper.requests import AgentChanges, Cancel, ChangedBudget, Intervene, ListAgents, ShowAgent
from tests.worlds.mesh import Caller, Create, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, config, llm, sequential

SEARCH = llm("search", "find {task}", description="Finds facts.")


def lead(*agents: str, **more: Any) -> dict[str, Any]:
    return llm("main", agents=list(agents), **{"spawn": {}, **more})


def mesh(
    model: ByNode, *agents: dict[str, Any], tree: dict[str, Any] | None = None, **more: Any
) -> WorldMesh:
    tree = tree or lead(*(agent["name"] for agent in agents))
    return WorldMesh(model, config=config(tree, agents=list(agents), **more))


def spawn(*tasks: str, agent: str = "search") -> LlmCall:
    return calls(("spawn", {"agents": [{"agent": agent, "task": task} for task in tasks]}))


WAIT = calls(("wait", {}))


class Watched:
    """A conversation in which somebody steps in."""

    def __init__(self, world: WorldMesh) -> None:
        self.world = world
        self.id = new_id()

    async def begin(self) -> None:
        await self.world.ask(Create(self.id, Caller(session_id="s1"), "go", wait=False))

    async def step_in(
        self, agent: str, action: NewsAction, text: str = "", *, now: bool = False, **caller: str
    ) -> tuple[int, dict[str, Any]]:
        who = Caller(session_id="s1", by="ann", **caller)
        return await self.world.ask(Intervene(agent, who, action, text, now=now))

    async def modify(self, agent: str, *, now: bool = False, **changes: Any) -> tuple[int, dict[str, Any]]:
        who = Caller(session_id="s1", by="ann")
        return await self.world.ask(Intervene(agent, who, "modify", "", AgentChanges(**changes), now))

    async def agents(self, *, ended: bool = False) -> dict[str, dict[str, Any]]:
        """By place."""
        status, body = await self.world.ask(ListAgents(self.id, ended))
        assert status == 200
        return {agent["place"]: agent for agent in body["agents"]}

    async def agent_at(self, place: str) -> str:
        """The id of the agent there, once there is one."""

        async def found() -> Any:
            return (await self.agents(ended=True)).get(place)

        agent = await until(found)
        return str(agent["agentId"])

    async def answer(self) -> str:
        """How the turn ends."""

        async def ended() -> Any:
            turn = (await self.world.show(self.id))["turn"]
            return turn if turn["state"] not in ("working", "paused", "waiting_approval") else None

        return str((await until(ended))["response"])

    async def events(self, kind: type[Any] = AnyEvent) -> list[Any]:  # type: ignore[assignment]
        events = await self.world.journal.read(self.id)
        return [e for e in events if kind is AnyEvent or isinstance(e, kind)]


async def asked(model: ByNode, node: str, times: int = 1) -> None:
    async def is_so() -> bool:
        return model.asked[node] >= times

    await until(is_so)


async def test_a_comment_is_read_with_the_next_model_call_of_its_agent_and_with_no_other() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[calls(("look", {}))] * 2)
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search", 2)
        agent = await run.agent_at("0.search@0-0-0")
        status, body = await run.step_in(agent, "comment", "only tabbies")
        assert (status, body["agent"]["userComment"]) == (200, "only tabbies")
        (told,) = await run.events(AgentTold)
        assert (told.step, told.by, told.from_person) == ("0.search@0-0-0", "ann", True)
        model.gates["search"].set()
        assert await run.answer() == "done"
        heard = {e.step: e.heard for e in await run.events(LlmCall)}
    assert heard["0.search@0-0-0/llm/0"] == ()
    assert heard["0.search@0-0-0/llm/1"] == (told.id,)
    assert not any(ids for step, ids in heard.items() if step != "0.search@0-0-0/llm/1")


async def test_a_comment_that_comes_with_the_last_answer_has_the_model_asked_once_more() -> None:
    model = ByNode(main=[says("an answer")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        status, _ = await run.step_in(run.id, "comment", "think again")
        assert status == 200
        model.gates["main"].set()
        assert await run.answer() == "an answer"
        first, second = await run.events(LlmCall)
    assert (first.heard, len(second.heard)) == ((), 1)
    assert model.messages["main"][-1] == User("[ann tells you, while you work:]\nthink again")


async def test_a_comment_is_not_lost_when_everything_dies_after_it_was_acknowledged() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        status, _ = await run.step_in(await run.agent_at("0.search@0-0-0"), "comment", "only tabbies")
        assert status == 200
        await world.crash()
        model.gates["search"].set()
        assert await run.answer() == "done"
        heard = [e for e in await run.events(LlmCall) if e.heard]
    assert [event.step for event in heard] == ["0.search@0-0-0/llm/0"]


async def test_who_waits_for_a_person_reads_a_comment_after_the_decision() -> None:
    model = ByNode(main=[add(1), says("done")])
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        status, _ = await run.step_in(run.id, "comment", "and be quick")
        assert status == 200
        shown = await world.show(run.id)
        assert shown["turn"]["state"] in ("working", "waiting_approval")
        uuid = body["result"]["approval"]["uuid"]
        _, body = await world.decide(uuid, "approve")
        assert body["result"]["response"] == "done"
        first, second = await run.events(LlmCall)
    assert (first.heard, len(second.heard)) == ((), 1)
    assert world.ledger.lines == ["add 1"]


async def test_an_agent_that_is_deleted_records_nothing_more_and_its_lead_is_told_who_did_it() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[calls(("look", {}))])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search", 2)
        agent = await run.agent_at("0.search@0-0-0")
        status, body = await run.step_in(agent, "delete", "no cats")
        assert (status, body["agent"]["status"]) == (200, "deleted")
        at_once = await run.events(NodeCompleted)
        model.gates["search"].set()
        assert await run.answer() == "done"
        events = await run.events()
    assert [(e.step, e.status, e.text) for e in at_once] == [
        ("0.search@0-0-0", "deleted", "Deleted by ann: no cats")
    ]
    end = next(i for i, event in enumerate(events) if event == at_once[0])
    assert not any(event.step.startswith("0.search@0-0-0") for event in events[end + 1 :])
    assert world.ledger.lines == ["look"]
    assert "Deleted by ann: no cats" in str(model.messages["main"][-1])


async def test_who_is_deleted_while_it_waits_for_a_person_asks_no_more() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[add(1), says("never")])
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        uuid = body["result"]["approval"]["uuid"]
        agents = await run.agents()
        assert {place: agent["status"] for place, agent in agents.items()} == {
            "0": "running",
            "0.search@0-0-0": "awaiting_user",
        }
        status, _ = await run.step_in(agents["0.search@0-0-0"]["agentId"], "delete", "not now")
        assert status == 200
        assert await run.answer() == "done"
        status, body = await world.decide(uuid, "approve")
    assert status == 409
    assert (world.ledger.lines, model.asked["search"]) == ([], 1)


async def test_deleting_the_root_agent_cancels_the_turn_and_says_who_did() -> None:
    model = ByNode(main=[spawn("cats"), WAIT])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        status, body = await run.step_in(run.id, "delete", "enough")
        assert (status, body["agent"]["status"]) == (200, "deleted")
        (told,) = await run.events(AgentTold)
        (end,) = await run.events(Completed)
        assert await run.agents() == {}
    assert (told.step, told.action, told.by, told.text) == ("0", "delete", "ann", "enough")
    assert end.cancelled_on_request


async def test_who_has_ended_is_told_nothing_and_deleted_by_nobody() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        model.gates["main"].set()
        assert await run.answer() == "done"
        agent = (await run.agents(ended=True))["0.search@0-0-0"]
        for action in ("comment", "delete"):
            for id in (agent["agentId"], run.id):
                status, body = await run.step_in(id, action, "hello?")  # type: ignore[arg-type]
                assert (status, "has answered at 20" in body["error"]) == (409, True)
        assert await run.events(AgentTold) == []


async def test_an_agent_of_an_earlier_turn_has_ended() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")])
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        assert await run.answer() == "done"
        agent = (await run.agents(ended=True))["0.search@0-0-0"]
        await world.say(run.id, "and again")
        for action in ("comment", "pause", "delete"):
            status, body = await run.step_in(agent["agentId"], action, "hello?")  # type: ignore[arg-type]
            assert (status, "agent search has answered at 20" in body["error"]) == (409, True)


async def test_an_agent_that_nobody_knows_is_not_found() -> None:
    async with mesh(ByNode(main=[says("hi")]), tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        unknown = new_id()[:-8] + run.id[-8:]
        assert await run.step_in(unknown, "comment", "hi") == (404, {"error": "Not found"})
        assert await world.ask(ShowAgent(new_id())) == (404, {"error": "Not found"})


@pytest.mark.parametrize("action", ["comment", "delete"])
async def test_an_intervention_with_a_key_counts_once(action: NewsAction) -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        key = {"idempotency_key": "k1", "body_hash": "h1"}
        for _ in range(2):
            status, body = await run.step_in(agent, action, "hm", **key)
            assert status == 200, body
        status, _ = await run.step_in(agent, action, "other", **{**key, "body_hash": "h2"})
        assert status == 409
        assert len(await run.events(AgentTold)) == 1
        model.gates["search"].set()
        await run.answer()


async def test_an_agent_is_shown_with_its_messages_also_when_its_turn_is_long_over() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done"), says("again")])
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await run.answer()
        agent = (await run.agents(ended=True))["0.search@0-0-0"]
        await world.say(run.id, "more")
        status, body = await world.ask(ShowAgent(agent["agentId"]))
        assert status == 200
        assert await run.agents(ended=True) != {}
        await world.ask(Cancel(run.id))
    assert (body["agent"]["status"], body["agent"]["result"]) == ("completed", "search says find cats")
    assert [message["text"] for message in body["messages"]] == ["search says find cats"]


async def test_what_works_for_a_deleted_agent_is_at_work_no_more() -> None:
    team = llm("team", agents=["search"], spawn={}, description="Asks others.")
    model = ByNode(main=[spawn("x", agent="team"), WAIT, add(1)], team=[spawn("cats"), WAIT])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, team, SEARCH, tree=lead("team")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agents = await run.agents()
        inner = agents["0.team@0-0-0.search@0-0-0"]["agentId"]
        assert (await run.step_in(agents["0.team@0-0-0"]["agentId"], "delete", "enough"))[0] == 200

        async def waits() -> bool:
            return (await world.show(run.id))["turn"]["state"] == "waiting_approval"

        await until(waits)
        assert [*await run.agents()] == ["0"]
        for action in ("comment", "delete"):
            status, body = await run.step_in(inner, action, "hm")  # type: ignore[arg-type]
            assert (status, "was deleted" in body["error"]) == (409, True)


@pytest.mark.parametrize("lost", [False, True])
async def test_a_turn_whose_root_agent_is_deleted_ends_whatever_is_lost_meanwhile(lost: bool) -> None:
    model = ByNode(main=[add(1), says("never")])
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            began.set()
            await asyncio.wait_for(goes_on.wait(), 30)

        world.ledger.before_add = held
        deciding = asyncio.create_task(world.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(began.wait(), 30)
        stopping = asyncio.create_task(run.step_in(run.id, "delete", "enough"))

        async def is_told() -> bool:
            return bool(await run.events(AgentTold))

        await until(is_told)
        if lost:
            stopping.cancel()
            deciding.cancel()
            await world.crash()
        goes_on.set()
        await run.answer()
        (end,) = await run.events(Completed)
        await asyncio.gather(stopping, deciding, return_exceptions=True)
    assert end.cancelled_on_request
    assert model.asked["main"] == 1


async def test_nobody_steps_in_while_the_turn_ends() -> None:
    model = ByNode(main=[add(1), says("never")])
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            began.set()
            await asyncio.wait_for(goes_on.wait(), 30)

        world.ledger.before_add = held
        deciding = asyncio.create_task(world.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(began.wait(), 30)
        cancelling = asyncio.create_task(world.ask(Cancel(run.id)))
        await asyncio.sleep(0)
        status, problem = await run.step_in(run.id, "comment", "wait!")
        goes_on.set()
        await asyncio.gather(cancelling, deciding)
        assert (status, "about to end" in problem["error"]) == (409, True)


async def test_a_comment_that_nobody_has_read_is_refused_again_when_it_comes_again() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        key = {"idempotency_key": "k1", "body_hash": "h1"}
        both = [run.step_in(agent, "comment", "hm", **key) for _ in range(2)]
        assert [status for status, _ in await asyncio.gather(*both)] == [200, 200]
        assert len(await run.events(AgentTold)) == 1
        await run.step_in(agent, "delete", "enough")
        status, body = await run.step_in(agent, "comment", "hm", **key)
        assert (status, "was deleted" in body["error"]) == (409, True)
        model.gates["search"].set()
        await run.answer()


async def test_who_waits_in_an_agent_that_waits_is_deleted_at_once() -> None:
    team = llm("team", agents=["asker"], spawn={}, description="Asks others.")
    asker = llm("asker", description="Asks a person.")
    model = ByNode(
        main=[spawn("x", agent="team"), spawn("y", agent="slow"), WAIT, says("done")],
        team=[spawn("z", agent="asker"), WAIT, says("team done")],
        asker=[add(1), says("never")],
    )
    model.gates["slow"] = asyncio.Event()
    async with mesh(model, team, asker, llm("slow", description="s"), tree=lead("team", "slow")) as world:
        run = Watched(world)
        await run.begin()

        async def both() -> Any:
            agents = await run.agents()
            waits = agents.get("0.team@0-0-0.asker@0-0-0", {}).get("status") == "awaiting_user"
            return agents if waits and model.asked["slow"] else None

        agents = await until(both)
        (asked_for,) = (await world.show(run.id))["pending_approvals"]
        status, body = await run.step_in(agents["0.team@0-0-0.asker@0-0-0"]["agentId"], "delete", "no")
        assert (status, body["agent"]["status"]) == (200, "deleted")
        assert (await world.decide(asked_for["uuid"], "approve"))[0] == 409
        model.gates["slow"].set()
        assert await run.answer() == "done"
        assert world.ledger.lines == []


async def test_the_last_answer_that_a_limit_allows_counts_although_a_comment_comes() -> None:
    model = ByNode(main=[says("an answer")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main"), limits={"max_tool_iterations": 1}) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        await run.step_in(run.id, "comment", "more")
        model.gates["main"].set()
        assert await run.answer() == "an answer"


# -- pausing


async def held(run: Watched, state: str = "paused") -> None:
    async def is_so() -> bool:
        return bool((await run.world.show(run.id))["turn"]["state"] == state)

    await until(is_so)


async def test_a_paused_agent_takes_its_answer_and_goes_on_by_it_when_it_is_resumed() -> None:
    model = ByNode(main=[calls(("look", {})), says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        status, body = await run.step_in(run.id, "pause", "let me think")
        assert (status, body["agent"]["status"], body["agent"]["detail"]) == (200, "running", "paused")
        model.gates["main"].set()
        await held(run)
        assert (world.ledger.lines, len(await run.events(LlmCall))) == ([], 1)
        status, _ = await run.step_in(run.id, "resume")
        assert status == 200
        assert await run.answer() == "done"
        told = [(e.action, e.text, e.by) for e in await run.events(AgentTold)]
    assert (world.ledger.lines, model.asked["main"]) == (["look"], 2)
    assert told == [("pause", "let me think", "ann"), ("resume", "", "ann")]


async def test_an_agent_that_is_paused_with_its_last_answer_does_not_end_before_it_is_resumed() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        await run.step_in(run.id, "pause")
        model.gates["main"].set()
        await held(run)
        await run.step_in(run.id, "comment", "shorter")
        await held(run)
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"
        heard = [event.heard for event in await run.events(LlmCall)]
    assert [len(ids) for ids in heard] == [0, 1]


async def test_who_is_paused_while_the_others_work_holds_up_nobody_and_is_waited_for() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search", 2)
        agent = await run.agent_at("0.search@0-0-0")
        assert (await run.step_in(agent, "pause"))[0] == 200
        model.gates["search"].set()
        await held(run)
        ends = [event.step for event in await run.events(NodeCompleted)]
        assert ends == ["0.search@0-0-1"]
        agents = await run.agents()
        assert {place: agent.get("detail") for place, agent in agents.items()} == {
            "0": None,
            "0.search@0-0-0": "paused",
        }
        await run.step_in(agent, "resume")
        assert await run.answer() == "done"
    assert model.asked["search"] == 2


async def test_all_that_an_agent_has_started_pauses_and_goes_on_with_it() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[calls(("look", {})), says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search", 2)
        assert (await run.step_in(run.id, "pause"))[0] == 200
        model.gates["search"].set()
        await held(run)
        assert {agent.get("detail") for agent in (await run.agents()).values()} == {"paused"}
        assert (world.ledger.lines, model.asked["search"]) == ([], 2)
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"
    assert world.ledger.lines == ["look", "look"]


async def test_a_decision_about_a_paused_agents_question_is_taken_and_acts_when_it_is_resumed() -> None:
    model = ByNode(main=[add(1), says("done")])
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        assert (await run.step_in(run.id, "pause"))[0] == 200
        status, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
        assert (status, body["conversation"]["turn"]["state"]) == (200, "paused")
        assert (world.ledger.lines, body["result"]["waiting_approval"]) == ([], False)
        assert f"paused test ({run.id})" in body["result"]["response"]
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"
    assert world.ledger.lines == ["add 1"]


async def test_what_a_paused_agent_asks_does_not_expire_before_it_has_been_resumed_for_as_long() -> None:
    model = ByNode(main=[add(1), says("done")])
    async with mesh(model, tree=llm("main"), approval_timeout_s=1) as world:
        run = Watched(world)
        await run.begin()

        async def waits() -> Any:
            return (await world.show(run.id)).get("pending_approvals")

        (asked_for,) = await until(waits)
        assert asked_for["expires_at"]
        assert (await run.step_in(run.id, "pause"))[0] == 200

        async def is_past() -> bool:
            return now() > asked_for["expires_at"]

        await until(is_past)
        await world.crash()
        (still,) = (await world.show(run.id))["pending_approvals"]
        assert still.get("expires_at") is None and still["uuid"] == asked_for["uuid"]
        assert (await run.step_in(run.id, "resume"))[0] == 200
        (later,) = (await world.show(run.id))["pending_approvals"]
        assert later["expires_at"] > asked_for["expires_at"]
        assert await run.answer() == "done"
        (expired,) = await run.events(ApprovalResolved)
    assert expired.time >= later["expires_at"] and later["expires_at"] in expired.reason
    assert world.ledger.lines == []


async def test_a_paused_turn_takes_no_message_and_stays_paused_when_everything_dies() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        await run.step_in(run.id, "pause")
        model.gates["main"].set()
        await held(run)
        await world.crash()
        await held(run)
        status, body = await world.say(run.id, "more")
        assert (status, "is paused" in body["error"]) == (409, True)
        await run.step_in(run.id, "resume")
        assert await run.answer() == "done"
    assert model.asked["main"] == 1


async def test_a_paused_agent_can_be_deleted() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[calls(("look", {})), says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        await run.step_in(agent, "pause")
        model.gates["search"].set()
        await held(run)
        assert (await run.step_in(agent, "delete", "no"))[0] == 200
        assert await run.answer() == "done"
    assert world.ledger.lines == []


async def test_a_pipeline_that_is_paused_begins_no_further_node() -> None:
    model = ByNode(first=[says("one")], second=[says("two")])
    model.gates["first"] = asyncio.Event()
    tree = sequential(llm("first"), llm("second"))
    async with mesh(model, tree=tree) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "first")
        assert (await run.step_in(run.id, "pause"))[0] == 200
        model.gates["first"].set()
        await held(run)
        assert model.asked["second"] == 0
        await run.step_in(run.id, "resume")
        assert await run.answer() == "two"
    assert (model.asked["first"], model.asked["second"]) == (1, 1)


# -- at once


async def test_a_comment_that_is_to_act_now_breaks_off_the_model_call_and_is_read_by_the_next_one() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.step_in(run.id, "comment", "in French", now=True))[0] == 200
        await asked(model, "main", 2)
        model.gates["main"].set()
        assert await run.answer() == "done"
        (told,) = await run.events(AgentTold)
        answers = [(e.step, e.heard) for e in await run.events(LlmCall)]
    assert answers == [("0/llm/0", (told.id,))]
    assert model.messages["main"][-1] == User("[ann tells you, while you work:]\nin French")


async def test_a_pause_that_is_to_act_now_breaks_off_the_model_calls_of_all_below_it() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search", 2)
        assert (await run.step_in(run.id, "pause", now=True))[0] == 200
        await held(run)
        assert [e.step for e in await run.events(LlmCall)] == ["0/llm/0", "0/llm/1"]
        await run.step_in(run.id, "resume")
        await asked(model, "search", 4)
        model.gates["search"].set()
        assert await run.answer() == "done"


async def test_what_is_broken_off_under_a_budget_stays_reserved_and_is_reserved_anew() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main", budget={"max_llm_calls": 3})) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.step_in(run.id, "comment", "in French", now=True))[0] == 200
        await asked(model, "main", 2)
        model.gates["main"].set()
        assert await run.answer() == "done"
        attempts = [e.attempt for e in await run.events(LlmReserved)]
        (answer,) = await run.events(LlmCall)
    assert (attempts, answer.attempt, len(answer.heard)) == ([0, 1], 1, 1)


async def test_news_that_is_to_act_now_does_not_break_off_a_tool() -> None:
    runs, goes_on = asyncio.Event(), asyncio.Event()
    model = ByNode(main=[add(1), says("done")])
    async with mesh(model, tree=llm("main")) as world:

        async def waits() -> None:
            runs.set()
            await asyncio.wait_for(goes_on.wait(), 30)

        world.ledger.before_add = waits
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        deciding = asyncio.create_task(world.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(runs.wait(), 30)
        assert (await run.step_in(run.id, "comment", "be quick", now=True))[0] == 200
        goes_on.set()
        await deciding
        assert await run.answer() == "done"
        heard = [len(e.heard) for e in await run.events(LlmCall)]
    assert (world.ledger.lines, heard) == (["add 1"], [0, 1])


# -- changes


async def test_a_changed_agent_works_by_its_changes_from_its_next_model_call_on() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[calls(("look", {})), says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        changes = {"task": "dogs", "prompt": "search: only {task}", "tools": [], "metadata": {"team": "b"}}
        status, body = await run.modify(agent, **changes)
        shown = {key: body["agent"][key] for key in ("status", "userContent", "metadata")}
        assert (status, shown) == (
            200,
            {"status": "modified", "userContent": "dogs", "metadata": {"team": "b"}},
        )
        model.gates["search"].set()
        assert await run.answer() == "done"
        (told,) = await run.events(AgentTold)
        heard = {e.step: e.heard for e in await run.events(LlmCall) if "search@" in e.step}
        (result,) = [e for e in await run.events(ToolResult) if "search@" in e.step]
        agents = await run.agents(ended=True)
    assert (told.changes, told.before) == (changes, {"task": "cats"})
    assert [*heard.values()] == [(), (told.id,)]
    assert (result.is_error, result.skipped, world.ledger.lines) == (True, True, [])
    request = model.requests["search"]
    assert (request.system, request.tools) == ("search: only dogs", ())
    assert User("[ann gives you another task, while you work:]\ndogs") in request.messages
    assert agents["0.search@0-0-0"]["status"] == "completed"


async def test_another_model_of_the_config_goes_on_with_what_was_said() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, llm("other", model="gpt-9")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        status, body = await run.modify(agent, model="gpt-10")
        assert (status, "gpt-9" in body["error"]) == (400, True)
        assert (await run.modify(agent, model="gpt-9", now=True))[0] == 200
        await asked(model, "search", 2)
        assert model.requests["search"].model == "gpt-9"
        model.gates["search"].set()
        assert await run.answer() == "done"
    assert model.asked["search"] == 2


async def test_what_was_changed_holds_when_everything_dies() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        assert (await run.modify(await run.agent_at("0.search@0-0-0"), prompt="search: be brief"))[0] == 200
        await world.crash()
        model.gates["search"].set()
        assert await run.answer() == "done"
    assert model.requests["search"].system == "search: be brief"


async def test_a_changed_timeout_ends_an_agent_that_works_longer() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        assert (await run.modify(agent, timeout_s=0.01))[0] == 200
        assert await run.answer() == "done"
        (end,) = [e for e in await run.events(NodeCompleted) if "search@" in e.step]
    assert (end.status, end.text) == ("failed", "search took longer than 0.01 s (timeout_s)")


LOOKS = [calls(("look", {"n": n})) for n in range(6)]


async def test_a_limit_that_a_person_sets_ends_an_agent_that_had_none() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[*LOOKS, says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        assert (await run.modify(agent, budget=ChangedBudget(max_llm_calls=2)))[0] == 200
        await world.crash()
        model.gates["search"].set()
        assert await run.answer() == "done"
        (told,) = await run.events(AgentTold)
        (end,) = [e for e in await run.events(NodeCompleted) if "search@" in e.step]
        mine = [e for e in await run.events(LlmCall) if "search@" in e.step]
    assert told.changes == {"budget": {"max_llm_calls": 2}}
    assert (end.forced, len(mine)) == ("max_llm_calls", 2)


async def test_a_limit_that_a_person_sets_takes_the_place_of_the_one_in_the_config() -> None:
    search = llm("search", "find {task}", description="Finds facts.", budget={"max_llm_calls": 3})
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[*LOOKS, says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, search) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0-0")
        assert (await run.modify(agent, budget=ChangedBudget(max_llm_calls=50)))[0] == 200
        model.gates["search"].set()
        assert await run.answer() == "done"
        (end,) = [e for e in await run.events(NodeCompleted) if "search@" in e.step]
    assert (end.forced, end.text, model.asked["search"]) == ("", "a", 7)


async def test_a_limit_holds_for_all_that_work_below_its_agent_at_that_moment() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[*LOOKS, says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search", 2)
        assert (await run.modify(run.id, budget=ChangedBudget(max_llm_calls=4)))[0] == 200
        model.gates["search"].set()
        answer = await run.answer()
        reserved = await run.events(LlmReserved)
    assert (answer, len(reserved)) == ("done", 4)
    assert reserved[-1].step.startswith("0/llm/")  # the last one is for the answer of the agent itself


async def test_limits_that_are_set_one_after_the_other_hold_together() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main", budget={"max_llm_calls": 9})) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.modify(run.id, budget=ChangedBudget(max_total_tokens=50_000)))[0] == 200
        assert (await run.modify(run.id, budget=ChangedBudget(max_time_s=60.0)))[0] == 200
        assert (await run.modify(run.id, budget=ChangedBudget(max_llm_calls=2), now=True))[0] == 200
        await asked(model, "main", 2)
        model.gates["main"].set()
        assert await run.answer() == "done"
        told = await run.events(AgentTold)
        reserved = await run.events(LlmReserved)
    limits = {"max_total_tokens": 50_000, "max_time_s": 60.0}
    assert [e.before.get("budget", {}) for e in told] == [{}, {"max_total_tokens": 50_000}, limits]
    assert [e.forced for e in reserved] == ["", "max_llm_calls"]


async def test_a_limit_of_money_needs_prices() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main", model="gpt-unknown")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        status, body = await run.modify(run.id, budget=ChangedBudget(max_cost_usd=1.0))
        assert (status, "gpt-unknown" in body["error"], "llm.prices" in body["error"]) == (409, True, True)
        model.gates["main"].set()
        assert await run.answer() == "done"


async def test_what_no_model_of_its_own_would_meet_cannot_be_changed() -> None:
    model = ByNode(first=[says("one")])
    model.gates["first"] = asyncio.Event()
    async with mesh(model, tree=sequential(llm("first"))) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "first")
        assert (await run.modify(run.id, prompt="x"))[0] == 409
        assert (await run.modify(run.id, metadata={"team": "b"}))[0] == 200
        model.gates["first"].set()
        assert await run.answer() == "one"


async def test_people_may_do_what_the_config_lets_them_and_nothing_else() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main"), intervene=["comment"]) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.step_in(run.id, "comment", "quick"))[0] == 200
        status, body = await run.step_in(run.id, "pause")
        assert (status, body["error"]) == (
            409,
            "the config does not let people pause agents, but: comment (intervene)",
        )
        model.gates["main"].set()
        assert await run.answer() == "done"


# -- deleting agents that were called, and items


async def test_a_called_agent_is_shown_with_what_the_call_says() -> None:
    model = ByNode(main=[calls(("search", {"task": "cats"})), says("done")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, tree=llm("main", agents=["search"])) as world:
        run = Watched(world)
        await run.begin()
        await run.agent_at("0.search@0-0")
        shown = (await run.agents())["0.search@0-0"]
        model.gates["search"].set()
        assert await run.answer() == "done"
    assert shown["userContent"] == "cats"


async def test_a_called_agent_that_is_deleted_is_the_failed_call_of_who_called_it() -> None:
    model = ByNode(main=[calls(("search", {"task": "cats"})), says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, tree=llm("main", agents=["search"])) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        agent = await run.agent_at("0.search@0-0")
        status, body = await run.step_in(agent, "delete", "no cats")
        assert (status, body["agent"]["status"]) == (200, "deleted")
        assert await run.answer() == "done"
        (result,) = await run.events(ToolResult)
        (end,) = await run.events(NodeCompleted)
    assert (result.content, result.is_error) == ("Deleted by ann: no cats", True)
    assert (end.step, end.status, model.asked["search"]) == ("0.search@0-0", "deleted", 1)


async def test_a_called_agent_that_waits_for_a_person_is_deleted_and_the_other_goes_on() -> None:
    two = calls(("search", {"task": "cats"}), ("search", {"task": "dogs"}))
    model = ByNode(main=[two, says("done")], search=[add(1), says("a")])
    async with mesh(model, SEARCH, tree=llm("main", agents=["search"])) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        assert len(body["conversation"]["pending_approvals"]) == 2
        assert (await run.step_in(await run.agent_at("0.search@0-0"), "delete", "no"))[0] == 200

        async def one_waits() -> Any:
            shown = await world.show(run.id)
            return shown if len(shown["pending_approvals"]) == 1 else None

        (left,) = (await until(one_waits))["pending_approvals"]
        _, body = await world.decide(left["uuid"], "approve")
        assert body["result"]["response"] == "done"
        results = {e.step: e.content for e in await run.events(ToolResult) if e.node == "0"}
    assert results["0/tool/0.0"] == "Deleted by ann: no"
    assert world.ledger.lines == ["add 1"]


async def test_a_called_agent_that_was_deleted_right_before_a_crash_does_not_go_on_after_it() -> None:
    model = ByNode(main=[calls(("search", {"task": "cats"})), says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    model.gates["main"] = asyncio.Event()
    model.gates["main"].set()
    async with mesh(model, SEARCH, tree=llm("main", agents=["search"])) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "search")
        model.gates["main"].clear()
        assert (await run.step_in(await run.agent_at("0.search@0-0"), "delete", "no"))[0] == 200
        await world.crash()
        model.gates["main"].set()
        assert await run.answer() == "done"
        results = [e.content for e in await run.events(ToolResult)]
    assert (results, model.asked["search"]) == (["Deleted by ann: no"], 1)


async def test_an_item_of_a_map_that_is_deleted_adds_nothing_and_fails_nobody() -> None:
    each = {"name": "each", "type": "map", "over": "items", "agents": [llm("item", "{item}")]}
    model = ByNode(plan=[says('["a", "b"]')])
    model.gates["item"] = asyncio.Event()
    async with mesh(model, tree=sequential(llm("plan", output_key="items"), each)) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "item", 2)
        assert (await run.step_in(await run.agent_at("0.1.0#1"), "delete", "no"))[0] == 200
        model.gates["item"].set()
        assert await run.answer() == '[null, "item says b"]'
        ends = {e.step: e.status for e in await run.events(NodeCompleted) if "#" in e.step}
    assert ends == {"0.1.0#1": "deleted", "0.1.0#2": "completed"}
