"""The index of a shard: the listing of its conversations in memory.

It is derived, and never needed. It is saved as a blob, and a journal whose size is not the one in the blob is
read again when the keeper starts. So a start reads the size of each file, and the content of few.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter

import msgspec

from mesh.core.conversation import Conversation
from mesh.core.ids import id_suffix
from mesh.core.view import ConversationSummary
from mesh.journal.listing import TURN_UNDER_WAY, ListingEntry, Selection, entry_of


class _Indexed(ListingEntry, frozen=True, kw_only=True, gc=False):
    size: int


class Index:
    """A `Listing` in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, _Indexed] = {}
        self._order: list[str] = []  # by the cursor of creation
        self._suffixes: dict[str, tuple[str, ...]] = {}  # no lists, which the garbage collector would visit
        self._asking: defaultdict[str, set[str]] = defaultdict(set)
        self._counts: Counter[str] = Counter()

    def put(self, conversation: Conversation, size: int) -> None:
        """Notes a conversation as it is now, and the size of its journal."""
        self._put(_indexed(entry_of(conversation), size))

    def put_all(self, entries: Iterable[tuple[ListingEntry, int]]) -> None:
        """Notes entries of conversations, each with the size of the journal."""
        self._put_all(_indexed(entry, size) for entry, size in entries)

    def remove(self, conversation_id: str) -> None:
        """Forgets a conversation, if it is known."""
        kept = self._kept.pop(conversation_id, None)
        if kept is None:
            return
        entry = kept.summary
        self._take_from_order(kept)
        self._count_out(kept)
        suffix = id_suffix(entry.id)
        if others := tuple(id for id in self._suffixes[suffix] if id != entry.id):
            self._suffixes[suffix] = others
        else:
            del self._suffixes[suffix]

    def is_current(self, conversation_id: str, size: int) -> bool:
        """Whether the journal is as long as when its entry was noted."""
        kept = self._kept.get(conversation_id)
        return kept is not None and kept.size == size

    def save(self) -> bytes:
        """The whole index, for `load`."""
        return msgspec.json.encode(list(self._kept.values()))

    def load(self, saved: bytes, sizes: Mapping[str, int]) -> None:
        """Takes what was saved, as far as it is still so."""
        saved_entries = msgspec.json.decode(saved, type=list[_Indexed])
        self._put_all(kept for kept in saved_entries if sizes.get(kept.summary.id) == kept.size)

    async def has(self, conversation_id: str) -> bool:
        return conversation_id in self._kept

    async def page(
        self, limit: int, before: str, status: str, version: str = ""
    ) -> list[ConversationSummary]:
        found: list[ConversationSummary] = []
        for key in reversed(self._order):
            if before and key >= before:
                continue
            entry = self._kept[_id_of(key)].summary
            if (not status or entry.status == status) and (not version or entry.version == version):
                found.append(entry)
                if len(found) == limit:
                    break
        return found

    async def counts(self) -> Mapping[str, int]:
        return dict(self._counts)

    async def counts_by_version(self) -> Mapping[str, Mapping[str, int]]:
        """Looks at each conversation."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for kept in self._kept.values():
            found[kept.summary.version][kept.summary.status] += 1
        return found

    async def recent(
        self, selection: Selection, limit: int, before: str
    ) -> tuple[list[ConversationSummary], int]:
        """Looks at each conversation."""
        asked = [kept.summary for kept in self._kept.values() if _is_selected(kept.summary, selection)]
        later = [entry for entry in asked if not before or entry.updated_cursor < before]
        return heapq.nlargest(limit, later, key=attrgetter("updated_cursor")), len(asked)

    async def unchanged(self, before: str, status: str, after: str, limit: int) -> list[ConversationSummary]:
        """Looks at each conversation."""
        summaries = (kept.summary for kept in self._kept.values())
        old = (
            each
            for each in summaries
            if each.updated_at < before
            and each.updated_cursor > after
            and each.turn_state not in TURN_UNDER_WAY
            and (not status or each.status == status)
        )
        return heapq.nsmallest(limit, old, key=attrgetter("updated_cursor"))

    async def with_suffix(self, some_id: str) -> Sequence[str]:
        return self._suffixes.get(id_suffix(some_id), ())

    async def open_turns(self) -> Sequence[str]:
        return [i for i, kept in self._kept.items() if kept.needs_pass]

    async def turns_under_way(self, limit: int) -> Sequence[str]:
        newest = (_id_of(key) for key in reversed(self._order))
        under_way = (i for i in newest if self._kept[i].summary.turn_state in TURN_UNDER_WAY)
        return list(islice(under_way, limit))

    async def deadlines(self) -> Sequence[tuple[str, str]]:
        return [(kept.expires_at, i) for i, kept in self._kept.items() if kept.expires_at]

    async def waiting_since(self) -> str:
        """Looks at each conversation."""
        summaries = (kept.summary for kept in self._kept.values())
        waiting = (each.pending_approval for each in summaries if each.status == "waiting_approval")
        return min((asked.created_at for asked in waiting if asked), default="")

    async def asking(self) -> Mapping[str, Sequence[str]]:
        return {agent: list(found) for agent, found in self._asking.items() if found}

    def _put_all(self, many: Iterable[_Indexed]) -> None:
        """As `_put` of each. Their order is found once: to insert 100,000 takes longer than all else."""
        for kept in many:
            if old := self._kept.get(kept.summary.id):
                self._count_out(old)
            self._note(kept)
        self._order = sorted(each.summary.created_cursor for each in self._kept.values())

    def _put(self, kept: _Indexed) -> None:
        entry = kept.summary
        old = self._kept.get(entry.id)
        if old is not None:
            self._count_out(old)
        # Every append comes here: the order is left as it is but for a conversation that began anew.
        if old is None or old.summary.created_at != entry.created_at:
            if old is not None:
                self._take_from_order(old)
            insort(self._order, entry.created_cursor)
        self._note(kept)

    def _note(self, kept: _Indexed) -> None:
        entry = kept.summary
        if entry.id not in self._kept:
            suffix = id_suffix(entry.id)
            self._suffixes[suffix] = (*self._suffixes.get(suffix, ()), entry.id)
        for agent in kept.asking:
            self._asking[agent].add(entry.id)
        self._counts[entry.status] += 1
        self._kept[entry.id] = kept

    def _take_from_order(self, kept: _Indexed) -> None:
        del self._order[bisect_left(self._order, kept.summary.created_cursor)]

    def _count_out(self, kept: _Indexed) -> None:
        self._counts[kept.summary.status] -= 1
        for agent in kept.asking:
            self._asking[agent].discard(kept.summary.id)


def _indexed(entry: ListingEntry, size: int) -> _Indexed:
    return _Indexed(entry.summary, entry.needs_pass, entry.expires_at, entry.asking, size=size)


def _id_of(cursor: str) -> str:
    return cursor.rpartition("|")[2]


def _is_selected(entry: ConversationSummary, selection: Selection) -> bool:
    return (
        (not selection.context_id or (entry.context_id or entry.session_id) == selection.context_id)
        and (selection.states is None or (entry.turn_state or "") in selection.states)
        and entry.updated_at >= selection.since
    )
