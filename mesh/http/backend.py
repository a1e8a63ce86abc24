"""The port from the gateway to the keepers, and its bound: how many requests are under way at once."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from mesh.config.kept_versions import Versions
from mesh.core.errors import Unavailable
from mesh.core.mesh_state import MeshPart, Rollout
from mesh.keeper.replies import WatchedEvents
from mesh.keeper.requests import RequestFor, Watch
from mesh.metrics.meters import Series
from mesh.policy.book import GrantBook

R = TypeVar("R")


class Backend(Protocol):
    """The keepers and what they need, wherever they run.

    Every question raises the error that a keeper's refusal stands for, and `Unavailable` when the keeper
    does not answer. Does not promise that a request that ended in `Unavailable` had no effect: it may be sent
    again under its idempotency key.
    """

    async def ask(self, owner: str, request: RequestFor[R]) -> R:
        """Asks the keeper that owns this id."""
        ...

    async def ask_all(self, request: RequestFor[R]) -> list[R]:
        """Asks every keeper."""
        ...

    async def ask_reachable(self, request: RequestFor[R]) -> tuple[list[R], bool]:
        """As `ask_all`, but waits only a few seconds for keepers that are away while others answer. Says
        whether all have answered."""
        ...

    async def watch(self, request: Watch) -> WatchedEvents:
        """Asks the keeper of a conversation for new events."""
        ...

    async def follow(self, shard: int, request: RequestFor[R]) -> R:
        """Asks a keeper for what is new in any of its conversations: a `Follow` or `FollowAgents`."""
        ...

    @property
    def shards(self) -> int:
        """How many keepers there are."""
        ...

    @property
    def grant_book(self) -> GrantBook:
        """The decisions that are remembered for good: the same book that the keepers write to."""
        ...

    @property
    def versions(self) -> Versions:
        """The configs that ran."""
        ...

    async def metrics(self) -> Mapping[str, Sequence[Series]]:
        """What each keeper has measured, by its name; under the empty name what is known without them. One
        that does not answer is left out. Raises `Unavailable`."""
        ...

    async def tools(self) -> list[dict[str, Any]]:
        """The tools of all servers, as `Tool.shown` gives them. Raises `ToolSessionError`."""
        ...

    async def parts(self) -> Sequence[MeshPart]:
        """The actors that serve the agent, and whether each answers."""
        ...

    async def rollout(self) -> Rollout | None:
        """What is deployed and not in force yet; None if nothing is, or nobody says."""
        ...


class BoundedBackend:
    """A `Backend` with at most ``limit`` requests to keepers under way. Probes, tools and watchers
    are not counted: a busy gateway is alive. Raises `Unavailable` (503, Retry-After) at once: nobody waits
    to be refused."""

    def __init__(self, backend: Backend, limit: int) -> None:
        self._backend = backend
        self._limit = limit
        self._under_way = 0

    async def ask(self, owner: str, request: RequestFor[R]) -> R:
        if self._under_way >= self._limit:
            raise Unavailable(
                f"this gateway has {self._under_way} requests under way "
                f"(limits.max_ongoing_requests); try again"
            )
        self._under_way += 1
        try:
            return await self._backend.ask(owner, request)
        finally:
            self._under_way -= 1

    async def ask_all(self, request: RequestFor[R]) -> list[R]:
        return await self._backend.ask_all(request)

    async def ask_reachable(self, request: RequestFor[R]) -> tuple[list[R], bool]:
        return await self._backend.ask_reachable(request)

    async def watch(self, request: Watch) -> WatchedEvents:
        return await self._backend.watch(request)

    async def follow(self, shard: int, request: RequestFor[R]) -> R:
        return await self._backend.follow(shard, request)

    @property
    def shards(self) -> int:
        return self._backend.shards

    @property
    def grant_book(self) -> GrantBook:
        return self._backend.grant_book

    @property
    def versions(self) -> Versions:
        return self._backend.versions

    async def metrics(self) -> Mapping[str, Sequence[Series]]:
        return await self._backend.metrics()

    async def tools(self) -> list[dict[str, Any]]:
        return await self._backend.tools()

    async def parts(self) -> Sequence[MeshPart]:
        return await self._backend.parts()

    async def rollout(self) -> Rollout | None:
        return await self._backend.rollout()
