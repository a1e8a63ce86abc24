"""One stdio server of a session at a time, on this machine, whatever died: a lock on a file.

The session and the guard of its server (`mesh.mcp.guard`) hold the lock; the kernel releases it when both are
gone. A session that takes it over knows that the guard before it is dead, kills what that left of its process
group, and sees it gone. Only then may anybody be told that nobody knows what came of the earlier session's
calls: nothing of them can still be running.

A lock on a file of this machine, and not in the data folder, which machines may share: whether a process
lives is a fact of its machine. It says nothing about a machine that is lost.
"""

import asyncio
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import psutil

from mesh.errors import ToolSessionError

TAKE_WITHIN_S = 10.0
_LOOK_S = 0.05


class ServerLock:
    """The lock named ``name``, in a folder that only this user may use. Used by one event loop."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._name = name
        self._folder = folder or Path(tempfile.gettempdir()) / f"mesh-sessions-{os.getuid()}"
        self._fd: int | None = None
        self._taking = asyncio.Lock()

    @property
    def fds(self) -> tuple[int, ...]:
        """What a guard has to inherit."""
        return () if self._fd is None else (self._fd,)

    async def take(self) -> None:
        """Returns when the lock is held and nothing of an earlier server runs.

        Raises `ToolSessionError` when that is not so within `TAKE_WITHIN_S` seconds.
        """
        if self._fd is not None:
            return
        async with self._taking:
            if self._fd is None:
                self._fd = await asyncio.to_thread(self._taken)

    def note(self, group: int) -> None:
        """Remembers the process group of the server that was started last."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{group} {_started(group)}\n".encode(), 0)

    def release(self) -> None:
        """Gives the lock back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _taken(self) -> int:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._folder.is_symlink() or self._folder.stat().st_uid != os.getuid():
            raise self._problem(f"{self._folder} belongs to somebody else; remove it")
        path = self._folder / f"{sha256(self._name.encode()).hexdigest()[:32]}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            deadline = time.monotonic() + TAKE_WITHIN_S
            while not _locked(fd):
                if time.monotonic() > deadline:
                    raise self._problem(
                        "an earlier session of it still runs; stop the mesh that it belongs to"
                    )
                time.sleep(_LOOK_S)
            self._end_earlier(fd, deadline)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _end_earlier(self, fd: int, deadline: float) -> None:
        group, _, started = os.pread(fd, 64, 0).decode().strip().partition(" ")
        while group and (left := list(_members(int(group), started))):
            if time.monotonic() > deadline:
                raise self._problem(f"process {left[0].pid} of an earlier session does not end")
            for process in left:
                _kill(process)
            time.sleep(_LOOK_S)

    def _problem(self, why: str) -> ToolSessionError:
        return ToolSessionError(f"MCP session {self._name}: {why}", may_have_run=False)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _started(pid: int) -> str:
    """When a process was started, as text to compare; empty if there is none."""
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.NoSuchProcess:
        return ""


def _members(group: int, started: str) -> Iterator[psutil.Process]:
    """The processes of a group that still run. None if its number belongs to another group by now, which
    is so when its leader is another process than at ``started``."""
    if _started(group) not in ("", started):
        return
    for process in psutil.process_iter():
        try:
            is_of_group = os.getpgid(process.pid) == group and os.getsid(process.pid) == group
            if is_of_group and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue  # it ended meanwhile, or is not ours


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return
