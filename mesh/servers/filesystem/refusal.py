"""Why a call is not carried out."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager


class FileRefusal(Exception):
    """The call cannot be carried out, and has changed nothing. The message is for the model that made it."""


class StateConflict(FileRefusal):
    """What is there is not what ``expect`` says."""


_WORDS = {
    errno.ENOENT: "path not found",
    errno.ENOTDIR: "not a directory",
    errno.EISDIR: "is a directory",
    errno.EEXIST: "already exists",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.EAGAIN: "the path changes all the time: try again later",
    errno.ENAMETOOLONG: "the path, or a name in it, is too long",
    errno.ENOSPC: "the disk is full: nothing was changed",
    errno.EDQUOT: "the disk quota is used up: nothing was changed",
    errno.EFBIG: "the file would be larger than this server may write: nothing was changed",
    errno.EROFS: "the file system is read-only",
    errno.EMFILE: "too many files are open, or folders are nested too deeply",
    errno.EBUSY: "is in use, for example as a mount point",
    errno.EXDEV: "is on another file system",
}


def words(error: OSError) -> str:
    """What went wrong, without the path, which may be one of the host."""
    return _WORDS.get(error.errno or 0) or os.strerror(error.errno or 0).lower()


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns an `OSError` into a `FileRefusal` about ``path``, which is shown as the caller gave it."""
    try:
        yield
    except OSError as error:
        raise FileRefusal(f"{path}: {words(error)}") from None
