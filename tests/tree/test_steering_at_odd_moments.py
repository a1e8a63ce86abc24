"""People who step in at odd moments: as a turn ends, as something comes again, after a crash, with a newer
config."""

import asyncio
from typing import Any

import msgspec
import pytest

from mesh.client import functions
from mesh.client.rest import MeshClient
from mesh.config.model import parse
from mesh.core.errors import JournalError
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    LlmCall,
    LlmReserved,
    NewsAction,
    NodeCompleted,
    ToolResult,
)
from mesh.core.messages import Results
from mesh.keeper.requests import Cancel, ChangedBudget, Intervene, SendMessage
from mesh.llm.port import LlmRequest
from mesh.tree.configured_limits import priced_models
from mesh.tree.plan import infos_of_nodes, startable_agents
from tests.http.test_agent_stream import live, read
from tests.tree.test_added_agents import Adding
from tests.tree.test_beginning_anew import Restarting
from tests.tree.test_interventions import SEARCH, WAIT, Watched, asked, held, lead, mesh, spawn
from tests.tree.test_interventions_in_trouble import two_searches, with_room_for_one
from tests.tree.test_remote import TELL, Peers, agents, asks, mesh_with
from tests.worlds.mesh import Caller, Create, ScriptedLlm, WorldMesh, calls, says, until
from tests.worlds.trees import EXIT, ByNode, add, config, llm, loop, parallel, sequential

KEY = {"idempotency_key": "k1", "body_hash": "h1"}


async def over(run: Watched, turn: int = 1) -> dict[str, Any]:
    async def ended() -> Any:
        shown = (await run.world.show(run.id))["turn"]
        is_over = shown["state"] not in ("working", "paused", "waiting_approval")
        return shown if is_over and shown["number"] == turn else None

    async with asyncio.timeout(5):
        return dict(await until(ended))


async def waits(run: Watched) -> str:
    async def asks_a_person() -> Any:
        return (await run.world.show(run.id)).get("pending_approvals")

    return str((await until(asks_a_person))[0]["uuid"])


async def test_a_delete_of_the_root_that_comes_again_leaves_the_next_turn_alone() -> None:
    model = ByNode(main=[says("done")])
    model.gates["main"] = asyncio.Event()
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "main")
        assert (await run.step_in(run.id, "delete", "enough", **KEY))[0] == 200
        await world.ask(SendMessage(run.id, Caller(session_id="s1"), "next", wait=False))
        await asked(model, "main", 2)
        again = asyncio.create_task(run.step_in(run.id, "delete", "enough", **KEY))
        await asyncio.wait({again}, timeout=5)
        model.gates["main"].set()
        assert (await over(run, 2))["response"] == "done"
        assert again.result()[0] == 200


async def test_a_delete_of_the_root_that_comes_again_over_http_fails_no_other_request() -> None:
    model = ByNode(main=[says("done")])
    async with live(model, config(llm("main"))) as (world, http):
        model.gates["main"] = asyncio.Event()

        begun = await http.post("/conversations", json={"message": "go"}, headers={"Prefer": "respond-async"})
        id = begun.json()["conversation"]["id"]
        await asked(model, "main")
        delete = {"json": {"action": "delete"}, "headers": {"Idempotency-Key": "k1"}}
        assert (await http.post(f"/agent/{id}/intervene", **delete)).status_code == 200
        following = asyncio.create_task(http.post(f"/conversations/{id}/messages", json={"message": "next"}))
        await asked(model, "main", 2)
        await http.post(f"/agent/{id}/intervene", **delete)
        world.call(model.gates["main"].set)
        assert (await following).status_code == 200


