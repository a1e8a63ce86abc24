"""The port to where webhooks are kept: beside the journals, because they hold secrets, and fenced like them.

Above: a keeper, which is the only writer of its conversations' webhooks. Below: memory, or files.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from mesh.push.webhook import Webhook


class PushStore(Protocol):
    """A store.

    Promises: when `put` returns, what it put survives the loss of every process and of the machine's power;
    one that failed left all as it was or as it was to be; of two for one conversation, the one that was
    called later counts. Once `open` returned, no `put` with an older epoch of that shard succeeds.

    Does not promise: that a conversation of which there are webhooks exists.
    """

    async def open(
        self, shard: int, epoch: int, owns: Callable[[str], bool]
    ) -> dict[str, tuple[Webhook, ...]]:
        """Takes the shard over, with the epoch that its journal gave: the webhooks of each conversation that
        it ``owns``. Raises `StaleEpoch` when another one did since."""
        ...

    async def put(self, shard: int, epoch: int, conversation_id: str, webhooks: Sequence[Webhook]) -> None:
        """Makes these, and no others, the webhooks of a conversation. Raises `JournalError`: `StaleEpoch`
        having written nothing, or what the disk said."""
        ...

    async def close(self) -> None:
        """Ends what runs in the background."""
        ...
