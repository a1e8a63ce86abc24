"""The programs of servers that run as subprocesses, and what they inherit. Without the SDK, which takes most
of a second to import."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from mesh.config.files import INHERITED


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns what a server inherits (the SDK's short list of safe variables, such as PATH and HOME) and its
    own."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    # A value that is a function of a shell is a risk; the SDK leaves it out, too.
    return {name: value for name, value in inherited.items() if not value.startswith("()")} | dict(env)


def find_binary(command: str, env: Mapping[str, str] | None = None) -> str | None:
    """Returns the absolute path of ``command`` on the PATH that a server gets, or else beside this Python,
    where the console scripts of the same virtual environment are; None if there is none."""
    path = server_environment(env or {}).get("PATH")
    found = shutil.which(command, path=path) or shutil.which(command, path=str(Path(sys.executable).parent))
    return os.path.abspath(found) if found else None  # noqa: PTH100 - a symlink must stay one
