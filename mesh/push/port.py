"""The ports of push notifications: where webhooks are stored, and who writes the notifications.

Above: a keeper, which is the only writer of its conversations' webhooks. Below: a store in memory or in
files. Webhooks are stored beside the journals and not in them, because they hold secrets; they are fenced in
the same way. The notifications are in the words of A2A, which this room does not know: whoever creates a
keeper passes a `Renderer`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from mesh.core.events import AnyEvent
from mesh.push.webhook import A2aVersion, Webhook


class EventNotifications(msgspec.Struct, frozen=True):
    """The notifications about one event: ``bodies`` in order, at least one. ``time`` is the event's."""

    seq: int
    time: str
    bodies: Sequence[bytes]


class Renderer(Protocol):
    """Writes the notifications about a conversation's events."""

    def __call__(
        self, events: Iterable[AnyEvent], after: int, version: A2aVersion
    ) -> Iterator[EventNotifications]:
        """Yields the notifications about each event after number ``after`` that has any, in order.

        ``events`` begin with the conversation. The same events give the same notifications every time, so
        that delivery can go on in the middle of them. Called in a worker thread; may take long.
        """
        ...


class PushStore(Protocol):
    """A store for webhooks.

    Promises: when `put` returns, what it stored survives the loss of every process and of the machine's
    power. A `put` that failed left the old webhooks or stored the new ones. Of two for one conversation, the
    one that was called later counts. Once `open` returned, no `put` with an older epoch of that shard
    succeeds.

    Does not promise that the conversation of a stored webhook exists.
    """

    async def open(
        self, shard: int, epoch: int, owns: Callable[[str], bool]
    ) -> dict[str, tuple[Webhook, ...]]:
        """Takes over the shard with the epoch that its journal gave. Returns the webhooks of every
        conversation that the shard ``owns``, by conversation id. Raises `StaleEpoch` if the shard was opened
        with a newer epoch."""
        ...

    async def put(self, shard: int, epoch: int, conversation_id: str, webhooks: Sequence[Webhook]) -> None:
        """Replaces all webhooks of the conversation. Raises `StaleEpoch`, and then nothing was written, or
        another `JournalError` with the reason."""
        ...

    async def close(self) -> None:
        """Ends background work."""
        ...
