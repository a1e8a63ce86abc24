"""Who uses a data directory: one mesh at a time, in a chat or behind HTTP.

    data_dir/mesh.lock    a lock, and who holds it, as JSON for people to read

The fence (`mesh.disk.fence`) is what keeps the journals safe, and lets the newest keeper win. This lock keeps
two meshes from fencing each other off, and tells the second one who is there. The kernel releases it with the
last process of its holder, however that ended.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from mesh.core.errors import MeshError
from mesh.disk.atomic import reason
from mesh.disk.data_folder import known_data_folders, make_data_folder
from mesh.disk.lock import FileLock

FILE = "mesh.lock"
_PATIENCE_S = 2.0
"""For a holder that is just ending."""
_REMAINS_WITHIN_S = 10.0
"""For what is left of a holder that was killed: a stop of the mesh takes less."""


class Holder(msgspec.Struct, frozen=True):
    """A process that uses a data directory. ``url`` is where it can be talked to; empty if it cannot."""

    command: str
    url: str = ""
    pid: int = msgspec.field(default_factory=os.getpid)
    host: str = msgspec.field(default_factory=socket.gethostname)

    @property
    def is_alive(self) -> bool:
        """Whether it may be alive: on another machine nobody knows."""
        return self.host != socket.gethostname() or psutil.pid_exists(self.pid)


class InUse(MeshError):
    """Another mesh uses the data directory. The message says which, and what to do."""


@contextmanager
def held(data_dir: Path, holder: Holder, *, shared: bool = False) -> Iterator[None]:
    """Holds a data directory, which is created if it is missing (`mesh.disk.data_folder`). ``shared``: others
    that share it may use it at the same time, such as meshes that joined one cluster. Raises `InUse`,
    `ForeignData`, or `MeshError` if the file cannot be used."""
    try:
        make_data_folder(data_dir, known_data_folders(os.environ))
        lock = FileLock(data_dir / FILE)
    except OSError as problem:
        raise MeshError(f"{data_dir / FILE}: {reason(problem)}") from None
    with lock:
        if not _acquired(lock, shared):
            raise InUse(_problem(data_dir, _read(lock)))
        os.ftruncate(lock.fd, 0)
        os.pwrite(lock.fd, msgspec.json.encode(holder), 0)
        yield


def _acquired(lock: FileLock, shared: bool) -> bool:
    if lock.acquire(_PATIENCE_S, shared=shared):
        return True
    present = _read(lock)
    is_alive = present is None or present.is_alive
    return not is_alive and lock.acquire(_REMAINS_WITHIN_S, shared=shared)


def _read(lock: FileLock) -> Holder | None:
    """Who holds it, unless that is not written yet."""
    try:
        return msgspec.json.decode(os.pread(lock.fd, 4096, 0), type=Holder)
    except msgspec.DecodeError:
        return None


def _problem(data_dir: Path, present: Holder | None) -> str:
    if present is None:
        return f"{data_dir}: another mesh uses these conversations; stop it first"
    who = f"{present.command} (process {present.pid} on {present.host})"
    instead = f"talk to it with mesh chat --url {present.url}" if present.url else "go on there"
    return f"{data_dir}: {who} uses these conversations; {instead}, or stop it first"
