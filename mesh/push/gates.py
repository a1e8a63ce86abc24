"""How many notifications are under way at once: so many in all, so many to one host.

One host that is slow, or has many webhooks, keeps none of the others waiting.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_AT_ONCE = 256
_PER_HOST = 8


@dataclass
class _Gate:
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PER_HOST))
    users: int = 0


class Gates:
    """See the module's text."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(_AT_ONCE)
        self._by_host: dict[str, _Gate] = {}

    @asynccontextmanager
    async def through(self, host: str) -> AsyncIterator[None]:
        """Waits until one more may go there."""
        mine = self._by_host.setdefault(host, _Gate())
        mine.users += 1
        try:
            async with mine.gate, self._all:
                yield
        finally:
            mine.users -= 1
            if not mine.users:
                del self._by_host[host]
