"""Process groups that are found again: real processes."""

import os
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from mesh.processes import groups


@pytest.fixture
def leader() -> Iterator["subprocess.Popen[bytes]"]:
    """The leader of a session, with a child in its group."""
    command = ["sh", "-c", "sleep 60 & echo on; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        yield process
        groups.signal_group(process.pid)


def pids(found: Iterator[psutil.Process]) -> set[int]:
    return {process.pid for process in found}


def test_the_leader_and_its_children_are_found(leader: "subprocess.Popen[bytes]") -> None:
    children = {child.pid for child in psutil.Process(leader.pid).children()}
    assert pids(groups.members(leader.pid, groups.started_at(leader.pid))) == {leader.pid, *children}


def test_children_are_found_when_the_leader_is_dead(leader: "subprocess.Popen[bytes]") -> None:
    children, started = psutil.Process(leader.pid).children(), groups.started_at(leader.pid)
    leader.kill()
    leader.wait(5)
    assert groups.started_at(leader.pid) == groups.UNKNOWN
    assert pids(groups.members(leader.pid, started)) == {child.pid for child in children}


def test_a_group_whose_id_was_given_out_again_is_not_taken_for_the_old_one(
    leader: "subprocess.Popen[bytes]",
) -> None:
    assert pids(groups.members(leader.pid, "1.00")) == set()


def test_a_signal_reaches_the_whole_group_and_a_group_that_is_gone_is_no_error(
    leader: "subprocess.Popen[bytes]",
) -> None:
    children = psutil.Process(leader.pid).children()
    groups.signal_group(leader.pid, signal.SIGTERM)
    leader.wait(5)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    groups.signal_group(leader.pid)


def test_a_process_that_is_gone_is_killed_without_an_error() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        known = psutil.Process(process.pid)
        groups.kill(known)
        assert process.wait(30) == -signal.SIGKILL
    groups.kill(known)


def test_processes_of_one_namespace_agree_about_it() -> None:
    command = ["readlink", "/proc/self/ns/pid"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    assert groups.pid_namespace() == (shown or groups.UNKNOWN)
    assert groups.started_at(os.getpid()) != groups.UNKNOWN
