"""Edits a text in the user's own editor."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path


class EditorFailed(Exception):
    """The editor failed. The message says why."""


def editor_of(env: Mapping[str, str]) -> str:
    """Returns the command of the editor, or nothing if none is set."""
    return env.get("VISUAL") or env.get("EDITOR") or ""


def edited(editor: str, text: str) -> str:
    """Runs the editor in the foreground and returns the edited text. Raises `EditorFailed`."""
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
