"""Logs what a server writes to stderr: within bounds, and without configured secrets."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable

from mesh.core.redaction import Redaction

logger = logging.getLogger("mesh.mcp")

LINE_BYTES = 2048
LINES_PER_WINDOW = 200
WINDOW_S = 10.0


class StderrLog:
    """Logs at INFO, at most `LINES_PER_WINDOW` lines of `LINE_BYTES` in `WINDOW_S` seconds, and counts the
    rest: a server that floods its stderr must not flood the log. The last lines are kept, because they say
    best why a server ended."""

    def __init__(self, name: str, secrets: Iterable[str] = ()) -> None:
        self._name = name
        self.redact = Redaction(secrets)
        self._tail: deque[str] = deque(maxlen=3)
        self._window_ends = 0.0
        self._left = 0
        self._dropped = 0

    async def pump(self, stream: asyncio.StreamReader) -> None:
        """Reads until the end of the stream."""
        rest = b""
        while chunk := await stream.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._line(line)
            if len(rest) > LINE_BYTES + 4 * self.redact.longest:
                rest = self._piece(rest)
        if rest:
            self._line(rest)

    def last_lines(self) -> str:
        """Returns the last lines as one, or an empty string."""
        return " / ".join(self._tail)

    def _piece(self, line: bytes) -> bytes:
        """Logs a line that has not ended, and returns its end: a value may have begun there."""
        text = self.redact(line.decode("utf-8", "surrogateescape"))
        cut = max(0, len(text) - self.redact.longest)
        self._line(text[:cut].encode("utf-8", "surrogateescape"))
        return text[cut:].encode("utf-8", "surrogateescape")

    def _line(self, raw: bytes) -> None:
        text = self.redact(raw.decode("utf-8", "replace").rstrip())[:LINE_BYTES]
        if not text:
            return
        self._tail.append(text[:300])
        if time.monotonic() >= self._window_ends:
            if self._dropped:
                logger.info("[%s] (%d lines left out)", self._name, self._dropped)
            self._window_ends, self._left, self._dropped = time.monotonic() + WINDOW_S, LINES_PER_WINDOW, 0
        if self._left:
            self._left -= 1
            logger.info("[%s] %s", self._name, text)
        else:
            self._dropped += 1
