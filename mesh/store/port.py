"""The port to everything that one agent keeps durably.

Above: keepers, gateways and commands, which take what they need. Below: the stores, each of which implements
the ports of the rooms that write: `mesh.journal`, `mesh.push`, `mesh.policy` and `mesh.config`.
"""

from typing import Protocol

from mesh.config.kept_versions import Versions
from mesh.journal.listing import Listing
from mesh.journal.port import Journal
from mesh.journal.shards import Shards
from mesh.policy.book import GrantBook
from mesh.push.port import PushStore


class Store(Protocol):
    """The stores of one agent. Made without I/O: each connects, or creates its folder, on first use."""

    @property
    def name(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def journal(self) -> Journal:
        """The journals of the conversations."""
        ...

    @property
    def push(self) -> PushStore:
        """The webhooks."""
        ...

    @property
    def grants(self) -> GrantBook:
        """What people let the agent do always."""
        ...

    @property
    def versions(self) -> Versions:
        """The configs that ran."""
        ...

    @property
    def shards(self) -> Shards:
        """Which keeper host has which shard."""
        ...

    def listing(self, shard: int | None = None) -> Listing | None:
        """The conversations of a shard, or of all. None: the store has no such listing, and the keeper of
        each shard derives its own from the journals."""
        ...

    async def secret(self) -> bytes:
        """The secret of the mesh (`mesh.access.secret`), the same for all gateways and restarts. Raises
        `MeshError`."""
        ...

    async def replace_secret(self, secret: bytes) -> None:
        """Makes this the secret of the mesh, for good. Only while nobody uses it. Raises `MeshError`."""
        ...

    async def close(self) -> None:
        """Ends what runs in the background. What was acknowledged is durable already."""
        ...
