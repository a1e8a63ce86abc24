"""What a gateway asks of a keeper: small messages in one union. `mesh.keeper.replies` has the answers.

Each request names its reply as a type parameter, so that a type checker knows what `Backend.ask` returns.
"""

from typing import Generic, TypeVar

import msgspec

from mesh.core.approvals import Decision
from mesh.keeper.replies import (
    ConversationReply,
    Conversations,
    JournalLines,
    NothingTaken,
    RecentConversations,
    TurnReply,
    Webhooks,
)
from mesh.push.webhook import Webhook

R_co = TypeVar("R_co", covariant=True)


class Ask(msgspec.Struct, Generic[R_co], frozen=True):
    """A request to a keeper, which is answered by an ``R_co``, or refused."""


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who asks. ``token`` is for the turn's downstream calls: kept in memory, never written.

    ``body_hash`` is of the request's path and body: with ``idempotency_key`` it says whether two requests
    are one. ``by`` names who asks or decides, for the record.
    """

    session_id: str = ""
    token: str = ""
    traceparent: str = ""
    idempotency_key: str = ""
    body_hash: str = ""
    by: str = ""

    def __repr__(self) -> str:
        return f"Caller({self.session_id})"


WITHDRAWN = "withdrawn"
"""The ``body_hash`` of a message that is not to be taken when it comes."""


class Create(Ask[TurnReply | ConversationReply], frozen=True, tag=True):
    """A new conversation, and its first message if there is one. ``context_id`` is A2A's, and the session's
    where the caller gives none. ``webhook`` is told all that happens in it."""

    id: str
    caller: Caller
    message: str | None = None
    wait: bool = True
    watched: bool = False
    context_id: str = ""
    message_id: str = ""
    webhook: Webhook | None = None


class Say(Ask[TurnReply], frozen=True, tag=True):
    """A message. ``wait`` False: answer once it is durable. ``watched``: its turn is about to be watched.
    ``message_id``: what the client calls it. ``is_to_turn``: it is for the newest turn, and refused (409)
    when that has ended, or (without ``wait``) is at work; otherwise it begins the next one."""

    id: str
    caller: Caller
    message: str
    wait: bool = True
    watched: bool = False
    message_id: str = ""
    is_to_turn: bool = False


class Decide(Ask[TurnReply | NothingTaken], frozen=True, tag=True):
    """Decisions about approvals of one conversation, at least one: all of them are taken, or none is.

    ``seen`` is set for a word that may be the repetition of another: it was said when the conversation was at
    this event, and decides nothing (204) that no answer had described to a client by then."""

    caller: Caller
    decisions: tuple[Decision, ...]
    wait: bool = True
    watched: bool = False
    seen: int = 0


class Told(Ask[NothingTaken], frozen=True, tag=True):
    """An answer that describes this approval is about to go to a client, which is there to take it. 204."""

    id: str
    uuid: str


class Repeat(Ask[TurnReply | NothingTaken], frozen=True, tag=True):
    """The first answer to a request with the caller's Idempotency-Key. 204: none was taken."""

    id: str
    caller: Caller


class Finish(Ask[ConversationReply], frozen=True, tag=True):
    """Makes a conversation final."""

    id: str


class Show(Ask[ConversationReply], frozen=True, tag=True):
    """One conversation."""

    id: str


class Page(Ask[Conversations], frozen=True, tag=True):
    """Conversations, newest first, older than ``before`` (``created_at|id``), of one status or any."""

    limit: int = 50
    before: str = ""
    status: str = ""


class Recent(Ask[RecentConversations], frozen=True, tag=True):
    """Conversations, those that changed last first, before ``before`` (``updated_at|id``), changed not before
    ``since``; of one A2A context and in one of ``states`` (`TurnState`, "" before the first turn), or any."""

    limit: int = 50
    before: str = ""
    since: str = ""
    context_id: str = ""
    states: tuple[str, ...] | None = None


class Cancel(Ask[TurnReply], frozen=True, tag=True):
    """Ends the open turn, running or waiting."""

    id: str


class Export(Ask[JournalLines], frozen=True, tag=True):
    """A conversation's journal, one event a line."""

    id: str


class Import(Ask[ConversationReply], frozen=True, tag=True):
    """A conversation as `Export` gave it, here or elsewhere. ``by``: the name of the API key that brought it;
    empty where no keys are asked for."""

    id: str
    content: bytes
    by: str = ""


class PushSet(Ask[Webhooks], frozen=True, tag=True):
    """News of a conversation from now on, to a webhook; instead of the one with the same id."""

    id: str
    webhook: Webhook


class PushList(Ask[Webhooks], frozen=True, tag=True):
    """Where news of a conversation go."""

    id: str


class PushDelete(Ask[Webhooks], frozen=True, tag=True):
    """No more news to this webhook, if there is such a one."""

    id: str
    webhook_id: str


Request = (
    Create
    | Say
    | Decide
    | Told
    | Repeat
    | Finish
    | Show
    | Page
    | Recent
    | Cancel
    | Export
    | Import
    | PushSet
    | PushList
    | PushDelete
)


class Watch(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is new in a conversation, to a watcher who has read all up to event ``after`` (None: who begins
    now). ``cursor`` is that of the last `Seen`.

    ``turn``: of this turn only, until it ends or pauses. ``wait`` False: answer at once. ``exclusive``: no
    other ``watcher`` who says so may watch meanwhile.
    """

    id: str
    watcher: str
    after: int | None = None
    cursor: int = 0
    turn: int = 0
    wait: bool = True
    exclusive: bool = False


class Follow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was journaled of late in any conversation of a shard. ``types`` and ``session_id`` choose."""

    cursor: int = 0
    types: tuple[str, ...] = ()
    session_id: str = ""
    wait: bool = True
