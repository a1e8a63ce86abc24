"""Relays the log lines of many processes to one stream, such as the stderr of ``mesh up``.

Every process writes its lines (`mesh.runtime.logs`) to a file of its own; the relay reads what is new in
these files each time it is asked to, and never waits: neither for a writer, nor for whoever reads the
stream. It passes on lines of the mesh and nothing else, of at least a given level. An actor that floods its
file gets `LINES_A_SECOND` of them through, warnings and errors counted apart, and a line tells how many were
dropped.

What it does not promise: an order between files, and that lines reach a stream that nobody reads.
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
from mesh.runtime.logs import fields, parsed
from mesh.runtime.options import LogFormat, LogLevel

LINES_A_SECOND = 200
BURST = 1000
LINE_BYTES = 4096
"""No more than a pipe takes at once (PIPE_BUF), so that a line is written whole or not at all."""
READ_BYTES = 1 << 22
"""Of one file, each time. What a flood writes beyond that is skipped unread."""
QUEUE = 2000
"""Lines that wait for a stream that takes no more."""
_SAY_DROPPED_EVERY_S = 5.0
_NEW_FILES_EVERY_S = 1.0
_COARSE_S = 1.0
"""Times of files lag behind the clock by some milliseconds."""
_FILES = ("worker-*.err", "driver.err", "web.err")
_HEAD = re.compile(rb"time=(\S+) level=([A-Z]+) ")
_ACTOR = re.compile(rb":actor_name:(\S+)")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2060-\u2069]")
_SEVERITY = logging.getLevelNamesMapping()


class Rate:
    """At most ``a_second`` events a second on average, and ``burst`` at once. Times in seconds."""

    def __init__(self, a_second: float, burst: float) -> None:
        self._a_second = a_second
        self._burst = burst
        self._left = burst
        self._at = 0.0

    def admits(self, at: float) -> bool:
        """Whether one more may pass at this time, which is not before the last one asked about."""
        self._left = min(self._burst, self._left + (at - self._at) * self._a_second)
        self._at = at
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Tail:
    """What is new in one file. ``offset``: where to begin."""

    def __init__(self, path: Path, offset: int) -> None:
        self.name = ""
        self.dropped = 0
        self.skipped_bytes = 0
        self.rates = {severe: Rate(LINES_A_SECOND, BURST) for severe in (False, True)}
        self._path = path
        self._offset = offset
        self._rest = b""

    def lines(self) -> Iterable[bytes]:
        """The whole lines since the last time."""
        size = self._path.stat().st_size
        if size < self._offset:  # another file took its place
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
        self._rest = rest[: 16 * LINE_BYTES]
        return lines


class LogRelay:
    """To the file descriptor ``stream``, which stays its owner's."""

    def __init__(self, stream: int, level: LogLevel, form: LogFormat) -> None:
        self._stream = stream
        self._level = _SEVERITY[level.upper()]
        self._form = form
        self._began, self._began_at = time.time(), timestamp().encode()
        self._folders: list[Path] = []
        self._tails: dict[Path, _Tail] = {}
        self._queue: deque[bytes] = deque()
        self._unread = 0
        self._look_at = self._say_at = 0.0

    def follow(self, folders: Iterable[Path]) -> None:
        """Relays from the files in these folders, and no others, from now on."""
        self._folders = [*folders]
        self._tails = {path: tail for path, tail in self._tails.items() if path.parent in self._folders}
        self._look_at = 0.0

    def say(self, level: int, text: str) -> None:
        """A line of this process itself; ``text`` begins with ``event=``."""
        if level >= self._level:
            self._put(f"time={timestamp()} level={logging.getLevelName(level)} {text}")
        self._write()

    def pump(self) -> None:
        """Passes on what is new."""
        at = time.monotonic()
        if at >= self._look_at:
            self._look_at = at + _NEW_FILES_EVERY_S
            self._find_files()
        for path, tail in [*self._tails.items()]:
            try:
                self._take(tail, at)
            except OSError:  # it is gone, or not ours to read; it is looked for again
                del self._tails[path]
        if at >= self._say_at:
            self._say_at = at + _SAY_DROPPED_EVERY_S
            self._say_dropped()
        self._write()
        if self._unread and not self._queue:
            about = fields(lines=self._unread, why="they were not read in time")
            self._unread = 0
            self.say(logging.WARNING, f"event=log_lines_dropped {about}")

    def flush(self, within_s: float) -> None:
        """Waits, so long at most, until all that is queued was written."""
        deadline = time.monotonic() + within_s
        while self._queue and (left := deadline - time.monotonic()) > 0:
            self._write(left)

    def _find_files(self) -> None:
        for folder in self._folders:
            for path in (path for pattern in _FILES for path in folder.glob(pattern)):
                if path not in self._tails:
                    with suppress(OSError):
                        found = path.stat()
                        is_old = found.st_mtime < self._began - _COARSE_S
                        self._tails[path] = _Tail(path, found.st_size if is_old else 0)

    def _take(self, tail: _Tail, at: float) -> None:
        for line in tail.lines():
            if head := _HEAD.match(line):
                level = _SEVERITY.get(head[2].decode(), logging.ERROR)
                if level < self._level or head[1] < self._began_at:
                    continue
                if tail.rates[level >= logging.WARNING].admits(at):
                    self._put(line.decode("utf-8", "replace"))
                else:
                    tail.dropped += 1
            elif actor := _ACTOR.match(line):
                tail.name = actor[1].decode("utf-8", "replace")

    def _say_dropped(self) -> None:
        for path, tail in self._tails.items():
            if tail.dropped or tail.skipped_bytes:
                about = fields(
                    actor=tail.name, lines=tail.dropped, bytes=tail.skipped_bytes or None, file=path.name
                )
                self.say(logging.WARNING, f"event=log_lines_dropped {about}")
                tail.dropped = tail.skipped_bytes = 0

    def _put(self, line: str) -> None:
        if len(self._queue) >= QUEUE:
            self._unread += 1
            return
        made = self._made(line[:LINE_BYTES])
        self._queue.append(made if len(made) <= LINE_BYTES else self._made(line[: LINE_BYTES // 8] + "..."))

    def _made(self, line: str) -> bytes:
        text = line if self._form == "logfmt" else json.dumps(parsed(line), ensure_ascii=False)
        safe = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        return safe.encode("utf-8", "replace") + b"\n"

    def _write(self, wait_s: float = 0.0) -> None:
        while self._queue and select.select([], [self._stream], [], wait_s)[1]:
            line = self._queue.popleft()
            try:
                written = os.write(self._stream, line)
            except OSError:  # whoever read it is gone, and with them the need for a log
                self._queue.clear()
                return
            if written < len(line):
                self._queue.appendleft(line[written:])
