"""Agents that a model starts, which work beside it: spawn, fork, wait, stop."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from mesh.core.errors import LlmError
from mesh.core.events import (
    AgentsReported,
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    Completed,
    Event,
    LlmCall,
    NodeCompleted,
    ToolResult,
)
from mesh.core.ids import agent_id, new_id
from mesh.core.messages import Results, User
from mesh.core.places import ROOT, Place
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.llm.port import LlmRequest
from mesh.tree.turn import Ack, Activation
from tests.tree.causality import violations
from tests.worlds.mesh import Caller, Complete, Create, ScriptedLlm, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, config, llm, parallel, sequential

TEAM_AND_SLOW = [{"agent": "team", "task": "x"}, {"agent": "slow", "task": "x"}]
SEARCH = llm("search", "find {task}", description="Finds facts.")


def lead(*agents: str, name: str = "main", **more: Any) -> dict[str, Any]:
    return llm(name, agents=list(agents), **{"spawn": {}, **more})


def mesh(
    model: ByNode, *agents: dict[str, Any], tree: dict[str, Any] | None = None, **more: Any
) -> WorldMesh:
    tree = tree or lead(*(agent["name"] for agent in agents))
    return WorldMesh(model, config=config(tree, agents=list(agents), **more))


def spawn(*tasks: str, agent: str = "search") -> LlmCall:
    return calls(("spawn", {"agents": [{"agent": agent, "task": task} for task in tasks]}))


def wait(*handles: str, **more: Any) -> LlmCall:
    return calls(("wait", {**({"handles": list(handles)} if handles else {}), **more}))


def of(kind: type[Any], events: list[AnyEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def journal(world: WorldMesh, body: Any) -> list[AnyEvent]:
    return list(await world.journal.read(body["conversation"]["id"]))


def told(event: ToolResult) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(event.content)["agents"]
    return entries


async def test_a_spawn_returns_handles_at_once_and_a_wait_what_the_agents_brought() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), wait(), says("done")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert body["result"]["response"] == "done"
    spawned, waited = of(ToolResult, events)
    assert [entry["handle"] for entry in told(spawned)] == ["search@0-0-0", "search@0-0-1"]
    assert [(entry["status"], entry["result"]) for entry in told(waited)] == [
        ("completed", "search says find cats"),
        ("completed", "search says find dogs"),
    ]
    assert waited.told == ("0.search@0-0-0", "0.search@0-0-1")


async def test_the_start_of_an_agent_says_its_id_its_task_and_what_started_it() -> None:
    model = ByNode(main=[calls(("spawn", {"agents": [{"agent": "search", "task": "x", "title": "X"}]}))])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    id = body["conversation"]["id"]
    (start,) = of(AgentStarted, events)
    assert (start.step, start.by, start.task, start.title) == ("0.search@0-0-0", "spawn", "x", "X")
    assert start.id == agent_id(id, 1, Place("0.search@0-0-0"))
    assert start.id[-8:] == id[-8:]
    assert start.agent_path == ("main", "search")
    (end,) = of(NodeCompleted, events)
    assert (end.step, end.status, end.text) == ("0.search@0-0-0", "completed", "search says find x")


async def test_a_spawned_agent_starts_with_its_task_alone() -> None:
    model = ByNode(main=[spawn("cats"), wait(), says("done")])
    async with mesh(model, SEARCH) as world:
        await world.create("go")
    assert model.messages["search"] == [User("cats")]


async def test_agents_work_at_the_same_time_and_beside_the_model() -> None:
    model = ByNode(main=[spawn("a", "b"), calls(("look", {})), wait(), says("done")])
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        creating = asyncio.create_task(world.create("go"))

        async def both_wait() -> bool:
            return model.asked["search"] == 2 and model.asked["main"] == 3

        await until(both_wait)
        assert world.ledger.lines == ["look"]
        model.gates["search"].set()
        _, body = await creating
    assert body["result"]["response"] == "done"


async def test_an_answer_in_text_waits_for_the_agents_and_the_model_is_told_what_they_brought() -> None:
    # The script goes by the number of results, so the report is told by the messages.
    model = ByNode(main=[spawn("cats"), says("an answer")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert model.asked["main"] == 3
    (report,) = of(AgentsReported, events)
    assert report.step == "0/llm/1"
    assert "search says find cats" in report.text
    assert isinstance(model.messages["main"][-1], User)
    assert "search says find cats" in model.messages["main"][-1].text
    assert body["result"]["response"] == "an answer"


async def test_what_was_waited_for_is_not_reported_once_more() -> None:
    model = ByNode(main=[spawn("cats"), wait(), says("done")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert model.asked["main"] == 3
    assert not of(AgentsReported, events)


async def test_unwaited_delete_ends_the_agents_with_the_answer() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), says("enough")])
    model.gates["search"] = asyncio.Event()
    tree = lead("search", spawn={"unwaited": "delete"})
    async with mesh(model, SEARCH, tree=tree) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert body["result"]["response"] == "enough"
    assert [(end.step, end.status) for end in of(NodeCompleted, events)] == [
        ("0.search@0-0-0", "deleted"),
        ("0.search@0-0-1", "deleted"),
    ]


async def test_a_wait_for_any_returns_when_the_first_has_ended() -> None:
    model = ByNode(
        main=[
            calls(("spawn", {"agents": [{"agent": "search", "task": "a"}, {"agent": "slow", "task": "b"}]})),
            wait(until="any"),
            calls(("stop", {"handle": "slow@0-0-1", "reason": "enough"})),
            says("done"),
        ]
    )
    model.gates["slow"] = asyncio.Event()
    async with mesh(model, SEARCH, llm("slow")) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    _, waited, stopped = of(ToolResult, events)
    assert [entry["status"] for entry in told(waited)] == ["completed", "running"]
    assert waited.told == ("0.search@0-0-0",)
    assert stopped.told == ("0.slow@0-0-1",)
    ends = {end.step: (end.status, end.text) for end in of(NodeCompleted, events)}
    assert ends["0.slow@0-0-1"] == ("deleted", "Deleted: enough")
    assert body["result"]["response"] == "done"
    assert not of(AgentsReported, events)


async def test_a_wait_that_times_out_is_an_answer_and_no_error() -> None:
    model = ByNode(
        main=[spawn("a"), wait(timeout_s=0.01), calls(("stop", {"handle": "search@0-0-0", "reason": "late"}))]
    )
    model.gates["search"] = asyncio.Event()
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    waited = of(ToolResult, events)[1]
    assert json.loads(waited.content)["timed_out"] is True
    assert not waited.is_error
    assert waited.told == ()


class Failing(ByNode):
    """The model of the node ``broken`` fails."""

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if request.system.startswith("broken"):
            raise LlmError("no such model")
        async for event in super().stream(request):
            yield event


async def test_a_failed_agent_is_an_entry_and_fails_nobody() -> None:
    model = Failing(main=[spawn("a", agent="broken"), wait(), says("done")])
    async with mesh(model, llm("broken")) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    (entry,) = told(of(ToolResult, events)[-1])
    assert (entry["status"], entry["result"]) == ("failed", "broken: no such model")
    assert body["result"]["response"] == "done"


async def test_an_unknown_handle_is_an_error_for_the_model() -> None:
    model = ByNode(main=[wait("search@7-0-0"), calls(("stop", {"handle": "x", "reason": "r"})), says("done")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert [(result.is_error, result.content) for result in of(ToolResult, events)] == [
        (True, "You have started no agent with the handle search@7-0-0."),
        (True, "No agent with the handle x was started by you, or by an agent that you started."),
    ]


async def test_a_fork_knows_the_exchange_and_reads_its_prompt_as_the_result_of_the_call() -> None:
    forking = calls(("look", {}), ("fork", {"prompt": "be the left one"}), ("fork", {"prompt": "the right"}))
    seen: dict[str, Any] = {}

    async def answer(request: Any) -> LlmCall:
        results = [message for message in request.messages if isinstance(message, Results)]
        if not results:
            return forking
        texts = [result.content for result in results[0].results]
        if "be the left one" in texts or "the right" in texts:
            seen[texts[1] if texts[1] == "be the left one" else texts[2]] = (request.system, texts)
            return says(f"fork: {texts}")
        return wait() if len(results) == 1 else says("done")

    async with WorldMesh(ScriptedLlm(answer), config=config(lead(spawn={"fork": True}))) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert body["result"]["response"] == "done"
    assert seen["be the left one"] == (
        "main: ",
        ['["look"]', "be the left one", "This call has no result yet."],
    )
    left = json.loads(seen["the right"][1][1])
    assert left["agents"][0]["handle"] == "self@0-1-0"
    assert [start.step for start in of(AgentStarted, events)] == ["0.self@0-1-0", "0.self@0-2-0"]
    assert body["result"]["response"] == "done"


async def test_what_waits_for_a_person_pauses_only_its_own_agent() -> None:
    model = ByNode(
        main=[
            calls(("spawn", {"agents": [{"agent": "adder", "task": "a"}, {"agent": "search", "task": "b"}]})),
            wait(until="any"),
            wait("adder@0-0-0"),
            says("done"),
        ],
        adder=[add(1), says("added")],
    )
    async with mesh(model, llm("adder"), SEARCH) as world:
        _, body = await world.create("go")
        assert body["conversation"]["status"] == "waiting_approval"
        assert model.asked["main"] == 3
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
    assert body["result"]["response"] == "done"
    assert world.ledger.lines == ["add 1"]


async def test_a_plan_can_be_changed_before_anything_starts() -> None:
    model = ByNode(main=[spawn("cats", "dogs"), wait(), says("done")])
    tree = lead("search", spawn={"review": "ask"})
    async with mesh(model, SEARCH, tree=tree) as world:
        _, body = await world.create("go")
        asked = body["conversation"]["pending_approval"]
        assert model.asked["search"] == 0
        plan = {"agents": [{"agent": "search", "task": t} for t in ("big cats", "birds", "fish")]}
        _, body = await world.decide(asked["uuid"], "approve", edited=plan)
        events = await journal(world, body)
    assert [start.task for start in of(AgentStarted, events)] == ["big cats", "birds", "fish"]
    assert body["result"]["response"] == "done"


async def test_a_plan_that_names_no_agent_is_refused_when_it_is_edited() -> None:
    model = ByNode(main=[spawn("cats"), wait(), says("done")])
    async with mesh(model, SEARCH, tree=lead("search", spawn={"review": "ask"})) as world:
        _, body = await world.create("go")
        asked = body["conversation"]["pending_approval"]
        plan = {"agents": [{"agent": "nobody", "task": "x"}]}
        status, _ = await world.decide(asked["uuid"], "approve", edited=plan)
    assert status == 400


async def test_a_rejected_plan_with_a_reason_starts_nothing_and_tells_the_model() -> None:
    model = ByNode(main=[spawn("cats"), says("fine")])
    async with mesh(model, SEARCH, tree=lead("search", spawn={"review": "ask"})) as world:
        _, body = await world.create("go")
        asked = body["conversation"]["pending_approval"]
        _, body = await world.decide(asked["uuid"], "reject", reason="too dear")
        events = await journal(world, body)
    assert not of(AgentStarted, events)
    assert of(ToolResult, events)[0].content == "This call was not run: too dear"
    assert body["result"]["response"] == "fine"


async def test_a_policy_that_denies_an_agent_denies_its_spawn() -> None:
    model = ByNode(main=[spawn("cats"), says("fine")])
    policy = {"rules": [{"name": "no-search", "tools": ["search"], "decide": "deny", "say": "not today"}]}
    async with mesh(model, SEARCH, llm("other"), tree=lead("search", "other"), policy=policy) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert not of(AgentStarted, events)
    assert of(ToolResult, events)[0].denied


async def test_a_destructive_agent_of_a_spawn_waits_for_a_person() -> None:
    model = ByNode(main=[spawn("cats"), wait(), says("done")])
    danger = {**SEARCH, "destructiveHint": True}
    async with mesh(model, danger) as world:
        _, body = await world.create("go")
        assert model.asked["search"] == 0
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
    assert body["result"]["response"] == "done"


async def test_a_started_agent_can_start_agents_of_its_own() -> None:
    model = ByNode(
        main=[spawn("a", agent="boss"), wait(), says("done")],
        boss=[spawn("x", "y"), wait(), says("boss done")],
    )
    boss = llm("boss", agents=["search"], spawn={})
    async with mesh(model, boss, SEARCH, tree=lead("boss")) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    assert [start.step for start in of(AgentStarted, events)] == [
        "0.boss@0-0-0",
        "0.boss@0-0-0.search@0-0-0",
        "0.boss@0-0-0.search@0-0-1",
    ]
    assert body["result"]["response"] == "done"


async def test_after_a_crash_agents_go_on_and_what_is_done_is_not_done_again() -> None:
    plan = {"agents": [{"agent": "search", "task": "a"}, {"agent": "quick", "task": "b"}]}
    model = ByNode(main=[calls(("spawn", plan)), wait(), says("done")])
    held = model.gates["search"] = asyncio.Event()
    id = new_id()
    async with mesh(model, SEARCH, llm("quick")) as world:
        create = Create(id, Caller(session_id="s", idempotency_key="k"), "go")
        creating = asyncio.create_task(world.ask(create))

        async def quick_is_durable() -> bool:
            return bool(of(NodeCompleted, list(await world.journal.read(id))))

        await until(quick_is_durable)
        await world.crash()
        await asyncio.gather(creating, return_exceptions=True)
        held.set()
        _, body = await world.ask(create)
        events = await journal(world, body)
    assert body["result"]["response"] == "done"
    assert (model.asked["quick"], model.asked["main"]) == (1, 3)
    assert [end.status for end in of(NodeCompleted, events)] == ["completed", "completed"]
    assert len(of(AgentStarted, events)) == 2


async def test_a_fork_that_waits_for_a_person_goes_on_after_a_crash_with_the_same_exchange() -> None:
    forked: list[list[str]] = []

    async def answer(request: LlmRequest) -> LlmCall:
        results = [message for message in request.messages if isinstance(message, Results)]
        texts = [[result.content for result in each.results] for each in results]
        if not results:
            return calls(("fork", {"prompt": "add one"}))
        if texts[0] == ["add one"]:
            forked.append([type(message).__name__ for message in request.messages])
            return add(1) if len(results) == 1 else says("added")
        return wait() if len(results) == 1 else says("done")

    async with WorldMesh(ScriptedLlm(answer), config=config(lead(spawn={"fork": True}))) as world:
        _, body = await world.create("go")
        asked = body["conversation"]["pending_approval"]
        await world.crash()
        _, body = await world.decide(asked["uuid"], "approve")
    assert body["result"]["response"] == "done"
    assert world.ledger.lines == ["add 1"]
    assert [len(each) for each in forked] == [3, 5]


async def test_no_agent_outlives_the_agent_that_started_it() -> None:
    model = ByNode(
        main=[spawn("a", agent="boss"), wait(), says("done")],
        boss=[spawn("x"), calls(("complete_task", {"result": "leaving"}))],
    )
    model.gates["search"] = asyncio.Event()
    boss = llm("boss", agents=["search"], spawn={}, can_complete_task=True)
    async with mesh(model, boss, SEARCH, tree=lead("boss")) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    ends = {end.step: end.status for end in of(NodeCompleted, events)}
    assert ends == {"0.boss@0-0-0.search@0-0-0": "deleted", "0.boss@0-0-0": "completed"}
    assert body["result"]["response"] == "done"


async def test_an_agent_that_fails_takes_the_agents_with_it_that_still_work() -> None:
    model = Failing(main=[spawn("a", agent="boss"), wait(), says("done")])
    model.gates["search"] = asyncio.Event()
    boss = llm("boss", agents=["search"], spawn={})

    async def answer(request: LlmRequest) -> LlmCall:
        if any(isinstance(message, Results) for message in request.messages):
            raise LlmError("the model is gone")
        return spawn("x")

    failing = ScriptedLlm(answer)

    class Model(ByNode):
        async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
            of_node = failing if request.system.startswith("boss") else model
            async for event in of_node.stream(request):
                yield event

    async with mesh(Model(), boss, SEARCH, tree=lead("boss")) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    ends = {end.step: (end.status, end.text) for end in of(NodeCompleted, events)}
    assert ends == {
        "0.boss@0-0-0.search@0-0-0": ("deleted", "Deleted: the agent that started it has ended"),
        "0.boss@0-0-0": ("failed", "boss: the model is gone"),
    }
    assert body["result"]["response"] == "done"


async def test_after_a_crash_that_tore_the_append_of_a_spawn_the_other_agents_of_the_call_start_as_well() -> (
    None
):
    model = ByNode(main=[spawn("a", "b", "c"), wait(), says("done")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await journal(world, body)
    first = next(index for index, event in enumerate(events) if isinstance(event, AgentStarted))
    torn = MemoryJournal()
    id = body["conversation"]["id"]
    await torn.append(0, await torn.open(0), Append(id, 0, events[: first + 2]))
    again = WorldMesh(model, torn, config(lead("search"), agents=[SEARCH]))
    async with again as world:
        status, _ = await world.ask(Complete(id))
        assert status in (200, 409)

        async def is_over() -> bool:
            return any(isinstance(event, Completed) for event in await torn.read(id))

        await until(is_over)
        found = await torn.read(id)
    starts = [(start.step, start.task) for start in of(AgentStarted, found)]
    assert starts == [("0.search@0-0-0", "a"), ("0.search@0-0-1", "b"), ("0.search@0-0-2", "c")]
    assert [entry["handle"] for entry in told(of(ToolResult, found)[0])] == [
        "search@0-0-0",
        "search@0-0-1",
        "search@0-0-2",
    ]


class AddsInForks(ByNode):
    """Each fork adds twice."""

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        results = [message.results for message in request.messages if isinstance(message, Results)]
        is_fork = bool(results) and results[0][0].content == "please add"
        if is_fork and len(results) < 3:
            yield add(len(results))
            return
        async for event in super().stream(request):
            yield event


async def test_what_is_remembered_of_a_fork_holds_for_its_agent() -> None:
    model = AddsInForks(main=[calls(("fork", {"prompt": "please add"})), wait(), says("done")])
    policy = {"rules": [{"name": "adding", "tools": ["add"], "decide": "ask"}], "grants": "conversation"}
    async with mesh(model, tree=lead(spawn={"fork": True}), policy=policy) as world:
        _, body = await world.create("go")
        asked = body["conversation"]["pending_approval"]
        rule = {"tools": ["add"], "decide": "allow"}
        _, body = await world.decide(asked["uuid"], "approve", remember="conversation", rule=rule)
    assert body["result"]["response"] == "done"
    assert world.ledger.lines == ["add 1", "add 2"]


async def test_an_agent_that_a_fork_calls_knows_its_task_alone() -> None:
    seen: list[list[Any]] = []

    async def answer(request: LlmRequest) -> LlmCall:
        if request.system.startswith("search"):
            seen.append(list(request.messages))
            return says("found")
        results = [message for message in request.messages if isinstance(message, Results)]
        if not results:
            return calls(("fork", {"prompt": "ask it"}))
        if results[0].results[0].content == "ask it":
            return calls(("search", {"task": "cats"})) if len(results) == 1 else says("asked")
        return wait() if len(results) == 1 else says("done")

    tree = lead("search", spawn={"fork": True})
    async with WorldMesh(ScriptedLlm(answer), config=config(tree, agents=[SEARCH])) as world:
        _, body = await world.create("go")
    assert seen == [[User("cats")]]
    assert body["result"]["response"] == "done"


class HoldsAppends(WorldMesh):
    """Holds what the root node sends ahead from some moment on, until it may ``go``."""

    is_holding = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.held, self.go = asyncio.Event(), asyncio.Event()

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        if self.is_holding and activation.place == ROOT:
            self.held.set()
            await asyncio.wait_for(self.go.wait(), 30)
        return await super().append(activation, events)


async def test_an_error_about_a_handle_repeats_little_of_it() -> None:
    handle = "search@0-0-0" * 100_000
    wrong = [("wait", {"handles": [handle]}), ("stop", {"handle": handle, "reason": "x"})]
    model = ByNode(main=[calls(*wrong, ("tell", {"handle": handle, "message": "x"})), says("done")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        results = of(ToolResult, await journal(world, body))
    assert [result.is_error for result in results] == [True] * 3
    assert max(len(result.content) for result in results) < 3_000


async def test_nothing_of_an_agent_that_goes_on_is_journaled_before_what_it_did_before() -> None:
    model = ByNode(main=[calls(("spawn", {"agents": TEAM_AND_SLOW})), wait(), says("done")], asks=[add(1)])
    model.gates |= {name: asyncio.Event() for name in ("beside", "slow", "last")}
    both = parallel(llm("asks"), llm("beside"), approvals="ask")
    team = sequential(both, llm("last"), name="team", description="A team.")
    of_config = config(lead("team", "slow"), agents=[team, llm("slow")])
    async with HoldsAppends(model, config=of_config) as world:
        id = new_id()
        asking = asyncio.create_task(world.ask(Create(id, Caller(session_id="s"), "go")))

        async def found(kind: type[Any]) -> list[Any]:
            return of(kind, list(await world.journal.read(id)))

        (asked,) = await until(lambda: found(ApprovalRequired))
        world.is_holding = True
        model.gates["beside"].set()
        await asyncio.wait_for(world.held.wait(), 30)
        deciding = asyncio.create_task(world.decide(asked.uuid, "approve"))

        async def is_at_the_last() -> bool:
            return model.asked["last"] == 1

        async def both_have_ended() -> bool:
            return any(end.step == "0.team@0-0-0.0" for end in await found(NodeCompleted))

        await until(is_at_the_last)
        await until(both_have_ended)
        world.go.set()
        model.gates["last"].set()
        model.gates["slow"].set()
        await asyncio.gather(asking, deciding)
        assert not violations(list(await world.journal.read(id)), world.config)


@pytest.mark.parametrize("bound", [{"turn_timeout_s": 20.0}, {"timeout_s": 20.0}])
async def test_a_wait_that_is_longer_than_its_turn_does_not_fail_it_while_a_person_is_waited_for(
    bound: dict[str, float],
) -> None:
    model = ByNode(main=[spawn("x", agent="adder"), wait(timeout_s=3600), says("done")], adder=[add(1)])
    node = {key: value for key, value in bound.items() if key == "timeout_s"}
    settings = {key: value for key, value in bound.items() if key != "timeout_s"}
    of_config = config(lead("adder", **node), agents=[llm("adder")])
    async with WorldMesh(model, config=of_config, **settings) as world:
        _, body = await world.create("go")
        assert body["conversation"]["turn"]["state"] == "waiting_approval", body
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
    assert body["result"]["response"] == "done"