async def test_a_cancel_that_nobody_waits_for_any_more_still_ends_the_turn() -> None:
    model = ByNode(main=[add(1), says("never")])
    async with mesh(model, tree=llm("main")) as world:
        run = Watched(world)
        _, body = await world.ask(Create(run.id, Caller(session_id="s1"), "go"))
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            began.set()
            await asyncio.wait_for(goes_on.wait(), 30)

        world.ledger.before_add = slow
        deciding = asyncio.create_task(world.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(began.wait(), 30)
        cancelling = asyncio.create_task(world.ask(Cancel(run.id)))
        await asyncio.sleep(0.1)
        cancelling.cancel()
        await asyncio.gather(cancelling, return_exceptions=True)
        goes_on.set()
        await asyncio.gather(deciding, return_exceptions=True)
        await over(run)


@pytest.mark.parametrize("action", ["delete", "comment", "pause"])
async def test_what_was_meant_for_a_turn_does_nothing_in_the_next_one(action: NewsAction) -> None:
    model = ByNode(first=[says("one")])
    model.gates["first"] = asyncio.Event()
    async with mesh(model, tree=sequential(llm("first"))) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "first")
        node = await run.agent_at("0.0")
        on_its_way, ends = asyncio.Event(), asyncio.Event()
        hear = world.hear

        async def slow(*news: Any) -> Any:
            if on_its_way.is_set():
                return await hear(*news)
            on_its_way.set()
            try:
                await asyncio.sleep(60)
            finally:  # a call between processes that is cancelled takes a moment to end
                await asyncio.wait_for(ends.wait(), 30)

        world.hear = slow  # type: ignore[method-assign]
        stepping = asyncio.create_task(run.step_in(node, action, "of the first turn"))
        await asyncio.wait_for(on_its_way.wait(), 30)
        await world.ask(Cancel(run.id))
        await world.ask(SendMessage(run.id, Caller(session_id="s1"), "next", wait=False))
        await asked(model, "first", 2)
        ends.set()
        status, _ = await asyncio.wait_for(stepping, 20)
        assert (status, await run.events(AgentTold), await run.events(NodeCompleted)) == (409, [], [])


async def test_a_comment_with_the_call_that_ends_a_loop_is_read() -> None:
    model = ByNode(work=[EXIT, EXIT])
    model.gates["work"] = asyncio.Event()
    async with mesh(model, tree=loop(llm("work", can_exit_loop=True), max_iterations=3)) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "work")
        status, _ = await run.step_in(await run.agent_at("0.0#1"), "comment", "not yet")
        model.gates["work"].set()
        await over(run)
        heard = [event.heard for event in await run.events(LlmCall)]
    assert status == 200
    assert any(heard)


@pytest.mark.parametrize("action", ["comment", "pause"])
async def test_nothing_is_lost_that_comes_while_a_result_for_the_user_is_journaled(
    action: NewsAction,
) -> None:
    model = ByNode(main=[calls(("return_to_user", {"result": "bye"})), says("again")])
    async with mesh(model, tree=llm("main", can_return_to_user=True)) as world:
        on_its_way, goes_on = asyncio.Event(), asyncio.Event()
        append = world.append

        async def slow(activation: Any, events: Any) -> Any:
            if any(isinstance(event, ToolResult) and event.ends_turn for event in events):
                on_its_way.set()
                await asyncio.wait_for(goes_on.wait(), 30)
            return await append(activation, events)

        world.append = slow  # type: ignore[method-assign]
        run = Watched(world)
        await run.begin()
        await asyncio.wait_for(on_its_way.wait(), 30)
        status, _ = await run.step_in(run.id, action, "wait")
        goes_on.set()
        if action == "pause":
            assert status != 200 or await asyncio.wait_for(held(run), 5) is None  # it never is: it has ended
        else:
            await over(run)
            assert status != 200 or any(event.heard for event in await run.events(LlmCall))


async def upgraded(world: WorldMesh, text: str) -> None:
    """The process is gone, and the next one has another config. The tree of the old one is still there."""
    new = world.newest = parse(text, "test.yaml", {})
    world.settings = msgspec.structs.replace(
        world.settings,
        digest=new.digest,
        root=new.tree.name,
        root_kind=new.tree.type,
        models=priced_models(new),
        startable=startable_agents(new),
        nodes=infos_of_nodes(new),
    )
    await world.crash()


