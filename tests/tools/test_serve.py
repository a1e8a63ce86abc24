"""A file of tools as an MCP server, in a process of its own."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.mcp.progress import Progress
from tests.tools.serving import STEP, served

SHOP = '''
import asyncio
import logging
import os
import subprocess
import sys
import time

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

@tool(read_only=True)
def ask() -> str:
    """Reads stdin, and lets another process read and write it."""
    subprocess.run(["sh", "-c", "cat; echo from the shell"], check=True)
    return repr(os.read(0, 100)) + repr(sys.stdin.read())

@tool(read_only=True)
async def wait(ctx: Context) -> str:
    """Waits until it is cancelled."""
    print("it waits")
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError:
        print("interrupted", ctx.cancelled)
        raise
    return "waited"

@tool(read_only=True)
def wait_in_thread(ctx: Context) -> str:
    """Waits until it is cancelled, in a thread."""
    print("it waits")
    while not ctx.cancelled:
        time.sleep(0.02)
    print("stopped in its thread")
    return "stopped"

@tool(read_only=True)
def steps(n: int, heard: str, ctx: Context) -> int:
    """Reports all the time, until somebody has heard of it."""
    for step in range(n):
        ctx.progress(step / n, f"step {step}")
        time.sleep(0.002)
        if os.path.exists(heard):
            return step
    return n

@tool
def fail_in_thread(how: str) -> str:
    """Fails in a thread."""
    return failing(how)

@tool
async def fail(how: str) -> str:
    """Fails."""
    return failing(how)

def failing(how: str) -> str:
    if how == "said":
        raise ToolError("there is no such order")
    if how == "exit":
        raise SystemExit(3)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "cancel":
        raise asyncio.CancelledError("by itself")
    raise LookupError("no key")
'''


async def test_a_typed_function_is_a_tool(tmp_path: Path) -> None:
    async with served(tmp_path, SHOP) as session:
        tools = {tool.name: tool for tool in (await session.catalogue()).tools}
    assert [*tools] == [
        "refund",
        "orders",
        "ask",
        "wait",
        "wait_in_thread",
        "steps",
        "fail_in_thread",
        "fail",
    ]
    assert tools["refund"].input_schema == {
        "type": "object",
        "properties": {"order": {"type": "string"}, "cents": {"type": "integer"}},
        "required": ["order", "cents"],
        "additionalProperties": False,
    }
    assert tools["refund"].description == "Pays money back."
    hints = [(tools[name].destructive, tools[name].repeatable) for name in ("refund", "orders", "fail")]
    assert hints == [(True, False), (False, True), (True, False)]


async def test_a_tool_gets_its_arguments_and_the_context_of_its_step(tmp_path: Path) -> None:
    async with served(tmp_path, SHOP) as session:
        outcome = await session.call("refund", {"order": "A-1", "cents": 5}, context=STEP)
    assert outcome.content == (
        '{"order":"A-1","cents":5,"key":"c-1|2|0/tool/1.0","left":{"max_cost_usd":0.5}}'
    )


@pytest.mark.parametrize(
    ("how", "content"),
    [
        ("said", "there is no such order"),
        ("else", "LookupError: no key"),
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancel", "CancelledError: by itself"),
    ],
)
async def test_what_a_tool_raises_is_an_error_of_the_tool(tmp_path: Path, how: str, content: str) -> None:
    async with served(tmp_path, SHOP) as session:
        for name in ("fail", "fail_in_thread"):
            outcome = await session.call(name, {"how": how})
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


async def test_neither_a_tool_nor_what_it_starts_gets_at_the_protocol(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mesh.mcp")
    async with served(tmp_path, SHOP) as session:
        assert (await session.call("ask", {})).content == repr(b"") + repr("")
        assert (await session.call("orders", {})).content == '[""]'
    assert "[shop] from the shell" in caplog.messages


@pytest.mark.parametrize(
    ("name", "line"), [("wait", "interrupted True"), ("wait_in_thread", "stopped in its thread")]
)
async def test_a_tool_is_told_that_its_call_was_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, line: str
) -> None:
    caplog.set_level(logging.INFO, "mesh.mcp")

    async def logged(line: str) -> None:
        async with asyncio.timeout(30):
            while f"[shop] step=c-1|2|0/tool/1.0 {line}" not in caplog.messages:  # noqa: ASYNC110 - logs wake nobody
                await asyncio.sleep(0.02)

    async with served(tmp_path, SHOP) as session:
        calling = asyncio.create_task(session.call(name, {}, context=STEP))
        await logged("it waits")
        calling.cancel()
        await logged(line)
        assert (await session.call("orders", {})).content == '[""]'


STEPS = 20_000
"""More than it takes to be heard of."""


def hearing(folder: Path, told: list[Progress]) -> Callable[[Progress], None]:
    """Adds to ``told``, and leaves a file with the number of those that it has heard of."""

    def hear(progress: Progress) -> None:
        told.append(progress)
        (folder / str(len(told))).touch()

    return hear


async def test_progress_is_live_and_its_newest_at_most_ten_times_a_second(tmp_path: Path) -> None:
    told: list[Progress] = []
    async with served(tmp_path, SHOP) as session:
        await session.catalogue()
        arguments = {"n": STEPS, "heard": str(tmp_path / "4")}
        started = time.monotonic()
        await session.call("steps", arguments, timeout_s=60, on_progress=hearing(tmp_path, told))
        took = time.monotonic() - started
    assert 4 <= len(told) <= took * 10 + 2
    assert [each.message for each in told] == [f"step {round(each.progress * STEPS)}" for each in told]
    assert told == sorted(told, key=lambda each: each.progress)


@pytest.mark.parametrize("how", ["returned", "raised"])
async def test_a_result_that_is_too_large_is_an_error_of_the_tool(tmp_path: Path, how: str) -> None:
    code = """
        @tool(destructive=True)
        def large(how: str) -> str:
            if how == "raised":
                raise ValueError("x" * 9_000_000)
            return "x" * 9_000_000

        @tool
        def process() -> int:
            import os
            return os.getpid()
    """
    async with served(tmp_path, code, max_result_bytes=2048) as session:
        process = (await session.call("process", {})).content
        outcome = await session.call("large", {"how": how})
        assert outcome.is_error and "is over the bound of 2048 bytes" in outcome.content
        assert (await session.call("process", {})).content == process


HALVES = r"""
import os
import mcp_types as types
from typing import Any
from pydantic import BaseModel, field_validator

