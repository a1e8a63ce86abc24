"""Pages of an open file: some of its bytes, or some of its lines, in bounded memory."""

import errno
import os
from typing import NamedTuple

from mesh.servers.filesystem.bounds import CHUNK, TimeLimit
from mesh.servers.filesystem.texts import TextForm

_UTF8_CHARACTER = 4


class FilePage(NamedTuple):
    """``start`` and ``end`` are bytes; ``first`` and ``lines`` are the number of the first line and how many
    there are, if lines were asked for. ``cut``: the last line is longer than a page."""

    content: bytes
    start: int
    end: int
    first: int | None = None
    lines: int = 0
    cut: bool = False


def bytes_page(descriptor: int, offset: int, limit: int, form: TextForm | None) -> FilePage:
    """Some bytes, without a character that is cut at the end."""
    content = read(descriptor, offset, limit)
    if form is not None and len(content) == limit:
        content = content[: _whole(content, offset, form)]
    return FilePage(content, offset, offset + len(content))


def read(descriptor: int, offset: int, limit: int) -> bytes:
    """Up to ``limit`` bytes, fewer at the end of the file only."""
    chunks, left = [], limit
    while left and (chunk := os.pread(descriptor, min(left, CHUNK), offset)):
        chunks.append(chunk)
        left -= len(chunk)
        offset += len(chunk)
    return b"".join(chunks)


def _whole(content: bytes, offset: int, form: TextForm) -> int:
    """The length of the content without the beginning of a character at its end."""
    if form.is_wide:
        width = 4 if "32" in form.encoding else 2
        return len(content) - (offset + len(content)) % width or len(content)
    if form.encoding != "utf-8":
        return len(content)
    for back in range(1, min(_UTF8_CHARACTER, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 != 0x80:
            size = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(content) - back if size > back and back < len(content) else len(content)
    return len(content)


def lines_page(
    descriptor: int, first: int, count: int | None, limit: int, form: TextForm, stop: TimeLimit
) -> FilePage:
    """Some lines from line ``first`` on, as many as fit into ``limit`` bytes. A line that is longer than the
    limit is cut."""
    start = line_start(descriptor, first, stop)
    if start is None:
        return FilePage(b"", end := os.fstat(descriptor).st_size, end, first)
    content = read(descriptor, start, limit)
    end, lines = _lines_end(content, count, is_last=len(content) < limit)
    if lines:
        return FilePage(content[:end], start, start + end, first, lines)
    content = content[: _whole(content, start, form)]
    return FilePage(content, start, start + len(content), first, 1 if content else 0, cut=len(content) > 0)


def _lines_end(content: bytes, count: int | None, *, is_last: bool) -> tuple[int, int]:
    """Where the lines of a page end, and how many there are."""
    end = lines = 0
    while count is None or lines < count:
        found = content.find(b"\n", end)
        if found < 0:
            if is_last and end < len(content):
                return len(content), lines + 1
            break
        end, lines = found + 1, lines + 1
    return end, lines


def line_start(descriptor: int, number: int, stop: TimeLimit) -> int | None:
    """The byte at which a line begins, from 1; None if the file has fewer. Holes are passed over."""
    at, left = 0, number - 1
    while left:
        at = _data(descriptor, at)
        chunk = os.pread(descriptor, CHUNK, at)
        if not chunk:
            return None
        stop.check()
        count = chunk.count(b"\n")
        if count >= left:
            position = -1
            for _ in range(left):
                position = chunk.find(b"\n", position + 1)
            return at + position + 1
        left -= count
        at += len(chunk)
    return at


def _data(descriptor: int, at: int) -> int:
    """Where the next data are: what a file of holes has in between is zeros, and hence no lines."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole is left, or nothing
            return os.fstat(descriptor).st_size
        return at


def around(
    descriptor: int, at: int, before: int, after: int, limit: int
) -> tuple[list[bytes], bytes, list[bytes]]:
    """The line that begins at a byte, and some lines before and after it, each cut to ``limit`` bytes."""
    head = b""
    if before and at:
        start = max(0, at - (before + 1) * limit)
        head = read(descriptor, start, at - start)
    tail = read(descriptor, at, (after + 1) * limit)
    following = tail.split(b"\n")
    if following and not following[-1]:
        following.pop()
    earlier = head.removesuffix(b"\n").split(b"\n")[-before:] if head and before else []
    lines = [line[:limit].removesuffix(b"\r") for line in following]
    return (
        [line[:limit].removesuffix(b"\r") for line in earlier],
        lines[0] if lines else b"",
        lines[1 : after + 1],
    )
