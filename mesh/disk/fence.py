"""The fence of a shard: which of several processes may write its files.

    folder/shard_{n}.epoch    the epoch, a number; locks are taken on the same file

Ray does not promise that a keeper which was replaced is dead, so the files themselves refuse it. A keeper
that opens a shard raises the epoch under the exclusive lock. A writer holds the shared lock from before it
reads the epoch until what it wrote is durable. So an opening waits for the writes under way, and a writer of
an older epoch that comes later finds a greater number.

Works wherever the lock does: see `mesh.disk.lock`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mesh.core.errors import JournalError, StaleEpoch
from mesh.disk.atomic import sync_folder
from mesh.disk.lock import FileLock


class Fences:
    """The fences of the shards in one folder. Not for use by two threads at once. Every method may raise
    `OSError`, and `JournalError` if the epoch is damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[int, FileLock] = {}

    def raise_epoch(self, shard: int) -> int:
        """Returns a new epoch, greater than all before. Waits for the writers of the present one."""
        lock = self._lock(shard)
        with lock.held():
            epoch = _read(lock) + 1
            self._write(lock, epoch)
        return epoch

    def set_epoch(self, shard: int, epoch: int) -> None:
        """Makes ``epoch`` the present one. Waits for the writers of the present one. Raises `StaleEpoch` if
        that is greater."""
        lock = self._lock(shard)
        with lock.held():
            if (present := _read(lock)) > epoch:
                raise _stale(shard, present, epoch)
            self._write(lock, epoch)

    @contextmanager
    def writing(self, shard: int, epoch: int) -> Iterator[None]:
        """Keeps a successor waiting for the length of a ``with`` statement. What is written there must be
        durable when it ends: the successor takes what it finds for all there is.

        Raises `StaleEpoch` if there is a successor already.
        """
        lock = self._lock(shard)
        with lock.held(shared=True):
            if (present := _read(lock)) != epoch:
                raise _stale(shard, present, epoch)
            yield

    def close(self) -> None:
        """Closes the files of all shards."""
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    def _lock(self, shard: int) -> FileLock:
        # Kept open: opening the file anew for each write would cost more than the lock.
        if shard not in self._locks:
            self._locks[shard] = FileLock(self._folder / f"shard_{shard}.epoch")
        return self._locks[shard]

    def _write(self, lock: FileLock, epoch: int) -> None:
        # Synced before anybody learns of the epoch: after a power cut it must not be given out again. All
        # numbers have one width, so that a write never leaves digits of the number before.
        os.pwrite(lock.fd, b"%020d\n" % epoch, 0)
        os.fsync(lock.fd)
        sync_folder(self._folder)


def _read(lock: FileLock) -> int:
    content = os.pread(lock.fd, 32, 0)
    try:
        # An empty file, or one of zeros, is what a crash leaves before the first epoch was durable; nobody
        # was told of that one.
        return int(content.strip(b"\0\n") or b"0")
    except ValueError:
        raise JournalError(
            f"{lock.path} is damaged: it holds {content!r} instead of a number. Write one into it that is "
            f"greater than every epoch of this shard before"
        ) from None


def _stale(shard: int, present: int, epoch: int) -> StaleEpoch:
    return StaleEpoch(f"shard {shard} is at epoch {present}; this writer has {epoch}")
