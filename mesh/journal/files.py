"""The store in files: one journal a conversation, one JSON object a line.

    data_dir/conversation_{id}.jsonl    the journal
    data_dir/conversation_{id}.json     and other blobs
    data_dir/shard_{n}.epoch            the fence: a number, guarded by a lock on the same file

Every write is made by one thread, which takes the appends that are waiting. For each shard it takes the lock
shared, reads the epoch, writes, makes each journal durable once, and only then releases the lock. `open`
takes the lock exclusively: it waits for all of that, and no older writer can follow. What a journal holds,
and what happens when the disk fails, is the business of `JournalFiles`.

Works on a filesystem of one machine, or on a shared one that has `flock`.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from mesh.core.errors import JournalError, StaleEpoch, WrongSequence
from mesh.core.events import AnyEvent, encode
from mesh.disk.atomic import replace, sync_folder
from mesh.journal.on_disk import JournalFiles, Tail, read_epoch, why
from mesh.journal.port import Append

_BATCH = 256
"""Appends written under one lock: bounds how long `open` waits, and how many files are open."""
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class _Waiting(msgspec.Struct):
    """An append under way. ``outcome`` is the journal's new size, or why nothing was appended."""

    shard: int
    epoch: int
    append: Append
    lines: bytes
    done: asyncio.Future[int]
    outcome: int | Exception = 0


class FileJournal:
    """See the module's text. One object a process; any number of processes on one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files = JournalFiles(folder)
        self._locks: dict[int, int] = {}
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "journal")

    async def open(self, shard: int) -> int:
        try:
            return await self._run(lambda: self._take_epoch(shard))
        except OSError as problem:
            raise JournalError(f"shard {shard} cannot be opened in {self._folder}: {why(problem)}") from None

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        lines = b"".join(encode(event) + b"\n" for event in append.events)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(shard, epoch, append, lines, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_waiting())
        return await done

    async def read(self, conversation_id: str) -> list[AnyEvent]:
        try:
            return await self._run(lambda: self._files.read(conversation_id))
        except OSError as problem:
            raise JournalError(
                f"conversation {conversation_id}: its journal cannot be read: {why(problem)}"
            ) from None

    async def sizes(self) -> dict[str, int]:
        return await asyncio.to_thread(self._files.sizes)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        await asyncio.to_thread(self._replace_all, blobs)

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
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            try:
                await self._run(lambda batch=batch: self._write_batch(batch))  # type: ignore[misc]
            except Exception as problem:  # noqa: BLE001 - a bug: told to those who would wait for ever
                for waiting in batch:
                    waiting.outcome = problem
            for waiting in batch:
                if waiting.done.cancelled():
                    continue
                if isinstance(waiting.outcome, int):
                    waiting.done.set_result(waiting.outcome)
                else:
                    waiting.done.set_exception(waiting.outcome)

    def _write_batch(self, batch: list[_Waiting]) -> None:
        for (shard, epoch), of_shard in _grouped(batch, lambda one: (one.shard, one.epoch)).items():
            with _told(of_shard), self._fence(shard, epoch):
                self._write_durably(shard, of_shard)
        self._files.trim()

    def _write_durably(self, shard: int, batch: list[_Waiting]) -> None:
        """Writes to all journals, then makes each of them durable once. Invariant: the caller holds the fence
        until this returns, so that a successor finds whatever is acknowledged."""
        journals = _grouped(batch, lambda one: one.append.conversation_id)
        ends: dict[str, Tail] = {}
        for conversation_id, appends in journals.items():
            with _told(appends):
                end, lines = _accepted(self._files.tail(shard, conversation_id), appends)
                if lines:
                    self._files.write(shard, conversation_id, lines)
                    ends[conversation_id] = end
        for conversation_id, end in ends.items():
            with _told(journals[conversation_id]):
                self._files.sync(shard, conversation_id, end)

    def _replace_all(self, blobs: Mapping[str, bytes]) -> None:
        """One that cannot be replaced keeps no other from it; the first problem is raised in the end."""
        problems: list[OSError] = []
        for name, content in blobs.items():
            try:
                replace(self._folder / name, content, synced=False)
            except OSError as problem:
                problems.append(problem)
        if problems:
            raise problems[0]

    def _lock_fd(self, shard: int) -> int:
        if shard not in self._locks:
            self._locks[shard] = os.open(self._lock_path(shard), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._locks[shard]

    def _lock_path(self, shard: int) -> Path:
        return self._folder / f"shard_{shard}.epoch"

    def _take_epoch(self, shard: int) -> int:
        fd = self._lock_fd(shard)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            epoch = read_epoch(fd, self._lock_path(shard)) + 1
            os.pwrite(fd, b"%020d\n" % epoch, 0)
            os.fsync(fd)
            sync_folder(self._folder)
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
        self._files.distrust_all(shard)
        return epoch

    @contextmanager
    def _fence(self, shard: int, epoch: int) -> Iterator[None]:
        fd = self._lock_fd(shard)
        fcntl.flock(fd, fcntl.LOCK_SH)
        try:
            present = read_epoch(fd, self._lock_path(shard))
            if present != epoch:
                raise StaleEpoch(f"shard {shard} is at epoch {present}; this writer has {epoch}")
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _close_files(self) -> None:
        self._files.close()
        for fd in self._locks.values():
            os.close(fd)
        self._locks.clear()


def _grouped(batch: Iterable[_Waiting], key: Callable[[_Waiting], K]) -> dict[K, list[_Waiting]]:
    groups: dict[K, list[_Waiting]] = {}
    for waiting in batch:
        groups.setdefault(key(waiting), []).append(waiting)
    return groups


def _accepted(tail: Tail, appends: Iterable[_Waiting]) -> tuple[Tail, bytes]:
    """What is to be written of these appends to one journal, and where it ends then."""
    end, lines = tail, b""
    for waiting in appends:
        append = waiting.append
        if append.after != end.seq:
            waiting.outcome = WrongSequence(
                f"conversation {append.conversation_id}: its journal is at event {end.seq}, "
                f"the writer believed {append.after}"
            )
            continue
        lines += waiting.lines
        end = Tail(end.seq + len(append.events), end.size + len(waiting.lines))
        waiting.outcome = end.size
    return end, lines


@contextmanager
def _told(appends: list[_Waiting]) -> Iterator[None]:
    """Work for these appends: if it fails, each of them that had not failed already has the reason."""
    try:
        yield
    except (JournalError, OSError) as problem:
        for waiting in appends:
            if isinstance(waiting.outcome, int):
                waiting.outcome = _explained(problem, waiting.append.conversation_id)


def _explained(problem: JournalError | OSError, conversation_id: str) -> JournalError:
    if isinstance(problem, OSError):
        return JournalError(f"conversation {conversation_id}: the journal cannot be written: {why(problem)}")
    return problem
