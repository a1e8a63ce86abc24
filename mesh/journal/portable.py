"""Reads a journal from a file or a text that may be damaged, line by line.

`FileJournal` refuses a damaged journal, because it appends to it. Here a person wants what can still be read:
a line that is not an event results in a `Fault` with its number, and is left out. Lines may have the form of
the journal or that of the API, which has ``conversation_id`` and ``node`` in each, also with the ``data:`` of
a saved stream. Live events, such as deltas, are skipped: they never were in a journal.

    chunks ──`Lines.feed`──► lines, each bounded ──`Reader.read`──► events, and faults beside them
"""

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import msgspec

from mesh.core.events import AnyEvent, Live, decode

MAX_LINE_BYTES = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")
_STREAM_FIELDS = (b"event:", b"id:", b"retry:", b":")
_SHOWN = 200
_MOST_FAULTS = 1000


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a line; lines are counted from 1."""

    line: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


class Lines:
    """Splits chunks into lines. A line longer than ``most`` bytes is cut to ``most`` + 1, so that it is
    recognized as too long and does not fill the memory."""

    def __init__(self, most: int = MAX_LINE_BYTES) -> None:
        self._most = most
        self._begun = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Returns the lines that end in this chunk, without their newline. Use all of them before the next
        chunk."""
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            self._keep(line)
            yield self.rest()
        self._keep(rest)

    def rest(self) -> bytes:
        """Takes the line that has begun and has no newline yet."""
        line = bytes(self._begun)
        self._begun.clear()
        return line

    def _keep(self, piece: bytes) -> None:
        self._begun += piece[: self._most + 1 - len(self._begun)]


class Reader:
    """Reads one line after the other, and calls ``warn`` with what is wrong. `last` is the sequence number of
    the last event."""

    def __init__(self, warn: Callable[[Fault], object], most: int = MAX_LINE_BYTES) -> None:
        self.last = 0
        self.line = 0
        self._warn = warn
        self._most = most
        self._left_out = 0  # lines since the last event that may each have been one

    def read(self, line: bytes | str) -> AnyEvent | None:
        """Returns the event in a line, or None if there is none. If there should be one, reports a fault."""
        self.line += 1
        try:
            return self._journaled(self._event(line))
        except ValueError as problem:  # whatever decoding raises: msgspec's errors are ValueErrors
            self._left_out += 1
            self._warn(Fault(self.line, _describe(problem)))
            return None

    def _event(self, line: bytes | str) -> AnyEvent | None:
        raw = line.encode() if isinstance(line, str) else line
        if len(raw) > self._most:
            raise ValueError(f"is longer than {self._most} bytes")
        if self.line == 1 and raw.startswith(_OTHER_ENCODINGS):
            raise ValueError("is UTF-16, not UTF-8; save the file as UTF-8")
        text = payload(raw)
        return decode(text) if text else None

    def _journaled(self, event: AnyEvent | None) -> AnyEvent | None:
        if event is None or isinstance(event, Live):
            return None
        if event.seq < 1:
            raise ValueError("is an event without a sequence number")
        if event.seq <= self.last:
            raise ValueError(f"is event {event.seq}, after event {self.last}: doubled or out of order")
        missing = event.seq - self.last - 1 - self._left_out
        if missing > 0:
            self._warn(Fault(self.line, f"is event {event.seq}; {missing} before it are missing"))
        self.last, self._left_out = event.seq, 0
        return event


def read_lines(
    lines: Iterable[bytes | str], most: int = MAX_LINE_BYTES
) -> tuple[list[AnyEvent], list[Fault]]:
    """Returns all events that can be read, and what is wrong with the lines that were left out: at most 1000
    of them, and how many more there are. Raises nothing of its own."""
    faults: list[Fault] = []
    more = 0

    def keep(fault: Fault) -> None:
        nonlocal more
        if len(faults) < _MOST_FAULTS:
            faults.append(fault)
        else:
            more += 1

    reader = Reader(keep, most)
    events = [event for line in lines if (event := reader.read(line)) is not None]
    if more:
        faults.append(Fault(reader.line, f"is the last; {more} more like these are not listed"))
    return events, faults


def bounded(file: BinaryIO, most: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Returns the lines of a file that may contain anything; only one of them is in memory at a time."""
    lines = Lines(most)
    while chunk := file.read(_CHUNK):
        yield from lines.feed(chunk)
    if rest := lines.rest():
        yield rest


def payload(line: bytes) -> bytes:
    """Returns the JSON of a line; empty if the line is blank or another field of a saved stream."""
    text = line.removeprefix(_BOM).strip()
    if text.startswith(_STREAM_FIELDS):
        return b""
    return text.removeprefix(b"data:").strip()


def renumbered(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """Returns the same events numbered 1, 2, 3 …: a journal has no gaps, whatever was left out."""
    return [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(events, 1)]


def _describe(problem: Exception) -> str:
    if isinstance(problem, UnicodeError):
        return "is not UTF-8 text"
    message = str(problem)[:_SHOWN]
    if isinstance(problem, msgspec.ValidationError):
        return f"is no event ({message})"
    if isinstance(problem, msgspec.DecodeError):
        return "is cut off" if "truncated" in message else f"is no event ({message})"
    return message
