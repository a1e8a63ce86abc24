"""Copies all that an agent keeps from one store to another: from files into a database, or the other way.

No mesh may be at work on either. Their shards are taken first, so that one that was cut off writes nothing
more. A copy that was broken off goes on when it is begun again: what is there already is compared, not
copied.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeVar

from mesh.core.conversation import fold
from mesh.core.errors import ConfigError, JournalError, MeshError
from mesh.core.events import AnyEvent, ConversationCreated, Paused, UserMessage, encode
from mesh.core.ids import is_id, shard_of
from mesh.journal.listing import entry_of
from mesh.journal.port import Append
from mesh.store.port import Store

_AT_ONCE = 64
_SIDE_BY_SIDE = 3
_PAGE = 500
_SAY_EVERY_S = 5.0

T = TypeVar("T")
Say = Callable[[str], None]


class CopyEnd(NamedTuple):
    """One end of a copy: a store, and the number of its shards."""

    store: Store
    shards: int


class CopyReport(NamedTuple):
    """What is in the target then. ``added`` are the conversations of which something was not there before;
    ``problems`` say of each that is not the same there what is wrong."""

    conversations: int
    added: int
    webhooks: int
    grants: int
    problems: Sequence[str]


async def copy_store(source: CopyEnd, target: CopyEnd, say: Say) -> CopyReport:
    """Copies what is in ``source`` to ``target``, and compares all of it in the end. ``say`` is told how far
    it is. Raises `MeshError`; then it can be begun again."""
    for each in (source, target):
        await _check_idle(each.store)
    opened = await _all(source.store.journal.open(n) for n in range(source.shards))
    epochs = await _all(target.store.journal.open(n) for n in range(target.shards))
    copying = _Copying(source.store, target.store, epochs)
    await copying.keep_secret()
    ids = [id async for id in _ids(source.store)]
    await copying.look_for_others({*ids})
    await _of_each(ids, copying.copy_some, "copied", say)
    webhooks = await copying.copy_webhooks(opened)
    grants = await copying.copy_grants()
    await _of_each(ids, copying.compare_some, "compared", say)
    return CopyReport(len(ids), len(copying.added), webhooks, grants, copying.problems)


class _Seen(NamedTuple):
    """What a journal was like when it was read: how many events it has, and their hash."""

    events: int
    hash: bytes


class _Copying:
    """A copy under way. ``epochs`` are those of the shards of the target."""

    def __init__(self, source: Store, target: Store, epochs: Sequence[int]) -> None:
        self._source = source
        self._target = target
        self._epochs = epochs
        self._versions: set[str] = set()
        self._read: dict[str, _Seen] = {}
        self.added: set[str] = set()
        self.problems: list[str] = []

    async def keep_secret(self) -> None:
        """The secret makes ids of what clients call their requests: with another one, a request that comes
        again would count as a new one."""
        secret = await self._source.secret()
        if await self._target.secret() == secret:
            return
        async for _ in _ids(self._target):
            raise MeshError(f"{self._target.name} has conversations of another mesh; copy into an empty one")
        await self._target.replace_secret(secret)

    async def look_for_others(self, ids: AbstractSet[str]) -> None:
        """Notes conversations that only the target has: somebody may have deleted them in the source."""
        async for id in _ids(self._target):
            if id not in ids:
                only = f"conversation {id} is only in {self._target.name}, and not in the source"
                self.problems.append(f"{only}: delete it there, or copy into an empty store")

    async def copy_some(self, ids: Sequence[str]) -> None:
        """Copies conversations, or the rest of each, and the versions that they began on."""
        ends = await self._target.journal.ends(ids)
        found = await _all(self._missing(id, is_there=id in ends) for id in ids)
        # Only when all are read: a database takes those that are appended at once in one statement.
        await _all(self._append(each) for each in found if each is not None)

    async def _missing(self, id: str, *, is_there: bool) -> Append | None:
        """What the target lacks of a conversation."""
        try:
            events = await self._source.journal.read(id, durably=False)
            there = await self._target.journal.read(id) if is_there else []
        except JournalError as problem:
            self.problems.append(str(problem))
            return None
        self._read[id] = _seen(events)
        if events[: len(there)] != there:
            return None  # another one, which the comparison tells
        await self._keep_versions(events)
        rest = events[len(there) :]
        return Append(id, len(there), rest, entry_of(fold(events))) if rest else None

    async def _append(self, append: Append) -> None:
        shard = shard_of(append.conversation_id, len(self._epochs))
        await self._target.journal.append(shard, self._epochs[shard], append)
        self.added.add(append.conversation_id)

    async def copy_webhooks(self, opened: Sequence[int]) -> int:
        """Copies the webhooks of the source, whose shards were ``opened`` with these epochs. Returns of how
        many conversations. What they had in the target is replaced."""
        await _all(self._drop_webhooks(*each) for each in enumerate(self._epochs))
        count = 0
        for shard, epoch in enumerate(opened):
            owned = await self._source.push.open(shard, epoch, _owner(shard, len(opened)))
            for id, webhooks in owned.items():
                to = shard_of(id, len(self._epochs))
                await self._target.push.put(to, self._epochs[to], id, webhooks)
            count += len(owned)
        return count

    async def _drop_webhooks(self, shard: int, epoch: int) -> None:
        for id in await self._target.push.open(shard, epoch, _owner(shard, len(self._epochs))):
            await self._target.push.put(shard, epoch, id, [])

    async def copy_grants(self) -> int:
        """Copies what is remembered for good and holds. What is there already is not added again, and what
        holds only there is revoked: somebody may have revoked it in the source."""
        grants = await self._source.grants.listed()
        known = {grant.id for grant in grants.values()}
        for grant in (await self._target.grants.listed()).values():
            if grant.id not in known:
                await self._target.grants.revoke(grant.id, "mesh store copy")
        for grant in grants.values():
            await self._target.grants.add(grant)
        return len(grants)

    async def compare_some(self, ids: Sequence[str]) -> None:
        """Notes conversations that are not the same in both stores."""
        await _all(self._compare(id) for id in ids)

    async def _compare(self, id: str) -> None:
        source = self._read.get(id)
        if source is None:
            return  # it could not be read, which is told already
        try:
            # It is durable: `copy_some` saw to that.
            there = _seen(await self._target.journal.read(id, durably=False))
        except JournalError as problem:
            self.problems.append(str(problem))
            return
        if there != source:
            numbers = f"{there.events} events, and {source.events} in the source"
            self.problems.append(f"conversation {id} is another one there: {numbers}")

    async def _keep_versions(self, events: Sequence[AnyEvent]) -> None:
        used = {
            event.digest for event in events if isinstance(event, ConversationCreated | UserMessage | Paused)
        }
        for digest in used - {""} - self._versions:
            self._versions.add(digest)
            try:
                kept = await self._source.versions.kept(digest)
            except ConfigError:
                continue  # not known any more in the source either
            await self._target.versions.keep(digest, kept.source, kept.files)


async def _check_idle(store: Store) -> None:
    """Raises `MeshError` if a mesh is at work."""
    hosts = (await store.shards.map()).hosts
    if live := [host for host in hosts if host.is_live]:
        at_work = f"a mesh is at work on {store.name} ({len(live)} keepers)"
        raise MeshError(f"{at_work}: stop it, or wait for 10 s if it died")


async def _ids(store: Store) -> AsyncIterator[str]:
    """The ids of all conversations."""
    listing = store.listing()
    if listing is None:
        for id in await store.journal.sizes():
            if is_id(id):  # other files may have similar names
                yield id
        return
    before = ""
    while page := await listing.page(_PAGE, before, ""):
        for summary in page:
            yield summary.id
        before = page[-1].created_cursor


async def _of_each(
    ids: Sequence[str], work: Callable[[Sequence[str]], Awaitable[None]], done: str, say: Say
) -> None:
    """Does something with all conversations, some at a time, and says now and then how many are ``done``."""
    said = time.monotonic()
    starts = iter(range(0, len(ids), _AT_ONCE))

    async def work_on() -> None:
        nonlocal said
        for start in starts:
            await work(ids[start : start + _AT_ONCE])
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                say(f"{done} {min(start + _AT_ONCE, len(ids))} of {len(ids)} conversations")

    # While the database works for one of them, another one is at work here.
    await _all(work_on() for _ in range(_SIDE_BY_SIDE))


async def _all(works: Iterable[Awaitable[T]]) -> list[T]:
    """All of them end before the first problem is raised: none goes on behind the back of whoever is told."""
    found: list[T] = []
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


def _seen(events: Sequence[AnyEvent]) -> _Seen:
    return _Seen(len(events), hashlib.sha256(b"\n".join(map(encode, events))).digest())


def _owner(shard: int, shards: int) -> Callable[[str], bool]:
    return lambda id: is_id(id) and shard_of(id, shards) == shard
