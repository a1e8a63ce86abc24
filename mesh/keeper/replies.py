"""What a keeper answers: typed replies in one union. Pure.

A keeper knows no status code, no URL and no frame of a stream. The gateway renders a reply in the protocol
of its client: `mesh.http.responses` for REST, `mesh.a2a.server` for A2A. A refusal travels as a reply, and
becomes the error that it stands for again in the gateway.
"""

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET

from mesh.core.agents_of_turn import AgentView
from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.conversation import Conversation
from mesh.core.errors import (
    BadRequest,
    Conflict,
    JournalDamaged,
    JournalError,
    JournalRefused,
    MeshError,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unavailable,
)
from mesh.core.events import AnyEvent, Completed, Error, Preview
from mesh.core.messages import Message
from mesh.core.view import ConversationSummary, ConversationView, TurnResult, pending_approval, view
from mesh.push.webhook import Webhook


class TurnAnswer(msgspec.Struct, frozen=True, tag=True):
    """A turn that ended or waits for a person. ``result`` is None when it failed; then ``error`` says why.
    Not ``is_taken``: it is the reply to a message that begins no turn, as a person is asked something."""

    conversation: ConversationView
    result: TurnResult | None = None
    error: str | None = None
    is_taken: bool = True


class TurnAccepted(msgspec.Struct, frozen=True, tag=True):
    """The turn goes on, and what was asked is durable. ``seq`` is the last event before it: a watch that
    begins after it misses nothing."""

    conversation: ConversationView
    turn: int
    seq: int


TurnReply = TurnAnswer | TurnAccepted


class ConversationReply(msgspec.Struct, frozen=True, tag=True):
    """A conversation as it is. ``seq`` is its last event."""

    conversation: ConversationView
    seq: int


class PreviewReply(msgspec.Struct, frozen=True, tag=True):
    """What a call would do."""

    preview: Preview


class NothingTaken(msgspec.Struct, frozen=True, tag=True):
    """There is nothing to answer: no decision was taken, or no such request came before."""


class Conversations(msgspec.Struct, frozen=True, tag=True):
    """Conversations of one shard in the order of a page, one more than were asked for if there are more, and
    how many the shard has of each status."""

    conversations: list[ConversationSummary]
    counts: dict[str, int]


class VersionCounts(msgspec.Struct, frozen=True, tag=True):
    """How many conversations of one shard have each status, by the version of the agent in their newest turn;
    empty: not known."""

    by_version: dict[str, dict[str, int]]


class RecentConversations(msgspec.Struct, frozen=True, tag=True):
    """Conversations of one shard, those that changed last first, and how many there are of that kind."""

    conversations: list[ConversationSummary]
    total: int


class JournalLines(msgspec.Struct, frozen=True, tag=True):
    """A conversation's journal, one event a line."""

    session_id: str
    content: bytes


class AgentReply(msgspec.Struct, frozen=True, tag=True):
    """An agent of a turn, with the messages between it and its model if they were asked for."""

    agent: AgentView
    messages: Sequence[Message] | None = None


class Agents(msgspec.Struct, frozen=True, tag=True):
    """Agents of one shard, each after the one that called or started it."""

    agents: Sequence[AgentView]


class Webhooks(msgspec.Struct, frozen=True, tag=True):
    """The webhooks of a conversation, without their secrets."""

    webhooks: Sequence[Webhook]