async def test_a_comment_is_not_lost_when_a_newer_config_has_another_root() -> None:
    model = ByNode(first=[add(1), says("one")])
    async with mesh(model, tree=sequential(llm("first"))) as world:
        run = Watched(world)
        await run.begin()
        uuid = await waits(run)
        await upgraded(world, config(llm("first")))
        status, _ = await run.step_in(run.id, "comment", "only tabbies")
        await world.decide(uuid, "approve")
        await over(run)
        assert status == 200
        assert any(event.heard for event in await run.events(LlmCall))


async def test_a_task_is_changed_when_a_newer_config_has_another_root() -> None:
    async with mesh(ByNode(first=[add(1), says("one")]), tree=llm("first")) as world:
        run = Watched(world)
        await run.begin()
        await waits(run)
        await upgraded(world, config(sequential(llm("first"))))
        assert (await run.modify(run.id, task="dogs"))[0] == 200


async def test_no_agent_is_added_that_only_a_newer_config_could_run() -> None:
    model = ByNode(main=[add(1), says("done")])
    async with mesh(model, SEARCH, tree=llm("main")) as world:
        run = Adding(world)
        await run.begin()
        uuid = await waits(run)
        await upgraded(world, config(lead("search"), agents=[SEARCH]))
        status, _ = await run.add(run.id)
        await world.decide(uuid, "approve")
        await over(run)
        assert status == 409 or model.asked["search"] == 1


async def test_limits_of_agents_hold_after_a_crash() -> None:
    model = ByNode(main=[spawn("cats"), add(1), says("done")])
    async with mesh(model, SEARCH, tree=lead("search", budget={"max_agents": 1})) as world:
        run = Adding(world)
        await run.begin()
        await waits(run)
        before, _ = await run.add(run.id)
        await world.crash()
        after, _ = await run.add(run.id)
        assert (before, after) == (409, 409)


@pytest.mark.parametrize("in_pass", [False, True])
async def test_a_limit_of_agents_that_a_person_sets_holds_for_whom_people_add(in_pass: bool) -> None:
    model = ByNode(main=[spawn("cats"), WAIT if in_pass else add(1), says("done")])
    model.gates["search"] = asyncio.Event()
    if not in_pass:
        model.gates["search"].set()
    async with mesh(model, SEARCH, tree=lead("search", budget={"max_agents": 10})) as world:
        run = Adding(world)
        await run.begin()
        await (asked(model, "search") if in_pass else waits(run))
        assert (await run.modify(run.id, budget=ChangedBudget(max_agents=1)))[0] == 200
        status, _ = await run.add(run.id)
        started = len(await run.events(AgentStarted))
        model.gates["search"].set()
    assert (status, started) == (409, 1)


async def test_a_model_without_a_price_is_none_under_a_limit_of_money_after_a_crash() -> None:
    free = llm("free", model="gpt-9", description="Is free.")
    priced = {"model": "scripted", "prices": {"scripted": {"input": 1, "output": 1}}}
    tree = llm("main", budget={"max_cost_usd": 1})
    async with mesh(ByNode(main=[add(1), says("done")]), free, tree=tree, llm=priced) as world:
        run = Watched(world)
        await run.begin()
        await waits(run)
        before, _ = await run.modify(run.id, model="gpt-9")
        await world.crash()
        after, _ = await run.modify(run.id, model="gpt-9")
        assert (before, after) == (409, 409)


async def test_who_waits_for_a_person_begins_anew_where_no_more_agents_may_start() -> None:
    """While the agent works, the same restart is 200."""
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[add(1), says("a")])
    async with mesh(model, SEARCH, tree=lead("search", budget={"max_agents": 1})) as world:
        run = Restarting(world)
        await run.begin()
        await waits(run)
        assert (await run.restart(await run.agent_at("0.search@0-0-0")))[0] == 200


