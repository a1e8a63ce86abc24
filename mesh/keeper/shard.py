"""The conversations of a shard: which there are, and those that are loaded."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from mesh.core.agents_of_turn import agents_of
from mesh.core.conversation import Conversation, fold
from mesh.core.errors import Conflict, JournalDamaged, JournalError, NotFound, StaleEpoch, WrongSequence
from mesh.core.events import AnyEvent
from mesh.core.ids import id_suffix, is_id, shard_of
from mesh.journal.index import Index
from mesh.journal.listing import Listing, ListingEntry
from mesh.journal.port import Journal
from mesh.keeper.derived_files import Snapshots
from mesh.keeper.loaded_conversation import LoadedConversation
from mesh.keeper.store_losses import AcknowledgedEnds, known_of, losses, told_of
from mesh.metrics.meters import Metric
from mesh.metrics.table import LOADED, OPEN_TURNS, QUEUED_AGENTS, QUEUED_MESSAGES, WATCHED
from mesh.runtime.logs import fields

_RUN_BITS = 32
_INDEXED_AT_ONCE = 500
_log = logging.getLogger("mesh.keeper")


class Shard:
    """Shard ``number`` of ``shards``. Keeps at most ``max_loaded`` unused conversations in memory;
    the others are read from their journals when they are asked for. ``listing`` is that of the shard, which
    moves with its journals; None: it is an index that is derived from them. ``agents_at_once`` and
    ``limits_of`` as in `LoadedConversation`.

    ``on_fenced`` is called when another keeper has opened the shard, ``on_append`` after every append, and
    ``on_unloaded`` when a conversation in memory did not agree with its journal and was dropped.
    ``acknowledged`` is that of the process.
    """

    def __init__(
        self,
        number: int,
        shards: int,
        journal: Journal,
        listing: Listing | None,
        max_loaded: int,
        agents_at_once: int,
        limits_of: tuple[str, Mapping[str, Mapping[str, float]]],
        on_fenced: Callable[[], None],
        on_append: Callable[[LoadedConversation, Sequence[AnyEvent]], None],
        on_unloaded: Callable[[str], None],
        acknowledged: AcknowledgedEnds,
    ) -> None:
        self.unreadable: set[str] = set()
        """Conversations whose journals could not be read when the shard was opened, nor since."""
        self._number = number
        self._shards = shards
        self._journal = journal
        self._max_loaded = max_loaded
        self._agents_at_once = agents_at_once
        self._limits_of = limits_of
        self._on_fenced = on_fenced
        self._on_append = on_append
        self._on_unloaded = on_unloaded
        self._acknowledged = acknowledged
        self._epoch = 0
        self._tokens: dict[str, str] = {}
        self._run_numbers = count()
        self._loaded: OrderedDict[str, LoadedConversation] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()  # the drivers of conversations that were dropped
        self._erasing: set[str] = set()
        self._loading: dict[str, asyncio.Task[LoadedConversation]] = {}
        # What is derived from the journals, where the store has no listing of its own.
        self._snapshots: Snapshots | None = None
        if listing is None:
            listing = index = Index()
            self._snapshots = Snapshots(journal, f"index3_{number}.json", index)
        self.listing: Listing = listing

    def gauges(self) -> dict[Metric, int]:
        """How much is here now."""
        loaded = self._loaded.values()
        return {
            LOADED: len(loaded),
            OPEN_TURNS: sum(each.driver is not None and not each.driver.done() for each in loaded),
            WATCHED: sum(each.audience.is_there for each in loaded),
            QUEUED_MESSAGES: sum(each.waiting_messages for each in loaded),
            QUEUED_AGENTS: sum(len(each.slots.waiting) for each in loaded),
        }

    async def open(self, tokens: Mapping[str, str]) -> int:
        """Takes the shard over, finds out which conversations there are, and returns the epoch. ``tokens``
        are those of `tokens` where it was before."""
        self._tokens.update(tokens)
        self._epoch = await self._journal.open(self._number)
        # Invariant: greater than every number of an earlier epoch, and one sequence for the whole shard: a
        # conversation that is unloaded and read again must not count from the start.
        self._run_numbers = count((self._epoch << _RUN_BITS) + 1)
        if self._snapshots is not None:
            sizes = await self._journal.sizes()
            owned = {i: size for i, size in sizes.items() if self.owns(i)}
            await self._snapshots.load_index(owned)
            await self._index_journals(self._snapshots.index, owned)
        return self._epoch

    async def close(self) -> None:
        """Stops the drivers (their turns stay open) and writes what is only derived."""
        drivers = [*self._leaving, *(each.driver for each in self._loaded.values() if each.driver)]
        for driver in drivers:
            driver.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)
        self.abandon()
        if self._snapshots is not None:
            await self._snapshots.close()

    def abandon(self) -> None:
        """Starts nothing more by itself, as if its process had died."""
        for loaded in self._loaded.values():
            loaded.close()

    def tokens(self) -> dict[str, str]:
        """The bearer tokens for which open turns act, by conversation. They are never written."""
        held = {id: loaded.token for id, loaded in self._loaded.items() if loaded.token}
        return self._tokens | held

    async def get(self, conversation_id: str) -> LoadedConversation:
        """Returns a conversation, read from its journal if need be. Raises `NotFound`, `JournalError`."""
        self._check_stays(conversation_id)
        loaded = self._loaded.get(conversation_id)
        if loaded is not None and loaded.conversation.seq:
            self._loaded.move_to_end(conversation_id)
            return loaded
        if not self.owns(conversation_id):
            raise NotFound(f"there is no conversation {conversation_id[:64]!r}")
        # One read serves all requests that come meanwhile. The shield keeps one that is cancelled from
        # cancelling it.
        if conversation_id not in self._loading:
            task = asyncio.create_task(self._load(conversation_id))
            task.add_done_callback(lambda _: self._loading.pop(conversation_id, None))
            self._loading[conversation_id] = task
        loaded = await asyncio.shield(self._loading[conversation_id])
        # It may have been unloaded, or dropped, between the end of the task and now.
        return (
            await self.get(conversation_id)
            if loaded.is_dropped
            else self._loaded.setdefault(conversation_id, loaded)
        )

    async def look_for_losses(self) -> None:
        """Looks whether the store still has all that it acknowledged to this process, and journals what it
        lost. Raises `JournalError`."""
        known = self._acknowledged.known(self.owns)
        ends = await self._journal.ends([*known])
        for id in losses(known, ends):
            loaded = self._loaded.get(id)
            if loaded is None:
                self._on_unloaded(id)
            else:
                problem = WrongSequence(f"conversation {id}: its journal is shorter than before")
                self._append_failed(loaded, problem)

    async def flush(self) -> None:
        """Makes every message durable that is held."""
        held = [loaded for loaded in self._loaded.values() if loaded.held_message is not None]
        await asyncio.gather(*(loaded.flush() for loaded in held))

    async def create(self, conversation_id: str, events: Sequence[AnyEvent]) -> LoadedConversation:
        """Creates a conversation that begins with these events. Of two creations at once, the second finds
        what the first created: events with the same keys are appended once."""
        loaded = self._keep(conversation_id, self._made(Conversation()))
        await loaded.append(events)
        return loaded

    async def events_of(self, conversation_id: str) -> list[AnyEvent]:
        """The journal of a conversation. Raises `NotFound` if it was deleted, and `JournalError`."""
        events = await self._journal.read(conversation_id)
        if not events:
            raise NotFound(f"there is no conversation {conversation_id}")
        return events

    async def erase(self, loaded: LoadedConversation) -> None:
        """Deletes a conversation, to which nothing is appended any more. Raises `JournalError`; then it is
        there as before, or not any more."""
        conversation_id = loaded.conversation.id
        self._erasing.add(conversation_id)
        try:
            self._loaded.pop(conversation_id, None)
            loaded.drop(NotFound(f"conversation {conversation_id} was deleted"))
            await self._forget_snapshot(conversation_id)
            await self._journal.erase(self._number, self._epoch, conversation_id, loaded.conversation.seq)
            await self._forget_snapshot(conversation_id)  # a late result may have been noted meanwhile
            self._acknowledged.forget(conversation_id)
            if self._snapshots is not None:
                self._snapshots.index.remove(conversation_id)
        except StaleEpoch:
            self._on_fenced()
            raise
        except JournalError:
            self._acknowledged.forget(conversation_id)  # it may be gone
            raise
        finally:
            self._erasing.discard(conversation_id)

    async def _forget_snapshot(self, conversation_id: str) -> None:
        if self._snapshots is not None:
            await self._snapshots.forget(conversation_id)

    async def with_approval(self, uuid: str) -> LoadedConversation:
        """Returns the conversation that asks for an approval, decided or not. Raises `NotFound`."""
        for conversation_id in await self._with_suffix(uuid):
            loaded = await self.get(conversation_id)
            if uuid in loaded.conversation.asked:
                return loaded
        raise NotFound(f"there is no approval {uuid[:64]!r}")

    async def with_agent(self, id: str) -> LoadedConversation:
        """Returns the conversation in one of whose turns there is, or was, the agent with this id. Raises
        `NotFound`."""
        for conversation_id in await self._with_suffix(id):
            loaded = await self.get(conversation_id)
            if loaded.conversation.agents.view(id) is not None:
                return loaded
            # An agent of an earlier turn: nobody needs it often.
            events = await self._journal.read(conversation_id)
            if any(agent.agent_id == id for agent in agents_of(events)):
                return loaded
        raise NotFound("Not found")

    async def _with_suffix(self, id: str) -> list[str]:
        """The conversations to which an approval or an agent may belong, also those that were unreadable."""
        if not is_id(id):
            return []
        unreadable = (i for i in self.unreadable if id_suffix(i) == id_suffix(id))
        return [*await self.listing.with_suffix(id), *unreadable]

    async def has(self, conversation_id: str) -> bool:
        """Whether there is a conversation with this id. Raises `Conflict` while it is being deleted, and
        `JournalError`."""
        self._check_stays(conversation_id)
        return self.owns(conversation_id) and await self.listing.has(conversation_id)

    def _check_stays(self, conversation_id: str) -> None:
        if conversation_id in self._erasing:
            raise Conflict(f"conversation {conversation_id} is being deleted")

    def owns(self, conversation_id: str) -> bool:
        """Whether this is the id of a conversation of this shard, if there is one."""
        return is_id(conversation_id) and shard_of(conversation_id, self._shards) == self._number

    async def _load(self, conversation_id: str) -> LoadedConversation:
        end = self._acknowledged.get(conversation_id)  # before it is read, which has to show that
        conversation = fold(await self._journal.read(conversation_id))
        if not conversation.id:
            if end is not None:
                _log.error("event=store_went_back conversation=%s lost_from=1", conversation_id)
            self._acknowledged.forget(conversation_id)
            if self._snapshots is not None:  # it was being deleted when the storage failed
                self._snapshots.index.remove(conversation_id)
            raise NotFound(f"there is no conversation {conversation_id}")
        if conversation_id in self.unreadable:
            self.unreadable.discard(conversation_id)
            if self._snapshots is not None:
                # No size it could have: it is read again at the next start.
                self._snapshots.index.put(conversation, 0)
        loaded = self._made(conversation)
        acknowledged = known_of(conversation, end)
        if acknowledged > conversation.seq:
            lost = f"lost_from={conversation.seq + 1} lost_up_to={acknowledged}"
            _log.error("event=store_went_back conversation=%s %s", conversation_id, lost)
            # Nobody decides or says anything there before that is journaled: see `get`.
            await loaded.append([told_of(conversation, acknowledged)])
        self._acknowledged.note(conversation)
        if conversation.ends_because:  # it waited for nobody but a person, so that nothing drives it
            self._on_unloaded(conversation_id)
        return self._keep(conversation_id, loaded)

    def _made(self, conversation: Conversation) -> LoadedConversation:
        assert self._epoch, "the shard is opened before anything is asked of it"
        return LoadedConversation(
            conversation,
            self._journal,
            self._number,
            self._epoch,
            self._run_numbers,
            self._agents_at_once,
            self._limits_of,
            self._appended,
            self._append_failed,
            lists_ahead=self._snapshots is None,
        )

    def _keep(self, conversation_id: str, loaded: LoadedConversation) -> LoadedConversation:
        self._unload_idle()
        loaded.token = loaded.token or self._tokens.pop(conversation_id, "")
        return self._loaded.setdefault(conversation_id, loaded)

    def _unload_idle(self) -> None:
        """Bounds memory: unloads conversations that nobody uses, those first that were used longest ago."""
        excess = len(self._loaded) - self._max_loaded
        if excess > 0:
            idle = [i for i, loaded in self._loaded.items() if loaded.is_idle]
            for conversation_id in idle[:excess]:
                del self._loaded[conversation_id]

    async def _index_journals(self, index: Index, sizes: Mapping[str, int]) -> None:
        """Brings the index up to date with the journals. Those at rest are not read as a whole."""
        outdated = [id for id, size in sizes.items() if not index.is_current(id, size)]
        at_rest: list[tuple[ListingEntry, int]] = []
        for start in range(0, len(outdated), _INDEXED_AT_ONCE):
            some = outdated[start : start + _INDEXED_AT_ONCE]
            entries = await self._journal.entries_at_rest(some)
            for id in some:
                if id in entries:
                    at_rest.append((entries[id], sizes[id]))
                else:
                    await self._index_journal(index, id, sizes[id])
        index.put_all(at_rest)

    async def _index_journal(self, index: Index, conversation_id: str, size: int) -> None:
        try:
            conversation = fold(await self._journal.read(conversation_id))
        except JournalError as problem:
            # One conversation that cannot be read must not keep the others from being served.
            kind = "journal_damaged" if isinstance(problem, JournalDamaged) else "journal_unreadable"
            _log.error("event=%s conversation=%s %s", kind, conversation_id, fields(message=problem))
            self.unreadable.add(conversation_id)
            return
        if conversation.id:
            index.put(conversation, size)

    def _appended(self, loaded: LoadedConversation, events: Sequence[AnyEvent], size: int) -> None:
        self._acknowledged.note(loaded.conversation)
        if self._snapshots is not None:
            self._snapshots.index.put(loaded.conversation, size)
            self._snapshots.mark(loaded.conversation)
        self._on_append(loaded, events)

    def _append_failed(self, loaded: LoadedConversation, problem: JournalError) -> None:
        """What is in memory may not be what is in the journal: it is read again, or the shard is left."""
        _log.error("event=journal_error %s %s", loaded.label, fields(message=problem))
        if isinstance(problem, StaleEpoch):
            self._on_fenced()
        if isinstance(problem, WrongSequence) and not loaded.is_dropped:
            loaded.drop(problem)
            if loaded.driver is not None and not loaded.driver.done():
                self._leaving.add(loaded.driver)
                loaded.driver.add_done_callback(self._leaving.discard)
            # By identity: one that was dropped before must not drop the one that took its place.
            for conversation_id in [i for i, each in self._loaded.items() if each is loaded]:
                del self._loaded[conversation_id]
                self._on_unloaded(conversation_id)
