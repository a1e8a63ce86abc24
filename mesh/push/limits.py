"""Bounds on how many notifications are being delivered at the same time, in all and to each host.

Because of the bound per host, a host that is slow or has many webhooks delays no delivery to the others.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

MAX_DELIVERIES = 256
MAX_PER_HOST = 8


@dataclass
class _Host:
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PER_HOST))
    users: int = 0


class DeliveryLimits:
    """The two bounds. A host is forgotten when nobody delivers to it any more."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_DELIVERIES)
        self._hosts: dict[str, _Host] = {}

    @asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """Waits until a delivery to the host may begin, and counts it as long as the context is open."""
        entry = self._hosts.setdefault(host, _Host())
        entry.users += 1
        try:
            # The host's slot comes first: a delivery that waits for its host must not hold a common slot.
            async with entry.slots, self._slots:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._hosts[host]
