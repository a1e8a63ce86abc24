"""What the tests of `mcp-shell` need: a root, a sandbox that holds here, and commands without MCP."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from mesh.processes.descendants import is_alive
from mesh.sandbox.box import blanks_in
from mesh.sandbox.launching import Launcher
from mesh.sandbox.order import CommandLimits
from mesh.sandbox.proofs import failures
from mesh.sandbox.sandbox import Kind, Sandbox, missing
from mesh.servers.filesystem.globs import Patterns
from mesh.servers.filesystem.opening import chosen
from mesh.servers.filesystem.root import Root
from mesh.servers.shell.command_records import Record, Records
from mesh.servers.shell.covered import FROZEN
from mesh.servers.shell.request import request_of
from mesh.servers.shell.run_command import Commands
from mesh.servers.shell.variables import passed_on

LIMITS = CommandLimits(memory=512 << 20, processes=64, file_size=64 << 20)
PYTHON = os.path.realpath(sys.executable)
READ = (sys.base_prefix, str(Path(PYTHON).parent))
"""What Python needs, wherever it is installed."""


@cache
def why_not(kind: Kind) -> str:
    """Why a sandbox cannot be used here; an empty text if it can."""
    if reason := missing(kind):
        return reason
    sandbox = Sandbox(kind, LIMITS, passed_on(dict(os.environ)))

    async def found(launcher: Launcher) -> list[str]:
        return await failures(sandbox, launcher, network=False)

    with Launcher() as launcher:
        return "; ".join(anyio.run(found, launcher)) if kind != "none" else ""


def skip_without(kind: Kind) -> None:
    if reason := why_not(kind):
        pytest.skip(f"no sandbox {kind} here: {reason}")


class World:
    """``ws`` is the root; ``outside`` is beside it."""

    def __init__(self, folder: Path, kind: Kind, launcher: Launcher) -> None:
        self.ws, self.outside, scratch = folder / "ws", folder / "outside", folder / "scratch"
        for each in (self.ws, self.outside, scratch):
            each.mkdir()
        (self.outside / "secret").write_text("the secret\n")
        self._folder = os.open(self.ws, os.O_RDONLY | os.O_DIRECTORY)
        where = os.path.realpath(self.ws)
        root = Root("ws", self._folder, chosen(), freeze=Patterns((FROZEN,)), where=where)
        self.told: list[tuple[int, str]] = []
        self.commands = Commands(
            roots=[root],
            sandbox=Sandbox(kind, LIMITS, passed_on(dict(os.environ))),
            launcher=launcher,
            blanks=blanks_in(scratch),
            read=READ,
            network=False,
            home=os.path.realpath(Path("~").expanduser()),
            shell="/bin/bash",
            records=Records(scratch),
        )

    def ruled(self, hide: tuple[str, ...] = (), freeze: tuple[str, ...] = ()) -> None:
        """Gives the root rules."""
        hidden, frozen = Patterns(hide), Patterns((*freeze, FROZEN))
        roots = [replace(root, hide=hidden, freeze=frozen) for root in self.commands.roots]
        self.commands = replace(self.commands, roots=roots)

    def limited(self, **limits: int) -> None:
        sandbox = replace(self.commands.sandbox, limits=replace(LIMITS, **limits))
        self.commands = replace(self.commands, sandbox=sandbox)

    def with_env(self, env: dict[str, str]) -> None:
        self.commands = replace(
            self.commands, sandbox=replace(self.commands.sandbox, variables=passed_on(env))
        )

    def guards(self) -> list[psutil.Process]:
        """Those that watch over the commands under way."""
        return psutil.Process(self.commands.launcher.pid).children()

    def processes(self) -> list[psutil.Process]:
        """All that belongs to commands, and has not ended."""
        found: list[psutil.Process] = []
        for guard in self.guards():
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile, and all that was below it
                found += guard.children(recursive=True)
        return [process for process in found if is_alive(process)]

    async def run(self, command: str = "", **arguments: Any) -> dict[str, Any]:
        """The result of a call. Raises what the call raises."""
        given = {"command": command, **arguments} if command else arguments

        async def tell(written: int, latest: str) -> None:
            self.told.append((written, latest))

        request = request_of("RunCommand", given, self.commands.roots, self.commands.shell)
        text = await self.commands.run(request, Record(""), tell)
        result: dict[str, Any] = json.loads(text)
        return result

    async def python(self, program: str, **arguments: Any) -> dict[str, Any]:
        return await self.run(exe=PYTHON, args=["-I", "-S", "-c", program], **arguments)

    def file(self, found: dict[str, Any]) -> bytes:
        content: bytes = (self.ws / found["path"]).read_bytes()
        return content

    async def made(self, name: str) -> None:
        """Waits until a command has made a file."""
        async with asyncio.timeout(30):
            while not (self.ws / name).exists():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

    def close(self) -> None:
        os.close(self._folder)


@contextmanager
def nothing_left(launcher: Launcher) -> Iterator[None]:
    """Afterwards the launcher has no process below it, at once or a moment later."""
    yield
    process = psutil.Process(launcher.pid)
    give_up_at = time.monotonic() + 20
    while left := process.children(recursive=True):
        assert time.monotonic() < give_up_at, left
        time.sleep(0.01)


def kill_server(argument: str) -> None:
    """Kills the server below this process that has this argument."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = each.cmdline()
            if command[1:3] == ["-m", "mesh.servers.shell.main"] and argument in command:
                found.append(each)
    (server,) = found
    server.kill()
