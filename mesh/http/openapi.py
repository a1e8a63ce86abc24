"""What ``/docs`` says of each route: summaries, bodies, answers, with examples."""

from typing import Any

import msgspec
from fastapi import FastAPI

from mesh.core.approvals import APPROVAL_KINDS, ApprovalKind, kind_named
from mesh.core.events import Choice
from mesh.http.schema import ConversationPage, TurnBody

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
DESCRIPTION = f"""
Talk to the agent: create a conversation, send messages, decide what it may do.

A destructive tool call makes the conversation wait: the answer says `waiting_approval: true` and has the
`approval`. Decide it with `POST /approvals/{{uuid}}`; the answer of that call is how the turn went on. What
an approval takes depends on its `kind`:

{_KINDS}

With `remote_agent_name` another agent asks, and the decision is passed on to it; one that asks for a
`tool_call` in plain words takes any `{{"answer": "…"}}`. `auth_required: true` in a result says that the turn
waits for a token. `turn` in a conversation is its newest turn: how it stands and since when.

With `Accept: text/event-stream` a message or a decision is answered by its turn as a stream of events, until
it ends or pauses. `GET /conversations/{{id}}/events` is the stream of a whole conversation.

Headers: `X-Session-ID` (taken or made, and returned), `Idempotency-Key` on every POST,
`Prefer: respond-async` (202 once the message is durable), `Authorization: Bearer` (kept for the turn's
downstream calls), `X-User` (who asks or decides, for the record).

Where the mesh asks for API keys, every route but `/health` and `/ready` answers 401 without one: send it as
`X-API-Key`, or as `Authorization: Bearer mk_…`. Who asks or decides is then whose key it is.
"""

_SINCE = "2026-01-01T12:00:00.100Z"
_APPROVAL = {
    "uuid": "5f0c3f7e-7e86-4f7e-9a43-54f27f9b3c1d",
    "conversation_id": "9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d",
    "tool_name": "resources_add",
    "tool_args": {"name": "web-1", "value": 42},
    "description": 'Run resources_add on resources\n  name = "web-1"\n  value = 42',
    "kind": "tool_call",
    "created_at": "2026-01-01T12:00:00.000Z",
    "asked_by": "agent",
    "expires_at": None,
    "remote_task_id": None,
    "remote_agent_name": None,
}
_QUESTION = {
    **_APPROVAL,
    "tool_name": "a2a_stock",
    "tool_args": {"message": "add web-1"},
    "description": "Agent stock asks: Which value?",
    "kind": "question",
    "remote_task_id": "0c5a1f52-9b0e-4f0e-8f35-6f1d2b7c9a10",
    "remote_agent_name": "stock",
}
_TOKEN = {**_QUESTION, "description": "Agent stock asks: Who are you?", "kind": "auth_required"}
_CONVERSATION = {
    "id": "9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d",
    "session_id": "1a2b3c4d",
    "status": "active",
    "messages": [
        {
            "id": "m2",
            "role": "user",
            "content": "list all resources",
            "created_at": "2026-01-01T12:00:00.000Z",
        },
        {
            "id": "m5",
            "role": "assistant",
            "content": "There are none.",
            "created_at": "2026-01-01T12:00:00.100Z",
        },
    ],
    "created_at": "2026-01-01T12:00:00.000Z",
    "updated_at": "2026-01-01T12:00:00.100Z",
    "turn": {
        "number": 1,
        "state": "completed",
        "since": "2026-01-01T12:00:00.100Z",
        "response": "There are none.",
    },
}
_TURN = {
    "conversation": _CONVERSATION,
    "result": {"response": "There are none.", "waiting_approval": False, "auth_required": False},
}


def _waiting(approval: dict[str, Any]) -> dict[str, Any]:
    """The answer of a turn that waits for this approval."""
    kind = kind_named(approval["kind"])
    turn = {
        "number": 1,
        "state": "auth_required" if kind.needs_token else "waiting_approval",
        "since": _SINCE,
    }
    return {
        "conversation": {
            **_CONVERSATION,
            "status": "waiting_approval",
            "pending_approval": approval,
            "pending_approvals": [approval],
            "turn": turn,
        },
        "result": {
            "response": f"Waiting for approval: {kind.how} {approval['uuid']}.\n{approval['description']}",
            "waiting_approval": True,
            "approval": approval,
            "auth_required": kind.needs_token,
        },
    }


