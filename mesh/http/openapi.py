"""The OpenAPI document: one table of operations, with schemas generated from our types and typed examples.

FastAPI is not asked to find any of this out: it reads pydantic models only, would describe a 422 that no
route gives, and cost every request its own layer of dependencies (see docs/decisions/openapi.md).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from mesh.config.model import Config
from mesh.core.agent_versions import AgentVersion, AgentVersions
from mesh.core.agents_of_turn import AgentView
from mesh.core.approvals import APPROVAL_KINDS, ApprovalKind, kind_named
from mesh.core.conversation import MessageView
from mesh.core.events import Choice, FileChange, Preview
from mesh.core.mesh_state import MeshPart, MeshState, Rollout
from mesh.core.spending import SpendReport, Spent, SpentByAgent, SpentByModel
from mesh.core.view import ConversationSummary, ConversationView, PendingApproval, TurnResult, TurnView
from mesh.http.body_types import (
    AddedAgentRequest,
    AgentBody,
    AgentList,
    AgentMessage,
    AgentStreamRequest,
    ConversationPage,
    DecisionRequest,
    GrantList,
    InterventionBody,
    InterventionRequest,
    MessageRequest,
    NumberedGrant,
    Problem,
    SessionBody,
    SessionRequest,
    TreeBody,
    TurnBody,
    VersionRequest,
)
from mesh.policy.grants import Grant
from mesh.policy.rules import PolicyRule
from mesh.tree.outline import AgentInfo, Outline

_TAKES: dict[Choice, str] = {
    "approve": '`{"approved": true}`',
    "reject": '`{"approved": false}`, with `reason` or not',
    "retry": '`{"action": "retry"}`',
    "skip": '`{"action": "skip"}`',
    "answer": '`{"answer": "…"}`, any text',
}


def _kind(kind: ApprovalKind) -> str:
    """What an approval of a kind takes, as a line of the description."""
    token = " with `Authorization: Bearer`" if kind.needs_token else ""
    edited = ", with `edited_args` or not" if kind.edits_arguments else ""
    takes = {**_TAKES, "approve": f"{_TAKES['approve']}{token}{edited}"}
    about = f", {kind.about}" if kind.about else ""
    return f"- `{kind.name}`{about}: {'; '.join(takes[choice] for choice in kind.choices)}"


_KINDS = "\n".join(map(_kind, APPROVAL_KINDS.values()))
_DESCRIPTION = f"""
Talk to the agent: create a conversation, send messages, decide what it may do.

A destructive tool call makes the conversation wait: the answer says `waiting_approval: true` and has the
`approval`. Decide it with `POST /approvals/{{uuid}}`; the answer of that call is how the turn went on. What
an approval takes depends on its `kind`:

{_KINDS}

With `remote_agent_name` another agent asks, and the decision is passed on to it; one that asks for a
`tool_call` in plain words takes any `{{"answer": "…"}}`. With `agent_path` an agent that was called asks: the
names of the agents from the root agent down to it. `auth_required: true` in a result says that the turn
waits for a token. `forced` in a result is the limit of a budget that forced the answer, `output` the answer
as a JSON value, where it has a schema, and `invalid` the objection in spite of which it was accepted.
`turn` in a conversation is its newest turn: how it stands and since when.

With `Accept: text/event-stream` a message or a decision is answered by its turn as a stream of events, until
it ends or pauses. `GET /conversations/{{id}}/events` is the stream of a whole conversation.

Headers: `X-Session-ID` (taken or made, and returned), `Idempotency-Key` on every POST,
`Prefer: respond-async` (202 once the message is durable), `Authorization: Bearer` (kept for the turn's
downstream calls), `X-User` (who asks or decides, for the record).

