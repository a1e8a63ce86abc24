"""The port to the listing of conversations: what is known of each without reading its journal.

Above: keepers and gateways, which show pages, find open turns and approvals, and wait for deadlines. Below:
an `Index` in memory, which a keeper of files derives from its journals; or the tables of a database, which
every append moves together with the journal.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from mesh.core.conversation import Conversation, ConversationStatus
from mesh.core.events import (
    AnyEvent,
    Completed,
    ConversationCompleted,
    ConversationCreated,
    Error,
    UserMessage,
)
from mesh.core.view import ConversationSummary, end_state, summary, title_of

TURN_UNDER_WAY = ("working", "paused", "waiting_approval", "auth_required")
"""The states of a turn that has not ended."""


class JournalEdges(NamedTuple):
    """The first two events of a journal, and the last two; of one with fewer events, the same ones. They need
    not be durable yet."""

    first: Sequence[AnyEvent]
    last: Sequence[AnyEvent]


class ListingEntry(msgspec.Struct, frozen=True, gc=False):
    """What a listing knows of a conversation. ``needs_pass``: its turn can go on without a person.
    ``expires_at``: when the first of its approvals expires, empty if none does. ``asking``: the agents that
    wait for decisions which may be remembered for good; the root agent is the empty name."""

    summary: ConversationSummary = msgspec.field(name="entry")  # as files of earlier versions have it
    needs_pass: bool = msgspec.field(name="can_go_on")
    expires_at: str = ""
    asking: tuple[str, ...] = ()


class Selection(msgspec.Struct, frozen=True):
    """Which conversations are asked for: of one A2A context or any, in one of ``states`` (`TurnState`, ""
    before the first turn) or any, not changed before ``since``."""

    context_id: str = ""
    states: tuple[str, ...] | None = None
    since: str = ""


def entry_of(conversation: Conversation) -> ListingEntry:
    """The entry of a conversation as it is now."""
    return ListingEntry(
        summary(conversation), conversation.needs_pass, conversation.first_deadline, conversation.asking
    )


def entry_at_rest(edges: JournalEdges) -> ListingEntry | None:
    """The entry of a conversation in which nothing is under way, from how its journal begins and ends: the
    one that `entry_of` has of all its events, for a small part of the time. None if they do not say it."""
    newest: Completed | Error | ConversationCompleted
    status: ConversationStatus
    match edges.last:
        case [*_, Completed() | Error() as end]:
            newest, status = end, "active"
        case [Completed() | Error() as end, ConversationCompleted() as newest]:
            status = "completed"
        case _:
            return None
    match edges.first:
        case [ConversationCreated() as created, UserMessage() as opened] if newest.time:
            return ListingEntry(
                ConversationSummary(
                    id=created.conversation_id,
                    session_id=created.session_id,
                    status=status,
                    created_at=created.time,
                    updated_at=max(newest.time, created.imported_at),
                    title=title_of(opened.text),
                    pending_approval=None,
                    turn_state=end_state(end),
                    context_id=created.context_id,
                    version=end.digest or created.digest,
                ),
                needs_pass=False,
            )
        case _:
            return None


class Listing(Protocol):
    """The conversations of a shard, or of all shards of an agent. Every method may raise `JournalError`.

    Promises: it shows every append that was acknowledged before the call.

    Does not promise that two calls show one moment.
    """

    async def has(self, conversation_id: str) -> bool:
        """Whether there is such a conversation."""
        ...

    async def page(
        self, limit: int, before: str, status: str, version: str = ""
    ) -> list[ConversationSummary]:
        """The newest ``limit`` conversations that are older than ``before`` (``created_at|id``), of one
        status or any, and whose newest turn is of one version or any."""
        ...

    async def counts(self) -> Mapping[str, int]:
        """How many conversations have each status."""
        ...

    async def counts_by_version(self) -> Mapping[str, Mapping[str, int]]:
        """How many conversations have each status, by the version of their newest turn; under the empty name
        those of which it is not known."""
        ...

    async def recent(
        self, selection: Selection, limit: int, before: str
    ) -> tuple[list[ConversationSummary], int]:
        """The selected conversations that changed last, before ``before`` (``updated_at|id``), and how many
        are selected in all, whatever ``limit`` and ``before`` say."""
        ...

    async def unchanged(self, before: str, status: str, after: str, limit: int) -> list[ConversationSummary]:
        """Those ``limit`` conversations without an open turn that changed first, of one status or any: before
        the moment ``before``, and after ``after`` (``updated_at|id``)."""
        ...

    async def with_suffix(self, some_id: str) -> Sequence[str]:
        """The conversations to which an approval or an agent with this id may belong."""
        ...

    async def open_turns(self) -> Sequence[str]:
        """The conversations whose turn can go on without a person."""
        ...

    async def turns_under_way(self, limit: int) -> Sequence[str]:
        """The newest ``limit`` conversations with a turn that has not ended."""
        ...

    async def deadlines(self) -> Sequence[tuple[str, str]]:
        """(when, conversation) of the approvals that expire first in their conversation."""
        ...

    async def waiting_since(self) -> str:
        """When the approval was asked for that waits longest; empty if none does."""
        ...

    async def asking(self) -> Mapping[str, Sequence[str]]:
        """The conversations that wait for decisions which may be remembered for good, by `asking` agent."""
        ...
