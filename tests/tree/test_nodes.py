"""Trees in one process: order, state, loops, failures, bounds."""

import asyncio
from typing import Any

import pytest

from mesh.core.errors import ConfigError, LlmError
from mesh.core.events import LlmCall
from mesh.llm.port import LlmRequest
from mesh.mcp.memory import MemorySession
from mesh.mcp.port import Tool
from mesh.tree.local import LocalTree
from tests.worlds.mesh import WorldMesh, says
from tests.worlds.trees import EXIT, ByNode, add, config, llm, loop, parallel, sequential


async def run(tree: dict[str, Any], model: ByNode, message: str = "go", **more: Any) -> dict[str, Any]:
    async with WorldMesh(model, config=config(tree, **more)) as mesh:
        _, body = await mesh.create(message)
        return body


def response(body: dict[str, Any]) -> str:
    text: str = body["result"]["response"]
    return text


async def test_a_sequential_node_runs_its_children_in_order_and_answers_as_the_last() -> None:
    model = ByNode()
    body = await run(sequential(llm("a"), llm("b"), llm("c")), model)
    assert list(model.asked) == ["a", "b", "c"]
    assert response(body) == "c says"


async def test_what_a_node_wrote_under_its_output_key_is_in_the_prompts_after_it() -> None:
    tree = sequential(
        llm("draft", "about {user_message}", output_key="draft"), llm("edit", "improve [{draft}] of {nobody}")
    )
    body = await run(tree, ByNode(), "cats")
    assert response(body) == "edit says improve [draft says about cats] of {nobody}"


async def test_braces_in_a_value_are_not_expanded_again() -> None:
    model = ByNode(first=says("{user_message} {second}"))
    body = await run(sequential(llm("first", output_key="first"), llm("second", "{first}")), model, "secret")
    assert response(body) == "second says {user_message} {second}"


async def test_nodes_of_a_tree_get_the_message_alone_and_the_history_where_they_ask_for_it() -> None:
    model = ByNode()
    tree = sequential(llm("plain"), llm("reads", "[{history}] turn {turn}"))
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("one")
        _, body = await mesh.say(body["conversation"]["id"], "two")
    assert [message.text for message in model.messages["plain"]] == ["two"]
    assert model.prompts[-1] == "reads: [user: one\n\nassistant: reads says [] turn 1] turn 2"


async def test_the_session_state_lives_on_in_the_next_turn() -> None:
    model = ByNode(note=says("remembered"))
    tree = sequential(llm("read", "[{note}]"), llm("note", output_key="note"))
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("one")
        await mesh.say(body["conversation"]["id"], "two")
    assert [p for p in model.prompts if p.startswith("read")] == ["read: [{note}]", "read: [remembered]"]


async def test_a_parallel_node_runs_all_children_at_the_same_time_and_joins_their_answers_in_order() -> None:
    model = ByNode()
    met = asyncio.Barrier(3)

    class Meeting(ByNode):
        async def stream(self, request: LlmRequest) -> Any:
            if request.system[0] in "abc":
                await asyncio.wait_for(met.wait(), 30)
            async for event in super().stream(request):
                yield event

    model = Meeting()
    tree = sequential(
        parallel(llm("a", output_key="ka"), llm("b", "{ka}", output_key="kb"), llm("c")),
        llm("last", "{ka}+{kb}"),
    )
    assert response(await run(tree, model)) == "last says a says+b says {ka}"
    met = asyncio.Barrier(3)
    joined = await run(parallel(llm("a"), llm("b"), llm("c")), Meeting())
    assert response(joined) == "a says\nb says\nc says"


class Failing(ByNode):
    """The nodes whose name begins with "bad" fail."""

    async def stream(self, request: LlmRequest) -> Any:
        if request.system.startswith("bad"):
            self.asked["bad"] += 1
            raise LlmError("the provider is down")
        async for event in super().stream(request):
            yield event


async def test_when_a_branch_fails_the_others_finish_and_the_failure_names_it() -> None:
    model = Failing()
    model.gates["slow"] = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, model.gates["slow"].set)
    body = await run(parallel(llm("bad"), llm("slow")), model)
    assert body["error"] == "bad: the provider is down"
    assert model.asked == {"bad": 1, "slow": 1}


async def test_on_error_continue_goes_on_with_what_there_is_unless_all_failed() -> None:
    tree = parallel(llm("bad1"), llm("good"), on_error="continue")
    assert response(await run(tree, Failing())) == "good says"
    tree = parallel(llm("bad1"), llm("bad2"), on_error="continue")
    assert (await run(tree, Failing()))["error"] == "bad1: the provider is down\nbad2: the provider is down"


async def test_a_failing_child_ends_a_sequential_node_there() -> None:
    model = Failing()
    body = await run(sequential(llm("a"), llm("bad"), llm("c")), model)
    assert body["error"] == "bad: the provider is down"
    assert list(model.asked) == ["a", "bad"]


async def test_a_loop_ends_after_max_iterations_with_the_last_answer() -> None:
    model = ByNode()
    tree = loop(llm("a", "{iteration} {got}", output_key="got"), max_iterations=3)
    assert response(await run(tree, model)) == "a says 3 a says 2 a says 1 {got}"


async def test_exit_loop_ends_the_loop_and_what_follows_in_its_iteration_but_not_the_pipeline() -> None:
    model = ByNode(judge=EXIT)
    check = sequential(llm("judge", can_exit_loop=True), llm("never"), name="check")
    tree = sequential(loop(llm("work", output_key="work"), check), llm("last", "{work}"))
    assert response(await run(tree, model)) == "last says work says"
    assert model.asked == {"work": 1, "judge": 1, "last": 1}


