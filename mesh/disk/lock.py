"""A lock between processes, on a file.

It is taken with ``flock(2)``, for three reasons:

- The kernel releases it when the last descriptor of the open file is closed, however the process ended. A
  file that contains a process id, in contrast, stays behind after a crash.
- It belongs to the open file and not to the process, as ``fcntl(2)`` record locks do. Two locks in one
  process therefore exclude one another, closing an unrelated descriptor of the same file releases nothing,
  and a child that inherits the descriptor keeps the lock after its parent died.
- It has a shared mode, in which many writers may proceed while a successor waits for all of them.

What it does not promise:

- It is advisory: a process that does not ask for the lock is not kept out.
- It is not fair: shared holders that follow one another closely can keep an exclusive one waiting.
- It locks the file and not its name. Where the file may be removed, look at `FileLock.is_removed` after the
  lock was acquired: a successor would open, and lock, another file.
- On a shared filesystem it excludes other machines only if that filesystem says so. Linux passes ``flock`` on
  NFS to the server, except with the mount options ``nolock`` and ``local_lock``; a client that was cut off
  for longer than its lease loses the lock without notice. CephFS and GlusterFS support it; SMB and many FUSE
  filesystems lock on one machine only.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

_RETRY_S = 0.02


class FileLock:
    """One open file and the lock on it. Not for use by two threads at once.

    ``flags`` are added to those the file is opened with; the file is created if it is missing, readable for
    its owner alone. Raises `OSError`. Close it, or use it in a ``with`` statement: that releases the lock.
    """

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.path = path
        # Close-on-exec: a child must not keep the lock by accident. One that should is given the descriptor.
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)

    @contextmanager
    def held(self, *, shared: bool = False) -> Iterator[None]:
        """Waits for the lock without a bound, and holds it for the length of a ``with`` statement."""
        fcntl.flock(self.fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def acquire(self, timeout_s: float, *, shared: bool = False) -> bool:
        """Acquires the lock and keeps it until `close`. Returns False if another process holds it for all of
        ``timeout_s`` seconds.

        Polls, because a blocking ``flock`` has no timeout: only a signal would interrupt it, and signals
        reach the main thread.
        """
        deadline = time.monotonic() + timeout_s
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            try:
                fcntl.flock(self.fd, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_RETRY_S)
            else:
                return True

    @property
    def is_removed(self) -> bool:
        """Whether the file was removed from its folder, so that the lock excludes nobody any more."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        """Closes the file. Releases the lock, unless a child process has inherited it."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
