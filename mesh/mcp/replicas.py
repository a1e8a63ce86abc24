"""Several sessions with processes of one server, as one `ToolSession`.

Above: a toolbox. Below: the sessions, each with a process of its own, in this process or in actors.

    call without a claim ──► the replica with the fewest calls
    identity ──────────────► the replica with the fewest calls; "2:8c1f….0" is its number and its own id
    claimed call, settle ──► the replica that the claim names

Each replica runs one call at a time, so that there are as many at a time as replicas. How many calls a
replica has, it says itself: other nodes call it too. To that come the calls that are on their way to it, and
those that it was claimed for and that have not come yet.

The replicas run the same code. A tool that not all of them list alike is not offered.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from mesh.core.errors import CallRevoked, ToolSessionError, Unavailable
from mesh.core.execution import ExecutionContext
from mesh.mcp.catalogue import LatestCatalogue
from mesh.mcp.port import Catalogue, Claim, Tool, ToolOutcome, ToolSession
from mesh.mcp.progress import OnProgress

logger = logging.getLogger("mesh.mcp")

ANSWER_WITHIN_S = 0.05
"""How long a call waits for replicas to say how many calls they have, once it could begin on one of them."""
PROMISED_FOR_S = 5.0
"""A claim whose call has not come after so long counts no more: its caller has died."""


class _Replica:
    """One session, with what this process knows of it."""

    def __init__(self, number: int, session: ToolSession) -> None:
        self.number = number
        self.session = session
        self.calls = 0  # of this process, on their way or running
        self.chosen = 0  # when it was chosen last: a number that grows
        self.catalogue: Catalogue | None = None
        self._promised: deque[float] = deque()

    def promise(self) -> None:
        """A call is about to be claimed for it."""
        self._promised.append(asyncio.get_running_loop().time() + PROMISED_FOR_S)

    def keep_promise(self) -> None:
        """A call that was claimed for it has come."""
        if self._promised:
            self._promised.popleft()

    @property
    def promised(self) -> int:
        while self._promised and self._promised[0] < asyncio.get_running_loop().time():
            self._promised.popleft()
        return len(self._promised)


class ReplicatedSession:
    """See the module. ``sessions`` has at least one; they are closed with this one."""

    def __init__(self, server: str, sessions: Sequence[ToolSession]) -> None:
        self._server = server
        self._replicas = [_Replica(number, session) for number, session in enumerate(sessions)]
        self._latest = LatestCatalogue(server)
        self._choices = count(1)

    async def catalogue(self) -> Catalogue:
        """Those that answer count: an agent goes on with the replicas that it has. Raises the problem of the
        first one if none does."""
        found = await asyncio.gather(
            *(replica.session.catalogue() for replica in self._replicas), return_exceptions=True
        )
        for replica, catalogue in zip(self._replicas, found, strict=True):
            if isinstance(catalogue, Catalogue):
                self._learn(replica, catalogue)
            elif not isinstance(catalogue, ToolSessionError):
                raise catalogue
        if isinstance(found[0], ToolSessionError) and not any(r.catalogue for r in self._replicas):
            raise found[0]
        return await self._latest.first(0)

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        waiting = {asyncio.create_task(self._follow(replica, timeout_s)) for replica in self._replicas}
        newest = asyncio.create_task(self._latest.newer(version, timeout_s))
        try:
            while waiting and not newest.done():
                _, pending = await asyncio.wait({*waiting, newest}, return_when=asyncio.FIRST_COMPLETED)
                waiting &= pending
        finally:
            await _end(newest, *waiting)
        return await self._latest.first(0)

    async def identity(self) -> str:
        replica = await self._least_busy()
        replica.promise()
        return f"{replica.number}:{await replica.session.identity()}"

    async def backlog(self) -> int:
        """The sum of those that answer. Raises the problem of the first one if none does."""
        found = await asyncio.gather(*(r.session.backlog() for r in self._replicas), return_exceptions=True)
        counts = [each for each in found if isinstance(each, int)]
        if not counts and isinstance(found[0], BaseException):
            raise found[0]
        return sum(counts)

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolOutcome:
        if claim is None:
            replica = await self._least_busy()
        else:
            replica, claim = self._named(claim, CallRevoked("it was claimed for a replica that is not there"))
            replica.keep_promise()
        replica.calls += 1
        try:
            return await replica.session.call(name, arguments, timeout_s, claim, context, on_progress)
        finally:
            replica.calls -= 1

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        why = "the session that may have run this call is not one of the replicas"
        replica, own = self._named(claim, ToolSessionError(why, may_have_run=True))
        return await replica.session.settle(own)

    async def stop(self, claim: Claim) -> None:
        why = "the session that may run this call is not one of the replicas"
        replica, own = self._named(claim, ToolSessionError(why, may_have_run=True))
        await replica.session.stop(own)

    async def close(self) -> None:
        await asyncio.gather(*(replica.session.close() for replica in self._replicas))

    # -- choosing

    async def _least_busy(self) -> _Replica:
        """The replica with the fewest calls; among equals the one that was not chosen for longest. If none
        answers, the one with the fewest calls of this process, where the call waits or says what is wrong."""
        backlogs = await self._backlogs()
        found = min(
            backlogs or dict.fromkeys(self._replicas, 0),
            key=lambda r: (max(backlogs.get(r, 0), r.calls) + r.promised, r.chosen),
        )
        found.chosen = next(self._choices)
        return found

    async def _backlogs(self) -> dict[_Replica, int]:
        """How many calls each replica has; those that have no server now, or do not answer, are left out."""
        asked = {asyncio.create_task(replica.session.backlog()): replica for replica in self._replicas}
        try:
            await asyncio.wait(asked, timeout=ANSWER_WITHIN_S)
            return {
                replica: task.result()
                for task, replica in asked.items()
                if task.done() and not isinstance(task.exception(), ToolSessionError | Unavailable)
            }
        finally:
            await _end(*(task for task in asked if not task.done()))

    def _named(self, claim: Claim, otherwise: ToolSessionError) -> tuple[_Replica, Claim]:
        """The replica that a claim names, and the claim as that knows it. Raises ``otherwise``."""
        number, _, session = claim.session.partition(":")
        if not number.isdecimal() or int(number) >= len(self._replicas):
            raise otherwise
        return self._replicas[int(number)], msgspec.structs.replace(claim, session=session)

    # -- the tools

    async def _follow(self, replica: _Replica, timeout_s: float) -> None:
        known = replica.catalogue.version if replica.catalogue else 0
        try:
            self._learn(replica, await replica.session.changed(known, timeout_s))
        except ToolSessionError as problem:
            self._latest.fail(str(problem))
            logger.warning("replica %d of MCP server %s: %s", replica.number, self._server, problem)

    def _learn(self, replica: _Replica, catalogue: Catalogue) -> None:
        if replica.catalogue == catalogue:
            return
        replica.catalogue = catalogue
        self._latest.update(listed_by_all([r.catalogue for r in self._replicas if r.catalogue]))


def listed_by_all(catalogues: Sequence[Catalogue]) -> tuple[Tool, ...]:
    """The tools that all catalogues list alike, in the order of the first one."""
    first, *others = catalogues
    elsewhere = [{tool.name: tool for tool in catalogue.tools} for catalogue in others]
    return tuple(tool for tool in first.tools if all(tools.get(tool.name) == tool for tools in elsewhere))


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
