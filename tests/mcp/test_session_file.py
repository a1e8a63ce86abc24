"""The file of a session: one at a time, whatever is killed, and what those before began. Real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mesh.core.errors import ToolSessionError, Unavailable
from mesh.mcp import session_file
from mesh.mcp.port import Claim
from mesh.mcp.session import McpSession
from mesh.mcp.session_file import SessionFile
from tests.mcp.test_session import alive
from tests.processes.test_guard import ROOT, all_gone
from tests.worlds.full_disk import files_of_at_most
from tests.worlds.tool_servers import hostile

HOLDER = """
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.worlds.tool_servers import hostile
from mesh.mcp.port import Claim
from mesh.mcp.session import McpSession
from mesh.mcp.session_file import SessionFile

async def main():
    session = McpSession(hostile(), file=SessionFile("one", Path({folder!r})))
    pids = json.loads((await session.call("pid", {{}})).content)
    child = int((await session.call("child", {{}})).content)
    name = await session.identity()
    running = asyncio.create_task(session.call("wait", {{"s": 60}}, claim=Claim(name, "runs", 0)))
    await asyncio.sleep(0)
    waits = asyncio.create_task(session.call("echo", {{"text": "x"}}, claim=Claim(name, "waits", 0)))
    while not session._current:
        await asyncio.sleep(0.01)
    print(json.dumps([name, *pids, child]), flush=True)
    await running

