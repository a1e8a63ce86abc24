"""A conversation as clients see it: what REST answers, and the file beside the journal. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mesh.core.agents_of_turn import AgentView
from mesh.core.amounts import Amount
from mesh.core.conversation import Conversation, ConversationStatus, MessageView
from mesh.core.events import (
    ApprovalKindName,
    ApprovalRequired,
    Artifact,
    Completed,
    Error,
    Found,
    Preview,
    is_moment,
)
from mesh.core.ids import is_id
from mesh.core.places import ROOT
from mesh.core.spending import Spent
from mesh.core.verdict import Part, Remember

TurnState = Literal[
    "working", "paused", "waiting_approval", "auth_required", "completed", "cancelled", "failed"
]

_TITLE = 80
"""How many characters of the first message make the title of a conversation."""


class TurnView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of the newest turn, and since when. ``response`` is its answer, or why it failed;
    ``artifacts`` are the files that tools returned. A turn that was cancelled on request is ``cancelled``;
    one in which a person rejected an approval is ``completed``. ``forced`` is the key of the budget whose
    limit forced the answer. ``output`` and ``invalid`` as in `Completed`."""

    number: int
    state: TurnState
    since: str
    response: str = ""
    artifacts: tuple[Artifact, ...] = ()
    forced: str = ""
    output: Any = UNSET
    invalid: str = ""


class PendingApproval(msgspec.Struct, frozen=True):
    """An approval as REST shows it. ``asked_by`` is the name of the node that waits; ``remote_*`` are set
    when another agent asks. ``agent_path`` is there when a called agent asks: the names of the agents from
    the root agent down to that one. ``output_schema`` is there where an edited output has to fit one.
    ``found`` is there when a check was asked first, and could not tell. The last six are there when a policy
    asks: see `ApprovalRequired`."""

    uuid: str
    conversation_id: str
    tool_name: str
    tool_args: dict[str, Any]
    description: str
    kind: ApprovalKindName
    created_at: str
    asked_by: str | None = None
    expires_at: str | None = None
    remote_task_id: str | None = None
    remote_agent_name: str | None = None
    agent_path: tuple[str, ...] | UnsetType = UNSET
    output_schema: dict[str, Any] | UnsetType = UNSET
    found: Found | UnsetType = UNSET
    rule: str | UnsetType = UNSET
    why: str | UnsetType = UNSET
    parts: tuple[Part, ...] | UnsetType = UNSET
    remember: Remember | UnsetType = UNSET
    suggested_rule: dict[str, Any] | UnsetType = UNSET
    preview: Preview | UnsetType = UNSET

    @property
    def text(self) -> str:
        """The description, and who asks on whose behalf if a called agent does."""
        if not self.agent_path:
            return self.description
        *above, asking = self.agent_path
        return f"{self.description}\n{asking} asks, on behalf of {' → '.join(above)}."


class TurnResult(msgspec.Struct, frozen=True):
    """How a turn stands: its answer, or the oldest approval that it waits for. ``forced`` is there when a
    limit forced the answer: the key of the budget. ``output`` is the answer as a JSON value, there where it
    has a schema; ``invalid`` is there when the answer was accepted in spite of this objection."""

    response: str
    waiting_approval: bool
    approval: PendingApproval | UnsetType = UNSET
    auth_required: bool = False
    forced: str | UnsetType = UNSET
    output: Any = UNSET
    invalid: str | UnsetType = UNSET


class PipelineState(msgspec.Struct, frozen=True):
    """Where in the tree the oldest pending approval waits: indices of ``agents`` below the root."""

    paused_node_path: list[int]
    paused_node_output_key: str | None
    session_state: dict[str, str]
    user_message: str


class ConversationView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole conversation as REST shows it and as ``conversation_{id}.json`` keeps it. ``context_id``
    is A2A's, when it is not the session's id. ``version`` is that of the agent in the newest turn.
    ``spent`` is there once a model was called. ``unsettled`` is the most that model calls whose answers
    were lost can have cost, in all turns; it is there if there are such calls and no turn is open, as the
    calls of an open turn may still be answered."""

    id: str
    session_id: str
    status: ConversationStatus
    messages: list[MessageView]
    created_at: str
    updated_at: str
    pending_approval: PendingApproval | None = None
    pending_approvals: list[PendingApproval] = []
    pipeline_state: PipelineState | None = None
    turn: TurnView | None = None
    context_id: str = ""
    spent: Spent | None = None
    unsettled: Amount | None = None
    version: str = ""

    @property
    def context(self) -> str:
        """The id of the A2A context that the task is in."""
        return self.context_id or self.session_id


class ConversationSummary(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A conversation in a list. ``title`` is the beginning of its first message, ``turn_state`` that of its
    newest turn, ``context_id`` as in `ConversationView`, ``version`` that of the newest turn; empty: not
    known. It is the last field, where the database looks for it."""

    id: str
    session_id: str
    status: ConversationStatus
    created_at: str
    updated_at: str
    title: str = ""
    pending_approval: PendingApproval | None = None
    turn_state: TurnState | None = None
    context_id: str = ""
    version: str = ""

    @property
    def created_cursor(self) -> str:
        """Its position among conversations by creation: what is older comes after it in a list."""
        return f"{self.created_at}|{self.id}"

    @property
    def updated_cursor(self) -> str:
        """Its position among conversations by their last change."""
        return f"{self.updated_at}|{self.id}"


