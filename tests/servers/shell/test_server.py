"""``mcp-shell`` as clients meet it: over stdio and HTTP, from the command line, with each sandbox."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from mesh.mcp.progress import Progress
from mesh.mcp.session import McpSession
from mesh.processes.descendants import is_alive
from mesh.servers.shell.sandbox import Kind
from tests.servers.shell.world import skip_without
from tests.worlds.tool_servers import Spec

SERVER = [sys.executable, "-m", "mesh.servers.shell.main"]


@asynccontextmanager
async def session(*arguments: str, **spec: Any) -> AsyncIterator[McpSession]:
    found = McpSession(
        Spec(**{"name": "shell", "command": SERVER[0], "args": [*SERVER[1:], *arguments], **spec})
    )
    try:
        yield found
    finally:
        await found.close()


async def run(session: McpSession, command: str, **arguments: Any) -> dict[str, Any]:
    found = await session.call("RunCommand", {"command": command, **arguments})
    assert not found.is_error, found.content
    result: dict[str, Any] = json.loads(found.content)
    return result


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [*SERVER, *arguments], capture_output=True, text=True, timeout=60, check=False, env=env
    )
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    return done.stderr


async def test_a_command_runs_in_the_sandbox_that_is_asked_for(tmp_path: Path, kind: Kind) -> None:
    async with session(str(tmp_path), "--sandbox", kind) as client:
        found = await run(client, "echo out; echo err >&2; echo x > made; exit 3", timeout_s=30)
        assert (found["exit_code"], found["signal"]) == (3, None)
        assert (found["stdout"], found["stderr"]) == ("out\n", "err\n")
        assert found["duration_s"] >= 0
        assert (tmp_path / "made").read_text() == "x\n"


async def test_a_program_runs_without_a_shell(tmp_path: Path, kind: Kind) -> None:
    (tmp_path / "sub").mkdir()
    async with session(str(tmp_path), "--sandbox", kind) as client:
        args = {"exe": "printf", "args": ["%s|", "$HOME", "a b", "*"], "cwd": "sub"}
        assert json.loads((await client.call("RunCommand", args)).content)["stdout"] == "$HOME|a b|*|"
        args = {"exe": "pwd", "cwd": "sub"}
        found = json.loads((await client.call("RunCommand", args)).content)
        assert found["stdout"] == f"{os.path.realpath(tmp_path)}/sub\n"  # noqa: ASYNC240
        found = json.loads((await client.call("RunCommand", {"exe": "no-such-program"})).content)
        assert (found["exit_code"], "not found" in found["stderr"]) == (127, True)


async def test_what_cannot_be_run_is_said(tmp_path: Path, kind: Kind) -> None:
    async with session(str(tmp_path), "--sandbox", kind) as client:
        for arguments, problem in (
            ({}, "give command, or exe"),
            ({"command": "a", "exe": "b"}, "exactly one"),
            ({"command": "a", "args": ["b"]}, "args are those of exe"),
            ({"command": "a\0b"}, "NUL"),
            ({"command": "a", "cwd": ".."}, "'..' is not allowed"),
            ({"command": "a", "cwd": "/etc"}, "absolute"),
            ({"command": "a", "cwd": "gone"}, "not found"),
            ({"command": "a", "root": "other"}, "there is no root 'other'"),
            ({"command": "a", "timeout_s": 601}, "timeout_s"),
            ({"command": "a", "timeout_s": 0}, "timeout_s"),
            ({"command": "a", "more": 1}, "more"),
        ):
            found = await client.call("RunCommand", arguments)
            assert found.is_error
            assert problem in found.content


async def test_output_is_told_while_the_command_runs(tmp_path: Path, kind: Kind) -> None:
    told: list[Progress] = []
    async with session(str(tmp_path), "--sandbox", kind) as client:
        command = "echo first; until [ -e go ]; do sleep 0.05; done; echo last"
        call = asyncio.create_task(client.call("RunCommand", {"command": command}, on_progress=told.append))
        async with asyncio.timeout(30):
            while not told:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        assert told[0].message == "first"
        (tmp_path / "go").touch()
        assert json.loads((await call).content)["stdout"] == "first\nlast\n"


async def test_all_of_a_long_output_is_within_reach_of_read_file_and_grep(tmp_path: Path, kind: Kind) -> None:
    files = [sys.executable, "-m", "mesh.servers.filesystem.main"]
    async with (
        session(str(tmp_path), "--sandbox", kind) as client,
        session(name="files", command=files[0], args=[*files[1:], str(tmp_path)]) as reader,
    ):
        found = await run(client, "seq 100000")
        assert "bytes are left out here" in found["stdout"]
        path = found["stdout_file"]["path"]
        read = await reader.call("read_file", {"path": path, "offset_lines": 50_000, "limit_lines": 1})
        assert "50000" in read.content
        grep = await reader.call("grep", {"pattern": "^5123[45]$", "path": path})
        assert ("51234" in grep.content, "51235" in grep.content) == (True, True)
        assert (tmp_path / ".mcp-shell" / ".gitignore").read_text() == "*\n"


async def test_the_tool_says_which_arguments_are_a_command_and_a_path(tmp_path: Path, kind: Kind) -> None:
    tool = await listed(str(tmp_path), "--sandbox", kind)
    meta = tool["_meta"]["mesh"]
    assert meta == {
        "command": "command",
        "exe": ["exe", "args"],
        "paths": [{"path": "cwd", "root": "root"}],
        "sandbox": kind,
        "risk": "medium",
    }
    assert tool["annotations"]["destructiveHint"] is True
    assert tool["annotations"]["openWorldHint"] is False


async def test_without_a_sandbox_every_command_is_to_be_asked_about(tmp_path: Path) -> None:
    tool = await listed(str(tmp_path), "--sandbox", "none")
    assert tool["_meta"]["mesh"]["ask"] is True
    assert tool["_meta"]["mesh"]["risk"] == "high"
    assert tool["annotations"]["openWorldHint"] is True
    assert "no sandbox" in tool["description"]


async def listed(*arguments: str) -> dict[str, Any]:
    """The tool as it is on the wire."""
    from mcp import ClientSession, StdioServerParameters, stdio_client

    parameters = StdioServerParameters(command=SERVER[0], args=[*SERVER[1:], *arguments])
    async with stdio_client(parameters) as streams, ClientSession(*streams) as client:
        await client.initialize()
        (tool,) = (await client.list_tools()).tools
        found: dict[str, Any] = tool.model_dump(by_alias=True, exclude_none=True)
        return found


def test_a_sandbox_that_lets_something_through_is_not_used(tmp_path: Path) -> None:
    """Something that is called bwrap, and runs commands as they are."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "ws").mkdir()
    fake = tmp_path / "bin" / "bwrap"
    fake.write_text('#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    env = {**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"}
    said = refused(str(tmp_path / "ws"), "--sandbox", "bubblewrap", env=env)
    for what in (
        "write outside of its roots",
        "read what is hidden",
        "use TCP",
        "use UDP",
        "use an abstract",
    ):
        assert f"bubblewrap: a command can {what}" in said
    assert "install what is missing, or say sandbox: none" in said


def test_where_bubblewrap_is_missing_it_is_said_what_to_install(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path)}
    said = refused(str(tmp_path), "--sandbox", "bubblewrap", env=env)
    assert "apt-get install bubblewrap" in said