asyncio.run(main())
"""


def holder(folder: Path) -> tuple["subprocess.Popen[str]", str, list[int]]:
    """A process with a session in which one claimed call runs and one waits: its id; server, guard, child."""
    script = HOLDER.format(root=ROOT, folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    name, *pids = json.loads(process.stdout.readline())
    return process, name, pids


@pytest.mark.parametrize("also_the_guard", [False, True])
async def test_the_next_session_finds_the_last_ones_server_dead_and_knows_what_it_began(
    tmp_path: Path, also_the_guard: bool
) -> None:
    process, name, pids = holder(tmp_path)
    if also_the_guard:  # so that nobody is left to end what the server started
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(os.getpgid(pids[0]), signal.SIGKILL)
    process.kill()
    process.communicate()
    session = McpSession(hostile(), file=SessionFile("one", tmp_path))
    try:
        assert await session.settle(Claim(name, "waits", 0)) is None
        assert await session.settle(Claim(name, "never arrived", 0)) is None
        assert not any(map(alive, pids)), "nothing of the last server runs when anybody is answered"
        with pytest.raises(ToolSessionError) as raised:
            await session.settle(Claim(name, "runs", 0))
        assert raised.value.may_have_run
        assert await session.identity() != name
    finally:
        await session.close()


async def test_a_session_does_not_begin_while_another_one_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_file, "TAKE_TIMEOUT_S", 0.3)
    process, _, pids = holder(tmp_path)
    session = McpSession(hostile(), file=SessionFile("one", tmp_path))
    try:
        with pytest.raises(ToolSessionError, match="an earlier session still runs") as raised:
            await session.call("echo", {"text": "x"})
        assert not raised.value.may_have_run
        assert all(map(alive, pids))
    finally:
        await session.close()
        process.kill()
        process.communicate()
    assert all_gone(pids)


async def test_callers_that_wait_for_the_file_together_find_one_session(tmp_path: Path) -> None:
    """Each is told the same identity, so that no claim is of a generation that is forgotten already."""
    session = McpSession(hostile(), file=SessionFile("one", tmp_path))
    try:
        assert len(set(await asyncio.gather(*(session.identity() for _ in range(10))))) == 1
    finally:
        await session.close()


async def test_after_a_start_of_the_machine_the_file_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SessionFile("one", tmp_path)
    await first.take()
    first.open_session("a.0")
    first.release()
    second = SessionFile("one", tmp_path)
    await second.take()
    assert second.has_begun(Claim("a.0", "s", 0)) is False
    second.release()
    monkeypatch.setattr(session_file, "_boot", lambda: "another")
    third = SessionFile("one", tmp_path)
    await third.take()
    assert third.has_begun(Claim("a.0", "s", 0)) is None
    third.release()


async def test_a_file_that_grew_long_forgets_the_sessions_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_file, "MAX_BYTES", 2_000)
    file = SessionFile("one", tmp_path)
    await file.take()
    for generation in range(20):
        file.open_session(f"a.{generation}")
        for n in range(10):
            file.record_begin(Claim(f"a.{generation}", f"step {n}", 0))
    assert os.fstat(file.fds[0]).st_size < 3_000
    file.release()
    after = SessionFile("one", tmp_path)
    await after.take()
    assert after.has_begun(Claim("a.0", "step 1", 0)) is None
    assert after.has_begun(Claim("a.19", "step 1", 0)) is True
    assert after.has_begun(Claim("a.19", "other", 0)) is False
    after.release()


async def test_a_file_that_grew_long_still_names_the_server_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_file, "MAX_BYTES", 2_000)
    server = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    first = SessionFile("one", tmp_path)
    await first.take()
    first.open_session("a.0")
    first.record_group(server.pid)
    for n in range(200):
        first.record_begin(Claim("a.0", f"step {n}", 0))
    first.open_session("a.1")
    assert os.fstat(first.fds[0]).st_size < 2_000
    first.release()
    after = SessionFile("one", tmp_path)
    await after.take()
    after.release()
    assert await asyncio.wait_for(server.wait(), 30) == -signal.SIGKILL


async def test_a_line_that_a_kill_tore_spoils_none_that_follow(tmp_path: Path) -> None:
    first = SessionFile("one", tmp_path)
    await first.take()
    first.open_session("a.0")
    first.record_begin(Claim("a.0", "s", 0))
    os.write(first.fds[0], b"begun a.0 0 to")
    first.release()
    second = SessionFile("one", tmp_path)
    await second.take()
    second.open_session("b.0")
    second.record_begin(Claim("b.0", "t", 0))
    second.release()
    third = SessionFile("one", tmp_path)
    await third.take()
    claims = [Claim("a.0", "s", 0), Claim("a.0", "torn", 0), Claim("b.0", "t", 0), Claim("b.0", "u", 0)]
    assert [third.has_begun(claim) for claim in claims] == [True, False, True, False]
    third.release()


def test_files_of_earlier_starts_of_the_machine_are_removed_after_a_week(tmp_path: Path) -> None:
    old, recent = tmp_path / "start-1_x", tmp_path / "start-2_x"
    for path in (old, recent):
        path.touch()
    os.utime(old, (0, 0))
    file = SessionFile("one", tmp_path)
    asyncio.run(file.take())
    file.release()
    assert (old.exists(), recent.exists(), len(list(tmp_path.iterdir()))) == (False, True, 2)


async def test_no_call_begins_that_cannot_be_written_down(tmp_path: Path) -> None:
    file = SessionFile("one", tmp_path)
    session = McpSession(hostile(), file=file)
    try:
        name = await session.identity()
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file.fds[0])
        os.close(full)
        with pytest.raises(ToolSessionError, match="cannot be written: No space left") as raised:
            await session.call("echo", {"text": "x"}, claim=Claim(name, "s", 0))
        assert not raised.value.may_have_run
        assert (await session.call("echo", {"text": "unclaimed"})).content == "unclaimed"
    finally:
        await session.close()


async def test_nobody_says_that_an_outcome_is_unknown_while_the_session_that_knows_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process, or one that does not end: a person who is asked now would decide too early."""
    monkeypatch.setattr(session_file, "TAKE_TIMEOUT_S", 0.3)
    process, name, pids = holder(tmp_path)
    os.kill(process.pid, signal.SIGSTOP)
    session = McpSession(hostile(), file=SessionFile("one", tmp_path))
    try:
        with pytest.raises(Unavailable, match="an earlier session still runs"):
            await session.settle(Claim(name, "runs", 0))
        assert all(map(alive, pids))
    finally:
        await session.close()
        process.kill()
        process.communicate()


