"""The user's own editor, for what a line is too short for."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path


class EditorFailed(Exception):
    """The editor did not end well: why, in words."""


def editor_of(env: Mapping[str, str]) -> str:
    """The command; empty: none is set."""
    return env.get("VISUAL") or env.get("EDITOR") or ""


def edited(editor: str, text: str) -> str:
    """The text as the editor leaves it, which runs in the foreground. Raises `EditorFailed`."""
    descriptor, name = tempfile.mkstemp(prefix="mesh-arguments-", suffix=".json")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        status = subprocess.run([*shlex.split(editor), name], check=False).returncode
        if status:
            raise EditorFailed(f"{editor} ended with status {status}")
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as problem:
        raise EditorFailed(f"{editor}: {problem}") from problem
    finally:
        path.unlink(missing_ok=True)
