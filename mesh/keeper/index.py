"""The index of a shard: what a keeper knows of each conversation without reading its journal.

It is derived, and never needed. It is saved as a blob, and a journal whose size is not the one in the blob is
read again when the keeper starts. So a start reads the size of each file, and the content of few.
"""

import heapq
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import attrgetter

import msgspec

from mesh.core.conversation import Conversation
from mesh.core.ids import id_suffix
from mesh.core.view import ConversationSummary, summary
from mesh.keeper.requests import Recent


class _Kept(msgspec.Struct, frozen=True):
    entry: ConversationSummary
    size: int
    needs_pass: bool = msgspec.field(name="can_go_on")  # as files of earlier versions have it
    expires_at: str = ""
    asking: tuple[str, ...] = ()


class Index:
    """The conversations of a shard."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._order: list[tuple[str, str]] = []
        self._suffixes: defaultdict[str, list[str]] = defaultdict(list)
        self._asking: defaultdict[str, set[str]] = defaultdict(set)
        self.counts: Counter[str] = Counter()

    def __contains__(self, conversation_id: str) -> bool:
        return conversation_id in self._kept

    def put(self, conversation: Conversation, size: int) -> None:
        """Notes a conversation as it is now, and the size of its journal."""
        kept = _Kept(
            summary(conversation),
            size,
            conversation.needs_pass,
            conversation.first_deadline,
            conversation.asking,
        )
        self._put(kept)

    def page(self, limit: int, before: str, status: str) -> list[ConversationSummary]:
        """The newest ``limit`` entries that are older than ``before`` (``created_at|id``)."""
        found: list[ConversationSummary] = []
        for key in reversed(self._order):
            if before and "|".join(key) >= before:
                continue
            entry = self._kept[key[1]].entry
            if not status or entry.status == status:
                found.append(entry)
                if len(found) == limit:
                    break
        return found

    def recent(self, request: Recent) -> tuple[list[ConversationSummary], int]:
        """Those that were asked for, and how many there are in all, whatever ``limit`` and ``before`` say.
        Looks at each conversation."""
        asked = [kept.entry for kept in self._kept.values() if _is_asked(kept.entry, request)]
        later = [entry for entry in asked if not request.before or entry.updated_cursor < request.before]
        return heapq.nlargest(request.limit, later, key=attrgetter("updated_cursor")), len(asked)

    def with_suffix(self, some_id: str) -> list[str]:
        """The conversations that an approval's uuid may belong to."""
        return list(self._suffixes.get(id_suffix(some_id), ()))

    def open_turns(self) -> Iterator[str]:
        """The conversations whose turn can go on without a person."""
        return (i for i, kept in self._kept.items() if kept.needs_pass)

    def turns_under_way(self) -> Iterator[str]:
        """The conversations with a turn that has not ended, newest first."""
        states = ("working", "paused", "waiting_approval", "auth_required")
        return (i for _, i in reversed(self._order) if self._kept[i].entry.turn_state in states)

    def deadlines(self) -> Iterator[tuple[str, str]]:
        """(when, conversation) of the approvals that expire first in their conversation."""
        return ((kept.expires_at, i) for i, kept in self._kept.items() if kept.expires_at)

    def asking(self) -> dict[str, list[str]]:
        """The conversations that wait for decisions which may be remembered for good, by the agents that ask;
        the root agent is the empty name."""
        return {agent: list(found) for agent, found in self._asking.items() if found}

    def is_current(self, conversation_id: str, size: int) -> bool:
        """Whether the journal is as long as when its entry was noted."""
        kept = self._kept.get(conversation_id)
        return kept is not None and kept.size == size

    def save(self) -> bytes:
        """The whole index, for `load`."""
        return msgspec.json.encode(list(self._kept.values()))

    def load(self, saved: bytes, sizes: dict[str, int]) -> None:
        """Takes what was saved, as far as it is still so."""
        for kept in msgspec.json.decode(saved, type=list[_Kept]):
            if sizes.get(kept.entry.id) == kept.size:
                self._put(kept)

    def _put(self, kept: _Kept) -> None:
        entry = kept.entry
        old = self._kept.get(entry.id)
        if old is None:
            insort(self._order, (entry.created_at, entry.id))
            self._suffixes[id_suffix(entry.id)].append(entry.id)
        else:
            self.counts[old.entry.status] -= 1
            for agent in old.asking:
                self._asking[agent].discard(entry.id)
        for agent in kept.asking:
            self._asking[agent].add(entry.id)
        self.counts[entry.status] += 1
        self._kept[entry.id] = kept


def _is_asked(entry: ConversationSummary, request: Recent) -> bool:
    return (
        (not request.context_id or (entry.context_id or entry.session_id) == request.context_id)
        and (request.states is None or (entry.turn_state or "") in request.states)
        and entry.updated_at >= request.since
    )
