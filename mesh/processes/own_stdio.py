"""Keeps stdin and stdout, where they carry a protocol, from code that knows nothing of it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def detach_stdio() -> None:
    """From now on there is nothing to read from stdin, and what is written to stdout goes to stderr, also by
    child processes. Whoever uses them has a copy."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)


@contextmanager
def detached_stdio() -> Iterator[None]:
    """The same, until the end of the ``with`` statement."""
    sys.stdout.flush()
    kept = [os.dup(number) for number in (0, 1)]
    detach_stdio()
    try:
        yield
    finally:
        for number, copy in enumerate(kept):
            os.dup2(copy, number)
            os.close(copy)
