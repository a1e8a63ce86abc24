"""Agents that are called like tools: what they get, what comes back, and how they pause and end."""

import asyncio
from typing import Any

import pytest

from mesh.core.events import AgentStarted, ApprovalRequired, LlmCall, NodeCompleted, ToolResult, Usage
from mesh.core.ids import new_id
from mesh.llm.parameters import Parameters
from mesh.tree.llm import COMPLETE_TASK, RETURN_TO_USER
from tests.worlds.mesh import Caller, Create, Show, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, config, llm, parallel, sequential

SEARCH = llm("search", "find {task} for {user_message}", description="Finds facts.")


def caller(*agents: str, **more: Any) -> dict[str, Any]:
    return llm("main", agents=list(agents), **more)


def mesh(
    model: ByNode, *agents: dict[str, Any], tree: dict[str, Any] | None = None, **more: Any
) -> WorldMesh:
    tree = tree or caller(*(agent["name"] for agent in agents))
    return WorldMesh(model, config=config(tree, agents=list(agents), **more))


def ask(agent: str, task: str = "cats") -> LlmCall:
    return calls((agent, {"task": task}))


async def test_a_called_agent_gets_its_task_as_message_and_placeholder_and_answers_the_call() -> None:
    model = ByNode(main=[ask("search"), says("done")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert body["result"]["response"] == "done"
    assert model.prompts[1] == "search: find cats for cats"
    assert [message.text for message in model.messages["search"]] == ["cats"]
    result = next(event for event in events if isinstance(event, ToolResult))
    assert (result.step, result.content) == ("0/tool/0.0", "search says find cats for cats")
    started = next(event for event in events if isinstance(event, AgentStarted))
    assert (started.step, started.agent_path) == ("0.search@0-0", ("main", "search"))
    assert not any(isinstance(event, NodeCompleted) for event in events)


async def test_each_node_asks_its_model_with_its_own_parameters() -> None:
    model = ByNode(main=[ask("search"), says("done")])
    search = {**SEARCH, "parameters": {"temperature": 0.2, "stop": ["END"], "max_tokens": 99}}
    tree = caller("search", parameters={"effort": "low"})
    async with mesh(model, search, tree=tree, llm={"model": "scripted", "max_tokens": 500}) as world:
        await world.create("go")
    asked = {name: (request.max_tokens, request.parameters) for name, request in model.requests.items()}
    assert asked == {
        "main": (500, Parameters(effort="low")),
        "search": (99, Parameters(temperature=0.2, stop=("END",))),
    }


async def test_it_is_offered_under_its_name_with_its_description_and_schema() -> None:
    model = ByNode()
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = llm("weather", "{city}", description="Knows the weather.", input_schema=schema)
    model = ByNode(main=[calls(("weather", {"city": "Rome"})), says("sunny")])
    async with mesh(model, weather) as world:
        await world.create("go")
    offered = model.tools["main"]
    assert (offered["weather"].description, offered["weather"].input_schema) == ("Knows the weather.", schema)
    assert model.prompts[1] == "weather: Rome"
    assert [message.text for message in model.messages["weather"]] == ['{"city": "Rome"}']


async def test_wrong_arguments_and_unknown_agents_are_error_results() -> None:
    wrong = calls(("search", {"what": "cats"}), ("nobody", {"task": "x"}))
    model = ByNode(main=[wrong, says("sorry")])
    async with mesh(model, SEARCH) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    results = [event for event in events if isinstance(event, ToolResult)]
    assert [result.is_error for result in results] == [True, True]
    assert "Invalid arguments for search" in results[0].content
    assert body["result"]["response"] == "sorry"
    assert model.asked["search"] == 0


async def test_a_circle_of_agents_ends_at_the_greatest_depth() -> None:
    model = ByNode(main=[ask("again"), says("done")], again=[ask("again"), says("deep")])
    again = llm("again", agents=["again"])
    async with mesh(model, again, budget={"max_depth": 3}) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert body["result"]["response"] == "done"
    places = [event.step for event in events if isinstance(event, AgentStarted)]
    assert places == ["0.again@0-0", "0.again@0-0.again@0-0"]
    refused = next(event for event in events if isinstance(event, ToolResult) and event.is_error)
    assert "budget.max_depth" in refused.content


async def test_calls_of_agents_in_one_answer_run_at_the_same_time() -> None:
    met = asyncio.Barrier(2)

    class Meeting(ByNode):
        async def stream(self, request: Any) -> Any:
            if request.system.startswith(("a", "b")):
                await asyncio.wait_for(met.wait(), 30)
            async for event in super().stream(request):
                yield event

    both = calls(("a", {"task": "1"}), ("b", {"task": "2"}))
    async with mesh(Meeting(main=[both, says("done")]), llm("a"), llm("b")) as world:
        _, body = await world.create("go")
    assert body["result"]["response"] == "done"


async def test_a_destructive_tool_of_a_called_agent_asks_and_says_who_asks() -> None:
    model = ByNode(main=[ask("adder"), says("done")], adder=[add(1), says("added")])
    async with mesh(model, llm("adder")) as world:
        _, body = await world.create("go")
        assert world.ledger.lines == []
        events = await world.journal.read(body["conversation"]["id"])
        asked = next(event for event in events if isinstance(event, ApprovalRequired))
        assert (asked.step, asked.agent_path) == ("0.adder@0-0/tool/0.0", ("main", "adder"))
        assert body["conversation"]["pending_approval"]["agent_path"] == ["main", "adder"]
        assert body["result"]["response"].endswith("\nadder asks, on behalf of main.")
        _, body = await world.decide(asked.uuid, "approve")
    assert body["result"]["response"] == "done"
    assert world.ledger.lines == ["add 1"]
    assert model.asked == {"main": 2, "adder": 2}


async def test_siblings_of_a_paused_agent_run_to_their_end_and_a_decision_lets_it_go_on_at_once() -> None:
    both = calls(("adder", {"task": "1"}), ("slow", {"task": "2"}))
    model = ByNode(main=[both, says("done")], adder=[add(1), says("added")])
    model.gates["slow"] = asyncio.Event()
    async with mesh(model, llm("adder"), llm("slow")) as world:
        id_ = new_id()
        created = asyncio.create_task(world.ask(Create(id_, Caller(session_id="s1"), "go")))

        async def pending() -> str:
            status, body = await world.ask(Show(id_))
            approval = body["conversation"].get("pending_approval") if status == 200 else None
            return approval["uuid"] if approval else ""

        async def asked_again() -> bool:
            return model.asked["adder"] == 2

        deciding = asyncio.create_task(world.decide(await until(pending), "approve"))
        await until(asked_again)
        assert world.ledger.lines == ["add 1"]
        model.gates["slow"].set()
        await created
        _, body = await deciding
    assert body["result"]["response"] == "done"


@pytest.mark.parametrize("approved", [True, False])
async def test_a_destructive_agent_asks_before_it_starts(approved: bool) -> None:
    model = ByNode(main=[ask("boss"), says("done")])
    async with mesh(model, llm("boss", destructiveHint=True)) as world:
        _, body = await world.create("go")
        assert model.asked["boss"] == 0
        uuid = body["conversation"]["pending_approval"]["uuid"]
        _, body = await world.decide(
            uuid, "approve" if approved else "reject", reason="" if approved else "no"
        )
    assert body["result"]["response"] == "done"
    assert model.asked["boss"] == int(approved)


async def test_what_an_agent_writes_into_the_state_is_not_seen_by_its_caller() -> None:
    model = ByNode(main=[ask("search"), says("done")])
    tree = sequential(caller("search"), llm("after", "{fact}"))
    async with mesh(model, {**SEARCH, "output_key": "fact"}, tree=tree) as world:
        await world.create("go")
    assert model.prompts[-1] == "after: {fact}"


async def test_complete_task_ends_the_agent_with_its_result_and_later_calls_do_not_run() -> None:
    finish = calls(("complete_task", {"result": "42"}), ("add", {"n": 1}))
    tree = sequential(llm("first", can_complete_task=True), llm("second"), name="worker")
    model = ByNode(main=[ask("worker"), says("done")], first=[finish])
    async with mesh(model, tree) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert body["result"]["response"] == "done"
    assert model.asked["second"] == 0
    assert [e.content for e in events if isinstance(e, ToolResult) and e.tool == "worker"] == ["42"]


async def test_return_to_user_ends_the_turn_through_everything_above_it() -> None:
    back = calls(("return_to_user", {"result": "this is it"}))
    model = ByNode(main=[ask("a"), says("never")], a=[ask("b"), says("never")], b=[back])
    agents = (llm("a", agents=["b"]), llm("b", can_return_to_user=True))
    async with mesh(model, *agents, tree=caller("a")) as world:
        _, body = await world.create("go")
        assert body["result"]["response"] == "this is it"
        assert body["conversation"]["turn"]["state"] == "completed"
        _, body = await world.say(body["conversation"]["id"], "next")
    assert model.asked == {"main": 2, "a": 1, "b": 1} or body["result"]["response"]


async def test_when_an_agent_returns_to_the_user_other_branches_start_no_new_step() -> None:
    back = calls(("return_to_user", {"result": "first"}))
    model = ByNode(a=[back], b=[calls(("look", {})), says("never")])
    model.gates["b"] = asyncio.Event()
    tree = parallel(llm("a", can_return_to_user=True), llm("b"))
    async with mesh(model, tree=tree) as world:
        _, body = await asyncio.wait_for(world.create("go"), 30)
    assert body["result"]["response"] == "first"
    assert world.ledger.lines == []


def test_the_tools_that_end_something_take_a_result() -> None:
    assert COMPLETE_TASK.input_schema["required"] == RETURN_TO_USER.input_schema["required"] == ["result"]


async def test_one_tool_may_stand_for_all_agents() -> None:
    model = ByNode(main=[calls(("use_agent", {"agent": "search", "task": "cats"})), says("done")])
    tree = caller("search", offer_agents="use_agent")
    async with mesh(model, SEARCH, tree=tree) as world:
        _, body = await world.create("go")
    assert "use_agent" in model.tools["main"]
    assert "search" not in model.tools["main"]
    assert body["result"]["response"] == "done"
    assert model.prompts[1] == "search: find cats for cats"


async def test_a_model_call_is_journaled_with_what_it_cost() -> None:
    usage = Usage(input=1000, output=100)
    answer = LlmCall(model="scripted", text="dear", usage=usage)
    model = ByNode(main=[ask("search"), answer])
    prices = {"scripted": {"input": 3, "output": 15}}
    async with mesh(model, SEARCH, llm={"model": "scripted", "prices": prices}) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert [event.cost_nusd for event in events if isinstance(event, LlmCall)] == [0, 0, 4_500_000]
