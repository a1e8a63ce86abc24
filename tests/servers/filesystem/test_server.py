"""``mcp-filesystem`` as clients meet it: over stdio and HTTP, from the command line, confined."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import FileUrl

from mesh.mcp.session import McpSession
from mesh.servers.filesystem import confinement
from mesh.servers.filesystem.names import STAGING
from mesh.servers.filesystem.schemas import NAMES
from tests.servers.filesystem.world import sha, tree
from tests.worlds.tool_servers import Spec

SERVER = [sys.executable, "-m", "mesh.servers.filesystem.main"]


@asynccontextmanager
async def session(*arguments: str, **spec: Any) -> AsyncIterator[McpSession]:
    found = McpSession(
        Spec(**{"name": "files", "command": SERVER[0], "args": [*SERVER[1:], *arguments], **spec})
    )
    try:
        yield found
    finally:
        await found.close()


async def called(session: McpSession, tool: str, **arguments: Any) -> Any:
    found = await session.call(tool, arguments)
    assert not found.is_error, found.content
    return json.loads(found.content)


def refused(*arguments: str, **options: Any) -> str:
    done = subprocess.run(
        [*SERVER, *arguments], capture_output=True, text=True, timeout=30, check=False, **options
    )
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    return done.stderr


async def test_over_stdio_all_tools_are_there_and_work(tmp_path: Path) -> None:
    async with session(str(tmp_path)) as client:
        tools = {tool.name: tool for tool in (await client.catalogue()).tools}
        assert set(tools) == set(NAMES)
        assert {name for name, tool in tools.items() if tool.destructive} == {
            "write_file", "remove_file", "patch_file", "remove_folder", "copy", "move"
        }  # fmt: skip
        done = await called(client, "write_file", path="d/a", content="one\n")
        assert done["sha256"] == sha("one\n")
        assert (await called(client, "read_file", path="d/a"))["content"] == "one\n"
        assert (await called(client, "grep", pattern="one"))["total_matches"] == 1
        assert (await called(client, "glob", regex="a$"))["total_matches"] == 1
        assert (await called(client, "permissions_file", path="d"))["mode"] == "0755"
        assert await called(client, "list_roots") == [{"name": tmp_path.name, "allowed_tools": "*"}]
        said = await client.call("read_file", {"path": "../x"})
        assert said.is_error
        assert str(tmp_path) not in said.content
        said = await client.call("write_file", {"path": "d/a"})
        assert said.is_error
        assert "content" in said.content
        assert (await client.call("no_such_tool", {})).is_error


async def test_the_server_answers_others_while_a_call_is_slow(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    process = subprocess.Popen(  # noqa: ASYNC220 - it starts at once, and the test waits for it anyway
        [*SERVER, str(tmp_path), "--http", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        async with (
            session(command=None, args=[], url=url) as one,
            session(command=None, args=[], url=url) as two,
        ):
            await one.catalogue()
            hashing = asyncio.create_task(one.call("hash_file", {"path": "huge"}))
            await asyncio.sleep(0.2)  # so that it is under way; if it were not, the test would still be right
            assert (await called(two, "list_folder"))["count"] == 1
            assert not hashing.done()
            hashing.cancel()
    finally:
        process.terminate()
        process.wait(20)
        process.stderr.close()  # type: ignore[union-attr]


async def test_over_http_there_is_a_health_check(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    config = tmp_path / "files.yaml"
    config.write_text("port: 0\nroots: [{name: ws, path: ./ws, allowed_tools: [read_file]}]\n")
    process = subprocess.Popen(  # noqa: ASYNC220 - it starts at once, and the test waits for it anyway
        [*SERVER, "--config", str(config), "--http"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert url, line
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{url[0]}/health")).json() == {"status": "ok"}
            async with session(command=None, args=[], url=f"{url[0]}/mcp") as client:
                listed = await called(client, "list_roots")
                assert listed == [{"name": "ws", "allowed_tools": ["read_file"]}]
                assert (await client.call("list_folder", {})).is_error
            (tmp_path / "ws").rmdir()
            answer = await http.get(f"{url[0]}/health")
            assert (answer.status_code, answer.json()["roots"]) == (503, ["ws"])
    finally:
        process.terminate()
        process.wait(20)
        process.stderr.close()  # type: ignore[union-attr]


def test_every_problem_of_the_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = tmp_path / "files.yaml"
    config.write_text(
        """
host: 127.0.0.1
porto: 1
roots:
  - {name: a, path: ./missing}
  - {name: a, path: ./file, allowed_tools: [read_file, rite_file, all]}
  - {name: b, path: ., allowed_tools: some}
