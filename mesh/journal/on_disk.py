"""The journals of a folder as files: where each ends durably, and what happens to it when the disk fails.

Above: `FileJournal`, which stays behind a shard's fence during every write and calls all of this in one
thread. Below: the operating system. Nothing here knows epochs, or who waits for an append.

**Torn lines.** What follows the last newline of a journal was torn by a crash before it was acknowledged; the
next append removes it. Everything else that cannot be read is damage: it is reported and left as it is.

**Failed writes.** After a failed write or sync nobody knows how much of it is on the disk: the kernel may
drop the pages, mark them clean, and report the failure only once. None of it was acknowledged, so the journal
is cut back to its durable part, durably. Until that succeeds, the journal takes no append, and reads end
there.

**Unknown ends.** Another process may have died between its write and its sync. What this process did not make
durable itself is therefore synced, and read from the disk instead of the kernel's cache, before it is used.
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
from mesh.disk.atomic import reason, sync_folder, write_all
from mesh.journal.listing import JournalEdges
from mesh.journal.port import snapshot_name
from mesh.runtime.logs import fields

_PREFIX, _SUFFIX = "conversation_", ".jsonl"
_OPEN_FILES = 512
_KNOWN_TAILS = 20_000
_PAGE = 4096
_EDGE = 4 * _PAGE
_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_log = logging.getLogger("mesh.journal")


class JournalEnd(NamedTuple):
    """Where a journal ends: its last sequence number, and its size in bytes."""

    seq: int
    size: int


class _UnknownEnd(NamedTuple):
    """A journal of ``shard`` whose content after ``tail`` is unknown; it was not acknowledged."""

    shard: int
    tail: JournalEnd


class JournalFiles:
    """See the module. Callers of `tail`, `write` and `sync` stay behind the fence of the shard."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: OrderedDict[str, JournalEnd] = OrderedDict()  # durable
        self._unknown_ends: OrderedDict[str, _UnknownEnd] = OrderedDict()
        self._fds: OrderedDict[str, int] = OrderedDict()

    def read(self, conversation_id: str, *, durably: bool = True) -> list[AnyEvent]:
        """Returns all events of a journal, each of them durable unless that is not asked for. Raises
        `JournalDamaged`, `OSError`."""
        path, unknown = self._path(conversation_id), self._unknown_ends.get(conversation_id)
        tail = unknown.tail if unknown else self._tails.get(conversation_id, JournalEnd(0, 0))
        if unknown or not durably:
            content = _content(path)[: tail.size if unknown else None]
        else:
            content = _durable_content(path, tail.size)
        events, size = parse(content, path.name)
        if size < tail.size:
            raise JournalDamaged(
                f"{path.name}: is damaged: {size} of {tail.size} bytes that were durable are left. The file "
                f"is left as it is"
            )
        if durably and not unknown:
            self._tails[conversation_id] = JournalEnd(len(events), size)
        return events

    def edges(self, conversation_id: str) -> JournalEdges | None:
        """Returns how a journal begins and ends, without making it durable; None if that is not found in a
        few pages of the file, or cannot be read."""
        if conversation_id in self._unknown_ends:
            return None
        try:
            begin, end = _edges_of(f"{self._folder}/{_PREFIX}{conversation_id}{_SUFFIX}")
            events = {line: decode(line) for line in {*begin, *end}}  # in a short one some are the same
            return JournalEdges([events[line] for line in begin], [events[line] for line in end])
        except (OSError, ValueError):
            return None  # whoever reads all of it says what is wrong

    def tail(self, shard: int, conversation_id: str) -> JournalEnd:
        """Returns where the next append goes. Raises `JournalError`, `OSError`.

        Invariant: the caller is behind the fence, so that no other process is in the middle of a write, and a
        torn line may be cut off.
        """
        if conversation_id in self._unknown_ends:
            self._restore(conversation_id)
        tail, size = self._tails.get(conversation_id), self._size(conversation_id)
        if tail is None or tail.size != size:
            self.read(conversation_id)
            tail = self._tails[conversation_id]
            if tail.size < size:
                _log.warning("event=journal_torn conversation=%s bytes=%d", conversation_id, size - tail.size)
                self._unknown_ends[conversation_id] = _UnknownEnd(shard, tail)
                self._restore(conversation_id)
        return tail

    def write(self, shard: int, conversation_id: str, lines: bytes) -> None:
        """Writes after the `tail`. Nobody may be told of it before `sync` returned. Raises `OSError`."""
        fd = self._fd(conversation_id)
        with self._end_unknown_on_failure(shard, conversation_id):
            write_all(fd, lines)

    def sync(self, shard: int, conversation_id: str, end: JournalEnd) -> None:
        """Makes durable what was written after the `tail`; from then on that is ``end``. Raises `OSError`;
        then the tail stays what it was."""
        with self._end_unknown_on_failure(shard, conversation_id):
            os.fdatasync(self._fds[conversation_id])
        self._tails[conversation_id] = end

    def erase(self, conversation_id: str) -> None:
        """Removes a journal and its snapshot, durably; the caller is behind the fence. Raises `OSError`."""
        fd = self._fds.pop(conversation_id, None)
        if fd is not None:
            os.close(fd)
        # The journal last: as long as it is there, the conversation is, and can be erased again.
        for path in (self._folder / snapshot_name(conversation_id), self._path(conversation_id)):
            path.unlink(missing_ok=True)
        self._tails.pop(conversation_id, None)
        self._unknown_ends.pop(conversation_id, None)
        sync_folder(self._folder)

    def drop_orphan(self, name: str) -> None:
        """Removes a snapshot, just written, whose conversation was deleted: by a process that has the shard
        since, while this one wrote behind. Raises `OSError`."""
        snapshot = self._folder / name
        if name.startswith(_PREFIX) and not snapshot.with_suffix(_SUFFIX).exists():
            snapshot.unlink(missing_ok=True)

    def sizes(self) -> dict[str, int]:
        """The size of each journal, in bytes."""
        sizes: dict[str, int] = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                    try:
                        sizes[name[len(_PREFIX) : -len(_SUFFIX)]] = entry.stat().st_size
                    except FileNotFoundError:
                        continue  # `_create` is replacing an empty one
        return sizes

    def forget(self, shard: int) -> None:
        """Forgets what is known of the journals, because another process may have written since; it is read
        again from the disk. Unknown ends of this shard are no longer cut off either: events that the other
        process acknowledged may follow them."""
        self.close()
        self._tails.clear()
        for conversation_id in [i for i, unknown in self._unknown_ends.items() if unknown.shard == shard]:
            del self._unknown_ends[conversation_id]

    def trim(self) -> None:
        """Bounds the open files and the memory. What is dropped is found again on the disk."""
        while len(self._fds) > _OPEN_FILES:
            os.close(self._fds.popitem(last=False)[1])
        while len(self._tails) > _KNOWN_TAILS:
            self._tails.popitem(last=False)
        while len(self._unknown_ends) > _KNOWN_TAILS:
            self._unknown_ends.popitem(last=False)

    def close(self) -> None:
        """Closes all files."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    @contextmanager
    def _end_unknown_on_failure(self, shard: int, conversation_id: str) -> Iterator[None]:
        """Around a write or a sync. If it fails, tries to cut the journal back at once: a successor could not
        know that this is necessary."""
        try:
            yield
        except OSError:
            self._unknown_ends[conversation_id] = _UnknownEnd(shard, self._tails[conversation_id])
            os.close(self._fds.pop(conversation_id))
            try:
                self._restore(conversation_id)
            except JournalError as problem:
                _log.error("event=journal_not_restored %s", fields(message=problem))
            raise

    def _restore(self, conversation_id: str) -> None:
        """Cuts the journal back to its durable part, durably."""
        tail = self._unknown_ends[conversation_id].tail
        try:
            _cut(self._path(conversation_id), tail.size)
        except OSError as problem:
            raise JournalError(
                f"conversation {conversation_id}: a write to its journal failed, and what is left of it "
                f"cannot be removed ({reason(problem)}). Nothing is appended before that succeeds; look at "
                f"the disk of {self._folder}"
            ) from None
        self._tails[conversation_id] = tail
        del self._unknown_ends[conversation_id]

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
        """Creates a file whose name is durable. An empty one that exists is replaced: if the sync of the
        folder failed when it was created, the kernel may wrongly hold its name for durable, and would not
        write it again."""
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - tests replace `os` to make calls that change the disk fail
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
    """Returns the events of a journal, and the number of bytes that they take up.

    What follows the last newline was torn by a crash before it was acknowledged, and is ignored. Raises
    `JournalDamaged` for a line that is not the next event, with the file's ``name`` and the line.
    """
    size = content.rfind(b"\n") + 1
    lines = content[: size - 1].split(b"\n") if size else []
    return [_event(line, number, name) for number, line in enumerate(lines, 1)], size


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
    """Returns the content of a file. If its size is not what is known to be durable, syncs it first and drops
    it from the kernel's cache, so that what is read is on the disk."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return b""
    with file:
        if durable != os.fstat(file.fileno()).st_size:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def _edges_of(path: str) -> tuple[list[bytes], list[bytes]]:
    """The first two lines of a file and the last two, as far as they are in its first and its last pages."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.pread(fd, 2 * _EDGE, 0)
        if len(content) < 2 * _EDGE:
            lines = content.split(b"\n")[:-1]  # what follows the last newline was torn
            return lines[:2], lines[-2:]
        size = os.fstat(fd).st_size
        return content.split(b"\n")[:-1][:2], os.pread(fd, _EDGE, size - _EDGE).split(b"\n")[1:-1][-2:]
    finally:
        os.close(fd)


def _cut(path: Path, size: int) -> None:
    """Shortens a file to ``size`` bytes, durably. Writes its last page again: acknowledged bytes share it
    with bytes whose write failed, and after a failed sync the kernel may not write that page by itself."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size > size:
            os.ftruncate(fd, size)
        start = max(size - 1, 0) // _PAGE * _PAGE
        os.pwrite(fd, os.pread(fd, size - start, start), start)
        os.fsync(fd)
    finally:
        os.close(fd)
