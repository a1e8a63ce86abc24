"""The one way to write a file: whole or not at all, whatever fails.

A journal, which is appended to, has its own rules (`mesh.journal.on_disk`); it shares the functions below.
"""

import os
from contextlib import suppress
from pathlib import Path


def write_all(fd: int, content: bytes) -> None:
    """Writes all of ``content``, or raises `OSError`.

    ``os.write`` may write a part only. A full disk does so first, and reports the error at the next call.
    """
    while content:
        content = content[os.write(fd, content) :]


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable: syncing a file does not sync its name. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, content: bytes, *, synced: bool, mode: int = 0o600) -> None:
    """Replaces a file, or creates it, by default readable for its owner alone. Raises `OSError`; then the
    file that was there is untouched.

    With ``synced``, the content survives a power cut once `sync_folder` was called as well. Without it, a
    power cut may leave an empty file: for content that can be derived again.
    """
    # The process id keeps two processes from writing one draft. In one process, calls for one path must not
    # overlap.
    draft = f"{path}.{os.getpid()}.tmp"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            if mode != 0o600:
                os.fchmod(fd, mode)  # the mode given to open is subject to the umask
            write_all(fd, content)
            if synced:
                # Before the rename: otherwise the name could become durable before the content.
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(draft, path)  # noqa: PTH105 - called often; paths as objects cost more than the rename
    except OSError:
        with suppress(OSError):  # report the first error; the next call overwrites a draft that is left
            os.unlink(draft)  # noqa: PTH108 - as above
        raise


def reason(problem: OSError) -> str:
    """What the operating system says, without the path."""
    return problem.strerror or str(problem)
