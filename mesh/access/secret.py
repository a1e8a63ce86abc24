"""The secret of a mesh: 32 random bytes in a file of ``data_dir``, the same for all gateways and restarts.

The first process that needs it creates it, under a lock on the file. The lock also works between machines:
the journal requires shared storage that supports it. A secret is on the disk before anybody has read it,
because ids that were made with a secret that is lost could not be made again.
"""

import os
import secrets
from pathlib import Path

from mesh.core.errors import MeshError
from mesh.disk.atomic import reason, replace, sync_folder, write_all
from mesh.disk.lock import FileLock

FILE = "mesh_secret"
_BYTES = 32


def mesh_secret(folder: Path) -> bytes:
    """Returns the secret of the mesh whose data directory is ``folder``. Raises `MeshError`."""
    path = folder / FILE
    try:
        text = _read_or_create(path)
    except OSError as problem:
        what = "the secret of the mesh cannot be read or made"
        raise MeshError(f"{path}: {what}: {reason(problem)}") from None
    try:
        found = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        # Reported below, without the text: it may be most of a secret.
        found = b""
    if len(found) != _BYTES:
        raise MeshError(
            f"{path}: is damaged; expected {2 * _BYTES} hexadecimal digits. Restore it from a backup, or "
            "delete it; then a message from before that is sent again counts as a new one"
        )
    return found


def replace_secret(folder: Path, secret: bytes) -> None:
    """Makes this the secret of the mesh whose data directory is ``folder``. Raises `MeshError`."""
    path = folder / FILE
    try:
        replace(path, secret.hex().encode(), synced=True)
        sync_folder(folder)
    except OSError as problem:
        raise MeshError(f"{path}: the secret of the mesh cannot be written: {reason(problem)}") from None


def _read_or_create(path: Path) -> bytes:
    """Returns the content of the file, which is created if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path) as lock, lock.held():
        text = os.pread(lock.fd, 4 * _BYTES, 0)
        if not text:
            text = secrets.token_hex(_BYTES).encode()
            write_all(lock.fd, text)
            os.fsync(lock.fd)
            sync_folder(path.parent)
        return text