Where the mesh asks for API keys, every route but `/health` and `/ready` answers 401 without one: send it as
`X-API-Key`, or as `Authorization: Bearer mk_…`. Who asks or decides is then whose key it is.
"""

Examples = Mapping[str, Any]
Parameter = Mapping[str, Any]


@dataclass(frozen=True)
class Operation:
    """What the document says about one route. ``returns`` is the type of a JSON body, or a media type.
    ``errors`` are statuses of `_ERRORS`; ``conflict`` is the example of a 409, if there is one."""

    tag: str
    summary: str
    returns: type | str
    examples: Examples = field(default_factory=dict)
    status: int = 200
    about: str = "Done"
    takes: type | str | None = None
    body_examples: Examples = field(default_factory=dict)
    body_required: bool = True
    parameters: Sequence[Parameter] = ()
    errors: Sequence[int] = ()
    conflict: str = ""
    accepts_async: bool = False


_TYPES = (
    TurnBody,
    ConversationPage,
    AgentList,
    AgentView,
    AgentBody,
    InterventionBody,
    InterventionRequest,
    AddedAgentRequest,
    AgentStreamRequest,
    TreeBody,
    SpendReport,
    MeshState,
    AgentVersions,
    VersionRequest,
    SessionBody,
    GrantList,
    Problem,
    MessageRequest,
    DecisionRequest,
    SessionRequest,
)
_AT, _SINCE = "2026-01-01T12:00:00.000Z", "2026-01-01T12:00:00.100Z"
_ID, _UUID = "9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d", "5f0c3f7e-7e86-4f7e-9a43-54f27f9b3c1d"
_PREVIEW = Preview(
    "diff",
    "--- a/docs/run.md\n+++ b/docs/run.md\n@@ -1 +1 @@\n-Runn it.\n+Run it.\n",
    (FileChange("docs/run.md", 1, 1, "sha256:…", "sha256:…"),),
)
_APPROVAL = PendingApproval(
    uuid=_UUID,
    conversation_id=_ID,
    tool_name="resources_add",
    tool_args={"name": "web-1", "value": 42},
    description='Run resources_add on resources\n  name = "web-1"\n  value = 42',
    kind="tool_call",
    created_at=_AT,
    asked_by="agent",
)
_QUESTION = replace(
    _APPROVAL,
    tool_name="a2a_stock",
    tool_args={"message": "add web-1"},
    description="Agent stock asks: Which value?",
    kind="question",
    remote_task_id="0c5a1f52-9b0e-4f0e-8f35-6f1d2b7c9a10",
    remote_agent_name="stock",
)
_TOKEN = replace(_QUESTION, description="Agent stock asks: Who are you?", kind="auth_required")
_CONVERSATION = ConversationView(
    id=_ID,
    session_id="1a2b3c4d",
    status="active",
    messages=[
        MessageView("m2", "user", "list all resources", _AT),
        MessageView("m5", "assistant", "There are none.", _SINCE),
    ],
    created_at=_AT,
    updated_at=_SINCE,
    turn=TurnView(1, "completed", _SINCE, "There are none."),
)
_COMPLETED = replace(_CONVERSATION, status="completed")
_SHOWN = TurnBody(_CONVERSATION)
_ANSWERED = TurnBody(_CONVERSATION, TurnResult("There are none.", False))
_FORCED = TurnBody(
    replace(_CONVERSATION, turn=TurnView(1, "completed", _SINCE, "There are none.", forced="max_llm_calls")),
    TurnResult("There are none.", False, forced="max_llm_calls"),
)
_CANCELLED = TurnBody(
    replace(_CONVERSATION, turn=TurnView(1, "cancelled", _SINCE, "Operation cancelled by user.")),
    TurnResult("Operation cancelled by user.", False),
)


def _waiting(approval: PendingApproval) -> TurnBody:
    """A turn that waits for this approval."""
    kind = kind_named(approval.kind)
    conversation = replace(
        _CONVERSATION,
        status="waiting_approval",
        pending_approval=approval,
        pending_approvals=[approval],
        turn=TurnView(1, "auth_required" if kind.needs_token else "waiting_approval", _SINCE),
    )
    text = f"Waiting for approval: {kind.how} {approval.uuid}.\n{approval.description}"
    return TurnBody(conversation, TurnResult(text, True, approval, kind.needs_token))


_TURNS: Examples = {
    "answered": _ANSWERED,
    "answered at a limit": _FORCED,
    "waiting": _waiting(_APPROVAL),
    "waiting for an answer": _waiting(_QUESTION),
    "waiting for a token": _waiting(_TOKEN),
}
_PAGE = ConversationPage(
    [ConversationSummary(_ID, "1a2b3c4d", "active", _AT, _SINCE, "list all resources")],
    {"total": 51, "active": 51, "waiting_approval": 0, "completed": 0},
    f"{_AT}|{_ID}",
)
_DECISIONS: Examples = {
    "approve": {"approved": True},
    "reject": {"action": "reject"},
    "words": {"answer": "yes"},
    "answer to a question": {"answer": "42, please"},
    "no answer": {"approved": False, "reason": "ask me tomorrow"},
    "token in the Authorization header": {"approved": True},
    "edit": {"approved": True, "edited_args": {"name": "web-1", "value": 43}},
    "reject and say why": {"approved": False, "reason": "web-1 is taken, use web-2"},
    "outcome unknown": {"action": "skip"},
}
_TOOLS: Examples = {
    "tools": {
        "tools": [
            {
                "name": "resources_list",
                "description": "Lists resources.",
                "inputSchema": {"type": "object"},
                "destructiveHint": False,
                "server": "resources",
                "source": "mcp",
                "nodes": ["agent"],
            },
            {
                "name": "ask_user",
                "description": "Asks the person a question.",
                "inputSchema": {"type": "object"},
                "destructiveHint": False,
                "server": "",
                "source": "built_in",
                "nodes": ["agent"],
            },
        ]
    }
}
_TREE = Outline("main", "llm", "0", model="offline", calls=("search",))
_TREES_OF_CALLED = [Outline("search", "llm", "search", "Finds facts.", "offline")]
_TASK = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
_AGENTS = [
    AgentInfo("main", "llm", "0", model="offline"),
    AgentInfo("search", "llm", "search", "Finds facts.", "offline", _TASK, ("main",)),
]
_SUM: dict[str, Any] = {
    "calls": 3,
    "input_tokens": 1200,
    "output_tokens": 90,
    "total_tokens": 1290,
    "cost_usd": 0.00495,
    "time_ms": 2100,
}
_SPEND = SpendReport(
    spent=Spent(**_SUM, runs=1),
    by_agent=[SpentByAgent(**_SUM, runs=1, agent_path=("main",))],
    by_model=[SpentByModel(**_SUM, runs=1, model="claude-sonnet-4-5")],
)
_STATE = MeshState(
    agent="agent",
    version="e6a863506225",
    release="0.1.0",
    parts=[
        MeshPart(kind="keeper", name="0 of deployment 1", answers=True, generation=1, shards=64),
        MeshPart(kind="node", name="0 agent/0", answers=True),
        MeshPart(kind="mcp", name="resources", answers=True),
    ],
    shards=64,
    conversations={"active": 12, "waiting_approval": 1, "completed": 30},
    waiting_since="2026-01-01T12:00:00+00:00",
    rollout=Rollout(version="0f5c2a4be8d1", waits_for=["node 0.1 search/0"]),
)
_VERSIONS = AgentVersions(
    "agent",
    [
        AgentVersion(version="e6a863506225", is_newest=True, conversations={"active": 3}, problems=[]),
        AgentVersion(
            version="0f5c2a4be8d1",
            is_newest=False,
            conversations={"waiting_approval": 2},
            problems=["0f5c2a4be8d1.yaml:4: llm: variable LLM_URL is not set"],
        ),
    ],
)
_GRANT = Grant(
    id=_UUID,
    agent="agent",
    rule=PolicyRule(name="resources_add", decide="allow", tools=("resources_add",)),
    by="ann",
    at=_AT,
    approval=_UUID,
    remember="always",
)
_SESSION = SessionBody(_ID)
_ROOT_AGENT = AgentView(
    agent_id=_ID,
    parent_id=None,
    conversation_id=_ID,
    turn=1,
    place="0",
    name="main",
    status="running",
    user_content="Which cats are there?",
    subagents=[_UUID],
    created_at=_AT,
    started_at=_AT,
)
_AGENT = AgentView(
    agent_id=_UUID,
    parent_id=_ID,
    conversation_id=_ID,
    turn=1,
    place="0.search@0-0-0",
    name="search",
    kind="llm",
    status="running",
    user_content="Find a cat.",
    user_comment="only tabbies",
    subagents=[],
    created_at=_SINCE,
    started_at=_SINCE,
    machine="worker-1",
)
_MESSAGES: Examples = {
    "with a message": {"message": "list all resources"},
    "within a budget": {"message": "list all resources", "budget": {"max_cost_usd": 0.05, "max_time_s": 60}},
}
_STREAM, _LINES = "text/event-stream", "application/x-ndjson"
_METRICS = "text/plain"
_MEDIA_EXAMPLES = {
    _STREAM: 'event: llm_call\nid: 3\ndata: {"type":"llm_call","conversation_id":"9b2f…","turn":1,"node":"0",'
    '"step":"0/llm/0","time":"2026-01-01T12:00:00.000Z","seq":3,"text":"There are none."}'
}

# What several operations can answer.
_ERRORS: dict[int, tuple[str, str]] = {
    400: ("Not understood", '"message" is empty'),
    403: ("A page of another site may have asked", "a GET from here may come from a page of another site"),
    404: ("No such thing", "there is no conversation 'x'"),
    409: ("The conversation is in a state that does not allow this", ""),
    413: ("Too large", "the body is over 1048576 bytes (limits.max_body_bytes)"),
    429: ("Too many messages wait; see Retry-After", "conversation …: 100 messages wait already"),
    502: ("The turn failed", "node 0: anthropic: claude-x: HTTP 401: invalid x-api-key"),
    503: ("Not now; see Retry-After", "keeper 0 does not answer; try again"),
}
_BUSY, _BAD = (429, 503), (400, 413)
_KEY_TAKEN = "Idempotency-Key 'k' was used for another request: on another path or with another body"


def _parameter(name: str, where: str = "query", about: str = "", **schema: Any) -> Parameter:
    described = {"description": about} if about else {}
    return {"name": name, "in": where, "schema": {"type": "string", **schema}, **described}


_LAST = _parameter("Last-Event-ID", "header", "the stream begins after this event")
_STREAM_PARAMETERS = (
    _parameter("protocol", about="ai-sdk: the UI message stream of the AI SDK", enum=["ai-sdk"]),
    _parameter("Last-Event-ID", "header", "an id that this stream gave: it goes on after that event"),
)
_AFTER = _parameter("after", type="integer", minimum=0)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/health"): Operation("operations", "The process answers", dict, {"ok": {"status": "ok"}}),
    ("GET", "/ready"): Operation(
        "operations",
        "Every actor and MCP session is up",
        dict,
        {"ready": {"status": "ready"}},
        errors=(503,),
    ),
    ("GET", "/tools"): Operation(
        "operations",
        "The tools the agent may use",
        dict,
        _TOOLS,
        about="The tools of all servers, other agents, and what nodes have besides",
        errors=(502,),
    ),
    ("GET", "/agents"): Operation(
        "operations",
        "The root agent, and the agents that others may call",
        AgentList,
        {"agents": AgentList(_AGENTS)},
        about="Each with where it is, what it takes and who may call it",
    ),
    ("GET", "/tree"): Operation(
        "operations",
        "The agent's tree, and those of the agents that others may call",
        TreeBody,
        {"tree": TreeBody(_TREE, _TREES_OF_CALLED)},
        about="Every node, where it is, what it is",
    ),
    ("POST", "/conversations"): Operation(
        "conversations",
        "Create a conversation, with a first message or without",
        TurnBody,
        {"created": _SHOWN, **_TURNS},
        201,
        "Created",
        MessageRequest,
        {**_MESSAGES, "empty": {}},
        body_required=False,
        errors=(*_BAD, *_BUSY, 502),
        conflict=_KEY_TAKEN,
        accepts_async=True,
    ),
    ("GET", "/conversations"): Operation(
        "conversations",
        "List conversations, newest first",
        ConversationPage,
        {"page": _PAGE},
        about="A page; `incomplete` where the conversations of a keeper that is away are missing",
        parameters=(
            _parameter("limit", type="integer", minimum=1, maximum=500, default=50),
            _parameter("cursor"),
            _parameter("status", enum=["active", "waiting_approval", "completed"]),
            _parameter("version", pattern="^[0-9a-f]{1,64}$"),
        ),
        errors=(400, *_BUSY),
    ),
    ("GET", "/conversations/{conversation_id}"): Operation(
        "conversations", "One conversation", TurnBody, {"shown": _SHOWN}, errors=(404, *_BUSY)
    ),
    ("DELETE", "/conversations/{conversation_id}"): Operation(
        "conversations",
        "Delete a conversation, for good, with its webhooks. One with an open turn has to be cancelled first",
        TurnBody,
        {"deleted": _SHOWN},
        about="The conversation as it was",
        errors=(400, 404, *_BUSY),
        conflict="conversation … has an open turn; cancel it first",
    ),
    ("POST", "/conversations/{conversation_id}/messages"): Operation(
        "conversations",
        "Send a message",
        TurnBody,
        _TURNS,
        about="The turn's answer, or what it waits for",
        takes=MessageRequest,
        body_examples=_MESSAGES,
        errors=(*_BAD, 404, *_BUSY, 502),
        conflict="conversation … is completed; start a new one",
        accepts_async=True,
    ),
    ("POST", "/conversations/{conversation_id}/complete"): Operation(
        "conversations",
        "Complete a conversation: it takes no more messages",
        TurnBody,
        {"completed": TurnBody(_COMPLETED)},
        errors=(404, *_BUSY),
        conflict="conversation … waits for approval …; decide it first",
    ),
    ("POST", "/conversations/{conversation_id}/cancel"): Operation(
        "conversations",
        "Cancel the turn, running or waiting: no new step starts; a destructive tool that runs is waited for",
        TurnBody,
        {"cancelled": _CANCELLED},
        about="The conversation after that",
        errors=(404, *_BUSY, 502),
    ),
    ("GET", "/agent/tree"): Operation(
        "agents at work",
        "The agents at work, by id: of all conversations, or of one",
        dict[str, AgentView],
        {"two agents": {_ID: _ROOT_AGENT, _UUID: _AGENT}},
        about="The header Link has the next page, if there are more. With Accept: text/event-stream, they "
        "come as a stream: a snapshot, and then each agent that has changed",
        parameters=(
            _parameter("conversation", about="the id of one"),
            _parameter(
                "all", enum=["true", "false"], default="false", about="ended ones of the newest turn, too"
            ),
            _parameter("limit", type="integer", minimum=1, maximum=1000, default=1000),
            _parameter("cursor"),
        ),
        errors=(400, 404, *_BUSY),
    ),
    ("GET", "/agent/stream"): Operation(
        "agents at work",
        "Say something to an agent and read its answer, for an EventSource (Server-Sent Events)",
        _STREAM,
        about="Chunks of the answer. 204: all of it was read before",
        parameters=(
            _parameter("prompt", about="what is said"),
            *_STREAM_PARAMETERS,
            _parameter("agentId", about="an agent whose conversation goes on"),
            _parameter("parentId", about="an agent to which one is added"),
            _parameter("agent", about="the name of the agent that is added"),
        ),
        errors=(*_BAD, 403, 404, *_BUSY),
        conflict="conversation … is completed: it takes no more messages",
    ),
    ("POST", "/agent/stream"): Operation(
        "agents at work",
        "Say something to an agent and read its answer (Server-Sent Events)",
        _STREAM,
        about="Chunks of the answer. 204: all of it was read before",
        takes=AgentStreamRequest,
        body_examples={
            "prompt": {"prompt": "list all resources"},
            "messages": {"messages": [{"role": "user", "parts": [{"type": "text", "text": "go on"}]}]},
        },
        parameters=_STREAM_PARAMETERS,
        errors=(*_BAD, 404, *_BUSY),
        conflict="conversation … is completed: it takes no more messages",
    ),
    ("GET", "/agent/{agent_id}"): Operation(
        "agents at work",
        "One agent of any turn, with the messages between it and its model",
        AgentBody,
        {"shown": AgentBody(_AGENT, [AgentMessage("assistant", "It is a tabby.")])},
        errors=(404, *_BUSY),
    ),
    ("GET", "/agent/{agent_id}/events"): Operation(
        "agents at work",
        "What happens in an agent and below it, as it happens (Server-Sent Events)",
        _STREAM,
        about="Events, from its beginning or from an earlier one",
        parameters=(_LAST, _AFTER),
        errors=(*_BAD, 404, *_BUSY),
    ),
    ("POST", "/agent/{agent_id}/intervene"): Operation(
        "agents at work",
        "Tell an agent something while it works, change, pause or delete it",
        InterventionBody,
        {"journaled": InterventionBody(_AGENT)},
        about="It is journaled",
        takes=InterventionRequest,
        body_examples={
            "comment": {"action": "comment", "text": "only tabbies"},
            "modify": {"action": "modify", "changes": {"task": "dogs"}, "now": True},
            "pause": {"action": "pause", "reason": "let me look at it first"},
            "resume": {"action": "resume"},
            "delete": {"action": "delete", "reason": "we have enough"},
        },
        errors=(*_BAD, 404, *_BUSY),
        conflict=f"agent search has answered at {_AT}: It is a tabby.",
    ),
    ("POST", "/agent/{agent_id}/spawn"): Operation(
        "agents at work",
        "Add an agent to those that an agent has started, to work beside it",
        InterventionBody,
        {"journaled": InterventionBody(_AGENT)},
        about="It is journaled, and the agent begins",
        takes=AddedAgentRequest,
        body_examples={"search": {"agent": "search", "task": "birds"}},
        errors=(*_BAD, 404, *_BUSY),
        conflict="agent search starts no agents, so that none can be added to it (spawn)",
    ),
    ("POST", "/approvals/{uuid}"): Operation(
        "approvals",
        "Decide what a conversation waits for: approve, reject, answer, give a token",
        TurnBody,
        _TURNS,
        about="How the turn went on",
        takes=DecisionRequest,
        body_examples=_DECISIONS,
        errors=(*_BAD, 404, *_BUSY, 502),
        conflict=f"approval … was decided already: approve by ann at {_AT}",
        accepts_async=True,
    ),
    ("GET", "/approvals/{uuid}/preview"): Operation(
        "approvals",
        "What a call would do that waits for an approval: the part of a preview that was cut, too",
        Preview,
        {"preview": _PREVIEW},
        about="The preview, from the offset on",
        parameters=(_parameter("offset", about="next_offset of the part before"),),
        errors=(*_BAD, 404, *_BUSY, 502),
        conflict="what approval … is about has changed since it asked",
    ),
    ("GET", "/conversations/{conversation_id}/events"): Operation(
        "events",
        "What happens in a conversation, as it happens (Server-Sent Events)",
        _STREAM,
        about="Events, from now on or from an earlier one",
        parameters=(_LAST, _AFTER),
        errors=(*_BAD, 404, *_BUSY),
    ),
    ("GET", "/events"): Operation(
        "events",
        "What is journaled in any conversation, from now on (Server-Sent Events)",
        _STREAM,
        about="Events; their ids are the stream's own",
        parameters=(
            _LAST,
            _parameter("type", about="such as completed,error"),
            _parameter("session_id"),
        ),
        errors=(*_BAD, *_BUSY),
    ),
    ("GET", "/conversations/{conversation_id}/log"): Operation(
        "events",
        "A conversation's journal, one event a line, for operators: it has drafts that clients are not shown",
        _LINES,
        about="The journal",
        errors=(404, *_BUSY),
    ),
    ("GET", "/conversations/{conversation_id}/spend"): Operation(
        "events",
        "What a conversation has spent, by agent and by model",
        SpendReport,
        {"spent": _SPEND},
        about="Sums of its model calls, at the prices of the time of each",
        errors=(404, *_BUSY),
    ),
    ("GET", "/conversations/{conversation_id}/actions"): Operation(
        "events",
        "What the agents of a conversation did and what it cost, one action a line",
        _LINES,
        about="The actions, oldest first",
        errors=(404, *_BUSY),
    ),
    ("POST", "/conversations/import"): Operation(
        "events",
        "Take in a conversation that another mesh gave as a log",
        TurnBody,
        {"imported": _SHOWN},
        201,
        "It is here now; a turn that was open is ended",
        _LINES,
        errors=(*_BAD, *_BUSY),
        conflict="conversation … is here already",
    ),
    ("GET", "/metrics"): Operation(
        "operations",
        "What was measured, for Prometheus",
        _METRICS,
        about="Counters, histograms and gauges in the text format of Prometheus",
        errors=(503,),
    ),
    ("GET", "/status"): Operation(
        "operations",
        "What answers, what waits, and what is wrong, in words",
        MeshState,
        {"well": _STATE},
        about="How the mesh is, whatever is wrong with it",
    ),
    ("GET", "/versions"): Operation(
        "operations",
        "The versions of the agent that conversations are on",
        AgentVersions,
        {"two": _VERSIONS},
        about="The newest first. `problems` keep a version from running here; null: nobody looked",
        errors=_BUSY,
    ),
    ("POST", "/conversations/{conversation_id}/version"): Operation(
        "operations",
        "Have a conversation that waits for a person go on with another version of the agent",
        TurnBody,
        {"moved": _SHOWN},
        about="The conversation; moved, or with `dry_run` as it is",
        takes=VersionRequest,
        body_examples={"newest": VersionRequest(), "trial": VersionRequest("e6a863506225", dry_run=True)},
        body_required=False,
        errors=(400, 404, *_BUSY, 413),
        conflict="llm node act (0.1) is not there in version …",
    ),
    ("GET", "/policy/grants"): Operation(
        "policy",
        "What people let the agents do always",
        GrantList,
        {"grants": GrantList([NumberedGrant(1, _GRANT)])},
        about="Every remembered decision that is in force, oldest first",
        errors=(503,),
    ),
    ("DELETE", "/policy/grants/{grant_id}"): Operation(
        "policy",
        "Revoke what was remembered: from the next call on, it asks again",
        Grant,
        {"revoked": _GRANT},
        about="What was revoked",
        errors=(400, 404, 503),
    ),
    ("POST", "/api/sessions"): Operation(
        "sessions",
        "Create a session: a conversation. The agent's config chooses the model; the response says which",
        SessionBody,
        {"created": SessionBody(_ID, "offline", "offline")},
        201,
        "Created",
        SessionRequest,
        {"plain": {}},
        body_required=False,
        errors=(*_BAD, *_BUSY),
        conflict=_KEY_TAKEN,
    ),
    ("GET", "/api/sessions/{session_id}/stream"): Operation(
        "sessions",
        "The session's events; one stream at a time",
        _STREAM,
        about="Events",
        parameters=(_LAST, _AFTER),
        errors=(*_BAD, 404, *_BUSY),
        conflict="the stream of conversation … is open elsewhere; there is one at a time",
    ),
    ("POST", "/api/sessions/{session_id}/chat"): Operation(
        "sessions",
        "Send a message; what comes of it is in the stream",
        SessionBody,
        {"accepted": _SESSION},
        202,
        "It goes on; watch the stream",
        MessageRequest,
        _MESSAGES,
        errors=(*_BAD, 404, *_BUSY),
        conflict="session … waits for an approval: decide it first",
    ),
    ("POST", "/api/sessions/{session_id}/approvals/{call_id}"): Operation(
        "sessions",
        "Decide an approval; what comes of it is in the stream",
        SessionBody,
        {"accepted": _SESSION},
        202,
        "It goes on; watch the stream",
        DecisionRequest,
        {"approve": {"approved": True}, "answer to a question": {"answer": "42, please"}},
        errors=(*_BAD, 404, *_BUSY),
        conflict=f"approval … was decided already: approve at {_AT}",
    ),
    ("POST", "/api/sessions/{session_id}/resume"): Operation(
        "sessions",
        "Go on with a session from its log",
        SessionBody,
        {"resumed": SessionBody(_ID, conversation=_CONVERSATION)},
        about="The session as it is",
        errors=(404, *_BUSY),
    ),
}


def document(config: Config) -> dict[str, Any]:
    """The document of an agent's API."""
    template = "#/components/schemas/{name}"
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template=template)
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _described(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": config.name,
            "description": f"{config.description}\n{_DESCRIPTION}",
            "version": config.digest,
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _described(path: str, operation: Operation) -> dict[str, Any]:
    in_path = [{**_parameter(name, "path"), "required": True} for name in re.findall(r"\{(\w+)\}", path)]
    described = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", f"{operation.summary} {path}").strip("_").lower(),
        "parameters": [*in_path, *operation.parameters],
        "responses": {str(status): response for status, response in sorted(_responses(operation).items())},
    }
    if operation.takes is None:
        return described
    content = _content(operation.takes, operation.body_examples)
    return {**described, "requestBody": {"required": operation.body_required, "content": content}}


