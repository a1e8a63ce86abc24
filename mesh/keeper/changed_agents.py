"""The agents of a shard that have changed, for those who follow the tree: each of them once since the
follower looked last, however often it has changed meanwhile.

A follower keeps a cursor. Cursors begin at the present nanosecond, so that one of a keeper that died is never
taken for one of this keeper. Whoever has none, or one that is not known any more, gets all agents at work.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from mesh.keeper.requests import FollowAgents

WAIT_S = 15.0
"""How long a request for changes waits for one."""
_GATHERS_S = 0.25
"""How long it gathers changes after the first one: each agent is told that often at most."""
_FOLLOWED_FOR_S = 60.0
"""How long changes are kept after a follower asked last."""
_MOST_AT_ONCE = 2_000
"""Agents of one reply."""
MOST_KEPT = 20_000
"""Agents whose changes are kept. Whoever missed some of more gets all agents again."""


class ChangedAgents:
    """See the module's text. Used by one event loop."""

    def __init__(self) -> None:
        self._changed: dict[tuple[str, str], int] = {}  # conversation and agent -> when, the oldest first
        self._begun = self._next = time.time_ns()
        self._until = 0.0
        self._more = asyncio.Event()

    def changed(self, conversation_id: str, agents: Sequence[str]) -> None:
        """Notes that agents have changed, if anybody follows."""
        if not agents:
            return
        if asyncio.get_running_loop().time() >= self._until:
            self._forget()
            return
        for agent in agents:
            self._changed.pop((conversation_id, agent), None)
            self._changed[conversation_id, agent] = self._next
            self._next += 1
        while len(self._changed) > MOST_KEPT:
            oldest = next(iter(self._changed))
            self._begun = self._changed.pop(oldest) + 1
        self._more.set()
        self._more = asyncio.Event()

    def _forget(self) -> None:
        """Nobody has followed for a while: what changed meanwhile is not known."""
        self._changed.clear()
        self._begun = self._next = max(self._next + 1, time.time_ns())

    async def since(self, request: FollowAgents) -> tuple[list[tuple[str, str]] | None, int]:
        """The agents that have changed since the cursor of a request, with their conversations, and the next
        cursor; waits a while for some. None: nobody knows which."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._until:
            self._forget()
        self._until = loop.time() + _FOLLOWED_FOR_S
        if not self._begun <= request.cursor <= self._next:
            return None, self._next
        if request.cursor == self._next:
            # Not `wait_for`: it swallows a cancellation that comes at the same moment as a change.
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await self._more.wait()
        if self._next > request.cursor:
            await asyncio.sleep(_GATHERS_S)
        if request.cursor < self._begun:  # so many have changed meanwhile
            return None, self._next
        found: list[tuple[str, str]] = []
        for agent, at in reversed(self._changed.items()):
            if at < request.cursor:
                break
            found.append(agent)
        found.reverse()
        if len(found) <= _MOST_AT_ONCE:
            return found, self._next
        return found[:_MOST_AT_ONCE], self._changed[found[_MOST_AT_ONCE]]
