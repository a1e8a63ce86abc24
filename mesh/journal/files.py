"""The store in files: one journal a conversation, one JSON object a line.

    data_dir/conversation_{id}.jsonl    the journal
    data_dir/conversation_{id}.json     and other blobs
    data_dir/shard_{n}.epoch            the fence: a number, guarded by a lock on the same file

Every write is made by one thread, which takes all that is waiting, writes it under the shard's
shared lock after it read the epoch there, and then makes each file durable once. `open` takes the
lock exclusively, so that it waits for writes under way and no older writer can follow.

Works on a filesystem of one machine, or on a shared one that has `flock`.
"""

import asyncio
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from mesh.errors import JournalDamaged, JournalError, StaleEpoch, WrongSequence
from mesh.events import AnyEvent, decode, encode
from mesh.journal.port import Append

_PREFIX, _SUFFIX = "conversation_", ".jsonl"
_OPEN_FILES = 512
_KNOWN_TAILS = 20_000
T = TypeVar("T")


class _Tail(msgspec.Struct):
    """Where a journal ends: the last seq and the length of the file, in bytes."""

    seq: int
    size: int


class _Waiting(msgspec.Struct):
    shard: int
    epoch: int
    append: Append
    done: asyncio.Future[int]


class FileJournal:
    """See the module's text. One object a process; any number of processes on one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._tails: OrderedDict[str, _Tail] = OrderedDict()
        self._fds: OrderedDict[str, int] = OrderedDict()
        self._locks: dict[int, int] = {}
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "journal")

    async def open(self, shard: int) -> int:
        return await self._run(lambda: self._take_epoch(shard))

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(shard, epoch, append, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_waiting())
        return await done

    async def read(self, conversation_id: str) -> list[AnyEvent]:
        return await self._run(lambda: self._read(conversation_id))

    async def sizes(self) -> dict[str, int]:
        return await asyncio.to_thread(self._sizes)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        def replace_all() -> None:
            for name, content in blobs.items():
                self._replace(name, content)

        await asyncio.to_thread(replace_all)

    async def get_blob(self, name: str) -> bytes | None:
        path = self._folder / name
        return await asyncio.to_thread(lambda: path.read_bytes() if path.exists() else None)

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer
        await self._run(self._close_files)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        """All work on journals happens in the one thread, so that none of it needs a lock."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            outcomes = await self._run(lambda batch=batch: self._write_batch(batch))  # type: ignore[misc]
            for waiting, outcome in zip(batch, outcomes, strict=True):
                if waiting.done.cancelled():
                    continue
                if isinstance(outcome, int):
                    waiting.done.set_result(outcome)
                else:
                    waiting.done.set_exception(outcome)

    def _write_batch(self, batch: list[_Waiting]) -> list[int | Exception]:
        """Writes all, then makes each file durable once: for each append the new size, or the problem."""
        outcomes: list[int | Exception] = []
        written: dict[int, list[int]] = {}
        for i, waiting in enumerate(batch):
            try:
                with self._fence(waiting.shard, waiting.epoch):
                    fd, size = self._write(waiting.append)
                written.setdefault(fd, []).append(i)
                outcomes.append(size)
            except (JournalError, OSError) as problem:
                outcomes.append(_explained(problem, waiting.append.conversation_id))
        for fd, of in written.items():
            try:
                os.fdatasync(fd)
            except OSError as problem:
                for i in of:
                    outcomes[i] = _explained(problem, batch[i].append.conversation_id)
        self._trim()
        return outcomes

    def _write(self, append: Append) -> tuple[int, int]:
        """Writes one append, not yet durable: the file and its new size. What a failed write left is cut."""
        fd = self._fd(append.conversation_id)
        tail = self._tail(append.conversation_id, fd)
        if tail.seq != append.after:
            raise WrongSequence(
                f"conversation {append.conversation_id}: its journal is at event {tail.seq}, "
                f"the writer believed {append.after}"
            )
        lines = b"".join(encode(event) + b"\n" for event in append.events)
        try:
            if os.write(fd, lines) != len(lines):
                raise OSError("the disk took only a part of a write")
        except OSError:
            os.ftruncate(fd, tail.size)
            raise
        tail.seq, tail.size = append.events[-1].seq, tail.size + len(lines)
        return fd, tail.size

    def _tail(self, conversation_id: str, fd: int) -> _Tail:
        """Where to write on. Invariant: the caller holds the fence, so a torn end is nobody's write
        under way, and may be cut off."""
        tail, size = self._tails.get(conversation_id), os.fstat(fd).st_size
        if tail is None or tail.size != size:
            self._read(conversation_id)
            tail = self._tails[conversation_id]
            if tail.size < size:
                os.ftruncate(fd, tail.size)
        return tail

    def _read(self, conversation_id: str) -> list[AnyEvent]:
        path = self._path(conversation_id)
        content = path.read_bytes() if path.exists() else b""
        events, size = parse(content, path.name)
        self._tails[conversation_id] = _Tail(events[-1].seq if events else 0, size)
        return events

    def _fd(self, conversation_id: str) -> int:
        if conversation_id in self._fds:
            self._fds.move_to_end(conversation_id)
            return self._fds[conversation_id]
        path = self._path(conversation_id)
        is_new = not path.exists()
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if is_new:
            self._sync_folder()
        self._fds[conversation_id] = fd
        return fd

    def _trim(self) -> None:
        """Bounds what is kept open and in memory; both are found again on the disk."""
        while len(self._fds) > _OPEN_FILES:
            os.close(self._fds.popitem(last=False)[1])
        while len(self._tails) > _KNOWN_TAILS:
            self._tails.popitem(last=False)

    def _sync_folder(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _path(self, conversation_id: str) -> Path:
        return self._folder / f"{_PREFIX}{conversation_id}{_SUFFIX}"

    def _sizes(self) -> dict[str, int]:
        with os.scandir(self._folder) as entries:
            return {
                entry.name[len(_PREFIX) : -len(_SUFFIX)]: entry.stat().st_size
                for entry in entries
                if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX)
            }

    def _replace(self, name: str, content: bytes) -> None:
        path = f"{self._folder}/{name}"
        draft = f"{path}.{os.getpid()}.tmp"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:  # noqa: PTH123 - a file that is open already
            file.write(content)
        os.replace(draft, path)  # noqa: PTH105 - called often; paths as objects cost more than the rename

    def _lock_fd(self, shard: int) -> int:
        if shard not in self._locks:
            path = self._folder / f"shard_{shard}.epoch"
            self._locks[shard] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._locks[shard]

    def _take_epoch(self, shard: int) -> int:
        fd = self._lock_fd(shard)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            epoch = int(os.pread(fd, 32, 0) or b"0") + 1
            os.pwrite(fd, b"%020d\n" % epoch, 0)
            os.fsync(fd)
            self._sync_folder()
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
        # Invariant: what an older writer wrote since we last looked is read again.
        self._tails.clear()
        return epoch

    @contextmanager
    def _fence(self, shard: int, epoch: int) -> Iterator[None]:
        fd = self._lock_fd(shard)
        fcntl.flock(fd, fcntl.LOCK_SH)
        try:
            present = int(os.pread(fd, 32, 0) or b"0")
            if present != epoch:
                raise StaleEpoch(f"shard {shard} is at epoch {present}; this writer has {epoch}")
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _close_files(self) -> None:
        for fd in (*self._fds.values(), *self._locks.values()):
            os.close(fd)
        self._fds.clear()
        self._locks.clear()


def parse(content: bytes, name: str) -> tuple[list[AnyEvent], int]:
    """The events of a journal, and the length in bytes of what is whole.

    A last line without its newline, or that is no event, was torn by a crash before anybody was
    told of it: it does not count. Damage before that raises `JournalDamaged` with the line number.
    """
    whole = content.rfind(b"\n") + 1
    lines = content[:whole].splitlines(keepends=True)
    events: list[AnyEvent] = []
    size = 0
    for number, line in enumerate(lines, 1):
        try:
            event = decode(line)
        except msgspec.DecodeError as problem:
            if number == len(lines):
                break
            raise JournalDamaged(
                f"{name}:{number}: not an event ({problem}); the rest is left alone"
            ) from None
        if event.seq != number:
            raise JournalDamaged(
                f"{name}:{number}: has sequence number {event.seq}; events are missing or doubled"
            )
        events.append(event)
        size += len(line)
    return events, size


def _explained(problem: Exception, conversation_id: str) -> Exception:
    if isinstance(problem, OSError):
        return JournalError(
            f"conversation {conversation_id}: the journal cannot be written: {problem.strerror or problem}"
        )
    return problem
