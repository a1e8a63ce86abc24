"""Tools of a Python file that start agents and wait for them."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mesh.core.events import AgentStarted, AnyEvent, CodeStep, NodeCompleted, ToolResult
from mesh.core.ids import new_id
from mesh.keeper.requests import Cancel
from mesh.mcp.memory import ToolFunction, execution
from mesh.mcp.port import Tool, ToolOutcome
from mesh.tools.asking import Unanswered
from mesh.tools.context import Context
from mesh.tools.declare import ToolError
from tests.worlds.mesh import Caller, Create, Ledger, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, config, llm

SEARCH = llm("search", "find {task}", description="Finds facts.")


class Tools(Ledger):
    """The ledger's tools, and ``survey``, a function that runs as in a file of tools; ``runs`` counts its
    runs."""

    def __init__(self, survey: Callable[[Context], str], **hints: Any) -> None:
        super().__init__()
        self.runs = 0
        self._survey = survey
        self._hints = {"destructive": False, "repeatable": True, "read_only": True, **hints}

    def pairs(self) -> list[tuple[Tool, ToolFunction]]:
        schema = {"type": "object"}
        tool = Tool(
            name="survey",
            description="Asks.",
            input_schema=schema,
            server="ledger",
            tells_truth=True,
            **self._hints,
        )
        return [*super().pairs(), (tool, self._run)]

    async def _run(self, arguments: dict[str, Any]) -> ToolOutcome | str:
        told = execution.get()
        assert told is not None
        context = Context(told)
        self.runs += 1
        try:
            said = self._survey(context)
        except Unanswered:
            return ToolOutcome("", asks=tuple(context.asking.new))
        except ToolError as error:
            return ToolOutcome(str(error), is_error=True)
        return ToolOutcome("", asks=tuple(context.asking.new)) if context.asking.new else said


def both(ctx: Context) -> str:
    return " and ".join(
        str(text) for text in ctx.wait([ctx.spawn("search", "cats"), ctx.spawn("search", "dogs")])
    )


def mesh(model: ByNode, tools: Tools, *agents: dict[str, Any], fork: bool = False, **more: Any) -> WorldMesh:
    tree = llm("main", agents=[agent["name"] for agent in agents], spawn={"fork": fork}, **more)
    return WorldMesh(model, config=config(tree, agents=list(agents)), ledger=tools)


SURVEYS = calls(("survey", {}))


def of(kind: type[Any], events: list[AnyEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def test_a_tool_starts_agents_and_goes_on_with_what_they_said() -> None:
    tools = Tools(both)
    async with mesh(ByNode(main=[SURVEYS, says("done")]), tools, SEARCH) as world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    (result,) = of(ToolResult, events)
    assert result.content == "search says find cats and search says find dogs"
    assert [(start.step, start.by) for start in of(AgentStarted, events)] == [
        ("0.search@0-0-0", "tool"),
        ("0.search@0-0-1", "tool"),
    ]
    assert result.told == ("0.search@0-0-0", "0.search@0-0-1")
    assert len(of(CodeStep, events)) == 3
    assert tools.runs == 2
    assert body["result"]["response"] == "done"


async def test_an_agent_of_a_tool_may_wait_for_a_person_through_a_crash_and_nothing_is_started_again() -> (
    None
):
    def ask(ctx: Context) -> str:
        return ctx.wait(ctx.spawn("adder", "one"))

    tools = Tools(ask)
    model = ByNode(main=[SURVEYS, says("done")], adder=[add(1), says("added")])
    async with mesh(model, tools, llm("adder")) as world:
        _, body = await world.create("go")
        asked = body["conversation"]["pending_approval"]
        await world.crash()
        _, body = await world.decide(asked["uuid"], "approve")
        events = list(await world.journal.read(body["conversation"]["id"]))
    assert of(ToolResult, events)[-1].content == "added"
    assert tools.lines == ["add 1"]
    assert len(of(AgentStarted, events)) == 1
    assert (model.asked["main"], model.asked["adder"]) == (2, 2)


async def test_several_tools_may_wait_at_the_same_time() -> None:
    def one(ctx: Context) -> str:
        return ctx.wait(ctx.spawn("search", "x"))

    model = ByNode(main=[calls(("survey", {}), ("survey", {})), says("done")])
    async with mesh(model, Tools(one), SEARCH) as world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    assert [start.step for start in of(AgentStarted, events)] == ["0.search@0-0-0", "0.search@0-1-0"]
    assert [result.content for result in of(ToolResult, events)] == ["search says find x"] * 2


async def test_a_tool_forks_the_model_that_called_it() -> None:
    def forks(ctx: Context) -> str:
        return ctx.wait(ctx.fork("look closer"))

    model = ByNode(main=[SURVEYS, says("from the fork")])
    async with mesh(model, Tools(forks), fork=True) as world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    (start,) = of(AgentStarted, events)
    assert (start.step, start.task, start.by) == ("0.self@0-0-0", "look closer", "tool")
    assert of(ToolResult, events)[0].content == "from the fork"


async def test_a_tool_can_start_only_what_its_node_may() -> None:
    def starts(ctx: Context) -> str:
        said = []
        for start in (lambda: ctx.spawn("nobody", "x"), lambda: ctx.fork("x")):
            try:
                start()
            except ToolError as refused:
                said.append(str(refused))
        return "; ".join(said)

    async with mesh(ByNode(main=[SURVEYS, says("done")]), Tools(starts), SEARCH) as world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    assert of(ToolResult, events)[0].content == (
        "the node may not start the agent nobody (spawn); the node may not start forks (spawn)"
    )
    assert not of(AgentStarted, events)


async def test_a_tool_cannot_start_an_agent_that_a_person_has_to_agree_to() -> None:
    danger = {**SEARCH, "destructiveHint": True}
    async with mesh(ByNode(main=[SURVEYS, says("done")]), Tools(both), danger) as world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    assert "a person has to agree" in of(ToolResult, events)[0].content
    assert not of(AgentStarted, events)


async def test_without_spawn_a_tool_that_wants_agents_is_an_error() -> None:
    world = WorldMesh(ByNode(main=[SURVEYS, says("done")]), config=config(llm("main")), ledger=Tools(both))
    async with world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    assert of(ToolResult, events)[0].is_error
    assert "spawn" in of(ToolResult, events)[0].content


async def test_what_a_tool_has_started_and_not_waited_for_is_reported() -> None:
    def starts(ctx: Context) -> str:
        ctx.spawn("search", "cats")
        return "started"

    model = ByNode(main=[SURVEYS, says("done")])
    async with mesh(model, Tools(starts), SEARCH) as world:
        await world.create("go")
    assert model.asked["main"] == 3
    assert "search says find cats" in model.messages["main"][-1].text


async def test_a_turn_that_is_cancelled_while_a_tool_waits_ends() -> None:
    def one(ctx: Context) -> str:
        return ctx.wait(ctx.spawn("search", "x"))

    model = ByNode(main=[SURVEYS, says("done")])
    model.gates["search"] = asyncio.Event()
    id = new_id()
    async with mesh(model, Tools(one, read_only=False), SEARCH) as world:
        creating = asyncio.create_task(world.ask(Create(id, Caller(session_id="s"), "go")))

        async def waits() -> bool:
            return model.asked["search"] == 1

        await until(waits)
        await asyncio.wait_for(world.ask(Cancel(id)), 30)
        await asyncio.wait_for(creating, 30)
        events = list(await world.journal.read(id))
    assert not [end for end in of(NodeCompleted, events) if end.status == "completed"]


def forks(ctx: Context) -> str:
    return ctx.wait(ctx.fork("look around"))


@pytest.mark.parametrize("starts", [both, forks])
async def test_where_a_person_reviews_the_plan_no_tool_starts_anything(
    starts: Callable[[Context], str],
) -> None:
    model = ByNode(main=[SURVEYS, says("done")])
    tree = llm("main", agents=["search"], spawn={"fork": True, "review": "ask"})
    async with WorldMesh(model, config=config(tree, agents=[SEARCH]), ledger=Tools(starts)) as world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    assert "a person has to agree" in of(ToolResult, events)[0].content
    assert not of(AgentStarted, events)


@pytest.mark.parametrize(("denied", "starts"), [("spawn", both), ("fork", forks)])
async def test_what_the_policy_denies_the_model_it_denies_its_tools(
    denied: str, starts: Callable[[Context], str]
) -> None:
    model = ByNode(main=[SURVEYS, says("done")])
    tree = llm("main", agents=["search"], spawn={"fork": True})
    policy = {"rules": [{"name": "none", "tools": [denied], "decide": "deny", "say": "not today"}]}
    world = WorldMesh(model, config=config(tree, agents=[SEARCH], policy=policy), ledger=Tools(starts))
    async with world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    assert "not today" in of(ToolResult, events)[0].content
    assert not of(AgentStarted, events)


@pytest.mark.parametrize("timeout", [5, 5.5])
async def test_a_timeout_may_be_any_number(timeout: float) -> None:
    def one(ctx: Context) -> str:
        return str(ctx.wait([ctx.spawn("search", "x")], timeout=timeout))

    async with mesh(ByNode(main=[SURVEYS, says("done")]), Tools(one), SEARCH) as world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    assert of(ToolResult, events)[0].content == "['search says find x']"


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
async def test_a_timeout_that_is_none_is_an_error_of_the_tool(timeout: float) -> None:
    def one(ctx: Context) -> str:
        return str(ctx.wait([ctx.spawn("search", "x")], timeout=timeout))

    async with mesh(ByNode(main=[SURVEYS, says("done")]), Tools(one), SEARCH) as world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    assert of(ToolResult, events)[0].content == "the timeout is a number of seconds, from 0"


class TwoTools(Tools):
    """``survey`` waits for the agent first, ``survey2`` for the agent second."""

    def __init__(self) -> None:
        super().__init__(lambda ctx: ctx.wait(ctx.spawn("first", "x")))
        self._second = Tools(lambda ctx: ctx.wait(ctx.spawn("second", "x")))

    def pairs(self) -> list[tuple[Tool, ToolFunction]]:
        tool, run = self._second.pairs()[-1]
        return [*super().pairs(), (msgspec.structs.replace(tool, name="survey2"), run)]


async def test_a_tool_that_ends_takes_no_place_from_what_the_tool_beside_it_waits_for() -> None:
    model = ByNode(
        main=[calls(("spawn", {"agents": [{"agent": "asks", "task": "x"}]})), says("done")],
        asks=[calls(("survey", {}), ("survey2", {})), says("both are done")],
        second=[calls(("spawn", {"agents": [{"agent": "below", "task": "x"}]})), says("second is done")],
    )
    about: dict[str, Any] = {"description": "Does it."}
    agents = [
        llm("asks", agents=["first", "second"], spawn={}, **about),
        llm("first", **about),
        llm("second", agents=["below"], spawn={}, **about),
        llm("below", **about),
    ]
    tree = llm("main", agents=["asks"], spawn={})
    more = {"limits": {"agents_at_once": 1}}
    async with WorldMesh(model, config=config(tree, agents=agents, **more), ledger=TwoTools()) as world:
        _, body = await asyncio.wait_for(world.create("go"), 30)
    assert body["result"]["response"] == "done"