def _responses(operation: Operation) -> dict[int, Any]:
    good = {"description": operation.about, "content": _content(operation.returns, operation.examples)}
    responses = {operation.status: good, **{status: _error(status) for status in operation.errors}}
    if operation.conflict:
        responses[409] = _error(409, operation.conflict)
    if operation.accepts_async:
        about = "Durable; the turn goes on (Prefer: respond-async)"
        responses[202] = {"description": about, "content": _content(TurnBody, {"accepted": _SHOWN})}
    return responses


def _error(status: int, message: str = "") -> dict[str, Any]:
    about, example = _ERRORS[status]
    return {"description": about, "content": _content(Problem, {"error": Problem(message or example)})}


def _content(kind: type | str, examples: Examples) -> dict[str, Any]:
    """A body: JSON of a type, or text of a media type."""
    if isinstance(kind, str):
        example = {"example": _MEDIA_EXAMPLES[kind]} if kind in _MEDIA_EXAMPLES else {}
        return {kind: {"schema": {"type": "string"}, **example}}
    values = get_args(kind)  # of an object whose keys are ids
    if values:
        schema = {"type": "object", "additionalProperties": _reference(values[1])}
    else:
        schema = {"type": "object"} if kind is dict else _reference(kind)
    shown = {name: {"value": msgspec.to_builtins(value)} for name, value in examples.items()}
    return {"application/json": {"schema": schema, "examples": shown}}


def _reference(kind: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
