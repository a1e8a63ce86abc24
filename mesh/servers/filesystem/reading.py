"""The tool ``read_file``."""

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from mesh.disk.atomic import write_all
from mesh.processes.content_file import content_file
from mesh.servers.filesystem.bounds import CHUNK, MAX_HASHED, TimeLimit
from mesh.servers.filesystem.call import Call
from mesh.servers.filesystem.paging import FilePage, bytes_page, lines_page, read
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.texts import BINARY_WITHIN, TextForm, form_of, line_ending

_TRIES = 3
_PAGES = ("offset_bytes", "limit_bytes", "offset_lines", "limit_lines")


def read_file(call: Call) -> dict[str, Any]:
    by_bytes = call.given("offset_bytes", "limit_bytes")
    by_lines = call.given("offset_lines", "limit_lines")
    if by_bytes and by_lines:
        raise FileRefusal("give offset_bytes and limit_bytes, or offset_lines and limit_lines, but not both")
    with call.root().reading(call.parts()) as (descriptor, found, _):
        before = found
        for left in reversed(range(_TRIES)):
            with _still(descriptor, before.st_size, call.stop) as (source, size):
                result = _read(call, source, size, by_lines=by_lines)
            after = os.fstat(descriptor)
            if _version(after) == _version(before):
                return result
            before = after
            if not left:
                result["sha256"] = None
                result["note"] = "the file changed while it was read"
    return result


@contextmanager
def _still(descriptor: int, size: int, stop: TimeLimit) -> Iterator[tuple[int, int]]:
    """What a file is read from, and its size: a copy in memory, so that the page and the hash are of the same
    content. The times of the file do not ensure that: the kernel sets them before it writes the bytes, and
    only after it has cut the file. A file that gets no hash is read itself."""
    if size > MAX_HASHED:
        yield descriptor, size
        return
    with content_file(b"") as copy:
        copied = 0
        for chunk in _chunks(descriptor):
            stop.check()
            write_all(copy, chunk)
            copied += len(chunk)
            if copied > MAX_HASHED:  # it has grown
                break
        yield (copy if copied <= MAX_HASHED else descriptor), copied


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(call: Call, descriptor: int, size: int, *, by_lines: bool) -> dict[str, Any]:
    head = read(descriptor, 0, min(call.page_size, max(BINARY_WITHIN, 64 << 10)))
    is_whole = len(head) == size
    form = form_of(head, is_whole=is_whole)
    if form is None:
        return _binary(call, descriptor, size, by_lines)
    if by_lines and form.is_wide:
        raise FileRefusal(
            f"{call.path()}: is {form.name}: pages of lines are not possible, take pages of bytes"
        )
    is_all = is_whole and not call.given(*_PAGES)
    page = FilePage(head, 0, size) if is_all else _page(call, descriptor, form, by_lines)
    content = page.content.removeprefix(form.mark) if page.start == 0 else page.content
    text = content.decode(form.encoding, "replace")
    totals = _totals([head] if is_whole else _chunks(descriptor), size, form, call.stop)
    result = {
        "content": text,
        "size": size,
        "truncated": page.start > 0 or page.end < size,
        "encoding": form.name,
        "line_ending": line_ending(text),
    }
    return result | totals | _following(page, size, by_lines=by_lines)


def _page(call: Call, descriptor: int, form: TextForm, by_lines: bool) -> FilePage:
    limit = min(call.page_size, call.number("limit_bytes", call.page_size))
    if not by_lines:
        return bytes_page(descriptor, call.number("offset_bytes", 0), limit, form)
    count = call.number("limit_lines", 0) or None
    return lines_page(descriptor, call.number("offset_lines", 1), count, limit, form, call.stop)


def _binary(call: Call, descriptor: int, size: int, by_lines: bool) -> dict[str, Any]:
    if by_lines:
        raise FileRefusal(f"{call.path()}: is binary: take pages of bytes")
    # In base64, four characters stand for three bytes.
    limit = min(call.page_size * 3 // 4, call.number("limit_bytes", call.page_size))
    page = bytes_page(descriptor, call.number("offset_bytes", 0), limit, None)
    return {
        "content": base64.b64encode(page.content).decode(),
        "size": size,
        "truncated": page.start > 0 or page.end < size,
        "binary": True,
        "encoding": "base64",
        "line_ending": "none",
        "sha256": _totals(_chunks(descriptor), size, None, call.stop)["sha256"],
    } | _following(page, size, by_lines=False)


def _totals(chunks: Iterable[bytes], size: int, form: TextForm | None, stop: TimeLimit) -> dict[str, Any]:
    """The hash of the whole file and the number of its lines, if it is not too large for that."""
    if size > MAX_HASHED:
        return {"sha256": None}
    total, lines, last = hashlib.sha256(), 0, b""
    for chunk in chunks:
        stop.check()
        total.update(chunk)
        lines += chunk.count(b"\n")
        last = chunk[-1:]
    found: dict[str, Any] = {"sha256": total.hexdigest()}
    if form is not None and not form.is_wide:
        found["lines_total"] = lines + (last not in (b"", b"\n"))
    return found


def _chunks(descriptor: int) -> Iterator[bytes]:
    at = 0
    while chunk := os.pread(descriptor, CHUNK, at):
        yield chunk
        at += len(chunk)


def _following(page: FilePage, size: int, *, by_lines: bool) -> dict[str, Any]:
    """How to go on, if there is more."""
    if page.end >= size or page.end == page.start:
        return {}
    if by_lines and page.first is not None and not page.cut:
        following = {"next_offset_lines": page.first + page.lines}
    else:
        following = {"next_offset_bytes": page.end}
    [(key, value)] = following.items()
    name = key.removeprefix("next_")
    return {**following, "hint": f"there is more: call again with {name}={value}"}
