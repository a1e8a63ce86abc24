"""Tools in a Python file that do whatever harm they can: each is an error within its deadline, and nothing of
it is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from mesh.config.model import McpServer, PythonFile
from mesh.core.errors import ToolSessionError
from mesh.mcp.port import ToolOutcome
from mesh.mcp.python_file import launched
from mesh.mcp.session import McpSession

FILE = Path(__file__).parents[1] / "worlds" / "hostile_tools.py"
TIMEOUT_S = 1.0
MEMORY = 256 << 20
WITHIN_S = 30.0
"""The end of a server that does not want to, and the start of the next, on a busy machine."""
DIE = ["segfault", "hard_exit", "abort", "kill_itself", "close_all", "exhaust_in_c"]
HANG = ["loop", "loop_in_thread", "hold_the_lock", "stop_itself", "sleep_for_ever"]
FAIL = ["recurse", "exit", "interrupt", "raise_from_nowhere"]
AGAINST_THE_GUARD = ["kill_the_guard", "stop_the_guard"]
"""After these, processes that left the group of the server are not found."""
EAT = ["eat_memory_in_children", "eat_shared_memory"]
GO_ON = [
    "write_to_stdout",
    "write_to_every_file",
    "fork",
    "fork_in_thread",
    "fork_and_stay",
    "leave_children",
]


class World:
    """One server of hostile tools, whose processes can be told by a variable of theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid4().hex
        python = PythonFile(file=FILE.name, path=str(FILE), code=FILE.read_text())
        env = {"HOSTILE": self.mark, "TMPDIR": str(folder)}
        server = McpServer(name="srv", python=python, env=env, timeout_s=TIMEOUT_S, unannotated="allow")
        self.session = McpSession(launched(server, folder / "code"), memory_bytes=MEMORY)

    def processes(self) -> list[psutil.Process]:
        """What runs of it: the guard has no mark, but goes with the server."""
        return [process for process in psutil.process_iter() if self._is_marked(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            return not is_zombie and process.environ().get("HOSTILE") == self.mark
        except psutil.Error:
            return False


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    found = World(folder)
    try:
        await found.session.catalogue()
        yield found
    finally:
        await found.session.close()


async def outcome_of(world: World, tool: str) -> ToolOutcome | ToolSessionError:
    """What came of a call, which must end."""
    try:
        async with asyncio.timeout(TIMEOUT_S + WITHIN_S):
            return await world.session.call(tool, {})
    except ToolSessionError as problem:
        return problem


async def done(world: World, tool: str) -> bool:
    """Whether a tool that does what it may do is answered, on however busy a machine."""
    return await world.session.call(tool, {}, timeout_s=WITHIN_S) == ToolOutcome(content="done")


async def goes_on(world: World) -> bool:
    """Whether the next call of a harmless tool is answered, by this server or by the next."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            answer = await outcome_of(world, "harmless")
            if isinstance(answer, ToolOutcome):
                return answer == ToolOutcome(content="fine")


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"code"}


@pytest.mark.parametrize(
    "tools", [DIE, HANG, FAIL, AGAINST_THE_GUARD], ids=["dies", "hangs", "fails", "against the guard"]
)
async def test_a_tool_that_does_harm_is_an_error_in_time_and_leaves_nothing(
    tools: list[str], tmp_path: Path
) -> None:
    async with world(tmp_path) as hostile:
        for tool in tools:
            if tools is not AGAINST_THE_GUARD:
                assert await done(hostile, "leave_children")
            answer = await outcome_of(hostile, tool)
            if isinstance(answer, ToolOutcome):
                assert answer.is_error, answer
            assert isinstance(answer, ToolOutcome) is (tools is FAIL), (tool, answer)
            assert await goes_on(hostile)
    assert hostile.processes() == []
    assert left_in(tmp_path) == set()


async def test_a_tool_that_starts_processes_or_writes_anywhere_harms_no_call(tmp_path: Path) -> None:
    async with world(tmp_path) as hostile:
        for tool in GO_ON * 2:
            assert await done(hostile, tool), tool
            assert await goes_on(hostile)
    assert hostile.processes() == []
    assert left_in(tmp_path) == set()


async def test_a_process_that_asks_for_too_much_memory_is_refused_it_and_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path) as hostile:
        for _ in range(3):
            refused = await hostile.session.call("eat_memory", {}, timeout_s=WITHIN_S)
            assert refused == ToolOutcome(content="MemoryError", is_error=True)


@pytest.mark.parametrize("tool", EAT)
async def test_processes_that_have_too_much_memory_together_are_killed(tool: str, tmp_path: Path) -> None:
    async with world(tmp_path) as hostile:
        with pytest.raises(ToolSessionError, match=r"MiB of memory; .*tool_memory_bytes allows 256 MiB"):
            await hostile.session.call(tool, {}, timeout_s=WITHIN_S)
        assert await goes_on(hostile)
    assert hostile.processes() == []


async def test_what_processes_share_counts_once(tmp_path: Path) -> None:
    async with world(tmp_path) as hostile:
        assert await done(hostile, "share_memory_with_children")


async def test_what_a_tool_writes_to_its_own_descriptors_is_a_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mesh.mcp")
    async with world(tmp_path) as hostile:
        assert await done(hostile, "write_to_stdout")
    assert any('{"jsonrpc"' in message for message in caplog.messages)


@pytest.mark.parametrize("tools", [DIE, HANG], ids=["dies", "hangs"])
async def test_calls_of_other_servers_do_not_wait_for_a_tool_that_does_harm(
    tools: list[str], tmp_path: Path
) -> None:
    async with world(tmp_path / "hostile") as hostile, world(tmp_path / "other") as other:
        for tool in tools:
            assert await done(hostile, "leave_children")
            harm = asyncio.create_task(hostile.session.call(tool, {}, timeout_s=300))
            for _ in range(50):
                answer = await other.session.call("harmless", {}, timeout_s=WITHIN_S)
                assert answer == ToolOutcome(content="fine")
            assert tools is DIE or not harm.done(), harm
            harm.cancel()
            await asyncio.wait([harm])
