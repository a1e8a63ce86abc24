"""Nothing of a server outlives whoever started it: real processes, really killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mesh.mcp.session import McpSession
from mesh.processes import guard
from tests.mcp.test_session import alive, pids, until
from tests.worlds.tool_servers import hostile

PARENT = """
import asyncio, json, sys
sys.path.insert(0, {root!r})
from tests.worlds.tool_servers import hostile
from mesh.mcp.session import McpSession

async def main():
    session = McpSession(hostile())
    pids = json.loads((await session.call("pid", {{}})).content)
    child = int((await session.call("child", {{}})).content)
    print(json.dumps([*pids, child]), flush=True)
    {then}

asyncio.run(main())
"""
ROOT = str(Path(__file__).parents[2])


def parent(then: str) -> tuple["subprocess.Popen[str]", list[int]]:
    """A process that holds a session, and the pids of server, guard and the server's child."""
    script = PARENT.format(root=ROOT, then=then)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def all_gone(pids: list[int], within_s: float = 30) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


@pytest.mark.parametrize(
    "then",
    [
        "await session.call('hang', {})",
        "raise SystemExit(1)",
        "import os; os._exit(1)",
        "await session.close()",
    ],
    ids=["killed", "exit", "hard exit", "closed"],
)
def test_server_and_its_children_end_with_the_parent(then: str) -> None:
    process, family = parent(then)
    try:
        if "hang" in then:
            assert all(map(alive, family))
            process.kill()
        process.wait(20)
        assert all_gone(family)
    finally:
        process.kill()
        process.communicate(timeout=30)


async def test_kill_9_of_the_guard_leaves_nothing_and_the_session_goes_on() -> None:
    session = McpSession(hostile())
    server, guard_pid = await pids(session)
    child = int((await session.call("child", {})).content)
    os.kill(guard_pid, signal.SIGKILL)
    await until(lambda: not any(map(alive, [server, guard_pid, child])))
    assert (await session.call("echo", {"text": "x"})).content == "x"
    await session.close()


async def test_children_that_a_dead_server_left_are_ended() -> None:
    session = McpSession(hostile())
    server, _ = await pids(session)
    child = int((await session.call("child", {})).content)
    os.kill(server, signal.SIGKILL)
    await until(lambda: not alive(child))
    await session.close()


def start(
    *command: str, memory: int = 0, how: Sequence[str] = (guard.__file__,)
) -> "subprocess.Popen[bytes]":
    arguments = [sys.executable, "-I", "-S", *how, str(os.getpid()), str(memory), "--", *command]
    return subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_guard_exits_with_the_servers_status(script: str, status: int) -> None:
    with start("sh", "-c", script) as process:
        assert process.wait(30) == status


def test_what_goes_in_and_out_does_not_pass_through_the_guard() -> None:
    with start("cat") as process:
        out, _ = process.communicate(b"as it is\xff", timeout=30)
    assert out == b"as it is\xff"


def test_a_command_that_cannot_run_is_said_on_stderr() -> None:
    with start("/no/such/server") as process:
        _, said = process.communicate(timeout=30)
        assert process.returncode == 127
    assert b"/no/such/server" in said


def test_sigterm_ends_the_server_that_ends_and_kills_the_one_that_does_not() -> None:
    for script, status in [("exec sleep 60", 143), ("trap '' TERM; echo on; sleep 60; sleep 60", -9)]:
        with start("sh", "-c", f"echo on; {script}") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"on\n"
            if "trap" in script:
                assert process.stdout.readline() == b"on\n"
            process.terminate()
            assert process.wait(guard.GRACE_S + 4) == status


def test_the_end_of_the_thread_that_started_the_guard_is_not_the_end_of_the_parent() -> None:
    started: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: started.append(start("cat")))
    thread.start()
    thread.join(5)
    with started[0] as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        out, _ = process.communicate(b"alive", timeout=30)
    assert out == b"alive"


def test_a_guard_whose_parent_is_gone_already_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    arguments = [sys.executable, "-I", "-S", guard.__file__, "1", "--", "touch", str(mark)]
    assert subprocess.run(arguments, start_new_session=True, timeout=30, check=False).returncode == 1
    assert not mark.exists()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


