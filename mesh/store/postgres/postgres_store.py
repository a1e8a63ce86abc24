"""The store in PostgreSQL, that of one agent."""

from mesh.journal.listing import Listing
from mesh.store.postgres.agent_rows import AgentRow
from mesh.store.postgres.database import Database
from mesh.store.postgres.event_rows import PostgresJournal
from mesh.store.postgres.grant_rows import PostgresGrantBook
from mesh.store.postgres.listing_rows import PostgresListing
from mesh.store.postgres.shard_rows import PostgresShards
from mesh.store.postgres.version_rows import PostgresVersions
from mesh.store.postgres.webhook_rows import PostgresPushStore


class PostgresStore:
    """A `Store` in a database. Any number of processes may use it, and agents of different names share a
    namespace."""

    def __init__(self, url: str, namespace: str, agent: str, shards: int) -> None:
        self._database = Database(url, namespace)
        # Of its own: what shows conversations does not keep appends waiting.
        self._appends = Database(url, namespace, connections=1)
        self._agent = AgentRow(self._database, agent, shards)
        self.name = f"{self._database.shown}, schema {namespace}"
        self.journal = PostgresJournal(self._database, self._appends, self._agent)
        self.push = PostgresPushStore(self._database, self._agent)
        self.grants = PostgresGrantBook(self._database, self._agent)
        self.shards = PostgresShards(Database(url, namespace, connections=1), self._agent)
        self.versions = PostgresVersions(self._database, self._agent)

    def listing(self, shard: int | None = None) -> Listing | None:
        return PostgresListing(self._database, self._agent, shard)

    async def secret(self) -> bytes:
        return (await self._agent.get()).secret

    async def replace_secret(self, secret: bytes) -> None:
        await self._agent.replace_secret(secret)

    async def close(self) -> None:
        await self.journal.close()
        await self.push.close()
        await self.shards.close()
        await self._appends.close()
        await self._database.close()