async def test_a_line_of_which_only_a_part_fits_on_the_disk_is_not_written_down(tmp_path: Path) -> None:
    file = SessionFile("one", tmp_path)
    await file.take()
    file.open_session("a.0")
    room = os.fstat(file.fds[0]).st_size + 10
    with pytest.raises(ToolSessionError, match="cannot be written") as raised, files_of_at_most(room):
        file.record_begin(Claim("a.0", "in part", 0))
    assert not raised.value.may_have_run
    file.record_begin(Claim("a.0", "whole", 0))
    file.release()
    after = SessionFile("one", tmp_path)
    await after.take()
    assert after.has_begun(Claim("a.0", "in part", 0)) is False
    assert after.has_begun(Claim("a.0", "whole", 0)) is True
    after.release()


@pytest.mark.parametrize("part", ["group 12", "group ", "begun a.0 x", "begun a.0 0 s"])
async def test_a_line_without_an_end_says_nothing_and_does_not_spoil_the_next(
    tmp_path: Path, part: str
) -> None:
    first = SessionFile("one", tmp_path)
    await first.take()
    first.open_session("a.0")
    os.write(first.fds[0], part.encode())
    first.release()
    second = SessionFile("one", tmp_path)
    await second.take()
    second.open_session("b.0")
    second.record_begin(Claim("b.0", "t", 0))
    second.release()
    third = SessionFile("one", tmp_path)
    await third.take()
    assert third.has_begun(Claim("a.0", "s", 0)) is False
    assert third.has_begun(Claim("b.0", "t", 0)) is True
    third.release()


async def test_a_server_whose_group_cannot_be_written_down_is_ended(tmp_path: Path) -> None:
    file = SessionFile("one", tmp_path)
    session = McpSession(hostile(), file=file)
    try:
        await session.identity()
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file.fds[0])
        os.close(full)
        with pytest.raises(ToolSessionError, match="last words"):
            await session.call("die", {})
        with pytest.raises(ToolSessionError, match="cannot be written"):
            await session.call("echo", {"text": "x"})
        assert _servers() == []
    finally:
        await session.close()


def _servers() -> list[str]:
    """The command lines of servers that run. One that has ended and is not reaped has none."""
    lines = [" ".join(p.as_dict(["cmdline"])["cmdline"] or ()) for p in psutil.Process().children()]
    return [line for line in lines if "hostile.py" in line]


async def test_a_session_that_cannot_use_its_file_says_so_and_nothing_has_run(tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    session = McpSession(hostile(), file=SessionFile("one", no_folder / "sessions"))
    try:
        with pytest.raises(ToolSessionError, match="Not a directory") as raised:
            await session.identity()
        assert not raised.value.may_have_run
    finally:
        await session.close()


async def test_a_session_whose_file_was_removed_takes_it_again_before_it_runs_anything(
    tmp_path: Path,
) -> None:
    """As those who clean /tmp do. Without it, the next session would find no lock."""
    session = McpSession(hostile(), file=SessionFile("one", tmp_path))
    try:
        name = await session.identity()
        path = _removed(tmp_path)
        called = await session.call("echo", {"text": "x"}, claim=Claim(name, "s", 0))
        assert called.content == "x"
        assert path.exists()
        assert await session.identity() != name, (
            "what the file does not tell of is not to be taken for not begun"
        )
    finally:
        await session.close()


async def test_a_session_whose_file_was_removed_runs_nothing_once_another_one_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_file, "TAKE_TIMEOUT_S", 0.3)
    first = McpSession(hostile(), file=SessionFile("one", tmp_path))
    second = McpSession(hostile(), file=SessionFile("one", tmp_path))
    try:
        name = await first.identity()
        _removed(tmp_path)
        await second.identity()
        with pytest.raises(ToolSessionError) as raised:
            await first.call("echo", {"text": "x"}, claim=Claim(name, "s", 0))
        assert not raised.value.may_have_run
    finally:
        await first.close()
        await second.close()


def _removed(folder: Path) -> Path:
    (path,) = folder.iterdir()
    path.unlink()
    return path
