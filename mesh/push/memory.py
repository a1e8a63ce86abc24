"""The store in memory: for tests, and as the reference for what the port means."""

from collections.abc import Callable, Sequence

from mesh.core.errors import StaleEpoch
from mesh.push.webhook import Webhook


class MemoryPushStore:
    """A `PushStore` whose content lives as long as the object. Keepers that share it fence each other."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._webhooks: dict[str, tuple[Webhook, ...]] = {}

    async def open(
        self, shard: int, epoch: int, owns: Callable[[str], bool]
    ) -> dict[str, tuple[Webhook, ...]]:
        if epoch < self._epochs.get(shard, 0):
            raise StaleEpoch(f"shard {shard} was opened again after epoch {epoch}")
        self._epochs[shard] = epoch
        return {i: webhooks for i, webhooks in self._webhooks.items() if owns(i)}

    async def put(self, shard: int, epoch: int, conversation_id: str, webhooks: Sequence[Webhook]) -> None:
        if epoch != self._epochs.get(shard):
            raise StaleEpoch(f"shard {shard} was opened again after epoch {epoch}")
        if webhooks:
            self._webhooks[conversation_id] = tuple(webhooks)
        else:
            self._webhooks.pop(conversation_id, None)

    async def close(self) -> None:
        return None
