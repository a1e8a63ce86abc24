"""What the HTTP face needs of what is behind it."""

from typing import Any, Protocol

from mesh.keeper.requests import Follow, Reply, Request, Seen, Watch


class Backend(Protocol):
    """The keepers and what they need, wherever they run.

    Does not promise that a request that ended in a reply of 503 had no effect: it may be sent again
    under its idempotency key.
    """

    async def ask(self, owner: str, request: Request) -> Reply:
        """Asks the keeper that owns this id."""
        ...

    async def ask_all(self, request: Request) -> list[Reply]:
        """Asks every keeper."""
        ...

    async def watch(self, request: Watch) -> Seen:
        """Asks the keeper of a conversation for news. Raises `Unavailable`."""
        ...

    async def follow(self, shard: int, request: Follow) -> Seen:
        """Asks a keeper for news of any of its conversations. Raises `Unavailable`."""
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
