"""Which keeper host has which shard, in the database, whose clock says when a lease is over."""

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import msgspec

from mesh.journal.shards import LEASE_S, STEADY_GAP, HostRecord, ShardClaim, ShardMap
from mesh.store.postgres.agent_rows import AgentRow
from mesh.store.postgres.database import Database

_RENEW = "select {schema}.renew_1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_MAP = "select {schema}.map_1(%s, '', %s)"
_CLAIM = "select {schema}.claim_1(%s, %s, %s::int[], %s::text[])"
_RELEASE = "select {schema}.release_1(%s, %s)"
_BEGIN = """
    update {schema}.agent set generation = generation + 1, generation_digest = %s
    where id = %s returning generation
"""
_NEWEST = "select generation, generation_digest from {schema}.agent where id = %s"
_LEASE = timedelta(seconds=LEASE_S)
_GAP = timedelta(seconds=LEASE_S * STEADY_GAP)
_WITHIN_S = 5.0
"""Of one statement: a host has to know soon whether it could renew."""


class PostgresShards:
    """`Shards` in the database. ``leases`` has connections of its own: nothing keeps a renewal waiting."""

    def __init__(self, leases: Database, agent: AgentRow) -> None:
        self.lease_s = LEASE_S
        self._leases = leases
        self._agent = agent

    async def renew(self, host: HostRecord) -> ShardMap:
        record = (host.id, host.name, host.generation, host.address, host.port, host.secret, host.is_leaving)
        return await self._map(_RENEW, *record, _LEASE, _GAP)

    async def map(self) -> ShardMap:
        return await self._map(_MAP, _LEASE)

    async def claim(self, claims: Sequence[ShardClaim], host: str) -> list[int]:
        # In the order of the numbers, so that two statements cannot wait for each other.
        ordered = sorted(claims)
        numbers, hosts = [claim.shard for claim in ordered], [claim.of for claim in ordered]
        rows = await self._rows(_CLAIM, host, numbers, hosts)
        return [cast(int, number) for (number,) in rows]

    async def release(self, host: str) -> None:
        await self._rows(_RELEASE, host)

    async def begin_generation(self, digest: str) -> int:
        agent = await self._agent.get()
        ((generation,),) = await self._leases.rows(_BEGIN, digest, agent.id, within_s=_WITHIN_S)
        return cast(int, generation)

    async def newest_generation(self) -> tuple[int, str]:
        ((generation, digest),) = await self._rows(_NEWEST)
        return cast(int, generation), cast(str, digest)

    async def close(self) -> None:
        await self._leases.close()

    async def _map(self, statement: str, *parameters: object) -> ShardMap:
        ((found,),) = await self._rows(statement, *parameters)
        return msgspec.json.decode(cast(str, found), type=ShardMap)

    async def _rows(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        agent = await self._agent.get()
        return await self._leases.rows(statement, agent.id, *parameters, within_s=_WITHIN_S)
