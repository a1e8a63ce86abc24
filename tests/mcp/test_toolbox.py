"""Several sessions under one roof."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.errors import ConfigError, ToolSessionError
from mesh.mcp.memory import MemorySession, ToolFunction
from mesh.mcp.port import TOOL_NAME, Catalogue, Tool, ToolOutcome
from mesh.mcp.session import McpSession
from mesh.mcp.toolbox import Toolbox, merge
from tests.worlds.tool_servers import Spec


def tool(name: str, server: str = "a", description: str = "") -> Tool:
    return Tool(name=name, description=description, input_schema={"type": "object"}, server=server)


async def echo(arguments: dict[str, Any]) -> str:
    return str(arguments)


def session(server: str, *names: str) -> MemorySession:
    return MemorySession(server, offer(server, *names))


def offer(server: str, *names: str) -> list[tuple[Tool, ToolFunction]]:
    return [(tool(name, server), echo) for name in names]


@pytest.fixture
async def boxes() -> AsyncIterator[list[Toolbox]]:
    made: list[Toolbox] = []
    yield made
    for box in made:
        await box.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a toolbox tells nobody when it has taken a change
            await asyncio.sleep(0.001)


async def started(boxes: list[Toolbox], *sessions: Any, **options: Any) -> Toolbox:
    box = Toolbox(sessions, **options)
    boxes.append(box)
    await box.start()
    return box


def test_a_name_offered_by_two_servers_is_refused_with_both_named() -> None:
    with pytest.raises(ConfigError, match=r"'list'.*fruit and veg"):
        merge([Catalogue("fruit", 1, (tool("list", "fruit"),)), Catalogue("veg", 1, (tool("list", "veg"),))])


def test_a_name_offered_twice_by_one_server_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fruit offers tool 'list' twice"):
        merge([Catalogue("fruit", 1, (tool("list", "fruit"), tool("list", "fruit", "other")))])


@pytest.mark.parametrize("name", ["", "a b", "ä", "a/b", "x" * 129, "a\n", "a:b"])
def test_a_name_that_models_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="MCP server a offers a tool named"):
        merge([Catalogue("a", 1, (tool(name),))])


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        merge([Catalogue("a", 1, (tool("x"), tool("bad name"))), Catalogue("b", 1, (tool("x", "b"),))])
    assert len(raised.value.problems) == 2


@given(st.lists(st.text(min_size=0, max_size=4, alphabet="ab._-/ é"), max_size=8))
@settings(deadline=None)
def test_merge_takes_exactly_good_names_that_are_unique(names: list[str]) -> None:
    good = len(set(names)) == len(names) and all(TOOL_NAME.fullmatch(name) for name in names)
    catalogues = [Catalogue(str(i), 1, (tool(name, str(i)),)) for i, name in enumerate(names)]
    try:
        assert list(merge(catalogues)) == names
        assert good
    except ConfigError:
        assert not good


async def test_a_call_goes_to_the_server_that_offers_the_tool(boxes: list[Toolbox]) -> None:
    box = await started(boxes, session("a", "one"), session("b", "two"))
    assert list(box.tools) == ["one", "two"]
    assert await box.call(box.tools["two"], {"x": 1}) == ToolOutcome(content="{'x': 1}")
    with pytest.raises(ToolSessionError, match="no session with MCP server c"):
        await box.call(tool("one", "c"), {})


async def test_the_specs_are_the_same_object_until_the_tools_change(boxes: list[Toolbox]) -> None:
    inner = session("a", "one")
    box = await started(boxes, inner)
    before = box.specs
    assert [spec.name for spec in before] == ["one"]
    inner.offer(offer("a", "one"))
    await asyncio.sleep(0.01)
    assert box.specs is before
    inner.offer(offer("a", "one", "two"))
    await until(lambda: box.specs is not before)
    assert [spec.name for spec in box.specs] == ["one", "two"]
    assert list(box.tools) == ["one", "two"]


async def test_a_change_that_makes_names_clash_is_not_taken(
    boxes: list[Toolbox], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "mesh.mcp")
    first, second = session("a", "one"), session("b", "two")
    box = await started(boxes, first, second)
    before = box.specs
    second.offer(offer("b", "two", "one"))
    await until(lambda: bool(caplog.records))
    assert box.specs is before
    assert "a and b" in caplog.text
    first.offer(offer("a", "uno"))  # and when the clash is gone, all is taken
    await until(lambda: box.specs is not before)
    assert set(box.tools) == {"uno", "two", "one"}


async def test_a_tool_that_takes_a_reserved_name_later_is_not_taken(
    boxes: list[Toolbox], caplog: pytest.LogCaptureFixture
) -> None:
    inner = session("a", "one")
    box = await started(boxes, inner, reserved={"ask_user": "a built-in tool"})
    inner.offer(offer("a", "one", "ask_user"))
    await until(lambda: bool(caplog.records))
    assert list(box.tools) == ["one"]
    assert "'ask_user' is offered by MCP server a and is the name of a built-in tool" in caplog.text
    inner.offer(offer("a", "one", "two"))
    await until(lambda: list(box.tools) == ["one", "two"])


def hostile_tool(name: str) -> Tool:
    """A tool whose schema asks for 2 to the power of 30 visits."""
    steps = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i - 1}"}] * 2} for i in range(1, 31)}
    schema = {"type": "object", "$defs": {"d0": {}, **steps}, "$ref": "#/$defs/d30"}
    return Tool(name=name, description="", input_schema=schema, server="a")


async def test_a_tool_whose_schema_cannot_be_checked_in_time_is_not_offered_and_the_others_are(
    boxes: list[Toolbox], caplog: pytest.LogCaptureFixture
) -> None:
    inner = MemorySession("a", [(tool("good"), echo), (hostile_tool("bad"), echo)])
    box = await started(boxes, inner)
    assert list(box.tools) == [spec.name for spec in box.specs] == ["good"]
    assert "MCP server a: its input schema" in box.refused["bad"]
    assert "tool 'bad' is not offered: MCP server a" in caplog.text
    inner.offer([(tool("good"), echo), (tool("bad"), echo), (hostile_tool("new"), echo)])
    await until(lambda: list(box.refused) == ["new"])
    assert list(box.tools) == ["good", "bad"]


async def test_a_node_that_asks_for_a_refused_tool_by_name_is_told_why(boxes: list[Toolbox]) -> None:
    inner = MemorySession("a", [(tool("good"), echo), (hostile_tool("bad"), echo)])
    with pytest.raises(ConfigError, match=r"'bad' is not offered: MCP server a: its input schema"):
        await started(boxes, inner, offered=["good", "bad"])


async def test_a_server_that_is_not_there_is_told_at_the_start(boxes: list[Toolbox]) -> None:
    gone = McpSession(Spec(name="gone", command="no-such-mcp-server"))
    with pytest.raises(ToolSessionError, match=r"gone.*no-such-mcp-server"):
        await started(boxes, session("a", "one"), gone)
    await gone.close()


async def test_the_start_ends_at_its_deadline(boxes: list[Toolbox]) -> None:
    class Slow(MemorySession):
        async def catalogue(self) -> Catalogue:
            await asyncio.sleep(300)
            return await super().catalogue()

    async with asyncio.timeout(30):
        with pytest.raises(ToolSessionError, match=r"0\.1 s"):
            await started(boxes, Slow("slow", []), start_timeout_s=0.1)


async def test_closing_leaves_the_sessions_open() -> None:
    inner = session("a", "one")
    box = Toolbox([inner])
    await box.start()
    await box.close()
    await box.close()
    assert (await inner.call("one", {})).content == "{}"
