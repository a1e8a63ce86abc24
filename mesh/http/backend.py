"""What the HTTP face needs of what is behind it."""

from typing import Any, Protocol, TypeVar

from mesh.keeper.replies import FollowedEvents, WatchedEvents
from mesh.keeper.requests import Follow, RequestFor, Watch

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

    async def watch(self, request: Watch) -> WatchedEvents:
        """Asks the keeper of a conversation for new events."""
        ...

    async def follow(self, shard: int, request: Follow) -> FollowedEvents:
        """Asks a keeper for new events of any of its conversations."""
        ...

    @property
    def shards(self) -> int:
        """How many keepers there are."""
        ...

    async def tools(self) -> list[dict[str, Any]]:
        """The tools of all servers, as `Tool.shown` gives them. Raises `ToolSessionError`."""
        ...

    async def unready(self) -> list[str]:
        """The names of the actors that do not answer; empty when all is well."""
        ...
