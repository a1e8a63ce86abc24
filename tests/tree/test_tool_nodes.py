"""Tool nodes: one call without a model, with arguments from the config."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.core.errors import ConfigError, ToolSessionError
from mesh.core.events import LlmCall, ToolIntent, ToolResult
from mesh.mcp.memory import MemorySession
from mesh.mcp.port import Tool, ToolOutcome
from mesh.tree.inventory import inventory
from mesh.tree.outline import outline
from mesh.tree.plan import likely_mistakes
from tests.worlds.mesh import WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, Node, config, llm, loop, parallel, sequential, tool

ECHO = Tool(
    name="echo",
    description="Says its arguments.",
    input_schema={"type": "object"},
    server="ledger",
    destructive=False,
    repeatable=True,
)


def mesh(tree: Node, model: ByNode | None = None, **more: Any) -> WorldMesh:
    """A mesh with the tools of the ledger and ``echo``, which fails if it is told to."""

    async def echo(arguments: dict[str, Any]) -> ToolOutcome:
        return ToolOutcome(json.dumps(arguments, sort_keys=True), is_error="fail" in arguments)

    world = WorldMesh(model or ByNode(), config=config(tree, **more))
    world.ledger.offered.offer([*world.ledger.pairs(), (ECHO, echo)])
    return world


async def events(world: WorldMesh, body: Any, kind: type[Any]) -> list[Any]:
    return [e for e in await world.journal.read(body["conversation"]["id"]) if isinstance(e, kind)]


def waiting(body: Any) -> Any:
    return body["result"]["approval"]


async def test_it_answers_with_the_text_of_its_tool_and_asks_no_model() -> None:
    async with mesh(tool("t", "echo", n=3, deep={"list": ["{user_message}", True, None, 1.5]})) as world:
        _, body = await world.create("cats")
        answer = {"deep": {"list": ["cats", True, None, 1.5]}, "n": 3}
        assert json.loads(body["result"]["response"]) == answer
        (result,) = await events(world, body, ToolResult)
        assert (result.step, result.tool, result.is_error) == ("0/tool/0.0", "echo", False)
        assert result.arguments == answer
        assert await events(world, body, LlmCall) == []


async def test_a_text_that_is_a_placeholder_stays_text_and_its_value_is_not_expanded_again() -> None:
    tree = sequential(
        llm("five", output_key="n"), tool("t", "echo", a="{n}", b="{nobody}", c="{user_message}")
    )
    async with mesh(tree, ByNode(five=says("5"))) as world:
        _, body = await world.create("{n}")
    assert json.loads(body["result"]["response"]) == {"a": "5", "b": "{nobody}", "c": "{n}"}


async def test_its_answer_is_stored_and_read_by_the_nodes_after_it() -> None:
    fetch = tool("fetch", "echo", q="{user_message}") | {"output_key": "found"}
    async with mesh(sequential(fetch, llm("a", "use {found}"))) as world:
        _, body = await world.create("cats")
    assert body["result"]["response"] == 'a says use {"q": "cats"}'


async def test_it_reads_the_turns_before_where_it_asks_for_them() -> None:
    async with mesh(sequential(tool("t", "echo", h=["{history}"]))) as world:
        _, body = await world.create("one")
        _, body = await world.say(body["conversation"]["id"], "two")
    assert "user: one" in body["result"]["response"]


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (tool("t", "echo", fail=1), 't: {"fail": 1}'),
        (tool("t", "add", n="{user_message}"), "t: Invalid arguments for add:"),
    ],
)
async def test_an_error_of_the_tool_fails_the_node(node: Node, problem: str) -> None:
    async with mesh(sequential(llm("a"), node)) as world:
        _, body = await world.create("go")
        assert body["error"].startswith(problem)
        assert world.ledger.lines == []


async def test_a_destructive_tool_asks_runs_once_and_can_be_edited() -> None:
    async with mesh(sequential(tool("t", "add", n=1), llm("a", "{user_message}"))) as world:
        _, body = await world.create("go")
        asked = waiting(body)
        assert (asked["tool_name"], asked["tool_args"], asked["asked_by"]) == ("add", {"n": 1}, "t")
        status, refused = await world.decide(asked["uuid"], "approve", edited={"n": "many"})
        assert (status, world.ledger.lines) == (400, []), refused
        await world.crash()
        _, body = await world.decide(asked["uuid"], "approve", edited={"n": 7})
        assert (body["result"]["response"], world.ledger.lines) == ("a says go", ["add 7"])
        (result,) = await events(world, body, ToolResult)
        assert (result.content, result.call_id) == ('{"added": 7}', "tool")
        assert len(await events(world, body, ToolIntent)) == 1
        shown = [m["tool_call"] for m in body["conversation"]["messages"] if m.get("tool_call")]
        assert [call["arguments"] for call in shown] == [{"n": 7}]


@pytest.mark.parametrize(("reason", "end"), [("too risky", "t: This call was not run: too risky"), ("", "")])
async def test_a_rejected_call_fails_the_node_or_ends_the_turn(reason: str, end: str) -> None:
    async with mesh(tool("t", "add", n=1)) as world:
        _, body = await world.create("go")
        _, body = await world.decide(waiting(body)["uuid"], "reject", reason=reason)
        assert body.get("error", "") == end
        assert world.ledger.lines == []


async def test_a_call_whose_outcome_is_unknown_is_a_question() -> None:
    async with mesh(tool("t", "add", n=1)) as world:
        _, body = await world.create("go")
        session = world.ledger.offered

        async def lost(*call: Any, **more: Any) -> Any:
            await MemorySession.call(session, *call, **more)
            raise ToolSessionError("the connection broke", may_have_run=True)

        async def settle(claim: Any) -> Any:
            raise ToolSessionError("nobody knows", may_have_run=True)

        session.call, session.settle = lost, settle  # type: ignore[method-assign]
        _, body = await world.decide(waiting(body)["uuid"], "approve")
        assert waiting(body)["kind"] == "unknown_outcome"
        _, body = await world.decide(waiting(body)["uuid"], "skip")
        assert body["error"].startswith("t: It is not known whether this call ran.")
        assert world.ledger.lines == ["add 1"]


async def test_it_runs_in_each_branch_and_in_each_iteration() -> None:
    each = loop(tool("t", "echo", i="{iteration}"), llm("a", can_exit_loop=True), max_iterations=2)
    tree = parallel(each, tool("u", "echo", n=1))
    async with mesh(tree, ByNode(a=says("on"))) as world:
        _, body = await world.create("go")
        results = {e.step: e.content for e in await events(world, body, ToolResult)}
    assert results == {
        "0.0.0#1/tool/0.0": '{"i": "1"}',
        "0.0.0#2/tool/0.0": '{"i": "2"}',
        "0.1/tool/0.0": '{"n": 1}',
    }


async def test_it_ends_with_its_timeout() -> None:
    hang = asyncio.Event()
    async with mesh(tool("t", "add", n=1) | {"timeout_s": 0.05}) as world:
        (toolbox,) = world.tree.toolboxes
        reads = {"destructive": False, "repeatable": True, "read_only": True}
        adding = [(replace(t, **reads), f) for t, f in world.ledger.pairs()]
        world.ledger.offered.offer(adding)
        await until(lambda: _true(toolbox.tools["add"].repeatable))
        world.ledger.before_add = hang.wait
        _, body = await world.create("go")
    assert body["error"] == "t took longer than 0.05 s (timeout_s)"


async def _true(value: bool) -> bool:
    return value


async def test_called_as_an_agent_it_gets_the_arguments_of_the_call_and_answers_it() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = tool("weather", "echo", where="{city}") | {"description": "Knows.", "input_schema": schema}
    model = ByNode(main=[calls(("weather", {"city": "Rome"})), says("sunny")])
    async with mesh(llm("main", agents=["weather"]), model, agents=[weather]) as world:
        _, body = await world.create("go")
        results = {e.step: e.content for e in await events(world, body, ToolResult)}
    assert body["result"]["response"] == "sunny"
    said = '{"where": "Rome"}'
    assert results == {"0.weather@0-0/tool/0.0": said, "0/tool/0.0": said}


async def test_a_tool_that_no_server_offers_is_a_problem_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"no MCP server offers 'nothing'; there are: add, echo, look"):
        async with mesh(tool("t", "nothing")):
            pass


async def test_a_tool_that_has_gone_fails_the_node() -> None:
    async with mesh(tool("t", "echo")) as world:
        world.ledger.offered.offer(world.ledger.pairs())
        (toolbox,) = world.tree.toolboxes

        await until(lambda: _true("echo" not in toolbox.tools))
        _, body = await world.create("go")
    assert body["error"].startswith("t: There is no tool 'echo'.")


def test_lists_of_nodes_and_tools_show_it() -> None:
    world = mesh(sequential(tool("t", "echo", q="{found}"), llm("a", tools=[])))
    shown = inventory(world.config, [ECHO.shown(), replace(ECHO, name="other").shown()])
    assert [(entry["name"], entry["nodes"]) for entry in shown] == [("echo", ["t"]), ("other", [])]
    nodes = outline(world.config).agents
    assert [(node.type, node.model) for node in nodes] == [("tool", ""), ("llm", "scripted")]
    (hint,) = likely_mistakes(world.config)
    assert "agent.agents[0].args: nothing sets {found} before t runs" in hint
