"""The journals of a folder as files: where each ends durably, and what becomes of it when the disk fails.

Above: `FileJournal`, which holds a shard's fence around every write, and does all of this in one thread.
Below: the operating system. Nothing here knows epochs or who waits.

**What counts.** What follows the last newline of a journal was torn by a crash before it was acknowledged;
the next append removes it. All else that cannot be read is damage: it is reported, and left as it is.

**Failed writes.** After a failed write or sync nobody knows what of it is on the disk: the kernel may drop
the pages, take them for clean, and report the failure once. Nothing of it was acknowledged, so the journal is
cut back to its durable part, durably. Before that succeeds it takes no append, and reads end there.

**Unknown ends.** Another process may have died between its write and its sync. So what this process did not
make durable itself is synced, and read from the disk instead of the kernel's memory, before it is relied on.
"""

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from mesh.core.errors import JournalDamaged, JournalError
from mesh.core.events import AnyEvent, Live, decode
from mesh.disk.atomic import sync_folder, write_all
from mesh.runtime.logs import fields

_PREFIX, _SUFFIX = "conversation_", ".jsonl"
_OPEN_FILES = 512
_KNOWN_TAILS = 20_000
_PAGE = 4096
_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_log = logging.getLogger("mesh.journal")


class Tail(NamedTuple):
    """Where a journal ends: its last sequence number, and its size in bytes."""

    seq: int
    size: int


class _Doubt(NamedTuple):
    """What follows ``tail`` in a journal of ``shard`` is unknown, and was not acknowledged."""

    shard: int
    tail: Tail


