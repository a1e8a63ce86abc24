"""A command that is run to its end: real processes, under real limits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mesh.processes.bounded import Ran, run_bounded
from mesh.processes.descendants import is_alive

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a subreaper, or reads /proc")

NO_DESCRIPTORS = "resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))"
# Another user, because the limit does not hold for root.
NO_PROCESSES = """
if os.getuid() == 0:
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
"""
LIMITED = """
import os, resource, sys, threading
from mesh.core.errors import Unavailable
from mesh.config.files import FileText, describe

{limit}
try:
    describe(FileText("/srv/shop.py", "import time; time.sleep(60)"), {{}})
except Unavailable as error:
    print(error)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nothing is left", threading.active_count(), len(os.listdir("/proc/self/fd")) - 1)
"""


def test_what_a_command_writes_and_its_status_are_returned() -> None:
    program = "import sys; print(input()); print('oh', file=sys.stderr); sys.exit(3)"
    ran = run_bounded([sys.executable, "-c", program], stdin=b"hello\n", env={}, timeout_s=60, max_bytes=99)
    assert ran == (b"hello\n", b"oh\n", 3, "")


def test_a_command_that_is_over_a_bound_is_ended() -> None:
    program = "import time; print('x' * 200, flush=True); time.sleep(600)"
    ran = run_bounded([sys.executable, "-c", program], stdin=b"", env={}, timeout_s=500, max_bytes=99)
    assert (len(ran.stdout) > 99, ran.bound) == (True, "it wrote more than 99 bytes")


SLEEPER = '[sys.executable, "-c", "import time; time.sleep(600)"]'


def starting(*lines: str) -> Ran:
    """Runs a program that starts a process in a session of its own, which keeps the program's pipes open, and
    writes its id."""
    program = [
        "import os, signal, subprocess, sys, time",
        f"child = subprocess.Popen({SLEEPER}, start_new_session=True)",
        "print(child.pid, flush=True)",
        *lines,
    ]
    command = [sys.executable, "-c", "\n".join(program)]
    return run_bounded(command, stdin=b"", env={}, timeout_s=5, max_bytes=99)


def is_gone(pid: int) -> bool:
    return not (psutil.pid_exists(pid) and is_alive(psutil.Process(pid)))


@linux
@pytest.mark.parametrize(
    ("then", "bound"),
    [
        ("", ""),
        ("os.close(1); os.close(2); time.sleep(600)", "it did not end within 5 s"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", "it did not end within 5 s"),
        ("os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)", "it did not end within 5 s"),
        ("print('x' * 200, flush=True); time.sleep(600)", "it wrote more than 99 bytes"),
    ],
    ids=["ended", "closed its output", "ignores signals", "stopped its guard", "wrote too much"],
)
def test_what_it_started_in_another_session_is_killed_and_not_waited_for(then: str, bound: str) -> None:
    began = time.monotonic()
    ran = starting(then)
    assert ran.bound == bound
    assert is_gone(int(ran.stdout.split()[0]))
    assert time.monotonic() - began < 60


@linux
def test_what_killed_the_guard_and_left_its_group_keeps_nobody_waiting() -> None:
    began = time.monotonic()
    ran = starting("os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)")
    try:
        assert ran.status == -signal.SIGKILL
        assert time.monotonic() - began < 60
    finally:
        os.kill(int(ran.stdout), signal.SIGKILL)


def test_a_command_that_does_not_read_its_input_is_run_to_its_end() -> None:
    ran = run_bounded(
        [sys.executable, "-c", "print(1)"], stdin=b"x" * (1 << 20), env={}, timeout_s=60, max_bytes=9
    )
    assert ran == (b"1\n", b"", 0, "")


def test_much_input_and_much_output_do_not_block_each_other() -> None:
    text = b"x" * (1 << 20)
    program = "import sys\nwhile part := sys.stdin.read(1000): sys.stdout.write(part); sys.stderr.write(part)"
    ran = run_bounded([sys.executable, "-c", program], stdin=text, env={}, timeout_s=60, max_bytes=1 << 20)
    assert ran == (text, text, 0, "")


@linux
def test_a_command_gets_no_more_memory_than_it_may_have() -> None:
    program = "x = bytearray(300 << 20)"
    command = [sys.executable, "-c", program]
    ran = run_bounded(command, stdin=b"", env={}, timeout_s=60, max_bytes=9999, memory_bytes=256 << 20)
    assert (ran.status, ran.stderr.splitlines()[-1]) == (1, b"MemoryError")


@linux
@pytest.mark.parametrize(
    ("limit", "why"),
    [
        (NO_DESCRIPTORS, "Too many open files"),
        (NO_PROCESSES, "Resource temporarily unavailable"),
    ],
    ids=["descriptors", "processes"],
)
def test_a_machine_without_room_for_a_process_is_told_as_one_line_and_nothing_is_left(
    limit: str, why: str, tmp_path: Path
) -> None:
    program = LIMITED.format(limit=limit)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    what = "end other processes, or raise the limits that ulimit -a shows, and try again"
    assert (ended.stdout, ended.stderr) == (
        f"/srv/shop.py: no process can be started to run it: {why}; {what}\nnothing is left 1 3\n",
        "",
    )
