"""The webhooks of a shard: all of them in memory, and every change in the store."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from mesh.core.errors import StaleEpoch
from mesh.push.port import PushStore
from mesh.push.webhook import Webhook


class WebhookKey(NamedTuple):
    """What identifies a webhook of a shard."""

    conversation_id: str
    webhook_id: str


class WebhookRegistry:
    """The webhooks by conversation. Call `open` first. ``on_fenced`` is called when a write shows that
    another keeper owns the shard."""

    def __init__(self, shard: int, store: PushStore, on_fenced: Callable[[], None]) -> None:
        self._shard = shard
        self._store = store
        self._on_fenced = on_fenced
        self._epoch = 0
        self._webhooks: dict[str, dict[str, Webhook]] = {}

    def __contains__(self, conversation_id: str) -> bool:
        return conversation_id in self._webhooks

    def __iter__(self) -> Iterator[str]:
        """Yields the ids of the conversations with webhooks, in the order in which they got their first."""
        return iter(self._webhooks)

    def __len__(self) -> int:
        """Returns the number of webhooks."""
        return sum(map(len, self._webhooks.values()))

    async def open(self, epoch: int, owns: Callable[[str], bool]) -> None:
        """Takes over the shard and loads its webhooks. Raises `StaleEpoch`."""
        self._epoch = epoch
        found = await self._store.open(self._shard, epoch, owns)
        self._webhooks = {i: {each.id: each for each in webhooks} for i, webhooks in found.items()}

    def of(self, conversation_id: str) -> list[Webhook]:
        """Returns the webhooks of a conversation in the order in which they were set."""
        return list(self._webhooks.get(conversation_id, {}).values())

    def get(self, key: WebhookKey) -> Webhook | None:
        """Returns one webhook, or None if there is no such one."""
        return self._webhooks.get(key.conversation_id, {}).get(key.webhook_id)

    async def put(self, conversation_id: str, webhook: Webhook) -> None:
        """Adds or replaces a webhook. Raises `JournalError`, and then nothing has changed."""
        await self._change(WebhookKey(conversation_id, webhook.id), webhook)

    async def remove(self, key: WebhookKey) -> None:
        """Removes a webhook if it is there. Raises `JournalError`, and then nothing has changed."""
        await self._change(key, None)

    async def drop(self, conversation_id: str) -> None:
        """Removes all webhooks of a conversation."""
        self._webhooks.pop(conversation_id, None)
        await self._save(conversation_id)

    async def advance(self, key: WebhookKey, seq: int, parts: int) -> None:
        """Notes the progress of delivery. Raises `JournalError`, and then it is noted in memory only."""
        webhook = self.get(key)
        if webhook is not None:
            self._replace(key, msgspec.structs.replace(webhook, seq=seq, parts=parts))
            await self._save(key.conversation_id)

    def set_back(self, key: WebhookKey, seq: int) -> None:
        """Has delivery go on after event ``seq``. It is stored with the progress that follows."""
        webhook = self.get(key)
        if webhook is not None:
            self._replace(key, msgspec.structs.replace(webhook, seq=seq, parts=0))

    async def _change(self, key: WebhookKey, webhook: Webhook | None) -> None:
        # Memory first: the store is given the whole list of the conversation, and two changes that wait for
        # the store at the same time must not undo each other.
        before = self.get(key)
        self._replace(key, webhook)
        try:
            await self._save(key.conversation_id)
        except Exception:
            self._replace(key, before)
            raise

    def _replace(self, key: WebhookKey, webhook: Webhook | None) -> None:
        webhooks = self._webhooks.setdefault(key.conversation_id, {})
        if webhook is not None:
            webhooks[key.webhook_id] = webhook
        else:
            webhooks.pop(key.webhook_id, None)
        if not webhooks:
            del self._webhooks[key.conversation_id]

    async def _save(self, conversation_id: str) -> None:
        try:
            await self._store.put(self._shard, self._epoch, conversation_id, self.of(conversation_id))
        except StaleEpoch:
            self._on_fenced()
            raise
