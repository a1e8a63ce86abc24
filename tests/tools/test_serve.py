"""A file of tools as an MCP server, in a process of its own."""

import logging
from pathlib import Path

import pytest

from tests.tools.serving import STEP, served

SHOP = '''
import asyncio
import logging
import os

os.write(1, b"imported\\n")

@tool(destructive=True)
async def refund(order: str, cents: int, ctx: Context) -> dict[str, object]:
    """Pays money back."""
    await ctx.progress(0.5, "asked the bank")
    return {"order": order, "cents": cents, "key": ctx.idempotency_key, "left": ctx.execution.left}

@tool(read_only=True)
def orders(pattern: str = "") -> list[str]:
    """Lists orders."""
    print("looking for", pattern)
    logging.getLogger("shop").info("two\\nlines")
    os.write(1, b"by descriptor\\n")
    return [pattern]

@tool
def fail(how: str) -> str:
    if how == "said":
        raise ToolError("there is no such order")
    if how == "exit":
        raise SystemExit(3)
    raise LookupError("no key")
'''


async def test_a_typed_function_is_a_tool(tmp_path: Path) -> None:
    async with served(tmp_path, SHOP) as session:
        tools = {tool.name: tool for tool in (await session.catalogue()).tools}
    assert [*tools] == ["refund", "orders", "fail"]
    assert tools["refund"].input_schema == {
        "type": "object",
        "properties": {"order": {"type": "string"}, "cents": {"type": "integer"}},
        "required": ["order", "cents"],
        "additionalProperties": False,
    }
    assert tools["refund"].description == "Pays money back."
    hints = {name: (tool.destructive, tool.repeatable) for name, tool in tools.items()}
    assert hints == {"refund": (True, False), "orders": (False, True), "fail": (True, False)}


async def test_a_tool_gets_its_arguments_and_the_context_of_its_step(tmp_path: Path) -> None:
    async with served(tmp_path, SHOP) as session:
        outcome = await session.call("refund", {"order": "A-1", "cents": 5}, context=STEP)
    assert outcome.content == (
        '{"order":"A-1","cents":5,"key":"c-1|2|0/tool/1.0","left":{"max_cost_usd":0.5}}'
    )


@pytest.mark.parametrize(
    ("how", "content"),
    [("said", "there is no such order"), ("else", "LookupError: no key"), ("exit", "SystemExit: 3")],
)
async def test_what_a_tool_raises_is_an_error_of_the_tool(tmp_path: Path, how: str, content: str) -> None:
    async with served(tmp_path, SHOP) as session:
        outcome = await session.call("fail", {"how": how})
        assert (outcome.is_error, outcome.content) == (True, content)
        assert (await session.call("orders", {})).content == '[""]'


async def test_arguments_of_another_type_do_not_reach_the_function(tmp_path: Path) -> None:
    async with served(tmp_path, SHOP) as session:
        outcome = await session.call("refund", {"order": "A-1", "cents": "five"})
    assert outcome.is_error
    assert outcome.content.startswith("the arguments are not valid, so nothing was done: cents: ")


async def test_what_a_tool_prints_and_logs_reaches_the_log_with_its_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mesh.mcp")
    async with served(tmp_path, SHOP) as session:
        outcome = await session.call("orders", {"pattern": "A"}, context=STEP)
        failed = await session.call("fail", {"how": "else"}, context=STEP)
    assert (outcome.content, failed.is_error) == ('["A"]', True)
    key = "[shop] step=c-1|2|0/tool/1.0"
    lines = caplog.messages
    for line in (f"{key} looking for A", f"{key} INFO shop: two", f"{key} lines", "[shop] by descriptor"):
        assert line in lines
    assert "[shop] imported" in lines
    assert f"{key} LookupError: no key" in lines
    assert not [line for line in lines if "no MCP message" in line]