async def test_a_smaller_limit_holds_for_a_call_that_waits_for_its_budget() -> None:
    model, more = with_room_for_one()
    async with mesh(model, SEARCH, **more) as world:
        run = await two_searches(world, model)  # three calls are reserved, the fourth waits
        assert (await run.modify(run.id, budget=ChangedBudget(max_llm_calls=2)))[0] == 200
        model.gates["search"].set()
        await over(run)
        (told,) = await run.events(AgentTold)
        assert [e.step for e in await run.events(LlmReserved) if e.seq > told.seq] == []


async def test_a_larger_limit_lets_a_call_go_on_that_waits_for_its_budget() -> None:
    model, more = with_room_for_one()
    async with mesh(model, SEARCH, **more) as world:
        run = await two_searches(world, model)
        assert (await run.modify(run.id, budget=ChangedBudget(max_total_tokens=100_000)))[0] == 200
        try:
            async with asyncio.timeout(3):
                await asked(model, "search", 2)
        finally:
            model.gates["search"].set()


async def test_a_fork_does_not_have_the_tools_that_a_person_has_taken_from_its_node() -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def model(request: LlmRequest) -> LlmCall:
        results = [r.content for m in request.messages if isinstance(m, Results) for r in m.results]
        if not results:
            began.set()
            await asyncio.wait_for(goes_on.wait(), 30)
            return calls(("look", {}))
        if len(results) == 1:
            return calls(("fork", {"prompt": "be the fork"}))
        if results[1] == "be the fork":
            return add(1) if len(results) == 2 else says("forked")
        return WAIT if len(results) == 2 else says("done")

    tree = parallel(llm("main", spawn={"fork": True}), approvals="inline")
    async with WorldMesh(ScriptedLlm(model), config=config(tree)) as world:
        run = Watched(world)
        await run.begin()
        await asyncio.wait_for(began.wait(), 30)
        main = await run.agent_at("0.0")
        assert (await run.modify(main, tools=["look", "fork"]))[0] == 200
        goes_on.set()
        await over(run)
    assert "add 1" not in world.ledger.lines


async def test_a_comment_about_the_root_that_comes_again_is_not_told_to_the_next_turn() -> None:
    model = ByNode(first=[says("done")])
    model.gates["first"] = asyncio.Event()
    async with mesh(model, tree=sequential(llm("first"))) as world:
        run = Watched(world)
        await run.begin()
        await asked(model, "first")
        assert (await run.step_in(run.id, "comment", "quick", **KEY))[0] == 200
        model.gates["first"].set()
        await over(run)
        model.gates["first"].clear()
        await world.ask(SendMessage(run.id, Caller(session_id="s1"), "next", wait=False))
        await asked(model, "first", 3)
        await run.step_in(run.id, "comment", "quick", **KEY)
        model.gates["first"].set()
        await over(run, 2)
        assert [told.turn for told in await run.events(AgentTold)] == [1]


async def test_the_task_of_another_agent_ends_with_the_agent_that_began_anew() -> None:
    peers = Peers(asks(1), asks(2))
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[TELL, says("a")])
    search = llm("search", "find {task}", description="Finds.", a2a=agents("b"))
    async with mesh_with(peers, model, lead("search"), agents=[search]) as world:
        run = Restarting(world)
        await run.begin()
        await waits(run)
        assert (await run.restart(await run.agent_at("0.search@0-0-0")))[0] == 200

        async def is_told_again() -> bool:
            return len(peers.said) == 2

        await until(is_told_again)
        assert peers.agent.cancelled == ["task-1"]


async def test_who_begins_anew_twice_in_the_queue_does_not_end_the_pass() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), WAIT, says("done")], search=[says("a")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH, limits={"agents_at_once": 1}) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "search")
        for place in ("0.search@0-0-1", "0.search@0-0-1~2"):
            assert (await run.restart(await run.agent_at(place)))[0] == 200
            await asyncio.sleep(0.1)
        assert (await run.restart(await run.agent_at("0.search@0-0-1~3")))[0] == 200
        model.gates["search"].set()
        await over(run)
    assert world.passes == 1


