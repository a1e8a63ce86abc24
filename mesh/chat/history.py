"""What was typed before, for the arrow keys: a file that only its owner can read, and that stays small."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

KEPT = 1_000
_MOST_BYTES = 1024 * 1024


def history_path(env: Mapping[str, str], home: Path) -> Path:
    """Where the XDG base directory specification wants it."""
    state = env.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else home / ".local" / "state") / "mesh" / "chat_history"


def open_history(path: Path, *secrets: str) -> History:
    """The history in a file; in memory only where no file can be. What has one of the ``secrets`` in it is
    not kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
        _shorten(path)
    except OSError:
        return InMemoryHistory()
    return _Kept(path, [secret for secret in secrets if secret])


class _Kept(FileHistory):
    def __init__(self, path: Path, secrets: Sequence[str]) -> None:
        super().__init__(path)
        self._secrets = secrets

    def store_string(self, string: str) -> None:
        if not any(secret in string for secret in self._secrets):
            super().store_string(string)


def _shorten(path: Path) -> None:
    """Leaves the newest entries. Each begins with an empty line and ``# time``."""
    text = path.read_bytes()
    entries = text[-_MOST_BYTES:].split(b"\n# ")
    if len(text) <= _MOST_BYTES and len(entries) <= KEPT + 1:
        return
    path.write_bytes(b"".join(b"\n# " + entry for entry in entries[1:][-KEPT:]))
