"""The webhooks of a shard: all in memory, each change in the store."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from mesh.core.errors import StaleEpoch
from mesh.push.port import PushStore
from mesh.push.webhook import Webhook


class Place(NamedTuple):
    """Where a webhook is found."""

    conversation_id: str
    id: str


class Webhooks:
    """`open` before anything else. ``on_fenced``: another keeper owns the shard."""

    def __init__(self, shard: int, store: PushStore, on_fenced: Callable[[], None]) -> None:
        self._shard = shard
        self._store = store
        self._on_fenced = on_fenced
        self._epoch = 0
        self._all: dict[str, dict[str, Webhook]] = {}

    def __contains__(self, conversation_id: str) -> bool:
        return conversation_id in self._all

    def __iter__(self) -> Iterator[str]:
        """The conversations that have any, those that got their first one longest ago first."""
        return iter(self._all)

    def __len__(self) -> int:
        return sum(map(len, self._all.values()))

    async def open(self, epoch: int, owns: Callable[[str], bool]) -> None:
        """Takes the shard's over. Raises `StaleEpoch`."""
        self._epoch = epoch
        found = await self._store.open(self._shard, epoch, owns)
        self._all = {i: {each.id: each for each in webhooks} for i, webhooks in found.items()}

    def of(self, conversation_id: str) -> list[Webhook]:
        """A conversation's, in the order in which they were set."""
        return list(self._all.get(conversation_id, {}).values())

    def get(self, place: Place) -> Webhook | None:
        """One of them."""
        return self._all.get(place.conversation_id, {}).get(place.id)

    async def put(self, conversation_id: str, webhook: Webhook) -> None:
        """Sets one; as if nothing had been asked if it raises, `JournalError`."""
        place = Place(conversation_id, webhook.id)
        before = self.get(place)
        self._note(place, webhook)
        try:
            await self._save(conversation_id)
        except Exception:
            self._note(place, before)
            raise

    async def remove(self, place: Place) -> None:
        """Removes one, if it is there; as if nothing had been asked if it raises, `JournalError`."""
        before = self.get(place)
        self._note(place, None)
        try:
            await self._save(place.conversation_id)
        except Exception:
            self._note(place, before)
            raise

    async def drop(self, conversation_id: str) -> None:
        """Removes all of a conversation's."""
        self._all.pop(conversation_id, None)
        await self._save(conversation_id)

    async def advance(self, place: Place, seq: int, parts: int) -> None:
        """Notes how far one was told. Raises `JournalError`: then it is noted in memory only."""
        webhook = self.get(place)
        if webhook is not None:
            self._note(place, msgspec.structs.replace(webhook, seq=seq, parts=parts))
            await self._save(place.conversation_id)

    def _note(self, place: Place, webhook: Webhook | None) -> None:
        mine = self._all.setdefault(place.conversation_id, {})
        if webhook is not None:
            mine[place.id] = webhook
        else:
            mine.pop(place.id, None)
        if not mine:
            del self._all[place.conversation_id]

    async def _save(self, conversation_id: str) -> None:
        try:
            await self._store.put(self._shard, self._epoch, conversation_id, self.of(conversation_id))
        except StaleEpoch:
            self._on_fenced()
            raise
