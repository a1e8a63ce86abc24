"""The file of a session with an MCP server: one session at a time on this machine, whatever died, and what
the ones before it began.

The session holds a lock on the file, and so does the guard of its server (`mesh.mcp.guard`); the kernel
releases it when both are gone. A session that takes it over knows that those before it are dead, kills what
they left of their server's process group, and sees it gone.

    session ID                   every call that this session begins is in a line below
    begun ID ATTEMPT STEP        it is about to hand this claimed call to the server
    group PID STARTED SPACE      the process group of its server, in this space of process numbers

So the next session can say of a claim that the last one did not begin it; only of those that it began does
nobody know the outcome.

The file has the name of one start of one machine, for what it says holds no longer and nowhere else: its
lines are not synced, and a process is known to be dead on its own machine only. After a loss of the machine
it says nothing.
"""

import asyncio
import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import psutil

from mesh.core.errors import ToolSessionError
from mesh.mcp.port import Claim

TAKE_WITHIN_S = 10.0
MOST_BYTES = 8 * 1024 * 1024
"""A longer file is begun anew: of calls that are not in it any more nobody knows whether they began."""
KEPT_S = 7 * 86_400
"""Files of other starts go when nothing was written to them for so long. Those of earlier starts of this
machine are of no use at once, but cannot be told from those of other machines that share the folder."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SPACE = Path("/proc/self/ns/pid")
_LOOK_S = 0.05


class SessionFile:
    """The file of the sessions named ``name``, in a folder. Used by one event loop; `take` it before anything
    else."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._fd: int | None = None
        self._taking = asyncio.Lock()
        self._group = ""
        self._sessions: set[str] = set()
        self._begun: set[Claim] = set()

    @property
    def fds(self) -> tuple[int, ...]:
        """What a guard has to inherit to hold the lock."""
        return () if self._fd is None else (self._fd,)

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder

    @property
    def is_removed(self) -> bool:
        """Whether the next session would find no lock: somebody removed the file, or it is not held."""
        return self._fd is None or os.fstat(self._fd).st_nlink == 0

    async def take_again(self) -> bool:
        """`take`, after it was removed. False if another session has lived meanwhile."""
        before = len(self._sessions)
        self.release()
        await self.take()
        return len(self._sessions) == before

    async def take(self) -> None:
        """Returns when the lock is held and nothing of an earlier server runs.

        Raises `ToolSessionError` when that is not so within `TAKE_WITHIN_S` seconds.
        """
        if self._fd is not None:
            return
        async with self._taking:
            if self._fd is None:
                try:
                    self._fd = await asyncio.to_thread(self._taken)
                except OSError as problem:
                    raise self._problem(f"its file in {self._folder}: {problem.strerror}") from None

    def open(self, session: str) -> None:
        """From here on this session writes down what it begins."""
        assert self._fd is not None, "the file is taken first"
        if os.fstat(self._fd).st_size > MOST_BYTES:  # what was begun longer ago is not known any more
            os.ftruncate(self._fd, 0)
            if self._group:  # a server may run: whoever comes after has to find it
                self._write(self._group)
        self._write(f"session {session}")

    def begin(self, claim: Claim) -> None:
        """The call is about to be handed to the server."""
        self._write(f"begun {claim.session} {claim.attempt} {claim.step}")

    def began(self, claim: Claim) -> bool | None:
        """Whether a session before this one began a call; None if that is not known."""
        return claim in self._begun if claim.session in self._sessions else None

    def note_group(self, group: int) -> None:
        """The process group of the server that was just started."""
        self._group = f"group {group} {_started(group)} {_space()}"
        self._write(self._group)

    def release(self) -> None:
        """Gives the lock back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, line: str) -> None:
        """Raises `ToolSessionError`: what is not written down must not begin."""
        if self._fd is None:
            return
        try:
            _append(self._fd, line)
        except OSError as problem:
            raise self._problem(f"its file in {self._folder} cannot be written: {problem.strerror}") from None

    def _taken(self) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        boot = _boot()
        _forget_earlier_starts(self._folder, boot)
        path = self._folder / f"{boot}_{sha256(self._name.encode()).hexdigest()[:32]}"
        deadline = time.monotonic() + TAKE_WITHIN_S
        while True:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._lock(fd, deadline)
                if os.fstat(fd).st_nlink:
                    self._read(fd, deadline)
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # it was removed while its lock was waited for

    def _lock(self, fd: int, deadline: float) -> None:
        while not _locked(fd):
            if time.monotonic() > deadline:
                raise self._problem("an earlier session still runs; stop the mesh that it belongs to")
            time.sleep(_LOOK_S)

    def _read(self, fd: int, deadline: float) -> None:
        """Learns what the sessions before began, and ends what is left of the last one's server."""
        content = os.pread(fd, os.fstat(fd).st_size, 0)
        whole = content[: content.rfind(b"\n") + 1]
        os.ftruncate(fd, len(whole))  # a part of a line would spoil the one that follows it
        lines = [line.split(" ", 3) for line in whole.decode(errors="replace").splitlines()]
        group: list[str] = []
        for line in lines:
            match line:
                case ["session", session]:
                    self._sessions.add(session)
                case ["begun", session, attempt, step]:
                    self._begun.add(Claim(session, step, int(attempt)))
                case ["group", *group]:
                    pass
        if len(group) == 3 and group[2] == _space():  # in another space its processes died with that
            self._end(int(group[0]), group[1], deadline)

    def _end(self, group: int, started: str, deadline: float) -> None:
        while left := list(_members(group, started)):
            if time.monotonic() > deadline:
                raise self._problem(f"process {left[0].pid} of an earlier session does not end")
            for process in left:
                _kill(process)
            time.sleep(_LOOK_S)

    def _problem(self, why: str) -> ToolSessionError:
        return ToolSessionError(f"MCP session {self._name}: {why}", may_have_run=False)


def _append(fd: int, line: str) -> None:
    """The whole line or nothing: a disk that gets full takes a part, and says nothing at first. Raises
    `OSError`."""
    size, content = os.fstat(fd).st_size, line.encode() + b"\n"
    if os.write(fd, content) < len(content):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _boot() -> str:
    """The present start of this machine."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else str(int(psutil.boot_time()))


def _space() -> str:
    """The space of process numbers that this process is in: containers have their own."""
    return str(_SPACE.readlink()) if _SPACE.is_symlink() else "-"


def _forget_earlier_starts(folder: Path, boot: str) -> None:
    """Removes what nobody will ask for any more."""
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # another session has done it
            if not entry.name.startswith(f"{boot}_") and time.time() - entry.stat().st_mtime > KEPT_S:
                Path(entry.path).unlink()


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _started(pid: int) -> str:
    """When a process was started, as text to compare; "-" if there is none."""
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.NoSuchProcess:
        return "-"


def _members(group: int, started: str) -> Iterator[psutil.Process]:
    """The processes of a group that still run. None if its number belongs to another group by now, which
    is so when its leader is another process than at ``started``."""
    if _started(group) not in ("-", started):
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
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return  # it is gone; or runs as another user, and whoever waits for its end says that it does not