async def test_an_item_that_is_deleted_in_the_queue_once_it_has_begun_anew_costs_no_other_a_call() -> None:
    items = {"name": "each", "type": "map", "over": "cities", "agents": [llm("visit", "{item}")]}
    tree = sequential(llm("plan", output_key="cities"), items)
    model = ByNode(plan=[says('["a", "b"]')], visit=[says("v")])
    model.gates["visit"] = asyncio.Event()
    async with mesh(model, tree=tree, limits={"agents_at_once": 1}) as world:
        run = Restarting(world)
        await run.begin()
        await asked(model, "visit")
        assert (await run.restart(await run.agent_at("0.1.0#1")))[0] == 200
        await asked(model, "visit", 2)  # item 2 has the slot
        assert (await run.step_in(await run.agent_at("0.1.0#1~2"), "delete"))[0] == 200
        await asyncio.sleep(0.3)
        model.gates["visit"].set()
        await over(run)
    assert model.asked["visit"] == 2


async def test_an_agent_is_found_whose_journal_could_not_be_read_at_the_start() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done")], search=[add(1), says("a")])
    async with mesh(model, SEARCH) as world:
        run = Watched(world)
        await run.begin()
        await waits(run)
        agent, read_journal = await run.agent_at("0.search@0-0-0"), world.journal.read

        async def unreadable(_: str) -> Any:
            raise JournalError("the disk is not there")

        world.journal.read = unreadable  # type: ignore[method-assign]
        await world.crash()
        world.journal.read = read_journal  # type: ignore[method-assign]
        assert (await run.step_in(agent, "comment", "hi"))[0] == 200


async def test_a_spawn_that_comes_again_in_the_next_turn_is_about_the_same_agent() -> None:
    model = ByNode(main=[spawn("cats"), WAIT, says("done"), says("done")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        run = Adding(world)
        await run.begin()
        await asked(model, "search")
        who = Caller(session_id="s1", by="ann", **KEY)
        added = Intervene(run.id, who, "spawn", "birds", adds="search")
        first = (await world.ask(added))[1]["agent"]
        model.gates["search"].set()
        await over(run)
        await world.say(run.id, "more")
        assert (await world.ask(added))[1]["agent"]["agentId"] == first["agentId"]


async def test_the_stream_of_a_chat_tells_of_the_agents_that_the_tree_has() -> None:
    async with live(ByNode(), config(sequential(llm("first"), llm("second")))) as (_, http):
        found = await read(http, params={"prompt": "go"})
        told = {chunk["agent"]["place"] for chunk in found.of("agent-state")}
        query = {"all": "true", "conversation": found.finish["conversationId"]}
        shown = (await http.get("/agent/tree", params=query)).json()
    assert told == {agent["place"] for agent in shown.values()}


@pytest.mark.parametrize("said", [None, "yes"])
async def test_the_function_agent_survives_a_call_whose_outcome_nobody_knows(said: str | None) -> None:
    model = ByNode(main=[add(1), says("done")])
    async with live(model, config(llm("main"))) as (world, _):
        began = asyncio.Event()

        async def slow() -> None:
            if not began.is_set():
                began.set()
                await asyncio.sleep(100)

        async def answered(asked: Any) -> str | None:
            return "yes" if asked.kind == "tool_call" else said

        world.mesh.ledger.before_add = slow
        functions.set_query_user_handler(answered)
        try:
            async with MeshClient(world.url) as client:
                answering = asyncio.create_task(functions.agent("go", client=client, within_s=20))

                async def has_begun() -> bool:
                    return began.is_set()

                await until(has_begun)
                await asyncio.to_thread(world.restart)
                await answering
        finally:
            functions.set_query_user_handler(None)