_WAITING = {
    "waiting": _waiting(_APPROVAL),
    "waiting_for_an_answer": _waiting(_QUESTION),
    "waiting_for_a_token": _waiting(_TOKEN),
}
_CANCELLED = {
    "conversation": {
        **_CONVERSATION,
        "turn": {
            "number": 1,
            "state": "cancelled",
            "since": _SINCE,
            "response": "Operation cancelled by user.",
        },
    },
    "result": {
        "response": "Operation cancelled by user.",
        "waiting_approval": False,
        "auth_required": False,
    },
}
SHOWN = {"conversation": _CONVERSATION}
_PAGE = {
    "conversations": [
        {
            "id": "9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d",
            "session_id": "1a2b3c4d",
            "status": "active",
            "created_at": "2026-01-01T12:00:00.000Z",
            "updated_at": "2026-01-01T12:00:00.100Z",
            "title": "list all resources",
        }
    ],
    "summary": {"total": 51, "active": 51, "waiting_approval": 0, "completed": 0},
    "next_cursor": "2026-01-01T12:00:00.000Z|9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d",
}


def json(description: str, schema: Any, **examples: Any) -> dict[str, Any]:
    named = {name.replace("_", " "): {"value": value} for name, value in examples.items()}
    return {
        "description": description,
        "content": {"application/json": {"schema": schema, "examples": named}},
    }


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def error(description: str, message: str) -> dict[str, Any]:
    return json(description, ref("Problem"), error={"error": message})


NOT_FOUND = {404: error("No such thing", "there is no conversation 'x'")}
BUSY = {
    429: error("Too many messages wait; see Retry-After", "conversation …: 100 messages wait already"),
    503: error("Not now; see Retry-After", "keeper 0 does not answer; try again"),
}
BAD = {
    400: error("Not understood", '"message" is empty'),
    413: error("Too large", "the body is over 1048576 bytes (limits.max_body_bytes)"),
}
_FAILED = {502: error("The turn failed", "node 0: anthropic: claude-x: HTTP 401: invalid x-api-key")}
_ACCEPTED = {202: json("Durable; the turn goes on (Prefer: respond-async)", ref("TurnBody"), accepted=SHOWN)}


def body(schema: dict[str, Any], *, required: bool, **examples: Any) -> dict[str, Any]:
    named = {name.replace("_", " "): {"value": value} for name, value in examples.items()}
    content = {"application/json": {"schema": schema, "examples": named}}
    return {"requestBody": {"required": required, "content": content}}


def route(tag: str, summary: str, responses: dict[int, Any], **more: Any) -> dict[str, Any]:
    return {"summary": summary, "responses": responses, "tags": [tag], "openapi_extra": more or None}


MESSAGE = {"type": "object", "properties": {"message": {"type": "string", "minLength": 1}}}
DECISION = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean", "description": "of a tool call, a token; false also of a question"},
        "action": {
            "enum": ["approve", "reject", "retry", "skip"],
            "description": "retry and skip are for a call of which nobody knows whether it ran",
        },
        "answer": {
            "type": "string",
            "minLength": 1,
            "maxLength": 64_000,
            "description": "to a question: any text, told as it is; else yes, no and words that mean these",
        },
        "edited_args": {"type": "object", "description": "with an approval: run it with these instead"},
        "reason": {"type": "string", "description": "with a rejection: the model sees it and goes on"},
    },
    "minProperties": 1,
}

