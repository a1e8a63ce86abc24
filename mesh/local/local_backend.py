"""`Backend` over keepers in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from mesh.config.kept_versions import Versions
from mesh.core.ids import shard_of
from mesh.core.mesh_state import MeshPart, Rollout
from mesh.keeper.keeper import Keeper
from mesh.keeper.replies import Reply, WatchedEvents, WatchReply, raise_for_refusal
from mesh.keeper.requests import Follow, FollowAgents, Request, RequestFor, Watch
from mesh.mcp.port import Catalogue
from mesh.metrics.meters import Series
from mesh.metrics.of_events import waiting_since
from mesh.policy.book import GrantBook

R = TypeVar("R")


class LocalBackend:
    """Asks ``keepers``, one of each shard. What is asked of them travels as it does between processes, so
    that nobody gets an object that a keeper goes on with. ``catalogues`` returns the present tools of the
    agent's servers."""

    def __init__(
        self,
        keepers: Sequence[Keeper],
        catalogues: Callable[[], Awaitable[Sequence[Catalogue]]],
        grant_book: GrantBook,
        versions: Versions,
    ) -> None:
        self._keepers = keepers
        self._catalogues = catalogues
        self.grant_book = grant_book
        self.versions = versions

    @property
    def shards(self) -> int:
        return len(self._keepers)

    async def ask(self, owner: str, request: RequestFor[R]) -> R:
        return await self._ask(self._keeper(owner), request)

    async def ask_all(self, request: RequestFor[R]) -> list[R]:
        return await asyncio.gather(*(self._ask(keeper, request) for keeper in self._keepers))

    async def ask_reachable(self, request: RequestFor[R]) -> tuple[list[R], bool]:
        return await self.ask_all(request), True  # they are here

    async def watch(self, request: Watch) -> WatchedEvents:
        reply = await self._keeper(request.id).watch(travelled(request, Watch))
        seen: WatchedEvents = raise_for_refusal(travelled(reply, WatchReply))
        return seen

    async def follow(self, shard: int, request: RequestFor[R]) -> R:
        reply = await self._keepers[shard].follow(cast(Follow | FollowAgents, request))
        return cast(R, raise_for_refusal(travelled(reply, type(reply))))

    async def metrics(self) -> dict[str, list[Series]]:
        # The keepers of a process may share their meters.
        meters = {id(keeper.meters): keeper.meters for keeper in self._keepers}
        measured = [each for found in meters.values() for each in found.series()]
        return {
            "local": [*measured, *waiting_since([await keeper.waiting_since() for keeper in self._keepers])]
        }

    async def tools(self) -> list[dict[str, Any]]:
        return [
            tool.shown()
            for catalogue in await self._catalogues()
            for tool in catalogue.tools
            if not tool.is_check
        ]

    async def parts(self) -> list[MeshPart]:
        """The keepers alone: who asks is in their process, and whoever needs a tool waits for it."""
        return [MeshPart(kind="keeper", name="local", answers=True, shards=self.shards)]

    async def rollout(self) -> Rollout | None:
        """None: it is built anew for another version."""
        return None

    async def _ask(self, keeper: Keeper, request: RequestFor[R]) -> R:
        asked: Awaitable[Reply] = keeper.handle(travelled(request, Request))
        return cast(R, raise_for_refusal(travelled(await asked, Reply)))

    def _keeper(self, owner: str) -> Keeper:
        return self._keepers[shard_of(owner, len(self._keepers))]


def travelled(message: Any, kind: Any) -> Any:
    """A message as it arrives in another process."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind)