class WatchedEvents(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Events for a watcher of one conversation; none: nothing happened for a while. ``after`` and ``cursor``
    go into its next `Watch`. ``ended``: there will be no more."""

    events: Sequence[AnyEvent] = ()
    after: int = 0
    cursor: int = 0
    ended: bool = False


class FollowedEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event, and the conversation that it happened in."""

    conversation_id: str
    event: AnyEvent


class FollowedEvents(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Events for a follower of a shard; ``cursor`` goes into its next `Follow`."""

    events: Sequence[FollowedEvent] = ()
    cursor: int = 0


class FollowedAgents(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Agents for a follower of a shard; ``cursor`` goes into its next `FollowAgents`. ``is_whole``: these are
    all that are at work, whatever the follower knew before."""

    agents: Sequence[AgentView] = ()
    cursor: int = 0
    is_whole: bool = False


_Kind = Literal[
    "bad_request",
    "not_found",
    "conflict",
    "too_large",
    "too_many_requests",
    "unavailable",
    "journal_damaged",
    "journal_refused",
    "journal_error",
]
_ERRORS: dict[_Kind, type[MeshError]] = {
    "bad_request": BadRequest,
    "not_found": NotFound,
    "conflict": Conflict,
    "too_large": TooLarge,
    # A class stands before its base: the first that fits names the kind.
    "too_many_requests": TooManyRequests,
    "unavailable": Unavailable,
    "journal_damaged": JournalDamaged,
    "journal_refused": JournalRefused,
    "journal_error": JournalError,
}


class Refusal(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What is wrong with a request, or with the keeper at the moment."""

    kind: _Kind
    message: str
    retry_after_s: int = 0

    def error(self) -> MeshError:
        """The error that this refusal stands for."""
        kind = _ERRORS[self.kind]
        if issubclass(kind, Unavailable):
            return kind(self.message, self.retry_after_s)
        return kind(self.message)


def refusal(problem: MeshError) -> Refusal:
    """The refusal that stands for an error. Raises the error itself if no refusal does: then it is a
    defect."""
    for kind, error in _ERRORS.items():
        if isinstance(problem, error):
            retry_after_s = problem.retry_after_s if isinstance(problem, Unavailable) else 0
            return Refusal(kind, str(problem), retry_after_s)
    raise problem


Reply = (
    TurnAnswer
    | TurnAccepted
    | ConversationReply
    | PreviewReply
    | NothingTaken
    | Conversations
    | RecentConversations
    | VersionCounts
    | JournalLines
    | AgentReply
    | Agents
    | Webhooks
    | Refusal
)

FollowReply = FollowedEvents | FollowedAgents | Refusal
WatchReply = WatchedEvents | Refusal
R = TypeVar("R")


def raise_for_refusal(reply: R | Refusal) -> R:
    """The reply. Raises the error that it stands for if it is a refusal."""
    if isinstance(reply, Refusal):
        raise reply.error()
    return reply


def turn_answer(conversation: Conversation) -> TurnAnswer:
    """The reply about a turn that ended or waits."""
    last = conversation.last_answer
    if not (conversation.is_waiting or conversation.is_held) and isinstance(last, Error):
        return TurnAnswer(view(conversation), error=last.message)
    return TurnAnswer(view(conversation), _result(conversation))


def paused_text(conversation: Conversation) -> str:
    """What is told to whoever waits for a turn in which only paused agents could go on."""
    held = [f"{agent.name} ({agent.agent_id})" for agent in conversation.agents.held]
    more = f" and {len(held) - 3} more" if len(held) > 3 else ""
    return f"Paused: a person has paused {', '.join(held[:3])}{more}. The turn goes on when they are resumed."


def conversation_reply(conversation: Conversation) -> ConversationReply:
    """The reply that shows a conversation."""
    return ConversationReply(view(conversation), conversation.seq)


def _result(conversation: Conversation) -> TurnResult:
    pending = conversation.pending
    if pending:
        asked = pending_approval(conversation, pending[0])
        how = APPROVAL_KINDS[asked.kind].how
        more = f" ({len(pending)} approvals wait; this is the oldest)" if len(pending) > 1 else ""
        text = f"Waiting for approval: {how} {asked.uuid}{more}.\n{asked.text}"
        return TurnResult(text, True, asked, auth_required=conversation.needs_token)
    if conversation.is_held:
        return TurnResult(paused_text(conversation), False)
    last = conversation.last_answer
    if not isinstance(last, Completed):
        return TurnResult("", False)
    return TurnResult(
        last.response,
        False,
        forced=last.forced or UNSET,
        output=last.output,
        invalid=last.invalid or UNSET,
    )