hide: ["[z-a]"]
"""
    )
    said = refused("--config", str(config))
    for problem in (
        "files.yaml:3: porto: unknown key; did you mean port?",
        "files.yaml:5: roots[0].path: the folder ./missing does not exist",
        "files.yaml:6: roots[1].path: ./file is not a folder",
        "roots[1].allowed_tools: there is no tool 'rite_file'; did you mean write_file?",
        "there is no tool 'all'",
        "roots[1].name: another root has the name 'a'; give them different names\n",
        "roots[2].allowed_tools: is no list of tools; expected",
        "files.yaml:8: hide[0]: '[z-a]' is not a pattern of paths",
    ):
        assert problem in said
    assert all(line.startswith("mcp-filesystem: ") for line in said.splitlines())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("roots: [", "c.yaml:2: not valid YAML"),
        ("[]", "expected keys at the top level"),
        ("port: 1", "c.yaml:1: roots: is missing; it is required"),
        ("roots: []", "roots: has too few entries"),
        ("port: 99999\nroots: [{name: a, path: .}]", "c.yaml:1: port: is too large; expected 65535 or less"),
        ("max_full_read_size: 0\nroots: [{name: a, path: .}]", "max_full_read_size: "),
    ],
)
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "c.yaml").write_text(content)
    assert said in refused("--config", str(tmp_path / "c.yaml"))


def test_a_command_line_that_says_too_little_or_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a/src").mkdir(parents=True)
    (tmp_path / "b/src").mkdir(parents=True)
    assert "give folders, or --config FILE" in refused()
    assert "give folders, or --config FILE" in refused(str(tmp_path), "--config", "x")
    assert "root 'nothing': the folder nothing does not exist" in refused("nothing", cwd=tmp_path)
    assert "give them different names in a file, with" in refused("a/src", "b/src", cwd=tmp_path)
    assert "No such file or directory" in refused("--config", "nothing.yaml", cwd=tmp_path)
    assert "is not HOST:PORT" in refused("a", "--http", "nowhere", cwd=tmp_path)
    assert (
        "set PYTHONUTF8=1"
        in refused(
            "a",
            cwd=tmp_path,
            env={"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        )
        if _latin_1_exists()
        else True
    )


def test_what_can_be_typed_by_mistake_is_told_without_a_traceback(tmp_path: Path) -> None:
    assert "root 'root': the path is empty" in refused("", cwd=Path("/"))
    assert "nested deeper" in refused("--config", _file(tmp_path, "roots: " + "[" * 100_000))
    assert "not UTF-8 text" in refused("--config", _file(tmp_path, "a: \xe9\n"))
    assert "over 1,048,576 bytes" in refused("--config", "/dev/zero")
    assert "stdin and stdout are no pipes" in refused(str(tmp_path), stdin=subprocess.DEVNULL)
    assert "203.0.113.1:80 is no address of" in refused(str(tmp_path), "--http", "203.0.113.1:80")


def test_a_pattern_of_the_command_line_is_checked_beside_a_file_too(tmp_path: Path) -> None:
    config = _file(tmp_path, "roots: [{name: a, path: .}]")
    assert "--hide: '[z-a]' is not a pattern of paths" in refused("--config", config, "--hide", "[z-a]")


def test_a_port_that_is_taken_is_told_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refused(str(tmp_path), "--http", at)
    assert said == f"mcp-filesystem: {at} is in use by another program; choose another --port\n"


def _file(folder: Path, content: str) -> str:
    (folder / "c.yaml").write_bytes(content.encode("latin-1"))
    return str(folder / "c.yaml")


async def test_a_root_may_have_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    async with over_stdio(folder) as connected, connected() as streams, ClientSession(*streams) as client:
        await client.initialize()
        answer = await client.call_tool("list_folder", {"root": "caf\\xe9"})
        assert not answer.is_error, answer
        assert "caf" in str((await client.call_tool("list_roots", {})).content)


def _latin_1_exists() -> bool:
    listed = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout
    return "en_US.iso88591" in listed


async def test_what_is_hidden_and_frozen_by_the_command_line_is_so(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY")
    async with session(str(tmp_path), "--hide", ".env*", "--freeze", ".git/**") as client:
        assert "hidden" in (await client.call("read_file", {"path": ".env"})).content
        assert (
            "may not be changed"
            in (await client.call("write_file", {"path": ".git/x", "content": ""})).content
        )


async def test_a_start_removes_what_a_crash_has_left(tmp_path: Path) -> None:
    (tmp_path / STAGING / "0123").mkdir(parents=True)
    (tmp_path / STAGING / "0123/rest").write_text("x")
    async with session(str(tmp_path)) as client:
        assert (await called(client, "list_folder"))["count"] == 0
    assert tree(tmp_path) == {}


CONFINED = """
import os, sys
from pathlib import Path
from mesh.servers.filesystem.main import _prepared
from mesh.servers.filesystem.settings import of_folders
os.chdir("/")
_prepared(of_folders([sys.argv[1]], [], []))
for name, action in {
    "read outside": lambda: Path(sys.argv[2], "secret").read_text(),
    "list outside": lambda: os.listdir(sys.argv[2]),
    "write outside": lambda: Path(sys.argv[2], "new").write_text("x"),
    "remove outside": lambda: Path(sys.argv[2], "secret").unlink(),
    "move outside": lambda: os.rename(sys.argv[1] + "/inside", sys.argv[2] + "/moved"),
    "link outside": lambda: os.link(sys.argv[2] + "/secret", sys.argv[1] + "/linked"),
    "run": lambda: os.posix_spawn(sys.argv[1] + "/program", ["x"], {}),
}.items():
    try:
        action()
        print(name)
    except OSError:
        pass
