"""The conversations of a shard: which there are, and a cell for each that is in use."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count

from mesh.core.conversation import Conversation, fold
from mesh.core.errors import JournalDamaged, JournalError, NotFound, StaleEpoch, WrongSequence
from mesh.core.events import AnyEvent
from mesh.core.ids import is_id, shard_of, tail
from mesh.journal.port import Journal
from mesh.keeper.cell import Cell
from mesh.keeper.index import Index
from mesh.keeper.snapshots import Snapshots
from mesh.runtime.logs import fields

_RUNS_BITS = 32
_log = logging.getLogger("mesh.keeper")


class Cells:
    """Keeps at most ``max_loaded`` cells that nobody needs; finds the others again in the journal.
    ``on_forgotten`` is told of a conversation whose cell did not agree with its journal."""

    def __init__(
        self,
        shard: int,
        shards: int,
        journal: Journal,
        max_loaded: int,
        on_fenced: Callable[[], None],
        on_change: Callable[[Cell, Sequence[AnyEvent]], None],
        on_forgotten: Callable[[str], None],
    ) -> None:
        self.index = Index()
        self.unreadable: set[str] = set()  # when the shard was opened, and since
        self._shard = shard
        self._shards = shards
        self._journal = journal
        self._max_loaded = max_loaded
        self._on_fenced = on_fenced
        self._on_change = on_change
        self._on_forgotten = on_forgotten
        self._epoch = 0
        self._runs = count()
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        self._loading: dict[str, asyncio.Task[Cell]] = {}
        self._snapshots = Snapshots(journal, f"index2_{shard}.json", self.index)

    async def open(self) -> int:
        """Takes the shard over, and learns which conversations there are: the epoch."""
        self._epoch = await self._journal.open(self._shard)
        # Invariant: greater than every number of an earlier epoch, and one sequence for the whole shard: a
        # conversation that is forgotten and read again must not count from the start.
        self._runs = count((self._epoch << _RUNS_BITS) + 1)
        sizes = await self._journal.sizes()
        mine = {i: size for i, size in sizes.items() if self.owns(i)}
        await self._snapshots.load_index(mine)
        for conversation_id, size in mine.items():
            if not self.index.is_current(conversation_id, size):
                await self._look_into(conversation_id, size)
        return self._epoch

    async def close(self) -> None:
        """Stops what drives turns (they stay open) and writes what is only derived."""
        drivers = [cell.driver for cell in self._cells.values() if cell.driver]
        for driver in drivers:
            driver.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)
        await self._snapshots.close()

    async def get(self, conversation_id: str) -> Cell:
        """The cell of a conversation, read from its journal if need be. Raises `NotFound`."""
        cell = self._cells.get(conversation_id)
        if cell is not None and cell.conversation.seq:
            self._cells.move_to_end(conversation_id)
            return cell
        if not self.owns(conversation_id):
            raise NotFound(f"there is no conversation {conversation_id[:64]!r}")
        if conversation_id not in self._loading:
            task = asyncio.create_task(self._load(conversation_id))
            task.add_done_callback(lambda _: self._loading.pop(conversation_id, None))
            self._loading[conversation_id] = task
        cell = await asyncio.shield(self._loading[conversation_id])
        return self._cells.setdefault(conversation_id, cell)  # it may have been forgotten in between

    async def flush(self) -> None:
        """Makes every message durable that a cell holds back."""
        await asyncio.gather(*(cell.flush() for cell in self._cells.values() if cell.held is not None))

    def loaded(self, conversation_id: str) -> Cell | None:
        """The cell of a conversation if it is in memory."""
        return self._cells.get(conversation_id)

    async def create(self, conversation_id: str, events: Sequence[AnyEvent]) -> Cell:
        """The cell of a new conversation, which begins with these events; of the same one, when it is created
        twice at once."""
        cell = self._keep(conversation_id, Conversation())
        await cell.append(events)
        return cell

    async def that_asked(self, uuid: str) -> Cell:
        """The conversation of an approval, which may be decided. Raises `NotFound`."""
        unreadable = [i for i in self.unreadable if tail(i) == tail(uuid)]
        for conversation_id in (*self.index.with_tail(uuid), *unreadable):
            cell = await self.get(conversation_id)
            if uuid in cell.conversation.asked:
                return cell
        raise NotFound(f"there is no approval {uuid[:64]!r}")

    def owns(self, conversation_id: str) -> bool:
        """Whether this is the id of a conversation of this shard, if there is one."""
        return is_id(conversation_id) and shard_of(conversation_id, self._shards) == self._shard

    async def _load(self, conversation_id: str) -> Cell:
        conversation = fold(await self._journal.read(conversation_id))
        if not conversation.id:
            raise NotFound(f"there is no conversation {conversation_id}")
        if conversation_id in self.unreadable:
            self.unreadable.discard(conversation_id)
            self.index.put(conversation, 0)  # no size it could have: it is read again at the next start
        return self._keep(conversation_id, conversation)

    def _keep(self, conversation_id: str, conversation: Conversation) -> Cell:
        """Bounds memory on the way: the least used cells that nobody needs go; their journals stay."""
        assert self._epoch, "the shard is opened before anything is asked of it"
        excess = len(self._cells) - self._max_loaded
        if excess > 0:
            idle = [i for i, cell in self._cells.items() if cell.is_idle]
            for forgotten in idle[:excess]:
                del self._cells[forgotten]
        cell = Cell(
            conversation, self._journal, self._shard, self._epoch, self._runs, self._changed, self._lost
        )
        return self._cells.setdefault(conversation_id, cell)

    async def _look_into(self, conversation_id: str, size: int) -> None:
        try:
            conversation = fold(await self._journal.read(conversation_id))
        except JournalError as problem:
            kind = "journal_damaged" if isinstance(problem, JournalDamaged) else "journal_unreadable"
            _log.error("event=%s conversation=%s %s", kind, conversation_id, fields(message=problem))
            self.unreadable.add(conversation_id)
            return
        if conversation.id:
            self.index.put(conversation, size)

    def _changed(self, cell: Cell, events: Sequence[AnyEvent], size: int) -> None:
        self.index.put(cell.conversation, size)
        self._snapshots.mark(cell.conversation)
        self._on_change(cell, events)

    def _lost(self, cell: Cell, problem: JournalError) -> None:
        """What is in memory may not be what is in the journal: read it again, or leave the shard."""
        _log.error("event=journal_error %s %s", cell.about, fields(message=problem))
        if isinstance(problem, StaleEpoch):
            self._on_fenced()
        if isinstance(problem, WrongSequence):
            self._cells.pop(cell.conversation.id, None)
            self._on_forgotten(cell.conversation.id)
