"""kill -9 of mcp-filesystem, and crashes of the keeper, while a mesh writes: each write happens once, none is
lost, and nobody is asked what came of one, because its check knows."""

import asyncio
import logging
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mesh.core.events import ApprovalRequired, Event, ToolIntent, ToolResult
from mesh.core.ids import new_id
from mesh.core.messages import Results, User
from mesh.llm.port import LlmRequest
from mesh.mcp.session import McpSession
from tests.worlds.mesh import Caller, Create, Ledger, WorldMesh, calls, says
from tests.worlds.tool_servers import Spec
from tests.worlds.trees import config, llm

KILLS = int(os.environ.get("CHAOS_KILLS", "10"))
WRITES = 4
_log = logging.getLogger("chaos")
SERVER = "mesh.servers.filesystem.main"
RULE = {"name": "writes", "tools": ["write_file"], "paths": ["/**"], "decide": "allow"}


class Writer:
    """An `Llm` that appends lines of its own to three files, one a call, and then answers. After most calls
    the server is killed, at any moment of what follows: the preview, the claim, the write, its answer."""

    def __init__(self, server: "FileServer") -> None:
        self._server = server
        self._chance = random.Random(15)
        self._killing: set[asyncio.Task[None]] = set()

    def _kill_soon(self) -> None:
        if self._chance.random() < 0.6:
            killing = asyncio.create_task(self._server.kill_after(self._chance.uniform(0, 0.03)))
            self._killing.add(killing)
            killing.add_done_callback(self._killing.discard)

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        message = next(m.text for m in reversed(request.messages) if isinstance(m, User))
        n = sum(isinstance(m, Results) for m in request.messages)
        line = {"path": f"{n % 3}.txt", "content": f"{message} {n}\n", "mode": "append"}
        if n < WRITES:
            self._kill_soon()
        yield calls(("write_file", line)) if n < WRITES else says("written")

    async def close(self) -> None:
        return None


class FileServer(Ledger):
    """A real mcp-filesystem; its session is opened anew after each kill."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.kills = 0
        arguments = ["-m", SERVER, str(folder)]
        self.opened = McpSession(Spec(name="files", command=sys.executable, args=arguments, is_trusted=True))

    def session(self) -> McpSession:  # type: ignore[override]
        return self.opened

    async def kill_after(self, seconds: float) -> None:
        """Kills the server, if it runs then."""
        await asyncio.sleep(seconds)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.cmdline()[1:3] == ["-m", SERVER]:
                    process.kill()
                    self.kills += 1


@pytest.mark.chaos
@pytest.mark.timeout(120 + 10 * KILLS)
async def test_each_write_happens_once_whatever_is_killed_and_nobody_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "ws"
    folder.mkdir()
    server = FileServer(folder)
    text = config(llm("main"), policy={"rules": [RULE]})
    again = turns = 0
    async with WorldMesh(Writer(server), config=text, ledger=server) as world:
        while server.kills < KILLS:
            id, turns = new_id(), turns + 1
            status, body = await world.ask(Create(id, Caller(session_id="s1"), f"turn {turns}"))
            assert (status, body["result"]["response"]) == (201, "written")
            events = await world.journal.read(id)
            assert not [e for e in events if isinstance(e, ApprovalRequired)]
            assert [e.is_error for e in events if isinstance(e, ToolResult)] == [False] * WRITES
            again += sum(isinstance(e, ToolIntent) and e.attempt > 0 for e in events)
    await server.opened.close()
    written = sorted(line for file in folder.glob("*.txt") for line in file.read_text().splitlines())
    assert written == sorted(f"turn {turn} {n}" for turn in range(1, turns + 1) for n in range(WRITES))
    assert {file.name for file in folder.iterdir()} == {"0.txt", "1.txt", "2.txt"}
    writes = turns * WRITES
    _log.info("%d kills, %d turns, %d writes, %d claimed again", server.kills, turns, writes, again)
