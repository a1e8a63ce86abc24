"""Points in the code where a test can kill a process with SIGKILL.

A test sets ``MESH_FAILPOINTS`` to a directory and creates a file in it with the name of the failpoint. The
first process that passes the failpoint removes the file and dies. Without the variable a failpoint costs one
test of a constant.
"""

import os
import signal
from pathlib import Path

_DIRECTORY = os.environ.get("MESH_FAILPOINTS", "")


def failpoint(name: str) -> None:
    """Dies here if a test asks for it."""
    if not _DIRECTORY:
        return
    try:
        (Path(_DIRECTORY) / name).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
