"""The versions of an agent in the database."""

from collections.abc import Mapping

from mesh.config.files import FileText
from mesh.config.kept_versions import KeptVersion, files_in, json_of, origin_of, unknown_version
from mesh.store.postgres.agent_rows import AgentRow
from mesh.store.postgres.database import Database

_KEEP = """
    insert into {schema}.version values (%s, %s, %s, %s)
    on conflict (agent, digest) do update set source = excluded.source, files = excluded.files
"""
_FIND = "select source, files from {schema}.version where agent = %s and digest = %s"


class PostgresVersions:
    """`Versions`."""

    def __init__(self, database: Database, agent: AgentRow) -> None:
        self._database = database
        self._agent = agent

    async def keep(self, digest: str, source: str, files: Mapping[str, FileText]) -> None:
        agent = await self._agent.get()
        await self._database.rows(_KEEP, agent.id, digest, source, json_of(files))

    async def kept(self, digest: str) -> KeptVersion:
        agent = await self._agent.get()
        rows = await self._database.rows(_FIND, agent.id, digest)
        if not rows:
            raise unknown_version(digest, self._agent.name)
        ((source, files),) = rows
        return KeptVersion(str(source), origin_of(digest), files_in(str(files)))
