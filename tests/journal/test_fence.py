"""What the store in files promises while one process takes a shard over from another."""

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mesh.core.errors import JournalError, StaleEpoch
from mesh.core.ids import new_id
from mesh.journal.files import FileJournal
from mesh.journal.port import Append
from tests.journal.disk import Disk, use
from tests.journal.test_conformance import created, turn

SUCCESSOR = """
import asyncio, sys
from pathlib import Path
from mesh.journal.files import FileJournal

async def main():
    journal = FileJournal(Path(sys.argv[1]))
    await journal.open(0)
    print(len(await journal.read(sys.argv[2])))
    await journal.close()

asyncio.run(main())
"""


def successor(folder: Path, conversation_id: str) -> subprocess.Popen[bytes]:
    """A process that opens the shard, and prints how many events it finds then."""
    command = [sys.executable, "-c", SUCCESSOR, str(folder), conversation_id]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def waits_for_a_lock(process: subprocess.Popen[bytes]) -> bool:
    locks = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(process.pid) in line.split() for line in locks)


class SlowDisk(Disk):
    """Syncs a journal only when a successor either waits for the fence or has opened the shard already."""

    def __init__(self, folder: Path, conversation_id: str) -> None:
        self._about = folder, conversation_id
        self.successor: subprocess.Popen[bytes] | None = None
        self.opened_before_the_sync = False

    def fdatasync(self, fd: int) -> None:
        if self.successor is None:
            self.successor = successor(*self._about)
            until = time.monotonic() + 30
            while self.successor.poll() is None and not waits_for_a_lock(self.successor):
                assert time.monotonic() < until, "the successor neither waits nor ends"
                time.sleep(0.01)
            self.opened_before_the_sync = self.successor.poll() is not None
        os.fdatasync(fd)


async def test_a_successor_opens_the_shard_only_when_what_is_acknowledged_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, i = FileJournal(tmp_path), new_id()
    disk = SlowDisk(tmp_path, i)
    epoch = await journal.open(0)
    use(monkeypatch, disk)
    try:
        await journal.append(0, epoch, Append(i, 0, [created(i), *turn(2)]))
        assert disk.successor is not None
        assert not disk.opened_before_the_sync
        found, _ = await asyncio.to_thread(disk.successor.communicate, timeout=30)
        assert found == b"3\n"
        with pytest.raises(StaleEpoch):
            await journal.append(0, epoch, Append(i, 3, turn(4)))
    finally:
        if disk.successor is not None:
            disk.successor.kill()
            disk.successor.communicate()
        await journal.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from mesh.core.errors import StaleEpoch
from mesh.core.events import UserMessage
from mesh.journal.files import FileJournal
from mesh.journal.port import Append

async def write(journal, epoch, i, seq):
    while True:
        await journal.append(0, epoch, Append(i, seq, [UserMessage(seq=seq + 1, turn=1, text="x")]))
        seq += 1
        print(i, seq, flush=True)

async def main():
    journal = FileJournal(Path(sys.argv[1]))
    epoch = await journal.open(0)
    found = {i: len(await journal.read(i)) for i in sys.argv[2:]}
    print("opened", *found.values(), flush=True)
    try:
        await asyncio.gather(*(write(journal, epoch, i, seq) for i, seq in found.items()))
    except StaleEpoch:
        print("fenced", flush=True)

asyncio.run(main())
"""


def test_each_of_many_successors_finds_all_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    ids = [new_id() for _ in range(4)]
    command = [sys.executable, "-c", WRITER, str(tmp_path), *ids]
    outputs = [(tmp_path / f"output_{number}").open("w+") for number in range(6)]
    acknowledged = dict.fromkeys(ids, 0)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for output in outputs:
            processes.append(subprocess.Popen(command, stdout=output))
            until = time.monotonic() + 60
            while len(Path(output.name).read_text().splitlines()) < 40:  # under load, until the next comes
                assert time.monotonic() < until and processes[-1].poll() is None
                time.sleep(0.01)
        for process in processes[:-1]:
            process.wait(30)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for output in outputs:
            output.close()
    for number in range(6):
        first, *lines = (tmp_path / f"output_{number}").read_text().splitlines()
        found = dict(zip(ids, map(int, first.split()[1:]), strict=True))
        assert all(found[i] >= acknowledged[i] for i in ids)
        assert (lines[-1] == "fenced") == (number < 5)
        acknowledged = found | {line.split()[0]: int(line.split()[1]) for line in lines if " " in line}


async def test_what_is_written_together_takes_the_fence_once_and_syncs_each_journal_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting(Disk):
        synced = 0

        def fdatasync(self, fd: int) -> None:
            self.synced += 1
            os.fdatasync(fd)

    take, locks = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        locks.append(operation)
        take(fd, operation)

    journal, disk, ids = FileJournal(tmp_path), Counting(), [new_id() for _ in range(50)]
    epoch = await journal.open(0)
    first = [Append(i, 0, [created(i)]) for i in ids]
    second = [Append(i, 1, turn(2)) for i in ids]
    use(monkeypatch, disk)
    monkeypatch.setattr(fcntl, "flock", flock)
    await asyncio.gather(*(journal.append(0, epoch, append) for append in (*first, *second)))
    assert locks == [fcntl.LOCK_SH, fcntl.LOCK_UN]
    assert disk.synced == len(ids)
    await journal.close()


@pytest.mark.parametrize("left", [b"", b"\0" * 21], ids=["nothing", "zeros"])
async def test_an_epoch_that_a_power_cut_kept_from_being_written_was_nobodys(
    tmp_path: Path, left: bytes
) -> None:
    (tmp_path / "shard_0.epoch").write_bytes(left)
    journal = FileJournal(tmp_path)
    assert await journal.open(0) == 1
    await journal.close()


async def test_a_damaged_epoch_fences_everybody_and_says_where_it_is(tmp_path: Path) -> None:
    journal, i = FileJournal(tmp_path), new_id()
    epoch = await journal.open(0)
    (tmp_path / "shard_0.epoch").write_bytes(b"0000\xff00000000001\n")
    for work in (journal.append(0, epoch, Append(i, 0, [created(i)])), journal.open(0)):
        with pytest.raises(JournalError, match=r"shard_0\.epoch is damaged"):
            await work
    assert await journal.sizes() == {}
    await journal.close()
