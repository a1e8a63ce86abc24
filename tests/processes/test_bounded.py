"""A command that is run to its end: real processes, under real limits."""

import subprocess
import sys
from pathlib import Path

import pytest

from mesh.processes.bounded import run_bounded

NO_DESCRIPTORS = "resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))"
# Another user, because the limit does not hold for root.
NO_PROCESSES = """
if os.getuid() == 0:
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
"""
NO_THREADS = """
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
threading.stack_size(4 << 30)
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
    assert (ran.status, ran.bound) == (-9, "it wrote more than 99 bytes")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("limit", "why"),
    [
        (NO_DESCRIPTORS, "Too many open files"),
        (NO_PROCESSES, "Resource temporarily unavailable"),
        (NO_THREADS, "can't start new thread"),
    ],
    ids=["descriptors", "processes", "threads"],
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