HEALTH = route(
    "operations", "The process answers", {200: json("Yes", {"type": "object"}, ok={"status": "ok"})}
)
READY = route(
    "operations",
    "Every actor and MCP session is up",
    {
        200: json("Yes", {"type": "object"}, ready={"status": "ready"}),
        503: error("Not yet", "not ready: mcp resources"),
    },
)
TOOLS = route(
    "operations",
    "The tools the agent may use",
    {
        200: json(
            "The tools of all servers, other agents, and what nodes have besides",
            {"type": "object"},
            tools={
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
            },
        ),
        502: error("A server cannot be reached", "resources: its session does not answer"),
    },
)
CREATE = route(
    "conversations",
    "Create a conversation, with a first message or without",
    {
        201: json("Created", ref("TurnBody"), created=SHOWN, answered={**_TURN}, **_WAITING),
        **_ACCEPTED,
        **BAD,
        409: error(
            "The key was used for another request",
            "Idempotency-Key 'k' was used for another request: on another path or with another body",
        ),
        **BUSY,
        **_FAILED,
    },
    **body(MESSAGE, required=False, with_a_message={"message": "list all resources"}, empty={}),
)
CREATE["status_code"] = 201
LIST = route(
    "conversations",
    "List conversations, newest first",
    {
        200: json("A page", ref("ConversationPage"), page=_PAGE),
        400: error("Not understood", "limit must be a number from 1 to 500"),
        **BUSY,
    },
    parameters=[
        {
            "name": "limit",
            "in": "query",
            "schema": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
        },
        {"name": "cursor", "in": "query", "schema": {"type": "string"}},
        {"name": "status", "in": "query", "schema": {"enum": ["active", "waiting_approval", "completed"]}},
    ],
)
SHOW = route(
    "conversations",
    "One conversation",
    {200: json("The conversation", ref("TurnBody"), shown=SHOWN), **NOT_FOUND, **BUSY},
)
SAY = route(
    "conversations",
    "Send a message",
    {
        200: json("The turn's answer, or what it waits for", ref("TurnBody"), answered=_TURN, **_WAITING),
        **_ACCEPTED,
        **BAD,
        **NOT_FOUND,
        409: error("The conversation is completed", "conversation … is completed; start a new one"),
        **BUSY,
        **_FAILED,
    },
    **body(MESSAGE, required=True, add={"message": "add resource web-1 with value 42"}),
)
FINISH = route(
    "conversations",
    "Make a conversation final",
    {
        200: json(
            "Completed", ref("TurnBody"), completed={"conversation": {**_CONVERSATION, "status": "completed"}}
        ),
        **NOT_FOUND,
        409: error("It waits for an approval", "conversation … waits for approval …; decide it first"),
        **BUSY,
    },
)
CANCEL = route(
    "conversations",
    "Stop the turn, running or waiting: no new step starts; a destructive tool that runs is waited for",
    {
        200: json("The conversation after that", ref("TurnBody"), cancelled=_CANCELLED),
        **NOT_FOUND,
        **BUSY,
        **_FAILED,
    },
)
DECIDE = route(
    "approvals",
    "Decide what a conversation waits for: approve, reject, answer, give a token",
    {
        200: json("How the turn went on", ref("TurnBody"), answered=_TURN, **_WAITING),
        **_ACCEPTED,
        **BAD,
        **NOT_FOUND,
        409: error(
            "Decided already", "approval … was decided already: approve by ann at 2026-01-01T12:00:00.000Z"
        ),
        **BUSY,
        **_FAILED,
    },
    **body(
        DECISION,
        required=True,
        approve={"approved": True},
        reject={"action": "reject"},
        words={"answer": "yes"},
        answer_to_a_question={"answer": "42, please"},
        no_answer={"approved": False, "reason": "ask me tomorrow"},
        token_in_the_Authorization_header={"approved": True},
        edit={"approved": True, "edited_args": {"name": "web-1", "value": 43}},
        reject_and_say_why={"approved": False, "reason": "web-1 is taken, use web-2"},
        outcome_unknown={"action": "skip"},
    ),
)


def add_schemas(app: FastAPI) -> None:
    """Puts the schemas of our own types in place of what FastAPI finds by itself: it would promise a
    422 that no route gives."""
    _, schemas = msgspec.json.schema_components(
        [TurnBody, ConversationPage], ref_template="#/components/schemas/{name}"
    )
    schemas["Problem"] = {
        "type": "object",
        "properties": {"error": {"type": "string"}},
        "required": ["error"],
    }
    original = app.openapi

    def openapi() -> dict[str, Any]:
        document = original()
        document["components"] = {"schemas": schemas}
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
