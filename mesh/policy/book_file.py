"""The book of grants in a file: ``grants.jsonl`` in the directory of the data, an `Entry` a line.

    {"granted":{"id":"5f0c…","agent":"coder","rule":{…},"by":"ann","at":"…","approval":"5f0c…"}}
    {"revoked":{"id":"5f0c…","by":"bob","at":"…"}}

Lines are only ever appended: it is the record of who allowed what, too. Every writer holds the lock of the
file, reads what is there, and syncs its line before anybody is told. What follows the last newline was torn
by a crash before it was acknowledged: readers leave it out, and the next writer cuts it off.

It works wherever the lock does (`mesh.disk.lock`), as the journals beside it do.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio.to_thread
import msgspec

from mesh.core.errors import JournalDamaged, JournalError, Unavailable
from mesh.disk.atomic import reason, sync_folder, write_all
from mesh.disk.lock import FileLock
from mesh.policy.book import Entries, Entry, WrittenBook

FILE = "grants.jsonl"
MAX_BYTES = 64_000_000
"""No grant is added beyond this; some 200,000 lines."""
_READ_AT_MOST = 2 * MAX_BYTES
_LOCKED_FOR_S = 10.0
_REOPENED = 5
_decode = msgspec.json.Decoder(Entry).decode
_encode = msgspec.json.Encoder().encode

Signature = tuple[int, int, int, int]


class FileGrantBook(WrittenBook):
    """A `GrantBook` in a folder. Each object keeps what it has read until the file changes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._read: tuple[Signature | None, Entries] | None = None

    async def _entries(self) -> Entries:
        """What the file has now. Raises `JournalError`."""
        try:
            signature = _signature(self.path)
            if self._read is None or self._read[0] != signature:
                # The file may be newer than the signature; then it is read once more.
                content = await anyio.to_thread.run_sync(_content, self.path)
                self._read = (signature, parsed(content, self.path))
        except OSError as problem:
            raise JournalError(f"{self.path} cannot be read: {reason(problem)}") from None
        return self._read[1]

    async def _append(self, entry_for: Callable[[Entries], Entry | None]) -> None:
        await anyio.to_thread.run_sync(self._append_now, entry_for)

    def _append_now(self, entry_for: Callable[[Entries], Entry | None]) -> None:
        try:
            with _locked(self.path) as lock:
                content = _content(lock.fd)
                entry = entry_for(parsed(content, self.path))
                _write(lock, content[: content.rfind(b"\n") + 1], entry)
        except OSError as problem:
            raise JournalError(f"{self.path} cannot be written: {reason(problem)}") from None


def parsed(content: bytes, path: Path) -> Entries:
    """The entries of a file. Raises `JournalDamaged`, which names the line."""
    entries = Entries()
    *lines, _torn = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            entry = _decode(line)
        except (ValueError, RecursionError) as problem:
            raise _damaged(path, number, str(problem)) from None
        if (entry.granted is None) is (entry.revoked is None):
            raise _damaged(path, number, "expected one of granted and revoked")
        entries.take(entry)
    return entries


def _damaged(path: Path, line: int, problem: str) -> JournalDamaged:
    what = "no grant is in force until the line is repaired or removed"
    return JournalDamaged(f"{path}:{line}: is no entry of the book of grants ({problem[:200]}); {what}")


def _write(lock: FileLock, kept: bytes, entry: Entry | None) -> None:
    """Writes an entry after what is kept of the file, durably. Without one it syncs only: whoever wrote the
    last lines may have died before."""
    line = _encode(entry) + b"\n" if entry else b""
    if entry and entry.granted and len(kept) + len(line) > MAX_BYTES:
        raise JournalError(f"{lock.path} is over {MAX_BYTES} bytes; move it away, which ends its grants")
    try:
        if os.fstat(lock.fd).st_size > len(kept):
            os.ftruncate(lock.fd, len(kept))
        write_all(lock.fd, line)
        os.fsync(lock.fd)
        if not kept:
            sync_folder(lock.path.parent)
    except OSError:
        with suppress(OSError):  # the first error is told; a whole line that stays was decided by a person
            os.ftruncate(lock.fd, len(kept))
        raise


@contextmanager
def _locked(path: Path) -> Iterator[FileLock]:
    """The file, locked. Raises `OSError`, and `Unavailable` if somebody else keeps the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_REOPENED):
        with FileLock(path, os.O_APPEND) as lock:
            if not lock.acquire(_LOCKED_FOR_S):
                raise Unavailable(f"{path}: another process keeps it locked")
            if not lock.is_removed:  # an editor may have put another file in its place
                yield lock
                return
    raise Unavailable(f"{path}: it is replaced again and again")


def _content(file: Path | int) -> bytes:
    """What a file has, that of a descriptor from its present position on."""
    try:
        with open(file, "rb", closefd=isinstance(file, Path)) as opened:
            content = opened.read(_READ_AT_MOST + 1)
    except FileNotFoundError:
        return b""
    if len(content) > _READ_AT_MOST:
        raise JournalDamaged(f"{FILE} is over {_READ_AT_MOST} bytes, and no book of grants")
    return content


def _signature(path: Path) -> Signature | None:
    """What changes whenever the file does; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - before every call
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
