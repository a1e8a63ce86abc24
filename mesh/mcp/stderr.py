"""What a server writes to stderr, as log lines of the mesh: bounded, and without configured secrets."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable

logger = logging.getLogger("mesh.mcp")

LINE_BYTES = 2048
LINES_A_WINDOW = 200
WINDOW_S = 10.0
SHORTEST_SECRET = 8


class StderrLog:
    """Logs at INFO, at most `LINES_A_WINDOW` lines of `LINE_BYTES` in `WINDOW_S` seconds; the rest is
    counted. The last lines are kept: they say best why a server ended."""

    def __init__(self, name: str, secrets: Iterable[str] = ()) -> None:
        self._name = name
        self._secrets = sorted((s for s in secrets if len(s) >= SHORTEST_SECRET), key=len, reverse=True)
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
            if len(rest) > LINE_BYTES:
                self._line(rest)
                rest = b""
        if rest:
            self._line(rest)

    def last_words(self) -> str:
        """The last lines in one, or ""."""
        return " / ".join(self._tail)

    def hide(self, text: str) -> str:
        """``text`` without the configured values."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _line(self, raw: bytes) -> None:
        text = self.hide(raw.decode("utf-8", "replace").rstrip())[:LINE_BYTES]
        if not text:
            return
        self._tail.append(text[:300])
        if time.monotonic() >= self._window_ends:
            if self._dropped:
                logger.info("[%s] (%d lines left out)", self._name, self._dropped)
            self._window_ends, self._left, self._dropped = time.monotonic() + WINDOW_S, LINES_A_WINDOW, 0
        if self._left:
            self._left -= 1
            logger.info("[%s] %s", self._name, text)
        else:
            self._dropped += 1