def is_cursor(text: str) -> bool:
    """Whether this has the form of a position in a list: a moment and an id."""
    when, _, conversation_id = text.partition("|")
    return is_moment(when) and is_id(conversation_id)


def view(conversation: Conversation) -> ConversationView:
    """The conversation as clients see it."""
    pending = [pending_approval(conversation, event) for event in conversation.pending]
    return ConversationView(
        id=conversation.id,
        session_id=conversation.session_id,
        status=conversation.status,
        messages=conversation.messages,
        created_at=conversation.created_at,
        updated_at=conversation.updated_at,
        pending_approval=pending[0] if pending else None,
        pending_approvals=pending,
        pipeline_state=_pipeline_state(conversation),
        turn=turn_view(conversation),
        context_id=conversation.context_id,
        spent=conversation.spent.spent if conversation.spent else None,
        unsettled=None if conversation.turn_open else conversation.budget_use.conversation.held or None,
        version=conversation.digest,
    )


def as_they_stand(agents: Iterable[AgentView], conversation: Conversation) -> Iterator[AgentView]:
    """Agents of a conversation, of which some may ask a person."""
    asking = _asking(conversation)
    return (_if_asking(agent, asking) for agent in agents)


def _asking(conversation: Conversation) -> set[str]:
    """The ids of the agents that ask a person."""
    return {conversation.agents.around(asked.place) for asked in conversation.pending}


def _if_asking(agent: AgentView, asking: set[str]) -> AgentView:
    is_asking = not agent.has_ended and agent.agent_id in asking
    return msgspec.structs.replace(agent, status="awaiting_user") if is_asking else agent


def summary(conversation: Conversation) -> ConversationSummary:
    """The conversation as a list shows it."""
    oldest, turn = conversation.oldest_pending, turn_view(conversation)
    first = next((message.content for message in conversation.messages if message.role == "user"), "")
    return ConversationSummary(
        id=conversation.id,
        session_id=conversation.session_id,
        status=conversation.status,
        created_at=conversation.created_at,
        updated_at=conversation.updated_at,
        title=title_of(first),
        pending_approval=pending_approval(conversation, oldest) if oldest else None,
        turn_state=turn.state if turn else None,
        context_id=conversation.context_id,
        version=conversation.digest,
    )


def title_of(text: str) -> str:
    """The title of a conversation whose first message this is."""
    return text[:_TITLE]


def turn_view(conversation: Conversation) -> TurnView | None:
    """The state of the newest turn; None before the first."""
    number, since = conversation.turn, conversation.updated_at
    if not number:
        return None
    if conversation.turn_open:
        if not conversation.is_waiting:
            return TurnView(number, "paused" if conversation.is_held else "working", since)
        return TurnView(number, "auth_required" if conversation.needs_token else "waiting_approval", since)
    match conversation.last_answer:
        case Error(message=message, time=time) as end:
            return TurnView(number, end_state(end), time, message)
        case Completed() as end:
            return completed_view(end, number, conversation.artifacts)
        case None:
            return None


def end_state(end: Completed | Error) -> TurnState:
    """The state of a turn that ended so."""
    if isinstance(end, Error):
        return "failed"
    return "cancelled" if end.cancelled_on_request else "completed"


def completed_view(end: Completed, number: int, artifacts: tuple[Artifact, ...] = ()) -> TurnView:
    """The state of a turn that ended so."""
    return TurnView(
        number, end_state(end), end.time, end.response, artifacts, end.forced, end.output, end.invalid
    )


def _pipeline_state(conversation: Conversation) -> PipelineState | None:
    asked = conversation.oldest_pending
    if asked is None or asked.place == ROOT:
        return None
    return PipelineState(
        paused_node_path=asked.place.in_tree.indices,
        paused_node_output_key=asked.output_key or None,
        session_state=conversation.session_state,
        user_message=conversation.user_message,
    )


def pending_approval(conversation: Conversation, event: ApprovalRequired) -> PendingApproval:
    """An approval as clients see it."""
    return PendingApproval(
        uuid=event.uuid,
        conversation_id=conversation.id,
        tool_name=event.tool_name,
        tool_args=event.tool_args,
        description=event.description,
        kind=event.kind,
        created_at=event.time,
        asked_by=event.asked_by or None,
        expires_at=conversation.deadline(event.uuid) or None,
        remote_task_id=event.remote_task_id or None,
        remote_agent_name=event.remote_agent_name or None,
        agent_path=event.agent_path or UNSET,
        output_schema=UNSET if event.output_schema is None else event.output_schema,
        found=event.found or UNSET,
        rule=event.rule or UNSET,
        why=event.why or UNSET,
        parts=event.parts or UNSET,
        remember=UNSET if event.remember == "none" else event.remember,
        suggested_rule=UNSET if event.suggested_rule is None else event.suggested_rule,
        preview=event.preview or UNSET,
    )
