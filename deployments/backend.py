"""The keepers as actors, as the HTTP face sees them."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar, cast

from deployments import addresses
from deployments.blueprint import Blueprint
from deployments.tool_session import RemoteSession
from mesh.keeper.replies import FollowedEvents, WatchedEvents, raise_for_refusal
from mesh.keeper.requests import Follow, Request, RequestFor, Watch

R = TypeVar("R")
_PROBE_S = 2.0
"""How long `RayBackend.unready` waits for each actor: a few seconds are what load balancers wait."""


class RayBackend:
    """`Backend` by calls to actors."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._keepers = [addresses.keeper_stub(blueprint, shard) for shard in range(blueprint.keepers)]
        self._sessions = [
            RemoteSession(blueprint, server.name, server.start_timeout_s)
            for server in blueprint.config().servers
        ]

    async def ask(self, owner: str, request: RequestFor[R]) -> R:
        return await self._ask(self._blueprint.shard_of(owner), request)

    async def ask_all(self, request: RequestFor[R]) -> list[R]:
        return await asyncio.gather(*(self._ask(shard, request) for shard in range(self.shards)))

    async def watch(self, request: Watch) -> WatchedEvents:
        return raise_for_refusal(await self._keepers[self._blueprint.shard_of(request.id)].watch(request))

    async def follow(self, shard: int, request: Follow) -> FollowedEvents:
        return await self._keepers[shard].follow(request)

    @property
    def shards(self) -> int:
        return self._blueprint.keepers

    async def tools(self) -> list[dict[str, Any]]:
        catalogues = await asyncio.gather(*(session.catalogue() for session in self._sessions))
        return [tool.shown() for catalogue in catalogues for tool in catalogue.tools]

    async def unready(self) -> list[str]:
        blueprint = self._blueprint
        probes: dict[str, Awaitable[Any]] = {
            **{
                f"keeper {shard}": addresses.keeper(blueprint, shard).ready.remote()
                for shard in range(blueprint.keepers)
            },
            **{
                f"node {path} {placement.name}/{replica}": addresses.node(
                    blueprint, path, replica
                ).ready.remote()
                for path, placement in blueprint.nodes.items()
                for replica in range(placement.replicas)
            },
            **{f"mcp {session.server}": session.catalogue() for session in self._sessions},
        }
        answers = await asyncio.gather(
            *(asyncio.wait_for(probe, _PROBE_S) for probe in probes.values()), return_exceptions=True
        )
        return [name for name, found in zip(probes, answers, strict=True) if isinstance(found, BaseException)]

    async def _ask(self, shard: int, request: RequestFor[R]) -> R:
        reply = raise_for_refusal(await self._keepers[shard].ask(cast(Request, request)))
        return cast(R, reply)
