"""The store in memory: for tests, and as the simplest statement of what the port means."""

import secrets

from mesh.config.kept_versions import MemoryVersions
from mesh.journal.listing import Listing
from mesh.journal.memory import MemoryJournal
from mesh.journal.shards import Shards
from mesh.journal.shards_in_memory import MemoryShards
from mesh.policy.book import MemoryGrantBook
from mesh.push.memory import MemoryPushStore


class MemoryStore:
    """A `Store` that lives as long as the object."""

    def __init__(self, shards: int = 1) -> None:
        self.name = "memory"
        self.shards: Shards = MemoryShards(shards)
        self.journal = MemoryJournal()
        self.push = MemoryPushStore()
        self.grants = MemoryGrantBook()
        self.versions = MemoryVersions()
        self._secret = secrets.token_bytes(32)

    def listing(self, shard: int | None = None) -> Listing | None:
        return None

    async def secret(self) -> bytes:
        return self._secret

    async def replace_secret(self, secret: bytes) -> None:
        self._secret = secret

    async def close(self) -> None:
        await self.journal.close()
        await self.push.close()
