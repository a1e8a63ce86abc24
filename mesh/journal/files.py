"""The store in files: one journal a conversation, one JSON object a line.

    data_dir/conversation_{id}.jsonl    the journal
    data_dir/conversation_{id}.json     and other blobs
    data_dir/shard_{n}.epoch            the fence (`mesh.disk.fence`)

One thread makes every write. It takes all appends that are waiting and groups them by shard; behind the fence
of the shard it writes them, makes each journal durable once, and only then lets a successor pass. So `open`
waits for the writes under way, and no writer of an older epoch can follow. What a journal contains, and what
happens when the disk fails, is the business of `JournalFiles`.

Works on a filesystem of one machine, or on a shared one with ``flock`` (see `mesh.disk.lock`).
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from mesh.core.errors import JournalError, WrongSequence
from mesh.core.events import AnyEvent, encode
from mesh.disk.atomic import reason, replace
from mesh.disk.fence import Fences
from mesh.journal.append_queue import AppendQueue, QueuedAppend
from mesh.journal.listing import ListingEntry, entry_at_rest
from mesh.journal.on_disk import JournalEnd, JournalFiles
from mesh.journal.port import Append, check_end

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class _WaitingAppend(QueuedAppend):
    """An append that waits for the thread."""

    shard: int
    epoch: int
    append: Append
    lines: bytes


class FileJournal:
    """See the module. One object in a process; any number of processes on one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files = JournalFiles(folder)
        self._fences = Fences(folder)
        self._queue: AppendQueue[_WaitingAppend] = AppendQueue(self._write)
        self._thread = ThreadPoolExecutor(1, "journal")

    async def open(self, shard: int) -> int:
        try:
            return await self._run(lambda: self._raise_epoch(shard))
        except OSError as problem:
            raise JournalError(
                f"shard {shard} cannot be opened in {self._folder}: {reason(problem)}"
            ) from None

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        lines = b"".join(encode(event) + b"\n" for event in append.events)
        return await self._queue.put(
            _WaitingAppend(key=append.conversation_id, shard=shard, epoch=epoch, append=append, lines=lines)
        )

    async def read(self, conversation_id: str, *, durably: bool = True) -> list[AnyEvent]:
        await self._queue.settled(conversation_id)
        try:
            return await self._run(lambda: self._files.read(conversation_id, durably=durably))
        except OSError as problem:
            raise JournalError(
                f"conversation {conversation_id}: its journal cannot be read: {reason(problem)}"
            ) from None

    async def ends(self, conversation_ids: Sequence[str]) -> dict[str, int]:
        found = {id: await self.read(id) for id in conversation_ids}
        return {id: events[-1].seq for id, events in found.items() if events}

    async def erase(self, shard: int, epoch: int, conversation_id: str, seq: int) -> None:
        await self._queue.settled(conversation_id)
        try:
            await self._run(lambda: self._erase(shard, epoch, conversation_id, seq))
        except OSError as problem:
            raise JournalError(
                f"conversation {conversation_id} cannot be removed: {reason(problem)}"
            ) from None

    async def sizes(self) -> dict[str, int]:
        return await asyncio.to_thread(self._files.sizes)

    async def entries_at_rest(self, conversation_ids: Sequence[str]) -> dict[str, ListingEntry]:
        return await self._run(lambda: self._entries_at_rest(conversation_ids))

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        await asyncio.to_thread(self._replace_all, blobs)

    async def get_blob(self, name: str) -> bytes | None:
        path = self._folder / name
        return await asyncio.to_thread(lambda: path.read_bytes() if path.exists() else None)

    async def close(self) -> None:
        await self._queue.close()
        await self._run(self._close_files)
        self._thread.shutdown()

    def _entries_at_rest(self, conversation_ids: Sequence[str]) -> dict[str, ListingEntry]:
        entries: dict[str, ListingEntry] = {}
        for id in conversation_ids:
            edges = self._files.edges(id)
            if edges is not None and (entry := entry_at_rest(edges)) is not None:
                entries[id] = entry
        return entries

    async def _run(self, work: Callable[[], T]) -> T:
        """Runs work on journals in the one thread, so that none of it needs a lock in this process."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _write(self, batch: Sequence[_WaitingAppend]) -> None:
        await self._run(lambda: self._write_batch(batch))

    def _write_batch(self, batch: Sequence[_WaitingAppend]) -> None:
        for (shard, epoch), of_shard in _group(batch, lambda one: (one.shard, one.epoch)).items():
            with _reporting_to(of_shard), self._fences.writing(shard, epoch):
                self._write_durably(shard, of_shard)
        self._files.trim()

    def _write_durably(self, shard: int, batch: list[_WaitingAppend]) -> None:
        """Writes to all journals, then makes each of them durable once, so that the disk may sync one while
        others are written.

        Invariant: the caller stays behind the fence until this returns, so that a successor finds all that is
        acknowledged.
        """
        journals = _group(batch, lambda one: one.append.conversation_id)
        ends: dict[str, JournalEnd] = {}
        for conversation_id, appends in journals.items():
            with _reporting_to(appends):
                end, lines = _accept(self._files.tail(shard, conversation_id), appends)
                if lines:
                    self._files.write(shard, conversation_id, lines)
                    ends[conversation_id] = end
        for conversation_id, end in ends.items():
            with _reporting_to(journals[conversation_id]):
                self._files.sync(shard, conversation_id, end)

    def _replace_all(self, blobs: Mapping[str, bytes]) -> None:
        """A blob that cannot be replaced does not keep the others from it; the first error is raised in the
        end."""
        problems: list[OSError] = []
        for name, content in blobs.items():
            try:
                replace(self._folder / name, content, synced=False)
                self._files.drop_orphan(name)
            except OSError as problem:
                problems.append(problem)
        if problems:
            raise problems[0]

    def _erase(self, shard: int, epoch: int, conversation_id: str, seq: int) -> None:
        with self._fences.writing(shard, epoch):
            if last := self._files.tail(shard, conversation_id).seq:
                check_end(conversation_id, last, seq)
            self._files.erase(conversation_id)

    def _raise_epoch(self, shard: int) -> int:
        epoch = self._fences.raise_epoch(shard)
        self._files.forget(shard)  # the process that had the shard may have written since
        return epoch

    def _close_files(self) -> None:
        self._files.close()
        self._fences.close()


def _group(
    batch: Iterable[_WaitingAppend], key: Callable[[_WaitingAppend], K]
) -> dict[K, list[_WaitingAppend]]:
    groups: dict[K, list[_WaitingAppend]] = {}
    for waiting in batch:
        groups.setdefault(key(waiting), []).append(waiting)
    return groups


def _accept(tail: JournalEnd, appends: Iterable[_WaitingAppend]) -> tuple[JournalEnd, bytes]:
    """Decides which of these appends follow the last event of the journal. Returns where the journal ends
    after them, and the lines to write; gives every append its outcome."""
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
        end = JournalEnd(end.seq + len(append.events), end.size + len(waiting.lines))
        waiting.outcome = end.size
    return end, lines


@contextmanager
def _reporting_to(appends: list[_WaitingAppend]) -> Iterator[None]:
    """Around work for these appends: if it fails, each that has not failed already gets the reason."""
    try:
        yield
    except (JournalError, OSError) as problem:
        for waiting in appends:
            if isinstance(waiting.outcome, int):
                waiting.outcome = _explain(problem, waiting.append.conversation_id)


def _explain(problem: JournalError | OSError, conversation_id: str) -> JournalError:
    if isinstance(problem, OSError):
        return JournalError(
            f"conversation {conversation_id}: the journal cannot be written: {reason(problem)}"
        )
    return problem
