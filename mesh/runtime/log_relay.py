"""Relays the log lines of many processes to one stream, such as the stderr of ``mesh up``.

Every process writes its lines (`mesh.runtime.logs`) to a file of its own. Each call of `LogRelay.pump` reads
what was appended to these files, and never waits, neither for a writer nor for the reader of the stream. Only
lines of the mesh of at least a given level are relayed. An actor that floods its file gets `LINES_PER_SECOND`
lines through, where warnings and errors are counted apart, and a line says how many were dropped.

The relay promises neither an order between files, nor that lines reach a stream that nobody reads.
"""

import json
import logging
import os
import re
import select
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mesh.core.events import now as timestamp
from mesh.runtime.logs import fields, parse_line
from mesh.runtime.options import LogFormat, LogLevel

LINES_PER_SECOND = 200
BURST = 1000
LINE_BYTES = 4096
"""No more than a pipe takes in one write (PIPE_BUF), so that a line is written completely or not at all."""
READ_BYTES = 1 << 22
"""Read from one file in each pump. What a flood appends beyond that is skipped unread."""
MAX_QUEUED = 2000
"""The most lines that wait for a stream that accepts no more."""
_REPORT_DROPPED_EVERY_S = 5.0
_SEARCH_EVERY_S = 1.0
_MTIME_LAG_S = 1.0
"""The modification times of files lag some milliseconds behind the clock."""
_PATTERNS = ("worker-*.err", "driver.err", "web.err")
_HEAD = re.compile(rb"time=(\S+) level=([A-Z]+) ")
_ACTOR = re.compile(rb":actor_name:(\S+)")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2060-\u2069]")
_SEVERITY = logging.getLevelNamesMapping()


class RateLimit:
    """Admits ``per_second`` events a second on average, and ``burst`` at once. Times are in seconds."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._at = 0.0

    def admits(self, at: float) -> bool:
        """Whether one more event may pass at this time. Times must not decrease between calls."""
        self._left = min(self._burst, self._left + (at - self._at) * self._per_second)
        self._at = at
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _FollowedFile:
    """Reads what is appended to one file, from ``offset`` on."""

    def __init__(self, path: Path, offset: int) -> None:
        self.actor = ""
        self.dropped = 0
        self.skipped_bytes = 0
        self.rates = {severe: RateLimit(LINES_PER_SECOND, BURST) for severe in (False, True)}
        self._path = path
        self._offset = offset
        self._rest = b""

    def lines(self) -> Iterable[bytes]:
        """Returns the complete lines that were appended since the last call."""
        size = self._path.stat().st_size
        if size < self._offset:  # another file has taken its place
            self._offset, self._rest = 0, b""
        if size == self._offset:
            return []
        if (skip := size - self._offset - READ_BYTES) > 0:
            self._offset, self._rest = self._offset + skip, b""
            self.skipped_bytes += skip
        with self._path.open("rb") as file:
            file.seek(self._offset)
            read = file.read(READ_BYTES)
        self._offset += len(read)
        *lines, rest = (self._rest + read).split(b"\n")
        self._rest = rest[: 16 * LINE_BYTES]  # a line without an end must not grow in memory
        return lines


class LogRelay:
    """Relays to the file descriptor ``stream``, which it does not close."""

    def __init__(self, stream: int, level: LogLevel, log_format: LogFormat) -> None:
        self._stream = stream
        self._level = _SEVERITY[level.upper()]
        self._format = log_format
        self._began, self._began_at = time.time(), timestamp().encode()  # older lines are not relayed
        self._directories: list[Path] = []
        self._files: dict[Path, _FollowedFile] = {}
        self._queue: deque[bytes] = deque()
        self._unread = 0
        self._search_at = self._report_at = 0.0

    def follow(self, directories: Iterable[Path]) -> None:
        """From now on, relays from the files in these directories and from no others."""
        self._directories = [*directories]
        self._files = {path: file for path, file in self._files.items() if path.parent in self._directories}
        self._search_at = 0.0

    def log(self, level: int, text: str) -> None:
        """Writes a line of this process itself. ``text`` begins with ``event=``."""
        if level >= self._level:
            self._enqueue(f"time={timestamp()} level={logging.getLevelName(level)} {text}")
        self._write()

    def pump(self) -> None:
        """Relays the lines that were appended since the last call."""
        at = time.monotonic()
        if at >= self._search_at:
            self._search_at = at + _SEARCH_EVERY_S
            self._find_files()
        for path, file in [*self._files.items()]:
            try:
                self._relay(file, at)
            except OSError:
                # It was removed or is not readable. The next search finds it again if it comes back.
                del self._files[path]
        if at >= self._report_at:
            self._report_at = at + _REPORT_DROPPED_EVERY_S
            self._report_dropped()
        self._write()
        if self._unread and not self._queue:
            about = fields(lines=self._unread, why="they were not read in time")
            self._unread = 0
            self.log(logging.WARNING, f"event=log_lines_dropped {about}")

    def flush(self, within_s: float) -> None:
        """Waits until all queued lines are written, but no longer than ``within_s``."""
        deadline = time.monotonic() + within_s
        while self._queue and (left := deadline - time.monotonic()) > 0:
            self._write(left)

    def _find_files(self) -> None:
        for directory in self._directories:
            for path in (path for pattern in _PATTERNS for path in directory.glob(pattern)):
                if path not in self._files:
                    with suppress(OSError):  # it was removed since it was listed
                        found = path.stat()
                        is_old = found.st_mtime < self._began - _MTIME_LAG_S
                        self._files[path] = _FollowedFile(path, found.st_size if is_old else 0)

    def _relay(self, file: _FollowedFile, at: float) -> None:
        for line in file.lines():
            if head := _HEAD.match(line):
                level = _SEVERITY.get(head[2].decode(), logging.ERROR)
                if level < self._level or head[1] < self._began_at:
                    continue
                if file.rates[level >= logging.WARNING].admits(at):
                    self._enqueue(line.decode("utf-8", "replace"))
                else:
                    file.dropped += 1
            elif actor := _ACTOR.match(line):
                file.actor = actor[1].decode("utf-8", "replace")

    def _report_dropped(self) -> None:
        for path, file in self._files.items():
            if file.dropped or file.skipped_bytes:
                about = fields(
                    actor=file.actor, lines=file.dropped, bytes=file.skipped_bytes or None, file=path.name
                )
                self.log(logging.WARNING, f"event=log_lines_dropped {about}")
                file.dropped = file.skipped_bytes = 0

    def _enqueue(self, line: str) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self._unread += 1
            return
        encoded = self._encoded(line[:LINE_BYTES])
        if len(encoded) > LINE_BYTES:  # escaped, a character may have eight bytes
            encoded = self._encoded(line[: LINE_BYTES // 8] + "...")
        self._queue.append(encoded)

    def _encoded(self, line: str) -> bytes:
        text = line if self._format == "logfmt" else json.dumps(parse_line(line), ensure_ascii=False)
        safe = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        return safe.encode("utf-8", "replace") + b"\n"

    def _write(self, wait_s: float = 0.0) -> None:
        while self._queue and select.select([], [self._stream], [], wait_s)[1]:
            line = self._queue.popleft()
            try:
                written = os.write(self._stream, line)
            except OSError:  # the reader has closed the stream, so nobody reads the log
                self._queue.clear()
                return
            if written < len(line):
                self._queue.appendleft(line[written:])
