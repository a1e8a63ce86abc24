"""What a lock on a file promises between processes, with real processes."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.disk.lock import FileLock

HOLDER = """
import sys
from pathlib import Path
from mesh.disk.lock import FileLock

lock = FileLock(Path(sys.argv[1]))
assert lock.acquire(5)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that holds the exclusive lock until its stdin is closed."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process


def test_one_process_at_a_time_holds_it_and_waiting_for_it_is_bounded(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as lock:
        with holder(tmp_path / "lock") as process:
            assert not lock.acquire(0.1)
            process.communicate(timeout=30)
        assert lock.acquire(5)


def test_a_process_that_was_killed_holds_it_no_more(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as lock, holder(tmp_path / "lock") as process:
        process.kill()
        assert lock.acquire(5)


def test_two_locks_in_one_process_exclude_one_another(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as second:
        with FileLock(tmp_path / "lock") as first:
            assert first.acquire(0)
            assert not second.acquire(0)
        assert second.acquire(0)


def test_closing_another_descriptor_of_the_file_does_not_release_it(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as first, FileLock(tmp_path / "lock") as second:
        assert first.acquire(0)
        (tmp_path / "lock").read_bytes()  # opens and closes it
        assert not second.acquire(0)


def test_shared_holders_do_not_wait_for_one_another_but_an_exclusive_one_waits_for_all(
    tmp_path: Path,
) -> None:
    locks = [FileLock(tmp_path / "lock") for _ in range(3)]
    with locks[0].held(shared=True), locks[1].held(shared=True):
        assert not locks[2].acquire(0)
    assert locks[2].acquire(0)
    for lock in locks:
        lock.close()


def test_a_child_that_inherits_it_holds_it_after_the_parent_closed_it(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as second:
        first = FileLock(tmp_path / "lock")
        assert first.acquire(0)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[first.fd]) as child:
            first.close()
            assert not second.acquire(0.1)
            child.communicate(timeout=30)
        assert second.acquire(5)


def test_a_child_does_not_inherit_it_by_accident(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as second:
        first = FileLock(tmp_path / "lock")
        assert first.acquire(0)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
            first.close()
            assert second.acquire(5)
            child.communicate(timeout=30)


def test_it_is_released_when_the_work_under_it_fails(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as first, FileLock(tmp_path / "lock") as second:
        with pytest.raises(ZeroDivisionError), first.held():
            1 / 0  # noqa: B018
        assert second.acquire(0)


def test_whoever_waits_for_it_gets_it_when_it_is_released(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    held: list[bool] = []
    waiter = threading.Thread(target=lambda: held.append(second.acquire(5)))
    with first.held():
        waiter.start()
        waiter.join(0.1)
        assert not held
    waiter.join(5)
    assert held == [True]
    first.close()
    second.close()


def test_a_file_that_was_removed_is_noticed(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as lock:
        assert not lock.is_removed
        (tmp_path / "lock").unlink()
        assert lock.is_removed


def test_the_file_is_its_owners_alone_and_keeps_what_it_contains(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("content")
    with FileLock(tmp_path / "lock") as lock:
        assert os.pread(lock.fd, 100, 0) == b"content"
    with FileLock(tmp_path / "new"):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
