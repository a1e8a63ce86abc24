"""What a model may ask for in one answer and in one turn, and how many tools it may be shown."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from mesh.core.errors import ConfigError
from mesh.core.events import AnyEvent, LlmCall, ToolResult
from mesh.llm.port import LlmRequest
from mesh.mcp.memory import MemorySession
from mesh.mcp.port import Tool
from mesh.tree.local import LocalTree
from tests.worlds.mesh import Page, WorldMesh, calls, says
from tests.worlds.trees import ByNode, add, config, llm, loop, parallel, sequential

LOOK = calls(("look", {}))
SPENT = "6 model calls, as many as limits.max_llm_calls allows"


async def events_of(mesh: WorldMesh, body: dict[str, Any]) -> list[AnyEvent]:
    return list(await mesh.journal.read(body["conversation"]["id"]))


def model_calls(events: list[AnyEvent]) -> int:
    return sum(isinstance(event, LlmCall) for event in events)


# -- tool calls in one answer


async def test_of_too_many_tool_calls_in_an_answer_none_runs_and_the_model_is_told() -> None:
    many = calls(*(("look", {}) for _ in range(5000)))
    model = ByNode(a=[many, calls(("look", {}), ("look", {})), says("done")])
    said = config(llm("a"), limits={"max_tool_calls": 2})
    async with WorldMesh(model, config=said) as mesh:
        _, body = await mesh.create("go")
        assert body["result"]["response"] == "done"
        assert mesh.ledger.lines == ["look", "look"]
        events = await events_of(mesh, body)
    refused = [event for event in events if isinstance(event, ToolResult) and event.is_error]
    assert len(refused) == 3  # one more than the bound is kept, so that a later pass knows
    assert (
        "more than 2 tool calls in one answer (limits.max_tool_calls); none of them was run"
        in refused[0].content
    )


async def test_a_later_pass_over_such_an_answer_decides_the_same() -> None:
    many = calls(("add", {"n": 1}), ("look", {}), ("look", {}))
    model = ByNode(a=[many, add(7), says("done")])
    async with WorldMesh(model, config=config(llm("a"), limits={"max_tool_calls": 2})) as mesh:
        _, body = await mesh.create("go")
        assert body["result"]["approval"]["tool_args"] == {"n": 7}
        await mesh.crash()
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        assert body["result"]["response"] == "done"
        assert mesh.ledger.lines == ["add 7"]
    assert model.asked["a"] == 3


@pytest.mark.parametrize("exits", [True, False])
async def test_an_answer_with_too_many_calls_does_not_end_the_loop_either(exits: bool) -> None:
    many = calls(("exit_loop", {}), ("look", {}), ("look", {}))
    model = ByNode(a=[many, says("on")])
    tree = loop(llm("a", can_exit_loop=exits), max_iterations=2)
    async with WorldMesh(model, config=config(tree, limits={"max_tool_calls": 2})) as mesh:
        _, body = await mesh.create("go")
    assert body["result"]["response"] == "on"
    assert model.asked["a"] == 4


# -- model calls of a turn


async def test_a_turn_makes_no_more_model_calls_than_its_bound_over_all_iterations_of_a_loop() -> None:
    model = ByNode(a=[LOOK, says("again")])
    tree = sequential(llm("first"), loop(llm("a"), max_iterations=100), llm("last"))
    async with WorldMesh(model, config=config(tree, limits={"max_llm_calls": 6})) as mesh:
        status, body = await mesh.create("go")
        assert model.asked == Counter(first=1, a=5)
        assert status == 502
        assert SPENT in body["error"]
        _, pages = await mesh.ask(Page())
        await mesh.say(pages["conversations"][0]["id"], "go on")  # the next turn begins anew
        assert model.asked["first"] == 2


async def test_model_calls_before_a_pause_and_before_a_crash_count() -> None:
    model = ByNode(a=[LOOK, add(1), says("done")], b=[LOOK, LOOK, LOOK, LOOK, says("never")])
    tree = sequential(llm("a"), llm("b"))
    async with WorldMesh(model, config=config(tree, limits={"max_llm_calls": 6})) as mesh:
        _, body = await mesh.create("go")
        await mesh.crash()
        status, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        assert status == 502
        assert SPENT in body["error"]
    assert model.asked == Counter(a=3, b=3)


async def test_what_completed_nodes_asked_counts_although_later_passes_do_not_see_it() -> None:
    model = ByNode(a=[LOOK, says("done")], b=[add(1), LOOK, LOOK, LOOK, LOOK])
    tree = sequential(sequential(llm("a"), name="inner"), llm("b"))
    async with WorldMesh(model, config=config(tree, limits={"max_llm_calls": 6})) as mesh:
        _, body = await mesh.create("go")
        await mesh.crash()
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        assert SPENT in body["error"]
    assert model.asked == Counter(a=2, b=4)


async def test_branches_that_run_at_the_same_time_share_the_bound() -> None:
    """Up to what is on its way: each branch learns of the others' calls when it sends its own ahead."""

    class Slow(ByNode):
        async def stream(self, request: LlmRequest) -> Any:
            await asyncio.sleep(0.6)  # much longer than outcomes stay unsent
            async for event in super().stream(request):
                yield event

    branches = [llm(f"b{i}") for i in range(4)]
    model = Slow(**{f"b{i}": [LOOK] * 9 for i in range(4)})
    limits = {"max_llm_calls": 6}
    async with WorldMesh(model, config=config(parallel(*branches), limits=limits)) as mesh:
        status, body = await mesh.create("go")
    assert status == 502
    assert "limits.max_llm_calls" in body["error"]
    assert 6 <= model.asked.total() <= 6 + 2 * 4


# -- the size of what a model is shown


async def test_tools_whose_descriptions_are_too_large_together_are_refused_at_the_start() -> None:
    async def never(_: dict[str, Any]) -> str:
        raise AssertionError("it was called")

    tools = [
        Tool(name=f"t{i}", description="x" * 400 * i, input_schema={"type": "object"}, server="srv")
        for i in range(4)
    ]
    session = MemorySession("srv", [(tool, never) for tool in tools])

    async def start(**node: Any) -> None:
        said = config(llm("a", **node), limits={"max_tools_bytes": 1024})
        async with WorldMesh(ByNode(), config=config(llm("a"))) as mesh:
            other = WorldMesh(ByNode(), config=said)
            tree = LocalTree(other.config, [session], lambda _: ByNode(), mesh)
            try:
                await tree.start()
            finally:
                await tree.close()

    with pytest.raises(ConfigError, match=r"over limits.max_tools_bytes \(1,024\).*largest: t3 of srv"):
        await start()
    await start(tools=["t1"])
