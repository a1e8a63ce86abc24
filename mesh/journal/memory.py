"""The store in memory: for tests, and as the simplest statement of what the port means."""

from collections.abc import Mapping, Sequence

from mesh.core.errors import StaleEpoch, WrongSequence
from mesh.core.events import AnyEvent
from mesh.journal.listing import JournalEdges, ListingEntry, entry_at_rest
from mesh.journal.port import Append, check_end, snapshot_name


class MemoryJournal:
    """Lives as long as the object. Two keepers that share it fence one another off as usual."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._journals: dict[str, list[AnyEvent]] = {}
        self._blobs: dict[str, bytes] = {}

    async def open(self, shard: int) -> int:
        self._epochs[shard] = self._epochs.get(shard, 0) + 1
        return self._epochs[shard]

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        self._check(shard, epoch)
        journal = self._journals.get(append.conversation_id, [])
        if len(journal) != append.after:
            raise WrongSequence(
                f"conversation {append.conversation_id} is at {len(journal)}, not {append.after}"
            )
        journal += append.events
        self._journals[append.conversation_id] = journal
        return len(journal)

    async def read(self, conversation_id: str, *, durably: bool = True) -> list[AnyEvent]:
        return list(self._journals.get(conversation_id, ()))

    async def ends(self, conversation_ids: Sequence[str]) -> dict[str, int]:
        return {id: len(self._journals[id]) for id in conversation_ids if id in self._journals}

    async def erase(self, shard: int, epoch: int, conversation_id: str, seq: int) -> None:
        self._check(shard, epoch)
        if last := len(self._journals.get(conversation_id, ())):
            check_end(conversation_id, last, seq)
        self._journals.pop(conversation_id, None)
        self._blobs.pop(snapshot_name(conversation_id), None)

    async def sizes(self) -> dict[str, int]:
        return {conversation_id: len(journal) for conversation_id, journal in self._journals.items()}

    async def entries_at_rest(self, conversation_ids: Sequence[str]) -> dict[str, ListingEntry]:
        found = {id: self._journals[id] for id in conversation_ids if id in self._journals}
        edges = {id: JournalEdges(events[:2], events[-2:]) for id, events in found.items()}
        return {id: entry for id, each in edges.items() if (entry := entry_at_rest(each))}

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs.update(blobs)

    async def get_blob(self, name: str) -> bytes | None:
        return self._blobs.get(name)

    async def close(self) -> None:
        return None

    def _check(self, shard: int, epoch: int) -> None:
        if epoch != self._epochs.get(shard):
            raise StaleEpoch(f"shard {shard} was opened again after epoch {epoch}")
