"""What waits and was allowed for good meanwhile: it is approved in every conversation of the agent.

A grant may come from any conversation, of any keeper, in any process that shares the book. So nobody is told
of it: a keeper looks at the book for as long as approvals wait that a grant may cover, and a keeper that
starts does so first. Nothing depends on it: what is not covered still waits for a person.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from mesh.core.errors import JournalError
from mesh.core.events import now
from mesh.journal.listing import Listing
from mesh.keeper.schedule import Schedule
from mesh.policy.book import GrantBook
from mesh.policy.grants import Grant
from mesh.runtime.logs import fields

_log = logging.getLogger("mesh.keeper")
LOOK_EVERY_S = 1.0
"""How long what waits in one process may not know of a grant of another one. A look is a question to the
store."""


Approve = Callable[[str, Collection[str] | None], Awaitable[None]]
"""Approves what grants cover in a conversation: of the approvals with these uuids, or of all that wait."""


class CoveredApprovals:
    """Calls ``approve`` with the conversations of ``listing`` in which a grant may cover what waits;
    again, after a pause, where that fails. ``root`` is the name of the root agent."""

    def __init__(self, listing: Listing, book: GrantBook, root: str, approve: Approve) -> None:
        self._listing = listing
        self._book = book
        self._root = root
        self._approve = approve
        self._schedule = Schedule(self._approve_noted, "not_covered")
        # What is to be looked at, by conversation: approvals, by uuid; None: all that wait.
        self._noted: dict[str, dict[str, None] | None] = {}
        self._known: dict[str, Sequence[Grant]] = {}  # the grants at the last look, by agent
        self._news = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to look at the book, for as long as anything waits."""
        self._news.set()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look_again_and_again())

    def look(self) -> None:
        """Looks at the book now: it may have something new."""
        self._news.set()

    def check(self, conversation_id: str, uuids: Collection[str] | None = None) -> None:
        """Looks at approvals of one conversation, or at all that wait there. What asks may have been granted
        while it was about to ask, so that neither the gate nor a look at the book has seen both."""
        self._note(conversation_id, uuids)
        self.start()

    def _note(self, conversation_id: str, uuids: Collection[str] | None) -> None:
        noted = self._noted.setdefault(conversation_id, {})
        if noted is None or uuids is None:
            self._noted[conversation_id] = None
        else:
            noted.update(dict.fromkeys(uuids))
        self._schedule.note(now(), conversation_id)

    async def _approve_noted(self, conversation_id: str) -> None:
        """Looks at what was noted, which is noted again if that fails."""
        uuids = self._noted.pop(conversation_id, {})
        try:
            await self._approve(conversation_id, uuids)
        except Exception:
            known = self._noted.get(conversation_id, {})
            self._noted[conversation_id] = None if uuids is None or known is None else {**uuids, **known}
            raise

    async def close(self) -> None:
        """Stops; what waits goes on waiting."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._schedule.close()

    async def _look_again_and_again(self) -> None:
        while True:
            self._news.clear()  # before the look: what is new after it is looked at, too
            is_waiting = True
            try:
                is_waiting = await self._look()
            except JournalError as problem:
                _log.warning("event=not_looked %s", fields(message=problem))
            if not is_waiting and not self._news.is_set():
                return
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._news.wait()
            except TimeoutError:
                pass  # it is time for the next look

    async def _look(self) -> bool:
        """Notes what new grants may cover. Returns whether anything waits. Raises `JournalError`."""
        asking = await self._listing.asking()
        for agent, conversations in asking.items():
            if await self._has_more(agent or self._root):
                for conversation_id in conversations:
                    self._note(conversation_id, None)
        return bool(asking)

    async def _has_more(self, agent: str) -> bool:
        """Whether the agent was granted anything since the last look."""
        before, found = self._known.get(agent, ()), await self._book.grants(agent)
        self._known[agent] = found
        return found is not before and not {each.id for each in found} <= {each.id for each in before}
