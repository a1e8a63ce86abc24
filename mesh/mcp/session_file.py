"""The file of a tool session: it keeps a second session from starting beside it, and tells the next one which
calls it began.

The session holds a lock on the file, and so does the guard of its server (`mesh.processes.guard`); the kernel
releases it when both are gone. A session that acquires the lock knows therefore that the sessions before it
are dead. It kills what they left in their server's process group, and waits until that is gone.

    session ID                   the lines below record every call that this session begins
    begun ID ATTEMPT STEP        it is about to hand this claimed call to the server
    group PID STARTED NAMESPACE  the process group of its server, in this namespace of process ids

So the next session can say of a claim that no session before it began the call. Of those that were begun
nobody knows the outcome.

The file's name contains the id of one boot of one machine, because its content is valid only there: lines are
not synced, so that a crash of the machine may lose them, and whether a process is alive can be told only on
its own machine. After such a crash there is no file, and nothing is known.
"""

import asyncio
import errno
import os
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import psutil

from mesh.core.errors import ToolSessionError
from mesh.disk.atomic import reason
from mesh.disk.lock import FileLock
from mesh.mcp.port import Claim
from mesh.processes import groups

TAKE_TIMEOUT_S = 10.0
"""How long to wait for an earlier session, and then for its server, to end: a stop of the mesh takes less."""
MAX_BYTES = 8 * 1024 * 1024
"""A longer file is emptied. Of calls that it does not contain any more, nobody knows whether they began."""
KEEP_S = 7 * 86_400
"""Files of other boots are removed when nothing was written to them for so long. Those of earlier boots of
this machine are useless at once, but cannot be told from those of other machines that share the folder."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.05


class SessionFile:
    """The file of the sessions named ``name``, in a folder. For use by one event loop; `take` it before
    anything else."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._lock: FileLock | None = None
        self._taking = asyncio.Lock()
        self._group = ""
        self._sessions: set[str] = set()
        self._begun: set[Claim] = set()

    @property
    def fds(self) -> tuple[int, ...]:
        """What the guard of the server has to inherit to hold the lock."""
        return () if self._lock is None else (self._lock.fd,)

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def is_removed(self) -> bool:
        """Whether the next session would find no lock, because somebody removed the file or it is not
        held."""
        return self._lock is None or self._lock.is_removed

    async def take_again(self) -> bool:
        """`take`, after the file was removed. Returns False if another session has lived meanwhile."""
        before = len(self._sessions)
        self.release()
        await self.take()
        return len(self._sessions) == before

    async def take(self) -> None:
        """Returns when the lock is held and nothing of an earlier server runs.

        Raises `ToolSessionError` if that takes longer than `TAKE_TIMEOUT_S`.
        """
        # The lock keeps two callers from opening the file twice: one of them would wait for the other's lock.
        async with self._taking:
            if self._lock is None:
                try:
                    # In a thread, as it waits for processes to end.
                    self._lock = await asyncio.to_thread(self._acquire)
                except OSError as problem:
                    raise self._error(f"its file in {self._folder}: {reason(problem)}") from None

    def release(self) -> None:
        """Gives the lock back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def open_session(self, session: str) -> None:
        """From now on the file records what this session begins. Raises `ToolSessionError`."""
        assert self._lock is not None, "the file is taken first"
        if os.fstat(self._lock.fd).st_size > MAX_BYTES:
            os.ftruncate(self._lock.fd, 0)
            if self._group:  # the server may be running: the next session has to find it
                self._write(self._group)
        self._write(f"session {session}")

    def record_begin(self, claim: Claim) -> None:
        """Records that a call is about to be handed to the server. Raises `ToolSessionError`; then it must
        not be."""
        self._write(f"begun {claim.session} {claim.attempt} {claim.step}")

    def has_begun(self, claim: Claim) -> bool | None:
        """Whether a session before this one began a call; None if that is not known."""
        return claim in self._begun if claim.session in self._sessions else None

    def record_group(self, group: int) -> None:
        """Records the process group of the server that was just started. Raises `ToolSessionError`."""
        self._group = f"group {group} {groups.started_at(group)} {groups.pid_namespace()}"
        self._write(self._group)

    def _write(self, line: str) -> None:
        if self._lock is None:
            return
        try:
            _append(self._lock.fd, line)
        except OSError as problem:
            raise self._error(f"its file in {self._folder} cannot be written: {reason(problem)}") from None

    def _acquire(self) -> FileLock:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        boot = _boot()
        _remove_old(self._folder, boot)
        path = self._folder / f"{boot}_{sha256(self._name.encode()).hexdigest()[:32]}"
        deadline = time.monotonic() + TAKE_TIMEOUT_S
        while True:
            lock = FileLock(path, os.O_APPEND | os.O_NOFOLLOW)
            try:
                if not lock.acquire(deadline - time.monotonic()):
                    raise self._error("an earlier session still runs; stop the mesh that it belongs to")
                if not lock.is_removed:
                    self._end_group(self._read(lock.fd), deadline)
                    return lock
            except BaseException:
                lock.close()
                raise
            lock.close()  # the file was removed while its lock was waited for

    def _read(self, fd: int) -> str:
        """Learns which calls the sessions before began. Returns the line of the last one's process group, or
        an empty string."""
        content = os.pread(fd, os.fstat(fd).st_size, 0)
        whole = content[: content.rfind(b"\n") + 1]
        os.ftruncate(fd, len(whole))  # a torn line would spoil the next one
        group = ""
        for line in whole.decode(errors="replace").splitlines():
            match line.split(" ", 3):
                case ["session", session]:
                    self._sessions.add(session)
                case ["begun", session, attempt, step]:
                    self._begun.add(Claim(session, step, int(attempt)))
                case ["group", _, _, _]:
                    group = line
        return group

    def _end_group(self, line: str, deadline: float) -> None:
        """Ends what is left of the last session's server."""
        if not line:
            return
        _, group, started, namespace = line.split(" ")
        if namespace != groups.pid_namespace():
            return  # its processes ended with their namespace; here the id belongs to others
        while left := list(groups.members(int(group), started)):
            if time.monotonic() > deadline:
                raise self._error(f"process {left[0].pid} of an earlier session does not end")
            for process in left:
                groups.kill(process)
            time.sleep(_POLL_S)

    def _error(self, why: str) -> ToolSessionError:
        return ToolSessionError(f"MCP session {self._name}: {why}", may_have_run=False)


def _append(fd: int, line: str) -> None:
    """Appends a whole line or nothing. Raises `OSError`.

    A disk that gets full takes a part of the line and reports no error yet.
    """
    size, content = os.fstat(fd).st_size, line.encode() + b"\n"
    if os.write(fd, content) < len(content):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _boot() -> str:
    """The id of this boot of this machine."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else str(int(psutil.boot_time()))


def _remove_old(folder: Path, boot: str) -> None:
    """Removes files that nobody will ask for any more."""
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # another session removed it
            if not entry.name.startswith(f"{boot}_") and time.time() - entry.stat().st_mtime > KEEP_S:
                Path(entry.path).unlink()