APART = """
import os, subprocess, sys
for apart in (True, False):
    print(subprocess.Popen(["sleep", "600"], start_new_session=apart, stdout=2).pid, flush=True)
"""


@pytest.mark.parametrize(
    ("then", "end"),
    [
        ("", lambda process: None),
        ("sys.stdin.read()", lambda process: process.terminate()),
        ("sys.stdin.read()", lambda process: process.send_signal(guard.KILL_NOW)),
        ("os.kill(os.getpid(), 9)", lambda process: None),
    ],
    ids=["ends", "is told to stop", "is to be killed", "crashes"],
)
def test_processes_that_left_the_group_end_with_the_command(
    then: str, end: Callable[["subprocess.Popen[bytes]"], None]
) -> None:
    with start(*python(APART + then)) as process:
        assert process.stdout is not None
        family = [int(process.stdout.readline()) for _ in range(2)]
        end(process)
        process.wait(30)
        assert not any(map(alive, family))


def test_one_process_that_asks_for_too_much_memory_is_refused_it() -> None:
    code = "try: bytearray(300 << 20)\nexcept MemoryError: print('refused')"
    with start(*python(code), memory=128 << 20) as process:
        assert process.communicate(timeout=30) == (b"refused\n", b"")
        assert process.returncode == 0


FORKS = """
import mmap, os, time
{before}
for _ in range({number}):
    if os.fork() == 0:
        {inside}
        break
time.sleep({lasts})
os._exit(0)
"""


def test_processes_that_use_too_much_memory_together_are_killed_and_it_is_said() -> None:
    code = FORKS.format(before="", number=4, inside="eaten = bytearray(b'x') * (60 << 20)", lasts=60)
    with start(*python(code), memory=128 << 20) as process:
        _, said = process.communicate(timeout=30)
    assert process.returncode == 137
    assert b"MiB of memory; limits.tool_memory_bytes allows 128 MiB" in said


def test_memory_that_processes_share_counts_once_wherever_it_comes_from() -> None:
    common = "eaten = bytearray(b'x') * (80 << 20)"
    with start(
        *python(FORKS.format(before=common, number=4, inside="pass", lasts=2.5)), memory=128 << 20
    ) as process:
        assert process.communicate(timeout=30) == (b"", b"")
        assert process.returncode == 0
    shared = "eaten = mmap.mmap(-1, 200 << 20)\nfor _ in range(200): eaten.write(bytes(1 << 20))"
    with start(
        *python(FORKS.format(before=shared, number=0, inside="pass", lasts=60)), memory=128 << 20
    ) as process:
        assert b"MiB of memory" in process.communicate(timeout=30)[1]
        assert process.returncode == 137


def test_a_fork_bomb_is_put_out() -> None:
    fewer = f"import runpy, sys; main = runpy.run_path({guard.__file__!r})['main']"
    fewer += "; main.__globals__['MOST_PROCESSES'] = 20; sys.exit(main(sys.argv[1:]))"
    bomb = FORKS.format(before="", number=40, inside="time.sleep(600)", lasts=60)
    with start(*python(bomb), how=["-c", fewer]) as process:
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (137, b"killed: it has more than 20 processes\n")


def test_a_crash_leaves_no_file(tmp_path: Path) -> None:
    with start(*python(f"import os; os.chdir({str(tmp_path)!r}); os.abort()")) as process:
        assert process.wait(30) == 134
    assert list(tmp_path.iterdir()) == []


def test_the_guard_needs_nothing_that_takes_long_to_import() -> None:
    script = f"import sys, runpy; runpy.run_path({guard.__file__!r}); print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, check=True)
    slow = {"argparse", "asyncio", "inspect", "json", "logging", "pathlib", "site", "subprocess", "threading"}
    assert {"ctypes", "resource"} <= (names := {*imported.stdout.decode().split()}) and not names & slow


async def test_closing_twenty_sessions_leaves_no_process_behind() -> None:
    sessions = [McpSession(hostile()) for _ in range(20)]
    families = await asyncio.gather(*map(pids, sessions))
    await asyncio.gather(*(session.close() for session in sessions))
    assert all_gone([pid for family in families for pid in family])
