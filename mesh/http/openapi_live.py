"""What ``/docs`` says of the streams, of conversations as logs, and of the session API."""

from typing import Any

from starlette.responses import Response

from mesh.http.openapi import (
    BAD,
    BUSY,
    DECISION,
    MESSAGE,
    NOT_FOUND,
    SHOWN,
    body,
    error,
    json,
    ref,
    route,
)
from mesh.http.stream import EventStream

_FRAMES = (
    'event: llm_call\nid: 3\ndata: {"type":"llm_call","conversation_id":"9b2f…","turn":1,"node":"0",'
    '"step":"0/llm/0","time":"2026-01-01T12:00:00.000Z","seq":3,"text":"There are none."}'
)
_LAST = [
    {
        "name": "Last-Event-ID",
        "in": "header",
        "schema": {"type": "string"},
        "description": "the last event that the client has: the stream begins after it",
    }
]
_AFTER = [*_LAST, {"name": "after", "in": "query", "schema": {"type": "integer", "minimum": 0}}]


class Lines(Response):
    """JSON, one object a line."""

    media_type = "application/x-ndjson"


def _stream(description: str) -> dict[int, Any]:
    example = {"text/event-stream": {"schema": {"type": "string"}, "example": _FRAMES}}
    return {200: {"description": description, "content": example}}


def _lines(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}


TREE = route(
    "operations",
    "The agent's tree",
    {
        200: json(
            "Every node, where it is, what it is",
            {"type": "object"},
            tree={"tree": {"name": "agent", "type": "llm", "path": "0", "model": "offline"}},
        )
    },
)
EVENTS = route(
    "events",
    "What happens in a conversation, as it happens (Server-Sent Events)",
    {**_stream("Events, from now on or from an earlier one"), **BAD, **NOT_FOUND, **BUSY},
    parameters=_AFTER,
)
EVENTS |= {"response_class": EventStream, "status_code": 200}
ALL_EVENTS = route(
    "events",
    "What is journaled in any conversation, from now on (Server-Sent Events)",
    {**_stream("Events; their ids are the stream's own"), **BAD, **BUSY},
    parameters=[
        *_LAST,
        {
            "name": "type",
            "in": "query",
            "schema": {"type": "string"},
            "description": "such as completed,error",
        },
        {"name": "session_id", "in": "query", "schema": {"type": "string"}},
    ],
)
ALL_EVENTS |= {"response_class": EventStream, "status_code": 200}
LOG = route(
    "events",
    "A conversation's journal, one event a line",
    {200: _lines("The journal"), **NOT_FOUND, **BUSY},
)
LOG |= {"response_class": Lines, "status_code": 200}
IMPORT = route(
    "events",
    "Take in a conversation that another mesh gave as a log",
    {
        201: json("It is here now; a turn that was open is ended", ref("TurnBody"), imported=SHOWN),
        **BAD,
        409: error("It is here already", "conversation … is here already"),
        **BUSY,
    },
    requestBody={
        "required": True,
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    },
)
IMPORT["status_code"] = 201
_SESSION = {"id": "9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d"}
_OPTIONS = {
    "type": "object",
    "properties": {k: {"type": "string"} for k in ("provider", "model", "workspacePath")},
}
_SESSION_ACCEPTED = {202: json("It goes on; watch the stream", {"type": "object"}, accepted=_SESSION)}
SESSION = route(
    "sessions",
    "Create a session: a conversation. The agent's config chooses the model; the answer says which",
    {
        201: json(
            "Created", {"type": "object"}, created={**_SESSION, "provider": "offline", "model": "offline"}
        ),
        **BAD,
        409: error(
            "The key was used for another request",
            "Idempotency-Key 'k' was used for another request: on another path or with another body",
        ),
        **BUSY,
    },
    **body(_OPTIONS, required=False, plain={}),
)
SESSION["status_code"] = 201
SESSION_STREAM = route(
    "sessions",
    "The session's events; one stream at a time",
    {
        **_stream("Events"),
        **BAD,
        **NOT_FOUND,
        409: error(
            "It is open elsewhere", "the stream of conversation … is open elsewhere; there is one at a time"
        ),
        **BUSY,
    },
    parameters=_AFTER,
)
SESSION_STREAM |= {"response_class": EventStream, "status_code": 200}
SESSION_CHAT = route(
    "sessions",
    "Send a message; what comes of it is in the stream",
    {
        **_SESSION_ACCEPTED,
        **BAD,
        **NOT_FOUND,
        409: error(
            "It waits for an approval, or is completed", "session … waits for an approval: decide it first"
        ),
        **BUSY,
    },
    **body(MESSAGE, required=True, add={"message": "add resource web-1 with value 42"}),
)
SESSION_CHAT["status_code"] = 202
SESSION_APPROVAL = route(
    "sessions",
    "Decide an approval; what comes of it is in the stream",
    {
        **_SESSION_ACCEPTED,
        **BAD,
        **NOT_FOUND,
        409: error("Decided already", "approval … was decided already: approve at 2026-01-01T12:00:00.000Z"),
        **BUSY,
    },
    **body(
        DECISION, required=True, approve={"approved": True}, answer_to_a_question={"answer": "42, please"}
    ),
)
SESSION_APPROVAL["status_code"] = 202
SESSION_RESUME = route(
    "sessions",
    "Go on with a session from its log",
    {200: json("The session as it is", {"type": "object"}, resumed=_SESSION), **NOT_FOUND, **BUSY},
)
