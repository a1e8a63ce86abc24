"""The JSON bodies of the REST and session APIs. Pure.

The responses are written from these types. The requests are described by them in the OpenAPI document and
read by `mesh.http.parsing`, which is more lenient and says in words what is wrong.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mesh.core.agents_of_turn import AgentView
from mesh.core.events import ToolCall
from mesh.core.verdict import Remember
from mesh.core.view import ConversationSummary, ConversationView, TurnResult
from mesh.keeper.requests import AgentChanges, ChangedBudget
from mesh.policy.grants import Grant
from mesh.tree.outline import AgentInfo, Outline


class TurnBody(msgspec.Struct, frozen=True):
    """A conversation, and how its turn went, if one was asked for. ``error`` says why a turn ended without an
    answer."""

    conversation: ConversationView
    result: TurnResult | UnsetType = UNSET
    error: str | UnsetType = UNSET


class ConversationPage(msgspec.Struct, frozen=True):
    """A page of conversations, and how many there are of each status in all. ``incomplete`` if a keeper was
    away: its conversations are missing in both."""

    conversations: list[ConversationSummary]
    summary: dict[str, int]
    next_cursor: str | UnsetType = UNSET
    incomplete: bool | UnsetType = UNSET


class AgentList(msgspec.Struct, frozen=True):
    """The agents of the config, the root agent first."""

    agents: list[AgentInfo]


class TreeBody(msgspec.Struct, frozen=True):
    """The tree of the root agent, and those of the agents that others may call."""

    tree: Outline
    agents: list[Outline]


class NumberedGrant(msgspec.Struct, frozen=True):
    """A decision that is remembered for good, with its number in ``mesh policy grants``."""

    number: int
    grant: Grant


class GrantList(msgspec.Struct, frozen=True):
    """What people let the agents do always, oldest first."""

    grants: list[NumberedGrant]


class AgentMessage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A message between an agent and its model. Of a tool call it is the result, with the name of the
    tool."""

    role: Literal["user", "assistant", "tool"]
    content: str
    name: str = ""
    is_error: bool = False
    tool_calls: tuple[ToolCall, ...] = ()


class AgentBody(msgspec.Struct, frozen=True):
    """An agent of a turn, and the messages between it and its model."""

    agent: AgentView
    messages: list[AgentMessage]


class InterventionBody(msgspec.Struct, frozen=True):
    """An intervention that is journaled, and how its agent stands then."""

    agent: AgentView
    success: Literal[True] = True


class AddedAgentRequest(msgspec.Struct, frozen=True):
    """An agent that a person adds to one at work."""

    agent: Annotated[str, Meta(min_length=1, description="its name, of those that the other one may start")]
    task: Annotated[str, Meta(min_length=1, description="what it is to do")]


class AgentStreamRequest(msgspec.Struct, frozen=True):
    """What is said to an agent whose answer is streamed: a prompt, or the newest message of the user."""

    prompt: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    messages: Annotated[list[dict[str, Any]], Meta(description="as the AI SDK has them")] | UnsetType = UNSET
    agent_id: Annotated[str, Meta(description="an agent whose conversation goes on")] | UnsetType = (
        msgspec.field(default=UNSET, name="agentId")
    )
    parent_id: Annotated[str, Meta(description="an agent to which one is added")] | UnsetType = msgspec.field(
        default=UNSET, name="parentId"
    )
    agent: Annotated[str, Meta(description="the name of the agent that is added")] | UnsetType = UNSET


class InterventionRequest(msgspec.Struct, frozen=True):
    """What a person does with an agent at work."""

    action: (
        Annotated[Literal["comment", "modify", "pause", "resume", "delete"], Meta(description="what to do")]
        | UnsetType
    ) = UNSET
    text: (
        Annotated[str, Meta(min_length=1, description="of a comment: what the agent is told")] | UnsetType
    ) = UNSET
    reason: (
        Annotated[str, Meta(max_length=4_000, description="why; whoever waits for what is deleted is told")]
        | UnsetType
    ) = UNSET
    changes: Annotated[AgentChanges, Meta(description="of modify: what is changed")] | UnsetType = UNSET
    restart: Annotated[bool, Meta(description="with modify: the agent begins anew")] = False
    now: Annotated[bool, Meta(description="break off a model call that is under way")] = False
    user_comment: (
        Annotated[
            str,
            Meta(
                min_length=1,
                description="the older form: a comment, or one of the words delete, modify and unchanged",
            ),
        ]
        | UnsetType
    ) = msgspec.field(default=UNSET, name="userComment")
    user_content: (
        Annotated[str, Meta(min_length=1, description="the older form of modify: another task")] | UnsetType
    ) = msgspec.field(default=UNSET, name="userContent")
    status: Annotated[str, Meta(description="deleted: the older form of delete")] | UnsetType = UNSET


class SessionBody(msgspec.Struct, frozen=True):
    """A session. ``provider`` and ``model`` are those of the agent's config, when it was just created."""

    id: str
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    conversation: ConversationView | UnsetType = UNSET


class Problem(msgspec.Struct, frozen=True):
    """What is wrong."""

    error: str


class RequestBudget(ChangedBudget, frozen=True, forbid_unknown_fields=True):
    """What the turn may use, at most what the agent's own budget allows."""


class MessageRequest(msgspec.Struct, frozen=True):
    """A message to the agent. ``budget`` bounds the turn that it begins."""

    message: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    budget: RequestBudget | UnsetType = UNSET


class DecisionRequest(msgspec.Struct, frozen=True):
    """A decision about an approval: one of ``approved``, ``action`` and ``answer``."""

    approved: (
        Annotated[bool, Meta(description="of a tool call or a token; false of a question too")] | UnsetType
    ) = UNSET
    action: (
        Annotated[
            Literal["approve", "reject", "retry", "skip"],
            Meta(description="retry and skip are for a call whose outcome nobody knows"),
        ]
        | UnsetType
    ) = UNSET
    answer: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=64_000,
                description="to a question: any text, which is passed on as it is; else yes, no and the like",
            ),
        ]
        | UnsetType
    ) = UNSET
    edited_args: (
        Annotated[dict[str, Any], Meta(description="with an approval: run it with these instead")] | UnsetType
    ) = UNSET
    reason: (
        Annotated[str, Meta(description="with a rejection: the model sees it and goes on")] | UnsetType
    ) = UNSET
    remember: (
        Annotated[
            Remember,
            Meta(description="with an approval: for so long, what the rule covers does not ask any more"),
        ]
        | UnsetType
    ) = UNSET
    rule: (
        Annotated[dict[str, Any], Meta(description="with remember: this rule in place of the suggested one")]
        | UnsetType
    ) = UNSET
    until: (
        Annotated[
            str,
            Meta(
                description="with remember: always, its end: a future time with a zone, as in RFC 3339",
                examples=["2030-01-31T18:00:00+01:00"],
            ),
        ]
        | UnsetType
    ) = UNSET


class VersionRequest(msgspec.Struct, frozen=True):
    """To which version of the agent a conversation is moved; without one, to the newest. With ``dry_run``
    nothing happens, but the answer is the same."""

    version: Annotated[str, Meta(pattern="^([0-9a-f]{1,64})?$")] = ""
    dry_run: bool = False


class SessionRequest(msgspec.Struct, frozen=True):
    """Options of a session. The agent's config chooses the model and the files: they are accepted, and change
    nothing. A ``workspacePath`` outside the roots of the agent is refused."""

    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    workspacePath: str | UnsetType = UNSET
