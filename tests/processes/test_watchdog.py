"""What a killed process started is ended by its watchdog: real processes, really killed."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mesh.processes.watchdog import STOP_TIMEOUT_S

WATCHED = """
import os, subprocess, sys, time
from pathlib import Path
import signal
signal.signal(signal.SIGTERM, lambda *_: None)
sys.path.insert(0, {root!r})
from mesh.processes.watchdog import Watchdog

with Watchdog(Path({scratch!r})) as watchdog:
    child = subprocess.Popen(["sh", "-c", "setsid sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
    watchdog.update()
    print(watchdog.pid, child.pid, child.stdout.readline().decode().strip(), flush=True)
    {then}
"""
ROOT = str(Path(__file__).parents[2])


def watched(scratch: Path, then: str) -> tuple["subprocess.Popen[str]", list[psutil.Process]]:
    """A watched process, and its watchdog, child and grandchild."""
    scratch.mkdir()
    script = WATCHED.format(root=ROOT, scratch=str(scratch), then=then)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]


def ends(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=10)[1]


def test_what_a_killed_process_started_is_ended_and_its_folder_removed(tmp_path: Path) -> None:
    process, family = watched(tmp_path / "scratch", "time.sleep(60)")
    process.kill()
    assert ends(family)
    assert not (tmp_path / "scratch").exists()
    process.communicate(timeout=30)


def test_a_process_that_does_not_stop_when_it_is_asked_to_is_killed(tmp_path: Path) -> None:
    process, family = watched(tmp_path / "scratch", "while True: time.sleep(1)")
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_TIMEOUT_S + 10) == -signal.SIGKILL
    assert ends(family)
    assert process.communicate(timeout=30)[0] == "mesh: stopped, by force\n"


def test_a_process_that_ends_in_order_ends_its_watchdog_and_nothing_else(tmp_path: Path) -> None:
    process, (watchdog, child, grandchild) = watched(tmp_path / "scratch", "sys.stdin.read()")
    process.communicate("", timeout=10)
    assert process.returncode == 0
    assert ends([watchdog])
    assert (tmp_path / "scratch").exists()
    for survivor in (child, grandchild):
        survivor.kill()


@pytest.mark.parametrize("closes", [True, False])
def test_a_forked_child_does_not_hide_the_end_of_its_parent_if_it_closes_the_pipe(
    tmp_path: Path, closes: bool
) -> None:
    forked = f"{'watchdog.close_in_child()' if closes else 'pass'}; time.sleep(60)"
    then = f"""if (pid := os.fork()) == 0: {forked}
    print(pid, flush=True)
    time.sleep(60)"""
    process, family = watched(tmp_path / "scratch", then)
    assert process.stdout is not None
    copy = psutil.Process(int(process.stdout.readline()))
    process.kill()
    try:
        assert bool(psutil.wait_procs(family[1:], timeout=15 if closes else 1)[1]) is not closes
    finally:
        copy.kill()
        assert ends(family)
        process.communicate(timeout=30)
