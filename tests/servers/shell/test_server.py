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
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from mesh.mcp.progress import Progress
from mesh.mcp.session import McpSession
from mesh.processes.descendants import is_alive
from mesh.sandbox import process_limit
from mesh.sandbox.sandbox import Kind
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.shell.shell_program import is_bash
from tests.servers.shell.world import World, skip_without
from tests.worlds.tool_servers import Spec

needs_bound = pytest.mark.skipif(
    not process_limit.is_possible(), reason="nothing bounds the number of processes here"
)
WARNING = "WARNING: no sandbox: commands can do all that this user can"
SERVER = [sys.executable, "-m", "mesh.servers.shell.main"]


@asynccontextmanager
async def session(*arguments: str, **spec: Any) -> AsyncIterator[McpSession]:
    given = {"name": "shell", "command": SERVER[0], "args": [*SERVER[1:], *arguments], **spec}
    given["env"] = {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"], **given.get("env", {})}
    found = McpSession(Spec(**given))
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


async def test_without_bash_only_programs_with_their_arguments_are_run(world: World) -> None:
    """What the policy judged is what bash would run: another shell reads some texts differently."""
    world.commands = replace(world.commands, shell="/bin/sh")
    with pytest.raises(FileRefusal, match="there is no bash here"):
        await world.run("echo a")
    assert (await world.run(exe="echo", args=["$(a)"]))["stdout"] == "$(a)\n"


@pytest.mark.parametrize("other", ["/bin/sh", "/bin/true", "/nowhere"])
def test_another_program_by_the_name_of_bash_is_not_taken_for_it(tmp_path: Path, other: str) -> None:
    (tmp_path / "bash").symlink_to(other)
    assert is_bash("/bin/bash")
    if os.path.realpath(other) != os.path.realpath("/bin/bash"):
        assert not is_bash(str(tmp_path / "bash"))


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
        "check": {"check": True},
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

    parameters = StdioServerParameters(
        command=SERVER[0], args=[*SERVER[1:], *arguments], env=dict(os.environ)
    )
    async with stdio_client(parameters) as streams, ClientSession(*streams) as client:
        assert (await client.initialize()).server_info.version == version("mesh")
        (tool,) = (await client.list_tools()).tools
        found: dict[str, Any] = tool.model_dump(by_alias=True, exclude_none=True)
        return found


@needs_bound
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


@needs_bound
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


@needs_bound
def test_where_no_sandbox_holds_it_says_so_and_does_not_start(tmp_path: Path) -> None:
    """A kernel without Landlock, and no bubblewrap."""
    program = (
        "import ctypes, os, struct, sys\n"
        "from mesh.sandbox import restriction as r\n"
        "step, refuse = r._step, r._REFUSE | r._ENOSYS\n"
        "code = b''.join([step(r._LOAD, r._NUMBER_AT), step(r._EQUAL, 444, 0, 1), step(r._RETURN, refuse),\n"
        "    step(r._RETURN, r._ALLOW)])\n"
        "kept = ctypes.create_string_buffer(code, len(code))\n"
        "given = struct.pack('HxxxxxxP', len(code) // 8, ctypes.addressof(kept))\n"
        "r._libc.prctl(38, 1, 0, 0, 0)\n"
        "assert r._libc.prctl(r._PR_SET_SECCOMP, r._SECCOMP_MODE_FILTER, given, 0, 0) == 0\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
    )
    command = [sys.executable, "-c", program, *SERVER[1:], str(tmp_path)]
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines() == [
        "mcp-shell: no sandbox holds here, so no command is run",
        "mcp-shell: bubblewrap: install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap)",
        "mcp-shell: landlock: it needs Linux 6.12 or later with Landlock, on x86-64 or ARM64",
        "mcp-shell: install what is missing, or say sandbox: none; then commands can do all that you "
        "can, and each of them has to be approved",
    ]


def test_where_records_cannot_be_kept_it_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refused(str(tmp_path), "--sandbox", "none", "--state", str(tmp_path / "file"))
    assert f"no records can be kept in {tmp_path}/file" in said


def test_it_refuses_to_start_with_what_it_cannot_use(tmp_path: Path) -> None:
    assert "give folders, or --config FILE" in refused()
    assert "does not exist" in refused(str(tmp_path / "gone"))
    assert "part of the system" in refused("/")


@asynccontextmanager
async def serving(kind: Kind, *arguments: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A server that speaks HTTP: its URL, and its process. It has said what its sandbox is."""
    process = await asyncio.create_subprocess_exec(
        *SERVER, *arguments, "--sandbox", kind, "--http", "127.0.0.1:0", stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
        assert line == f"mcp-shell: {WARNING if kind == 'none' else 'sandbox: ' + kind}\n"
        line = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
        found = re.search(r"http://\S+/mcp", line)
        assert found, line
        yield found[0], process
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 30)


async def test_over_http_it_answers_and_says_how_it_is(tmp_path: Path, kind: Kind) -> None:
    async with serving(kind, str(tmp_path)) as (url, _):
        async with httpx.AsyncClient() as http:
            health = await http.get(url.replace("/mcp", "/health"))
        assert (health.status_code, health.json()) == (200, {"status": "ok", "sandbox": kind})
        async with session(url=url, command="", args=[]) as client:
            assert (await run(client, "echo over HTTP"))["stdout"] == "over HTTP\n"


async def test_without_a_sandbox_it_warns_when_it_starts(tmp_path: Path) -> None:
    async with serving("none", str(tmp_path)) as (url, _), httpx.AsyncClient() as http:
        assert (await http.get(url.replace("/mcp", "/health"))).json()["sandbox"] == "none"


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
