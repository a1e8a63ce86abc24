"""What a command writes to one stream: the beginning and the end of it, within bounds, and all of it in a
file.

Anything may come: binary data, a line of any length, no end. What is shown is text in any case.
"""

from collections.abc import Callable
from typing import BinaryIO

MOST_CHARACTERS = 50_000
_HEAD = MOST_CHARACTERS * 2 // 5
_TAIL = MOST_CHARACTERS - _HEAD
MOST_IN_FILE = 10 << 20
_BYTES = 4
"""Of a character in UTF-8, at most."""
_MOST_LATEST = 500


class Output:
    """One stream. ``create`` makes the file, which happens once it is needed; it may raise `OSError`."""

    def __init__(self, create: Callable[[], BinaryIO]) -> None:
        self._create = create
        self._file: BinaryIO | None = None
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self.latest = ""
        self.problem = ""

    def add(self, chunk: bytes) -> None:
        if self.total <= MOST_CHARACTERS < self.total + len(chunk):
            self._save(self._head)  # all that came so far
        if self.total + len(chunk) > MOST_CHARACTERS:
            self._save(chunk[: max(0, MOST_IN_FILE - self.total)])
        self.total += len(chunk)
        self.latest = _end(chunk[-_MOST_LATEST:]).strip() or self.latest
        room = _HEAD * _BYTES - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * _TAIL * _BYTES:
            del self._tail[: -_TAIL * _BYTES]

    def text(self) -> str:
        """The output, with a note in place of the middle if it is too long."""
        is_complete = len(self._head) + len(self._tail) == self.total
        whole = _text(self._head + self._tail) if is_complete else ""
        if is_complete and len(whole) <= MOST_CHARACTERS:
            return whole
        head = (whole or _text(self._head))[:_HEAD]
        tail = (whole or _end(self._tail))[-_TAIL:]
        left_out = self.total - len(head.encode()) - len(tail.encode())
        return f"{head}\n[… {max(1, left_out):,} bytes are left out here …]\n{tail}"

    @property
    def was_saved(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    @property
    def is_cut(self) -> bool:
        return self.total > MOST_CHARACTERS and len(self.text()) != len(_text(self._head + self._tail))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _save(self, content: bytes | bytearray) -> None:
        """Writes to the file. A disk that is full must not end the command, so the problem is told with the
        result."""
        if self.problem:
            return
        try:
            self._file = self._file or self._create()
            self._file.write(content)
        except OSError as error:
            self.problem = f"it could not be kept: {error.strerror}"


def _text(content: bytes | bytearray) -> str:
    return content.decode("utf-8", "replace")


def _end(content: bytes | bytearray) -> str:
    """The end of a text, without the half of a character with which it may begin."""
    start = 0
    while start < min(3, len(content)) and content[start] & 0xC0 == 0x80:
        start += 1
    return _text(content[start:])