Path(sys.argv[1], "new").write_text("x")
print("wrote inside")
"""


def test_the_process_is_confined_to_its_roots(tmp_path: Path) -> None:
    if not confinement.is_available():
        pytest.skip("this kernel has no Landlock")
    for name in ("ws", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "ws/inside").write_text("x")
    (tmp_path / "outside/secret").write_text("x")
    (tmp_path / "ws/program").write_text("#!/bin/sh\n")
    (tmp_path / "ws/program").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", CONFINED, str(tmp_path / "ws"), str(tmp_path / "outside")],
        capture_output=True, text=True, check=True, timeout=30, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.stdout.splitlines() == ["wrote inside"], done.stderr


async def test_the_server_ends_when_its_input_does_and_when_it_is_told_to(tmp_path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *SERVER, str(tmp_path), stdin=pipe, stdout=pipe, stderr=pipe
    )
    out, err = await asyncio.wait_for(process.communicate(b""), 20)
    assert (process.returncode, out, err) == (0, b"", b"")
    process = await asyncio.create_subprocess_exec(
        *SERVER, str(tmp_path), "--http", "127.0.0.1:0", stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stderr is not None
    assert b"listens on" in await asyncio.wait_for(process.stderr.readline(), 20)
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), 20)


@asynccontextmanager
async def over_stdio(ws: Path) -> AsyncIterator[Any]:
    command = StdioServerParameters(command=SERVER[0], args=[*SERVER[1:], str(ws)])
    yield lambda: stdio_client(command)


@asynccontextmanager
async def over_http(ws: Path) -> AsyncIterator[Any]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*SERVER, str(ws), "--http", "127.0.0.1:0", stderr=pipe)
    try:
        assert process.stderr is not None
        url = (await asyncio.wait_for(process.stderr.readline(), 30)).decode().split()[-1]
        yield lambda: streamable_http_client(url)
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


@pytest.mark.parametrize("served", [over_stdio, over_http])
async def test_the_roots_of_a_client_narrow_and_never_widen(tmp_path: Path, served: Any) -> None:
    for name in ("ws/src", "ws/other", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "f").write_text(name)
    (tmp_path / "ws/src/link").symlink_to("../other/f")

    def asks_for(*paths: Path) -> Any:
        async def roots(context: Any) -> types.ListRootsResult:
            return types.ListRootsResult(roots=[types.Root(uri=FileUrl(f"file://{path}")) for path in paths])

        return roots

    async def reads(connected: Any, *paths: Path) -> list[str]:
        """Which of some files a client with such roots can read."""
        async with (
            connected() as streams,
            ClientSession(*streams, list_roots_callback=asks_for(*paths)) as client,
        ):
            await client.initialize()
            found = []
            for path in ("src/f", "other/f", "src/link"):
                if not (await client.call_tool("read_file", {"path": path})).is_error:
                    found.append(path)
            grepped = await client.call_tool("grep", {"pattern": "other"})
            assert "ws/other" not in str(grepped.content) or "other/f" in found
            return found

    everything = ["src/f", "other/f", "src/link"]
    async with served(tmp_path / "ws") as connected:
        assert await reads(connected) == everything
        assert await reads(connected, tmp_path / "ws") == everything
        assert await reads(connected, tmp_path) == everything
        assert await reads(connected, tmp_path / "ws/src") == ["src/f"]
        assert await reads(connected, tmp_path / "ws/src", tmp_path / "ws/other") == everything
        assert await reads(connected, tmp_path / "outside") == []
