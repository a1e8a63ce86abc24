"""Journals in files: which file belongs to an id, what it contains, and what is appended while it is
followed."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from mesh.client.conversation_ids import match_id
from mesh.core.errors import MeshError, NotFound
from mesh.core.events import AnyEvent
from mesh.journal.portable import Lines, Reader, bounded, payload

PAUSE_S = 0.2
_CHUNK = 1024 * 1024
_PREFIX, _SUFFIX = "conversation_", ".jsonl"


class LogEntry(msgspec.Struct, frozen=True):
    """An event, and its JSON as it was in the journal."""

    event: AnyEvent
    raw: bytes


def journal_file(wanted: str, data_dir: Path) -> Path:
    """Returns the journal of the conversation whose id is ``wanted``, or the only one that begins with it.
    Raises `NotFound`."""
    try:
        names = [entry.name for entry in os.scandir(data_dir)]
    except OSError as problem:
        raise NotFound(
            f"{data_dir}: {problem.strerror}; --data-dir names the folder of the journals"
        ) from None
    ids = [name[len(_PREFIX) : -len(_SUFFIX)] for name in names if _is_journal(name)]
    return data_dir / f"{_PREFIX}{match_id(wanted, ids, f'{data_dir}/')}{_SUFFIX}"


def entries(path: Path, reader: Reader) -> Iterator[LogEntry]:
    """Yields the present entries of a file, including a last line without a newline. Raises `MeshError` if
    the file cannot be read."""
    with _opened(path) as file:
        yield from read(reader, bounded(file))


def followed(
    path: Path, reader: Reader, pause: Callable[[float], object] = time.sleep
) -> Iterator[list[LogEntry]]:
    """Yields the entries of a file, and then those that are appended, without end unless the file is removed.

    A line counts once it has its newline. Until then it is being written, or a crash has torn it.
    """
    with _opened(path) as file:
        done, seen = 0, -1  # the end of the last complete line, and the size of the file
        while (stat := os.fstat(file.fileno())).st_nlink:
            done = min(done, stat.st_size)  # the keeper has cut off a torn line
            if stat.st_size != seen:
                seen = stat.st_size
                lines, done = _whole_lines(file, done)
                yield [*read(reader, lines)]
            pause(PAUSE_S)
    raise MeshError(f"{path} was removed")


def read(reader: Reader, lines: Iterator[bytes] | list[bytes]) -> Iterator[LogEntry]:
    for line in lines:
        if (event := reader.read(line)) is not None:
            yield LogEntry(event, payload(line))


def _whole_lines(file: BinaryIO, start: int) -> tuple[list[bytes], int]:
    """Returns the complete lines from ``start`` on, and where the last of them ends."""
    file.seek(start)
    found, cutter, position, end = list[bytes](), Lines(), start, start
    while chunk := file.read(_CHUNK):
        found += cutter.feed(chunk)
        if (last := chunk.rfind(b"\n")) >= 0:
            end = position + last + 1
        position += len(chunk)
    return found, end


def _is_journal(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as problem:
        raise MeshError(f"{path}: {problem.strerror or problem}") from None