HALF = "caf\udce9"

class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")

class Saying(ToolError):
    def __str__(self) -> str:
        raise ValueError("no words")

class Odd(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def fails(cls, value: int) -> int:
        raise LookupError(HALF)

@tool
async def says(how: str, heard: str, ctx: Context) -> Any:
    match how:
        case "progress":
            await ctx.progress(0.5, HALF)
            while not os.path.exists(heard):
                await asyncio.sleep(0.01)
            return "done"
        case "text":
            return HALF
        case "part":
            return types.TextContent(text=HALF)
        case "meta":
            return types.TextContent(text="done", _meta={"name": HALF})
        case "raised":
            raise LookupError(HALF)
        case "mute":
            raise Mute
    raise Saying

@tool
def takes(odd: Odd) -> str:
    return "done"

@tool
def process() -> int:
    return os.getpid()
"""
UNSENT = "the tool ran, but its result cannot be sent: PydanticSerializationError"


@pytest.mark.parametrize(
    ("how", "content"),
    [
        ("progress", "done"),
        ("text", "caf?"),
        ("part", UNSENT),
        ("meta", UNSENT),
        ("raised", "LookupError: caf?"),
        ("mute", "Mute"),
        ("saying", "the tool failed"),
    ],
)
async def test_what_cannot_be_sent_is_never_told_as_a_call_that_was_refused(
    tmp_path: Path, how: str, content: str
) -> None:
    told: list[Progress] = []
    async with served(tmp_path, "import asyncio\n" + HALVES) as session:
        process = (await session.call("process", {})).content
        arguments = {"how": how, "heard": str(tmp_path / "1")}
        outcome = await session.call("says", arguments, on_progress=hearing(tmp_path, told))
        assert outcome.content == content
        assert (await session.call("process", {})).content == process
    assert [each.message for each in told] == (["caf?"] if how == "progress" else [])


async def test_arguments_that_a_type_of_the_file_fails_to_read_are_told_as_not_done(tmp_path: Path) -> None:
    async with served(tmp_path, "import asyncio\n" + HALVES) as session:
        outcome = await session.call("takes", {"odd": {"n": 1}})
    why = "the arguments cannot be read, so nothing was done: LookupError: caf?"
    assert (outcome.is_error, outcome.content) == (True, why)


async def test_neither_an_error_nor_the_log_shows_a_configured_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mesh.mcp")
    code = """
        import os
        KEY = os.environ["KEY"]

        @tool
        def fail(how: str) -> str:
            print("x" * 1995 + KEY.replace(chr(10), ""), end="")
            print("y" * 3000)
            print(KEY)
            raise LookupError(KEY) if how == "as it is" else KeyError(KEY)
    """
    key = "-----BEGIN KEY-----\nMIIEowIBAAKCAQEA\n-----END KEY-----"
    async with served(tmp_path, code, env={"KEY": key}) as session:
        assert (await session.call("fail", {"how": "as it is"})).content == "LookupError: ***"
        assert (await session.call("fail", {"how": "shown"})).content == "KeyError: '***'"
    assert "MIIE" not in caplog.text
    assert "***" in caplog.text


async def test_progress_shows_no_configured_value_and_a_result_is_passed_on_as_it_is(tmp_path: Path) -> None:
    code = """
        import asyncio, os
        KEY = os.environ["KEY"]

        @tool(read_only=True)
        async def shows(heard: str, ctx: Context) -> str:
            for n, message in enumerate((f"with {KEY}", "x" * 490 + KEY), 1):
                ctx.progress(0.5, message)
                while not os.path.exists(f"{heard}/{n}"):
                    await asyncio.sleep(0.01)
            return KEY
    """
    told: list[Progress] = []
    async with served(tmp_path, code, env={"KEY": "0123456789abcdef"}) as session:
        outcome = await session.call("shows", {"heard": str(tmp_path)}, on_progress=hearing(tmp_path, told))
    assert [each.message for each in told] == ["with ***", "x" * 490 + "***"]
    assert outcome.content == "0123456789abcdef"


async def test_only_a_truth_value_is_told_as_one(tmp_path: Path) -> None:
    code = """
        @tool(read_only=True)
        def fine(text: str) -> bool | str:
            return text or True
    """
    async with served(tmp_path, code) as session:
        said = [await session.call("fine", {"text": text}) for text in ("", "true")]
        [tool] = (await session.catalogue()).tools
    assert [(each.content, each.truth) for each in said] == [("true", True), ("true", None)]
    assert tool.tells_truth


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_tool_works_in_the_folder_of_its_file_or_at_home(
    tmp_path: Path, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        from pathlib import Path
        AT_IMPORT = Path.cwd()

        @tool(read_only=True)
        def where() -> list[str]:
            return [str(AT_IMPORT), str(Path.cwd())]
    """
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    async with served(tmp_path, code) as session:
        if not is_there:
            (tmp_path / "tools/shop.py").unlink()
            (tmp_path / "tools").rmdir()
        folder = str(tmp_path / "tools" if is_there else home)
        assert json.loads((await session.call("where", {})).content) == [folder, folder]


async def test_files_beside_a_file_of_tools_are_imported_and_hide_no_module_of_python(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("email.py", "http.py", "calendar.py"):
        (folder / name).write_text("raise RuntimeError('imported in place of the module of Python')\n")
    (folder / "bank.py").write_text("BALANCE = 7\n")
    code = """
        @tool(read_only=True)
        def balance() -> int:
            import bank, urllib.request

            return bank.BALANCE
    """
    async with served(tmp_path, code) as shop:
        assert (await shop.call("balance", {}, context=STEP)).content == "7"