def test_auto_takes_landlock_where_bubblewrap_does_not_hold(tmp_path: Path) -> None:
    skip_without("landlock")
    (tmp_path / "bin").mkdir()
    (tmp_path / "ws").mkdir()
    fake = tmp_path / "bin" / "bwrap"
    fake.write_text("#!/bin/sh\necho bwrap: No permissions to create a new namespace >&2; exit 1\n")
    fake.chmod(0o755)
    env = {"PATH": f"{fake.parent}:{os.environ['PATH']}"}

    async def kind() -> str:
        async with session(str(tmp_path / "ws"), env=env) as client:
            (tool,) = (await client.catalogue()).tools
            return tool.description

    assert "has no network" in asyncio.run(kind())


def test_it_refuses_to_start_with_what_it_cannot_use(tmp_path: Path) -> None:
    assert "give folders, or --config FILE" in refused()
    assert "does not exist" in refused(str(tmp_path / "gone"))
    assert "part of the system" in refused("/")


async def test_over_http_it_answers_and_says_how_it_is(tmp_path: Path, kind: Kind) -> None:
    process = await asyncio.create_subprocess_exec(
        *SERVER, str(tmp_path), "--sandbox", kind, "--http", "127.0.0.1:0", stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
        found = re.search(r"http://\S+/mcp", line)
        assert found, line
        async with httpx.AsyncClient() as http:
            health = await http.get(found[0].replace("/mcp", "/health"))
        assert (health.status_code, health.json()) == (200, {"status": "ok", "sandbox": kind})
        async with session(url=found[0], command="", args=[]) as client:
            assert (await run(client, "echo over HTTP"))["stdout"] == "over HTTP\n"
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 30)


async def test_when_the_server_is_killed_its_commands_end(tmp_path: Path, kind: Kind) -> None:
    process = await asyncio.create_subprocess_exec(
        *SERVER, str(tmp_path), "--sandbox", kind, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    command = "(setsid sleep 300 &); touch up; sleep 300"
    for message in (
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {
            "id": 2,
            "method": "tools/call",
            "params": {"name": "RunCommand", "arguments": {"command": command}},
        },
    ):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    async with asyncio.timeout(60):
        while not (tmp_path / "up").exists():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 4
        process.kill()
        await process.wait()
        while [each for each in below if is_alive(each)]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("network", ["none", "all"])
async def test_the_network_is_there_if_the_configuration_says_so(
    tmp_path: Path, kind: Kind, network: str
) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, session(str(tmp_path), "--sandbox", kind, "--network", network) as client:
        found = await run(client, f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected")
        assert (found["stdout"] == "connected\n") == (network == "all")
