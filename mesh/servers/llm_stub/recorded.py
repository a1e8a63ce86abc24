"""The requests that the stub received: the last ones in memory, bounded in number and bytes, and all in an
optional file."""

from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

MOST_CALLS = 10_000
MOST_BYTES = 64 * 1024 * 1024


class RecordedRequest(msgspec.Struct, frozen=True):
    """One model call as it was received. ``body`` is the JSON that the client sent, ``status`` that of the
    response."""

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
        # Unbuffered, so that the file has every call that was answered when a test reads it.
        self._file: BinaryIO | None = file.open("ab", buffering=0) if file else None

    def add(self, call: RecordedRequest) -> None:
        """Records a call, and drops the oldest ones beyond the bounds."""
        self._ring.append(call)
        self._bytes += len(call.body)
        while len(self._ring) > MOST_CALLS or self._bytes > MOST_BYTES:
            self._bytes -= len(self._ring.popleft().body)
        if self._file is not None:
            self._file.write(self._encoder.encode(call) + b"\n")

    def all(self) -> list[RecordedRequest]:
        """Returns the recorded calls, oldest first."""
        return list(self._ring)

    def to_json(self) -> bytes:
        """The same as a JSON list."""
        return self._encoder.encode(self.all())

    def clear(self) -> None:
        """Drops the recorded calls. The file keeps them."""
        self._ring.clear()
        self._bytes = 0

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
