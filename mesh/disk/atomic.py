"""Files that are written whole or not at all, whatever fails."""

import os
from contextlib import suppress
from pathlib import Path


def write_all(fd: int, content: bytes) -> None:
    """Writes all of it, or raises `OSError`. A disk that is full takes a part first, and says why it takes no
    more when it is asked again."""
    while content:
        content = content[os.write(fd, content) :]


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, content: bytes, *, synced: bool) -> None:
    """Puts a file that its owner alone can read in place of the one that is there, if any. Raises `OSError`:
    then what was there is untouched.

    ``synced``: it survives a power cut, once `sync_folder` was called too.
    """
    draft = f"{path}.{os.getpid()}.tmp"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(fd, content)
            if synced:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(draft, path)  # noqa: PTH105 - called often; paths as objects cost more than the rename
    except OSError:
        with suppress(OSError):  # the first problem is the one to tell; a draft is overwritten by the next
            os.unlink(draft)  # noqa: PTH108 - the same
        raise