class JournalFiles:
    """See the module's text. Whoever calls `tail`, `write` or `sync` holds the fence of the shard."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: OrderedDict[str, Tail] = OrderedDict()  # durable
        self._doubts: OrderedDict[str, _Doubt] = OrderedDict()
        self._fds: OrderedDict[str, int] = OrderedDict()

    def read(self, conversation_id: str) -> list[AnyEvent]:
        """All events of a journal, each of them durable. Raises `JournalDamaged`, `OSError`."""
        path, doubt = self._path(conversation_id), self._doubts.get(conversation_id)
        tail = doubt.tail if doubt else self._tails.get(conversation_id, Tail(0, 0))
        content = _content(path)[: tail.size] if doubt else _durable_content(path, tail.size)
        events, size = parse(content, path.name)
        if size < tail.size:
            raise JournalDamaged(
                f"{path.name}: is damaged: {size} of {tail.size} bytes that were durable are left. The file "
                f"is left as it is"
            )
        if not doubt:
            self._tails[conversation_id] = Tail(len(events), size)
        return events

    def tail(self, shard: int, conversation_id: str) -> Tail:
        """Where to write on. Invariant: the caller holds the fence, so a torn end is nobody's write under
        way, and may be cut off. Raises `JournalError`, `OSError`."""
        if conversation_id in self._doubts:
            self._restore(conversation_id)
        tail, size = self._tails.get(conversation_id), self._size(conversation_id)
        if tail is None or tail.size != size:
            self.read(conversation_id)
            tail = self._tails[conversation_id]
            if tail.size < size:
                _log.warning("event=journal_torn conversation=%s bytes=%d", conversation_id, size - tail.size)
                self._doubts[conversation_id] = _Doubt(shard, tail)
                self._restore(conversation_id)
        return tail

    def write(self, shard: int, conversation_id: str, lines: bytes) -> None:
        """Writes after the `tail`. Before `sync` nobody may be told of it. Raises `OSError`."""
        fd = self._fd(conversation_id)
        with self._distrusted_on_failure(shard, conversation_id):
            write_all(fd, lines)

    def sync(self, shard: int, conversation_id: str, end: Tail) -> None:
        """Makes what was written since durable; the journal's `tail` is ``end`` then. Raises `OSError`: then
        the tail is what it was."""
        with self._distrusted_on_failure(shard, conversation_id):
            os.fdatasync(self._fds[conversation_id])
        self._tails[conversation_id] = end

    def sizes(self) -> dict[str, int]:
        """The size of each journal, in bytes."""
        sizes: dict[str, int] = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX):
                    with suppress(FileNotFoundError):  # an empty one that is being made anew
                        sizes[entry.name[len(_PREFIX) : -len(_SUFFIX)]] = entry.stat().st_size
        return sizes

    def distrust_all(self, shard: int) -> None:
        """Another process may have written since: what is known of every journal is found again. What waits
        to be cut off in this shard stays: it may be followed by what the other one acknowledged."""
        self.close()
        self._tails.clear()
        for conversation_id in [i for i, doubt in self._doubts.items() if doubt.shard == shard]:
            del self._doubts[conversation_id]

    def trim(self) -> None:
        """Bounds what is kept open and in memory; all of it is found again on the disk."""
        while len(self._fds) > _OPEN_FILES:
            os.close(self._fds.popitem(last=False)[1])
        while len(self._tails) > _KNOWN_TAILS:
            self._tails.popitem(last=False)
        while len(self._doubts) > _KNOWN_TAILS:
            self._doubts.popitem(last=False)

    def close(self) -> None:
        """Closes all files."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    @contextmanager
    def _distrusted_on_failure(self, shard: int, conversation_id: str) -> Iterator[None]:
        """Around a write or a sync. If it fails, the journal is cut back at once if possible: a successor
        cannot know that it has to be."""
        try:
            yield
        except OSError:
            self._doubts[conversation_id] = _Doubt(shard, self._tails[conversation_id])
            os.close(self._fds.pop(conversation_id))
            try:
                self._restore(conversation_id)
            except JournalError as problem:
                _log.error("event=journal_not_restored %s", fields(message=problem))
            raise

    def _restore(self, conversation_id: str) -> None:
        """Makes the journal its durable part, durably."""
        tail = self._doubts[conversation_id].tail
        try:
            _cut(self._path(conversation_id), tail.size)
        except OSError as problem:
            raise JournalError(
                f"conversation {conversation_id}: a write to its journal failed, and what is left of it "
                f"cannot be removed ({why(problem)}). Nothing is appended before that succeeds; look at the "
                f"disk of {self._folder}"
            ) from None
        self._tails[conversation_id] = tail
        del self._doubts[conversation_id]

    def _fd(self, conversation_id: str) -> int:
        if conversation_id in self._fds:
            self._fds.move_to_end(conversation_id)
            return self._fds[conversation_id]
        path = self._path(conversation_id)
        is_new = self._tails[conversation_id].size == 0
        fd = self._create(path) if is_new else os.open(path, _APPENDING)
        self._fds[conversation_id] = fd
        return fd

    def _create(self, path: Path) -> int:
        """A new file, whose name is durable. An empty one that is there already is made anew: if syncing the
        folder failed when it was made, the kernel may believe that its name is on the disk."""
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - as all calls to the disk that change something
        fd = os.open(path, _APPENDING | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            sync_folder(self._folder)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _size(self, conversation_id: str) -> int:
        try:
            return os.stat(f"{self._folder}/{_PREFIX}{conversation_id}{_SUFFIX}").st_size  # noqa: PTH116 - hot
        except FileNotFoundError:
            return 0

    def _path(self, conversation_id: str) -> Path:
        return self._folder / f"{_PREFIX}{conversation_id}{_SUFFIX}"


def parse(content: bytes, name: str) -> tuple[list[AnyEvent], int]:
    """The events of a journal, and how many bytes they take up.

    What follows the last newline was torn by a crash before it was acknowledged, and does not count. A line
    that is not the next event raises `JournalDamaged`, which says where (``name``: the file's).
    """
    size = content.rfind(b"\n") + 1
    lines = content[: size - 1].split(b"\n") if size else []
    return [_event(line, number, name) for number, line in enumerate(lines, 1)], size


def read_epoch(fd: int, path: Path) -> int:
    """The number in a shard's fence. Raises `JournalError` if it is damaged."""
    content = os.pread(fd, 32, 0)
    try:
        # Nothing, or zeros: a crash before the first epoch was durable, and so before anybody had one.
        return int(content.strip(b"\0\n") or b"0")
    except ValueError:
        raise JournalError(
            f"{path} is damaged: it holds {content!r} instead of a number. Write one into it that is "
            f"greater than every epoch of this shard before"
        ) from None


def why(problem: OSError) -> str:
    """What the system says, without the path."""
    return problem.strerror or str(problem)


def _event(line: bytes, number: int, name: str) -> AnyEvent:
    where = f"{name}, line {number}"
    try:
        event = decode(line)
    except ValueError as problem:  # msgspec's errors are ValueErrors
        raise JournalDamaged(
            f"{where}: is damaged, or was written by a newer version: not an event ({problem}). The file is "
            f"left as it is"
        ) from None
    if isinstance(event, Live) or event.seq != number:
        raise JournalDamaged(
            f"{where}: is damaged: this is event {event.seq}, so some are missing or doubled. The file is "
            f"left as it is"
        )
    return event


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _durable_content(path: Path, durable: int) -> bytes:
    """What is in a file, made durable, if more or less of it is there than what is known to be."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return b""
    with file:
        if durable != os.fstat(file.fileno()).st_size:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def _cut(path: Path, size: int) -> None:
    """Makes a file that is longer ``size`` bytes long, durably. Its last page is written again: acknowledged
    bytes share it with those whose write failed."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size > size:
            os.ftruncate(fd, size)
        start = max(size - 1, 0) // _PAGE * _PAGE
        os.pwrite(fd, os.pread(fd, size - start, start), start)
        os.fsync(fd)
    finally:
        os.close(fd)