async def test_a_node_that_only_ends_its_loop_leaves_what_was_written_under_its_key() -> None:
    class Second(ByNode):
        async def stream(self, request: LlmRequest) -> Any:
            if self.asked["judge"] == 1:
                self.asked["judge"] += 1
                yield EXIT
                return
            async for event in super().stream(request):
                yield event

    tree = sequential(loop(llm("judge", output_key="v", can_exit_loop=True)), llm("last", "{v}"))
    assert response(await run(tree, Second())) == "last says judge says"


async def test_exit_loop_is_offered_where_the_config_says_so_and_nowhere_else() -> None:
    offered: dict[str, set[str]] = {}

    class Looking(ByNode):
        async def stream(self, request: LlmRequest) -> Any:
            offered[request.system.partition(":")[0]] = {tool.name for tool in request.tools}
            async for event in super().stream(request):
                yield event

    tree = loop(
        llm("exits", can_exit_loop=True),
        llm("looks", tools=["lo*"]),
        llm("nothing", tools=[]),
        llm("all"),
        max_iterations=1,
    )
    await run(tree, Looking())
    assert offered == {
        "exits": {"add", "look", "exit_loop"},
        "looks": {"look"},
        "nothing": set(),
        "all": {"add", "look"},
    }


async def test_a_tool_that_is_not_offered_to_a_node_cannot_be_called_by_it() -> None:
    model = ByNode(a=[add(1), says("ok")])
    async with WorldMesh(model, config=config(sequential(llm("a", tools=["look"])))) as mesh:
        _, body = await mesh.create("go")
        assert response(body) == "ok"
        assert mesh.ledger.lines == []
    (tool,) = [m for m in body["conversation"]["messages"] if m["role"] == "tool"]
    assert tool["content"] == "There is no tool 'add'. The tools are: look."


@pytest.mark.parametrize("name", ["ask_user", "exit_loop", "use_agent", "a2a_billing", "a2a_own", "search"])
async def test_a_tool_with_the_name_of_a_built_in_one_or_an_agent_is_refused_at_the_start(name: str) -> None:
    async def never(_: dict[str, Any]) -> str:
        raise AssertionError("it was called")

    def billing(agent: str) -> dict[str, Any]:
        return {"name": agent, "url": "http://127.0.0.1:9"}

    node = llm("talks", can_ask_user=True, can_exit_loop=True, a2a=[billing("own")], agents=["search"])
    said = config(loop(node), a2a=[billing("billing")], agents=[llm("search")])
    tool = Tool(name=name, description="", input_schema={"type": "object"}, server="srv")
    session = MemorySession("srv", [(tool, never)])
    async with WorldMesh(ByNode(), config=said) as mesh:
        tree = LocalTree(mesh.config, [session], lambda _: ByNode(), mesh)
        with pytest.raises(ConfigError, match=f"'{name}' is offered by MCP server srv and is the name of"):
            await tree.start()
        await tree.close()


async def test_a_node_over_its_timeout_fails_and_says_which() -> None:
    model = ByNode()
    model.gates["slow"] = asyncio.Event()
    body = await run(sequential(llm("slow"), timeout_s=0.05), model)
    assert body["error"] == "steps took longer than 0.05 s (timeout_s)"


async def test_a_tool_that_was_claimed_runs_to_its_end_when_its_node_is_over_its_timeout() -> None:
    model = ByNode(slow=[add(1)])
    tree = parallel(llm("slow", timeout_s=2), llm("other"), on_error="continue")
    async with WorldMesh(model, config=config(tree)) as mesh:
        mesh.ledger.before_add = lambda: asyncio.sleep(2.2)
        _, body = await mesh.create("go")
        assert response(body) == "other says"
        assert mesh.ledger.lines == ["add 1"]
        assert [m["role"] for m in body["conversation"]["messages"]] == ["user", "tool", "assistant"]


@pytest.mark.parametrize("depth", [1, 20])
async def test_a_deep_tree_runs(depth: int) -> None:
    tree = llm("leaf", output_key="leaf")
    for level in range(depth):
        tree = sequential(tree, llm(f"after{level}", "{leaf}"), name=f"level{level}")
    assert response(await run(tree, ByNode())) == f"after{depth - 1} says leaf says"


async def test_a_tree_of_one_llm_node_is_the_simple_agent() -> None:
    model = ByNode(only=[LlmCall(model="scripted", text="Hello!")])
    async with WorldMesh(model, config=config(llm("only"))) as mesh:
        _, body = await mesh.create("one")
        _, body = await mesh.say(body["conversation"]["id"], "two")
    assert [m.text for m in model.messages["only"]] == ["one", "Hello!", "two"]
    assert "pipeline_state" not in body["conversation"]


async def test_what_the_root_wrote_lives_on_too() -> None:
    model = ByNode()
    async with WorldMesh(model, config=config(llm("only", "[{note}]", output_key="note"))) as mesh:
        _, body = await mesh.create("one")
        await mesh.say(body["conversation"]["id"], "two")
    assert model.prompts == ["only: [{note}]", "only: [only says [{note}]]"]


async def test_what_a_failed_branch_wrote_is_not_in_the_session_state() -> None:
    model = Failing()
    tree = sequential(
        parallel(
            sequential(llm("a", output_key="ka"), llm("bad"), name="branch"), llm("ok"), on_error="continue"
        ),
        llm("last", "[{ka}]"),
    )
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("one")
        await mesh.say(body["conversation"]["id"], "two")
    assert [p for p in model.prompts if p.startswith("last")] == ["last: [{ka}]"] * 2
