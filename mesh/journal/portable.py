"""A journal as it travels: read from a file or a text that may be damaged, line by line.

`FileJournal` refuses a damaged journal, because it writes on. Here a person wants what can still be read:
a line that is no event gives a `Fault` with its number and is left out. Lines are taken in both forms,
the journal's and the wire's (``conversation_id`` and ``node`` on each; also with the ``data:`` of a stream
somebody saved). What only watchers get (deltas and the like) is passed over: it never was in a journal.

    chunks ──`Lines.feed`──► lines, each bounded ──`Reader.read`──► events, and faults beside them
"""

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import msgspec

from mesh.core.events import AnyEvent, Live, decode

MOST_LINE_BYTES = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")
_STREAM_FIELDS = (b"event:", b"id:", b"retry:", b":")
_SHOWN = 200
_MOST_FAULTS = 1000


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a line, which is counted from 1."""

    line: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


class Lines:
    """Cuts chunks into lines. One that is longer than ``most`` bytes comes as its first ``most`` + 1."""

    def __init__(self, most: int = MOST_LINE_BYTES) -> None:
        self._most = most
        self._begun = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that end in this chunk, without their newline. Use all of them before the next chunk."""
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            self._keep(line)
            yield self.rest()
        self._keep(rest)

    def rest(self) -> bytes:
        """What was begun and has no newline yet; it counts as given."""
        line = bytes(self._begun)
        self._begun.clear()
        return line

    def _keep(self, piece: bytes) -> None:
        self._begun += piece[: self._most + 1 - len(self._begun)]


class Reader:
    """Reads one line after the other; ``warn`` is told what is wrong. `last` is the sequence number of the
    last event."""

    def __init__(self, warn: Callable[[Fault], object], most: int = MOST_LINE_BYTES) -> None:
        self.last = 0
        self.line = 0
        self._warn = warn
        self._most = most
        self._left_out = 0  # lines since the last event that may each have been one

    def read(self, line: bytes | str) -> AnyEvent | None:
        """The event in a line; None: there is none, and if there should be, that was a fault."""
        self.line += 1
        try:
            return self._journaled(self._event(line))
        except ValueError as problem:  # all that decoding raises: msgspec's errors are ValueErrors
            self._left_out += 1
            self._warn(Fault(self.line, _in_words(problem)))
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
    lines: Iterable[bytes | str], most: int = MOST_LINE_BYTES
) -> tuple[list[AnyEvent], list[Fault]]:
    """All events that can be read, and what is wrong with lines that were left out (with 1000 of them at
    most, and how many more). Raises nothing of its own."""
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


def bounded(file: BinaryIO, most: int = MOST_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a file that may be anything; no more than one of them is in memory."""
    lines = Lines(most)
    while chunk := file.read(_CHUNK):
        yield from lines.feed(chunk)
    if rest := lines.rest():
        yield rest


def payload(line: bytes) -> bytes:
    """The JSON of a line; empty if it has none by its form (blank, or another field of a saved stream)."""
    text = line.removeprefix(_BOM).strip()
    if text.startswith(_STREAM_FIELDS):
        return b""
    return text.removeprefix(b"data:").strip()


def renumbered(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """The same events with the numbers 1, 2, 3 …: a journal has no gaps, whatever was left out."""
    return [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(events, 1)]


def _in_words(problem: Exception) -> str:
    if isinstance(problem, UnicodeError):
        return "is not UTF-8 text"
    said = str(problem)[:_SHOWN]
    if isinstance(problem, msgspec.ValidationError):
        return f"is no event ({said})"
    if isinstance(problem, msgspec.DecodeError):
        return "is cut off" if "truncated" in said else f"is no event ({said})"
    return said
