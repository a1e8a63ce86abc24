"""The port to durable storage: journals of conversations, fenced by epoch, and blobs beside them.

Above: a keeper, which owns a shard of the conversations and is the only writer of their journals. Below:
memory, files or PostgreSQL. A store encodes events and reads their ``seq``; it knows nothing else of
them.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from mesh.core.errors import WrongSequence
from mesh.core.events import AnyEvent
from mesh.journal.listing import ListingEntry


class Append(msgspec.Struct, frozen=True):
    """Events for one conversation, numbered from ``after`` + 1 without gaps. ``entry`` is that of the
    conversation after them, for a store whose listing moves with its journals."""

    conversation_id: str
    after: int
    events: Sequence[AnyEvent]
    entry: ListingEntry | None = None


class Journal(Protocol):
    """A store.

    Promises: when `append` returns, the events survive the loss of every process and of the machine's power.
    A crash before that may leave some of the events, from the first one on. Once `open` returned, no append
    with an older epoch of that shard succeeds, and a read finds all that was appended with one. Damage is
    reported and never removed.

    Does not promise: that an append which raised did not happen in part (read again); an order between the
    appends to two conversations; that blobs are durable, because all of them can be derived again; that
    `sizes` shows one moment.
    """

    async def open(self, shard: int) -> int:
        """Takes the shard over: returns a new epoch, greater than all before, which fences their owners off.
        Waits for their appends under way. Raises `JournalError`."""
        ...

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        """Makes events durable. Returns the journal's size after that, as in `sizes`.

        Raises `StaleEpoch`, `JournalDamaged` or `JournalRefused`, having written nothing; `WrongSequence` if
        the journal is not as the writer believed, or nobody knows whether it is; and another `JournalError`
        if the storage fails, having shown nothing to readers.
        """
        ...

    async def read(self, conversation_id: str, *, durably: bool = True) -> list[AnyEvent]:
        """Returns the whole journal, in order and durable; an empty list if there is none. It waits for the
        appends of this object that were called before, also if their callers were cancelled. Not ``durably``,
        its end may be lost with the machine's power if another process wrote it and died: for a copy, which
        is durable itself. Raises `JournalDamaged`, or another `JournalError` if the storage fails."""
        ...

    async def ends(self, conversation_ids: Sequence[str]) -> dict[str, int]:
        """Returns the number of the last event of each of these conversations that has a journal. Raises
        `JournalError`."""
        ...

    async def erase(self, shard: int, epoch: int, conversation_id: str, seq: int) -> None:
        """Removes a journal whose last event is ``seq``, durably, with the blob of this conversation and what
        the listing of a store has of it; nothing if there is no such journal. It waits for its appends as
        `read` does. Raises `StaleEpoch`, or `WrongSequence` if the journal ends elsewhere, having removed
        nothing; and another `JournalError` if the storage fails, having removed it or not."""
        ...

    async def sizes(self) -> dict[str, int]:
        """Returns the size of each conversation's journal, in a unit that grows with every append."""
        ...

    async def entries_at_rest(self, conversation_ids: Sequence[str]) -> dict[str, ListingEntry]:
        """Returns the entry of each of these conversations in which nothing is under way, as far as how its
        journal begins and ends says it, for a listing that is derived from the journals. They need not be
        durable yet. Raises `JournalError`."""
        ...

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Replaces each named blob atomically."""
        ...

    async def get_blob(self, name: str) -> bytes | None:
        """Returns a blob as it was put last, or None if there is none."""
        ...

    async def close(self) -> None:
        """Ends what runs in the background. What was acknowledged is durable already."""
        ...


def snapshot_name(conversation_id: str) -> str:
    """The name of the blob that shows a conversation as REST does."""
    return f"conversation_{conversation_id}.json"


def check_end(conversation_id: str, last: int, seq: int) -> None:
    """Raises `WrongSequence` if the last event of a journal that is to be erased is another one than was
    seen."""
    if last != seq:
        raise WrongSequence(f"conversation {conversation_id} is at event {last}, not {seq}: it is not erased")
