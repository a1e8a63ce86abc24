"""A text as a file, for a process that is started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def content_file(content: bytes, *, inherited: bool = False) -> Iterator[int]:
    """A file in memory with some content. A process that is started has it only if it is ``inherited``."""
    descriptor = os.memfd_create("mesh", 0 if inherited else os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
