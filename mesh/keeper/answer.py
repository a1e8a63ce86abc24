"""What a keeper answers, made from the state of a conversation. Pure."""

from collections.abc import Sequence

import msgspec

from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.conversation import Conversation, fold
from mesh.core.events import AnyEvent, Completed, Error
from mesh.core.view import ConversationView, PendingApproval, pending_approval, view
from mesh.keeper.index import Entry, Index
from mesh.keeper.requests import Page, Recent, Reply, reply


class Result(msgspec.Struct, frozen=True):
    """How a turn stands: its answer, or the approval it waits for."""

    response: str
    waiting_approval: bool
    approval: PendingApproval | msgspec.UnsetType = msgspec.UNSET
    auth_required: bool = False


class Answer(msgspec.Struct, frozen=True):
    """The body of a turn's reply. ``error`` says why a turn ended without an answer."""

    conversation: ConversationView
    result: Result | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET


class Recency(msgspec.Struct, frozen=True):
    """What `Recent` asked for, and how many there are of it in all."""

    conversations: list[Entry]
    total: int


class Listing(msgspec.Struct, frozen=True):
    """A page of conversations, and how many there are of each status in all."""

    conversations: list[Entry]
    summary: dict[str, int]
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


def answer(conversation: Conversation, status: int, *, with_result: bool = True) -> Reply:
    """The reply about a turn that ended or waits; 502 when the turn failed."""
    shown = view(conversation)
    if not with_result:
        return reply(status, Answer(shown), conversation.session_id)
    last = conversation.last_answer
    if not conversation.pending and isinstance(last, Error):
        return reply(502, Answer(shown, error=last.message), conversation.session_id)
    return reply(status, Answer(shown, _result(conversation)), conversation.session_id)


def _result(conversation: Conversation) -> Result:
    pending = conversation.pending
    if pending:
        asked = pending[0]
        how = APPROVAL_KINDS[asked.kind].how
        more = f" ({len(pending)} approvals wait; this is the oldest)" if len(pending) > 1 else ""
        text = f"Waiting for approval: {how} {asked.uuid}{more}.\n{asked.description}"
        return Result(
            text, True, pending_approval(conversation.id, asked), auth_required=conversation.needs_token
        )
    last = conversation.last_answer
    return Result(last.response if isinstance(last, Completed) else "", False)


def rewound(events: Sequence[AnyEvent], seq: int) -> Conversation:
    """The conversation as it was when event ``seq`` had just been journaled."""
    return fold(event for event in events if event.seq <= seq)


def why_not(conversation: Conversation, uuid: str) -> str:
    """Why an approval takes no decision any more: who decided what, and when."""
    resolved = conversation.decided.get(uuid)
    if resolved is None:
        return f"approval {uuid} is not needed any more: the tool reported its result"
    by = f" by {resolved.by}" if resolved.by else ""
    why = f" ({resolved.reason})" if resolved.reason else ""
    return f"approval {uuid} was decided already: {resolved.decision}{by} at {resolved.time}{why}"


def listed(index: Index, request: Page | Recent) -> Reply:
    """This shard's part of a list of conversations."""
    if isinstance(request, Recent):
        return reply(200, Recency(*index.recent(request)))
    found = index.page(request.limit + 1, request.before, request.status)
    return reply(200, listing(found, request.limit, dict(index.summary)))


def listing(found: Sequence[Entry], limit: int, counts: dict[str, int]) -> Listing:
    """A page from entries that may be more than a page."""
    shown = list(found[:limit])
    by_status = {status: counts.get(status, 0) for status in ("active", "waiting_approval", "completed")}
    more = f"{shown[-1].created_at}|{shown[-1].id}" if len(found) > limit else msgspec.UNSET
    return Listing(shown, {"total": sum(by_status.values()), **by_status}, more)
