"""The keepers as actors, as the HTTP face sees them."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

from deployments import actors
from deployments.blueprint import Blueprint
from deployments.line import Gone
from deployments.mcp_session import RemoteSession
from mesh.core.errors import Unavailable
from mesh.keeper.requests import Follow, Reply, Request, Seen, Watch, pack, unpack_reply, unpack_seen

_PATIENCE_S = 60.0
_PROBE_S = 2.0


class RayBackend:
    """`Backend` by calls to actors."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._keepers = [
            actors.line_to(partial(actors.keeper, blueprint, k)) for k in range(blueprint.keepers)
        ]
        self._sessions = [
            RemoteSession(blueprint, server.name, server.start_timeout_s)
            for server in blueprint.config().servers
        ]

    async def ask(self, owner: str, request: Request) -> Reply:
        return await self._ask(self._blueprint.shard_of(owner), pack(request))

    async def ask_all(self, request: Request) -> list[Reply]:
        packed = pack(request)
        return await asyncio.gather(*(self._ask(shard, packed) for shard in range(self._blueprint.keepers)))

    async def watch(self, request: Watch) -> Seen:
        shard = self._blueprint.shard_of(request.id)
        return unpack_seen(await self._call(shard, "watch", pack(request), call_off=True))

    async def follow(self, shard: int, request: Follow) -> Seen:
        return unpack_seen(await self._call(shard, "follow", pack(request), call_off=True))

    @property
    def shards(self) -> int:
        return self._blueprint.keepers

    async def tools(self) -> list[dict[str, Any]]:
        catalogues = await asyncio.gather(*(session.catalogue() for session in self._sessions))
        return [tool.shown() for catalogue in catalogues for tool in catalogue.tools]

    async def unready(self) -> list[str]:
        blueprint = self._blueprint
        probes: dict[str, Awaitable[Any]] = {
            **{f"keeper {i}": actors.keeper(blueprint, i).ready.remote() for i in range(blueprint.keepers)},
            **{
                f"node {path} {placement.name}/{i}": actors.node(blueprint, path, i).ready.remote()
                for path, placement in blueprint.nodes.items()
                for i in range(placement.replicas)
            },
            **{f"mcp {s.server}": s.catalogue() for s in self._sessions},
        }
        answers = await asyncio.gather(
            *(asyncio.wait_for(probe, _PROBE_S) for probe in probes.values()), return_exceptions=True
        )
        return [name for name, found in zip(probes, answers, strict=True) if isinstance(found, BaseException)]

    async def _ask(self, shard: int, packed: bytes) -> Reply:
        """Every request is idempotent by its key, so it is sent again to a keeper that comes back."""
        return unpack_reply(await self._call(shard, "ask", packed))

    async def _call(self, shard: int, method: str, packed: bytes, *, call_off: bool = False) -> bytes:
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            try:
                return await self._keepers[shard].call(method, packed, call_off=call_off)
            except Gone:
                if asyncio.get_running_loop().time() > deadline:
                    raise Unavailable(f"keeper {shard} does not answer; try again", 5) from None
                await asyncio.sleep(0.2)
