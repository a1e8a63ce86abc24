"""The history of the input line. It is a file that only its owner can read, and it stays small."""

import os
from collections.abc import Sequence
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

MAX_ENTRIES = 1_000
_MAX_BYTES = 1024 * 1024


def open_history(path: Path, *secrets: str) -> History:
    """Returns a history in the file, or in memory if the file cannot be used. Lines that contain one of the
    ``secrets`` are not kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
        _shorten(path)
    except OSError:
        return InMemoryHistory()
    return _FilteredHistory(path, [secret for secret in secrets if secret])


class _FilteredHistory(FileHistory):
    def __init__(self, path: Path, secrets: Sequence[str]) -> None:
        super().__init__(path)
        self._secrets = secrets

    def store_string(self, string: str) -> None:
        if not any(secret in string for secret in self._secrets):
            super().store_string(string)


def _shorten(path: Path) -> None:
    """Keeps the newest entries of the file. Each entry begins with an empty line and ``# time``."""
    text = path.read_bytes()
    entries = text[-_MAX_BYTES:].split(b"\n# ")
    if len(text) <= _MAX_BYTES and len(entries) <= MAX_ENTRIES + 1:
        return
    path.write_bytes(b"".join(b"\n# " + entry for entry in entries[1:][-MAX_ENTRIES:]))
