"""Whether the short way to the entry of a conversation says what the long one does."""

from collections.abc import Sequence

from mesh.core.conversation import fold
from mesh.core.events import AnyEvent, Completed
from mesh.journal.listing import JournalEdges, entry_at_rest, entry_of


def listed_wrongly(events: Sequence[AnyEvent]) -> str:
    """What is wrong with the entry that is derived from how this journal begins and ends; empty: nothing."""
    entry = entry_at_rest(JournalEdges(events[:2], events[-2:]))
    if entry is None:
        return "no entry, though its turn has ended" if isinstance(events[-1], Completed) else ""
    return "" if entry == entry_of(fold(events)) else f"of {len(events)} events: {entry}"
