"""The book of grants: what people let agents do always (``remember: always``). The port, and what is written
into every book.

A grant holds from the next call on, in every process that reads the book. Its number is that of its addition
and never changes, so that a person who revokes number 3 revokes what was listed as 3. An id is added once: a
grant that was revoked does not come back when its approval is told again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from mesh.core.errors import BadRequest, JournalError, NotFound
from mesh.core.events import now
from mesh.policy.grants import Grant, has_ended, problem_of
from mesh.runtime.logs import fields

MAX_GRANTS = 200
"""The most grants of one agent that are in force."""
MAX_GRANT_BYTES = 16_384
_log = logging.getLogger("mesh.policy")


class Revocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The grant ``id`` ends: ``by`` revoked it at the moment ``at``."""

    id: str
    by: str = ""
    at: str = ""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What was written into a book: one of the two."""

    granted: Grant | None = None
    revoked: Revocation | None = None


class GrantBook(Protocol):
    """A store for grants.

    Promises: when `add` or `revoke` returned, it survives the loss of every process and of the machine's
    power, and the next `grants` of any process on this store knows it. Any number of processes may write at
    the same time. Damage is reported and never removed; then no grant is in force, so that calls ask.

    Does not promise that a write which raised did not happen.
    """

    async def grants(self, agent: str) -> Sequence[Grant]:
        """The grants of an agent that are not revoked, oldest first: the same object while nothing changes.
        Some may have ended. Raises nothing of its own: what cannot be read is logged, and grants nothing."""
        ...

    async def listed(self) -> Mapping[int, Grant]:
        """The grants of all agents that are not revoked and have not ended, by their numbers. Raises
        `JournalError`."""
        ...

    async def add(self, grant: Grant) -> None:
        """Adds a grant, unless one with its id was added before. Raises `BadRequest` if it is none that can
        be remembered, or if its agent has `MAX_GRANTS` already; and `JournalError`."""
        ...

    async def revoke(self, id: str, by: str) -> Grant:
        """Ends a grant, and returns it. ``by`` names who does it. Raises `NotFound` if there is none that is
        not revoked, and `JournalError`."""
        ...


class Entries:
    """The entries of a book, in their order. Pure."""

    def __init__(self) -> None:
        self._added: dict[str, Grant] = {}
        self._revoked: set[str] = set()
        self._of: dict[str, tuple[Grant, ...]] = {}

    def take(self, entry: Entry) -> None:
        """Takes an entry in."""
        if entry.granted is not None:
            self._added.setdefault(entry.granted.id, entry.granted)
        if entry.revoked is not None:
            self._revoked.add(entry.revoked.id)
        self._of.clear()

    def of(self, agent: str) -> tuple[Grant, ...]:
        """The grants of an agent that are not revoked: the same object while nothing changes."""
        if agent not in self._of:
            found = (grant for id, grant in self._added.items() if id not in self._revoked)
            self._of[agent] = tuple(grant for grant in found if grant.agent == agent)
        return self._of[agent]

    def listed(self, moment: datetime) -> dict[int, Grant]:
        """Those that are not revoked and have not ended, by their numbers."""
        numbered = enumerate(self._added.values(), 1)
        return {
            n: each for n, each in numbered if each.id not in self._revoked and not has_ended(each, moment)
        }

    def addition(self, grant: Grant, moment: datetime) -> Entry | None:
        """The entry that adds a grant; None if its id was added before. Raises `BadRequest`."""
        if grant.id in self._added:
            return None
        if problem := _unacceptable(grant):
            raise BadRequest(f"this cannot be remembered: {problem}")
        in_force = sum(1 for each in self.of(grant.agent) if not has_ended(each, moment))
        if in_force >= MAX_GRANTS:
            what = f"agent {grant.agent} has {in_force} remembered decisions, which is the most"
            raise BadRequest(f"{what}; look at them (mesh policy grants), and revoke some")
        return Entry(granted=grant)

    def revocation(self, id: str, by: str, at: str) -> tuple[Entry, Grant]:
        """The entry that revokes a grant, and that grant. Raises `NotFound`."""
        if id in self._revoked or id not in self._added:
            was = "was revoked before" if id in self._revoked else "is not there"
            raise NotFound(f"grant {id[:64]!r} {was}; mesh policy grants lists those that are")
        return Entry(revoked=Revocation(id=id, by=by, at=at)), self._added[id]


class WrittenBook:
    """What a book does whose entries are kept somewhere. A subclass says how they are read and appended."""

    _problem = ""

    async def _entries(self) -> Entries:
        """What is there now. Raises `JournalError`."""
        raise NotImplementedError

    async def _append(self, entry_for: Callable[[Entries], Entry | None]) -> None:
        """Appends what ``entry_for`` returns for the entries that are there then. Raises what it does, and
        `JournalError`."""
        raise NotImplementedError

    async def grants(self, agent: str) -> Sequence[Grant]:
        try:
            entries = await self._entries()
        except JournalError as problem:
            self._report(problem)
            return ()
        self._problem = ""
        return entries.of(agent)

    async def listed(self) -> Mapping[int, Grant]:
        return (await self._entries()).listed(present())

    async def add(self, grant: Grant) -> None:
        await self._append(lambda entries: entries.addition(grant, present()))

    async def revoke(self, id: str, by: str) -> Grant:
        ended: list[Grant] = []
        at = now()  # once: an entry that is sent again is the same one

        def revocation(entries: Entries) -> Entry:
            entry, grant = entries.revocation(id, by, at)
            ended.append(grant)
            return entry

        await self._append(revocation)
        _log.info("event=grant_revoked %s", fields(id=id, agent=ended[0].agent, by=by))
        return ended[0]

    def _report(self, problem: JournalError) -> None:
        """Logs a problem, unless the last read found the same one."""
        if str(problem) != self._problem:
            self._problem = str(problem)
            _log.error("event=grants_unreadable %s", fields(then="no grant is in force", message=problem))


class MemoryGrantBook:
    """A book that lives as long as the object."""

    def __init__(self) -> None:
        self._entries = Entries()

    async def grants(self, agent: str) -> Sequence[Grant]:
        return self._entries.of(agent)

    async def listed(self) -> Mapping[int, Grant]:
        return self._entries.listed(present())

    async def add(self, grant: Grant) -> None:
        if entry := self._entries.addition(grant, present()):
            self._entries.take(entry)

    async def revoke(self, id: str, by: str) -> Grant:
        entry, grant = self._entries.revocation(id, by, now())
        self._entries.take(entry)
        return grant


def present() -> datetime:
    """The present moment."""
    return datetime.now(UTC)


def _unacceptable(grant: Grant) -> str:
    if grant.remember != "always":
        return f"it is remembered for {grant.remember}, not always"
    if not (grant.id and grant.agent):
        return "it names no approval or no agent"
    if grant.until and has_ended(grant, present()):
        return f"it ends at {grant.until[:64]!r}, which has passed or is no time with a zone"
    try:
        size = len(msgspec.json.encode(grant))
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return f"it is over {MAX_GRANT_BYTES} bytes" if size > MAX_GRANT_BYTES else problem_of(grant.rule)
