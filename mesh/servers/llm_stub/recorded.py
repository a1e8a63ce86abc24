"""The call log of the stub: a ring bounded in number and bytes, and an optional file."""

from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

MOST_CALLS = 10_000
MOST_BYTES = 64 * 1024 * 1024


class RecordedRequest(msgspec.Struct, frozen=True):
    """One model call as it came. ``body`` is the JSON the client sent, ``status`` what was answered."""

    number: int
    format: str
    path: str
    model: str
    stream: bool
    status: int
    body: msgspec.Raw

    @property
    def json(self) -> Any:
        """The request's body, decoded."""
        return msgspec.json.decode(self.body)


class RequestLog:
    """The last calls, oldest first."""

    def __init__(self, file: Path | None = None) -> None:
        self._ring: deque[RecordedRequest] = deque()
        self._bytes = 0
        self._encoder = msgspec.json.Encoder()
        # Unbuffered: whoever reads the file sees every call that was answered.
        self._file: BinaryIO | None = file.open("ab", buffering=0) if file else None

    def add(self, call: RecordedRequest) -> None:
        """Keeps a call; the oldest leave when there are too many."""
        self._ring.append(call)
        self._bytes += len(call.body)
        while len(self._ring) > MOST_CALLS or self._bytes > MOST_BYTES:
            self._bytes -= len(self._ring.popleft().body)
        if self._file is not None:
            self._file.write(self._encoder.encode(call) + b"\n")

    def all(self) -> list[RecordedRequest]:
        """What is kept, oldest first."""
        return list(self._ring)

    def to_json(self) -> bytes:
        """The same as a JSON list."""
        return self._encoder.encode(self.all())

    def clear(self) -> None:
        """Forgets what is kept (the file keeps it)."""
        self._ring.clear()
        self._bytes = 0

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
