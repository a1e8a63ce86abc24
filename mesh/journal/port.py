"""The port to durable storage: journals of conversations, fenced by epoch, and blobs beside them.

Above: a keeper, which owns a shard of the conversations and is the only writer of their journals.
Below: memory, or files; later PostgreSQL. A store knows events only as things with a ``seq`` that
can be encoded: it never looks inside one.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from mesh.core.events import AnyEvent


class Append(msgspec.Struct, frozen=True):
    """Events for one conversation, numbered from ``after`` + 1 without a gap."""

    conversation_id: str
    after: int
    events: Sequence[AnyEvent]


class Journal(Protocol):
    """A store.

    Promises: when `append` returns, the events survive the loss of every process and of the
    machine's power; they are all there or (torn by a crash before the return) none after the last
    whole one; once `open` returned, no append with an older epoch of that shard succeeds, and a read
    finds all that was appended with one. Damage is reported and never removed.

    Does not promise: that an append which raised did not happen in part (read again), that two
    conversations' appends are ordered, that blobs are durable (they can all be derived again),
    that `sizes` is a snapshot of one moment.
    """

    async def open(self, shard: int) -> int:
        """Takes the shard over: a new epoch, greater than all before, which fences the others. Waits for
        their appends under way. Raises `JournalError`."""
        ...

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        """Makes events durable; the journal's size after that, as in `sizes`.

        Raises `StaleEpoch`, `WrongSequence` or `JournalDamaged`, having written nothing; another
        `JournalError` when the storage fails.
        """
        ...

    async def read(self, conversation_id: str) -> list[AnyEvent]:
        """The whole journal, in order and durable; empty if there is none. Raises `JournalDamaged`, or
        another `JournalError` when the storage fails."""
        ...

    async def sizes(self) -> dict[str, int]:
        """The size of each conversation's journal, in a unit that grows with every append."""
        ...

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Replaces each named blob atomically."""
        ...

    async def get_blob(self, name: str) -> bytes | None:
        """A blob as it was put last, None if there is none."""
        ...

    async def close(self) -> None:
        """Ends what runs in the background. What was acknowledged is there already."""
        ...
