"""What a gateway asks of a keeper: small messages in one union. `mesh.keeper.replies` has the answers.

Each request names its reply as a type parameter, so that a type checker knows what `Backend.ask` returns.
"""

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from mesh.core.approvals import Decision
from mesh.core.events import NewsAction
from mesh.keeper.replies import (
    AgentReply,
    Agents,
    ConversationReply,
    Conversations,
    FollowedAgents,
    FollowedEvents,
    JournalLines,
    NothingTaken,
    PreviewReply,
    RecentConversations,
    TurnReply,
    VersionCounts,
    Webhooks,
)
from mesh.push.webhook import Webhook

R_co = TypeVar("R_co", covariant=True)


class RequestFor(msgspec.Struct, Generic[R_co], frozen=True):
    """A request to a keeper, which is answered by an ``R_co``, or refused."""


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sender of a request. ``token`` is for the turn's downstream calls: kept in memory, never written.

    Two requests with one ``idempotency_key`` and one ``body_hash`` (of path and body) are the same request:
    see `mesh.keeper.idempotency`. ``by`` names who asks or decides, for the record.

    ``depth`` and ``called_by`` are what an agent says that sends a message: see `UserMessage`.
    """

    session_id: str = ""
    token: str = ""
    traceparent: str = ""
    idempotency_key: str = ""
    body_hash: str = ""
    by: str = ""
    depth: int = 0
    called_by: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Caller({self.session_id})"


WITHDRAWN = "withdrawn"
"""The ``body_hash`` under which the key of a message is taken so that the message itself is refused when it
arrives."""


class Create(RequestFor[TurnReply | ConversationReply], frozen=True, tag=True):
    """Creates a conversation, and sends its first message if there is one. ``context_id`` is A2A's, and that
    of the session where the caller names none. ``webhook`` gets the push notifications of the
    conversation. ``budget`` is that of the first turn, as in `SendMessage`."""

    id: str
    caller: Caller
    message: str | None = None
    wait: bool = True
    watched: bool = False
    context_id: str = ""
    message_id: str = ""
    webhook: Webhook | None = None
    budget: dict[str, float] = {}


class SendMessage(RequestFor[TurnReply], frozen=True, tag=True):
    """Sends a message, which begins the next turn.

    ``wait`` False: the reply comes once the message is durable. ``watched``: the turn is about to be watched.
    ``message_id`` is the client's name of the message. ``for_newest_turn``: the message is for the newest
    turn and begins no other: it is refused when that turn has ended, or (without ``wait``) is at work.
    ``budget`` are limits of the turn, by the keys of a budget, beside those of the config.
    """

    id: str
    caller: Caller
    message: str
    wait: bool = True
    watched: bool = False
    message_id: str = ""
    for_newest_turn: bool = False
    budget: dict[str, float] = {}


class Decide(RequestFor[TurnReply | NothingTaken], frozen=True, tag=True):
    """Decisions about approvals of one conversation, at least one: all of them are taken, or none is.

    ``seen`` is set for decisions in words, which may repeat an earlier message: they were made when the
    conversation was at this event, and decide nothing that no reply had shown to a client by then."""

    caller: Caller
    decisions: tuple[Decision, ...]
    wait: bool = True
    watched: bool = False
    seen: int = 0


class NoteApprovalShown(RequestFor[NothingTaken], frozen=True, tag=True):
    """Notes that a reply which shows this approval is about to go to a client that is still connected."""

    id: str
    uuid: str


class FindFirstReply(RequestFor[TurnReply | NothingTaken], frozen=True, tag=True):
    """Asks for the reply that a request with the caller's key got, if one was taken."""

    id: str
    caller: Caller


class Complete(RequestFor[ConversationReply], frozen=True, tag=True):
    """Completes a conversation: it takes no more messages."""

    id: str


class Delete(RequestFor[ConversationReply], frozen=True, tag=True):
    """Deletes a conversation, for good: the reply is what it was. Refused while a turn is open. ``by``: the
    name of the API key that asks; empty where no keys are asked for."""

    id: str
    by: str = ""


class Show(RequestFor[ConversationReply], frozen=True, tag=True):
    """Asks for one conversation."""

    id: str


class ShowPreview(RequestFor[PreviewReply], frozen=True, tag=True):
    """Asks what the call would do that an approval is about, from an offset of the preview's text on."""

    uuid: str
    offset: int = 0


class Page(RequestFor[Conversations], frozen=True, tag=True):
    """Asks for conversations, newest first, older than ``before`` (``created_at|id``), of one status and one
    version of the agent, or any."""

    limit: int = 50
    before: str = ""
    status: str = ""
    version: str = ""


class CountVersions(RequestFor[VersionCounts], frozen=True, tag=True):
    """Asks how many conversations there are of each version of the agent."""


class Recent(RequestFor[RecentConversations], frozen=True, tag=True):
    """Asks for conversations, those that changed last first: before ``before`` (``updated_at|id``), not
    before ``since``, of one A2A context and in one of ``states`` (`TurnState`, "" before the first turn), or
    any."""

    limit: int = 50
    before: str = ""
    since: str = ""
    context_id: str = ""
    states: tuple[str, ...] | None = None


class MoveToVersion(RequestFor[ConversationReply], frozen=True, tag=True):
    """Has a conversation that waits for a person go on with another version of the agent; with an empty one,
    the newest. ``is_trial``: nothing happens, but what would keep it from that is told."""

    id: str
    version: str = ""
    by: str = ""
    is_trial: bool = False


class Cancel(RequestFor[TurnReply], frozen=True, tag=True):
    """Cancels the open turn, running or waiting."""

    id: str


_Usd = Annotated[float, msgspec.Meta(gt=0, le=1_000_000, description="what model calls may cost")]
_Tokens = Annotated[
    int, msgspec.Meta(ge=1, le=1_000_000_000, description="tokens that models may read and write")
]
_Calls = Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="model calls")]
_Seconds = Annotated[
    float, msgspec.Meta(gt=0, le=86_400, description="time, without the time that it waits for people")
]
_Agents = Annotated[
    int, msgspec.Meta(ge=1, le=1_000_000, description="agents that are started, over the whole turn")
]


class ChangedBudget(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits that a person sets for an agent at work and all below it, in place of its own, in the bounds
    that a config has (`mesh.config.model.Budget`)."""

    max_cost_usd: _Usd | UnsetType = UNSET
    max_total_tokens: _Tokens | UnsetType = UNSET
    max_llm_calls: _Calls | UnsetType = UNSET
    max_time_s: _Seconds | UnsetType = UNSET
    max_agents: _Agents | UnsetType = UNSET


class AgentChanges(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a person changes of an agent at work. ``tools`` are those that it keeps, of those that its model
    is offered. ``timeout_s`` bounds its pass, from the beginning of the pass."""

    task: str | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    tools: list[str] | UnsetType = UNSET
    budget: ChangedBudget | UnsetType = UNSET
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET

    @property
    def given(self) -> dict[str, Any]:
        """Those that are set, by name."""
        given: dict[str, Any] = msgspec.to_builtins(self)
        return given


class Intervene(RequestFor[AgentReply], frozen=True, tag=True):
    """A person steps in: see `AgentTold.action`. The ``text`` is what the agent is told, or the reason.
    ``agent`` is the id of the agent. ``restarts``: with what ``modify`` changes, it begins anew. ``adds`` is
    the name of the agent that ``spawn`` adds to it."""

    agent: str
    caller: Caller
    action: NewsAction
    text: str = ""
    changes: AgentChanges = AgentChanges()
    now: bool = False
    adds: str = ""
    restarts: bool = False


class ShowAgent(RequestFor[AgentReply], frozen=True, tag=True):
    """Asks for one agent of any turn, with its messages."""

    agent: str


class ListAgents(RequestFor[Agents], frozen=True, tag=True):
    """Asks for the agents of newest turns: those at work, or all of them (``ended``); of one conversation, or
    of the newest ones whose turns have not ended. The first ``limit`` of those after the position
    ``after`` (`AgentView.cursor`)."""

    conversation: str = ""
    ended: bool = False
    after: str = ""
    limit: int = 1_000


class Export(RequestFor[JournalLines], frozen=True, tag=True):
    """Asks for a conversation's journal, one event a line."""

    id: str


class Import(RequestFor[ConversationReply], frozen=True, tag=True):
    """Takes in a conversation as `Export` gave it, here or elsewhere. ``by``: the name of the API key that
    brought it; empty where no keys are asked for."""

    id: str
    content: bytes
    by: str = ""


class SetWebhook(RequestFor[Webhooks], frozen=True, tag=True):
    """Sets a webhook for push notifications, in place of the one with the same id."""

    id: str
    webhook: Webhook


class ListWebhooks(RequestFor[Webhooks], frozen=True, tag=True):
    """Asks for the webhooks of a conversation."""

    id: str


class DeleteWebhook(RequestFor[Webhooks], frozen=True, tag=True):
    """Removes a webhook, if there is one with this id."""

    id: str
    webhook_id: str


Request = (
    Create
    | SendMessage
    | Decide
    | NoteApprovalShown
    | FindFirstReply
    | Complete
    | Delete
    | Show
    | ShowPreview
    | Page
    | Recent
    | CountVersions
    | MoveToVersion
    | Cancel
    | Intervene
    | ShowAgent
    | ListAgents
    | Export
    | Import
    | SetWebhook
    | ListWebhooks
    | DeleteWebhook
)


class Watch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asks for the events of a conversation that a watcher has not received: those after event ``after``;
    None: those from now on. ``cursor`` is that of the last `WatchedEvents`.

    ``turn``: only events of this turn, until it ends or pauses. ``wait`` False: the reply comes at once.
    ``exclusive``: no other ``watcher`` that asks for this may watch meanwhile.
    """

    id: str
    watcher: str
    after: int | None = None
    cursor: int = 0
    turn: int = 0
    wait: bool = True
    exclusive: bool = False


class FollowFor(RequestFor[R_co], Generic[R_co], frozen=True, omit_defaults=True):
    """Asks a keeper for what is new in its shard since ``cursor``, that of the last reply, and waits a while
    for some. Without a cursor, the reply comes at once, and says where "now" is."""

    cursor: int = 0


class FollowAgents(FollowFor[FollowedAgents], frozen=True, tag=True, omit_defaults=True):
    """Asks for the agents that have changed in any conversation, or in this one. Without a cursor, and with
    one that the keeper does not know, the reply has all of them that are at work, at once."""

    conversation: str = ""


class Follow(FollowFor[FollowedEvents], frozen=True, tag=True, omit_defaults=True):
    """Asks for the events that were journaled in any conversation; of these ``types`` and this session, or of
    any."""

    types: tuple[str, ...] = ()
    session_id: str = ""
