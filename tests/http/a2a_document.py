"""The A2A endpoints as an OpenAPI document: what schemathesis makes requests of."""

from typing import Any

_TEXT = {"type": "string"}
_PART = {
    "oneOf": [
        {"type": "object", "properties": {name: {}}, "required": [name]} for name in ("text", "data", "raw")
    ]
}
_OLD_PART = {
    "type": "object",
    "properties": {"kind": {"enum": ["text", "data", "file"]}, "text": _TEXT, "data": {}, "file": {}},
    "required": ["kind"],
}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _message(part: Any, role: str) -> dict[str, Any]:
    return _object(
        ("messageId", "role", "parts"),
        messageId=_TEXT,
        role={"enum": [role]},
        parts={"type": "array", "items": part, "minItems": 1, "maxItems": 3},
        taskId=_TEXT,
        contextId=_TEXT,
        metadata={"type": "object"},
    )


_CONFIG = _object(
    ("url",), id=_TEXT, url=_TEXT, token=_TEXT, authentication=_object(scheme=_TEXT, credentials=_TEXT)
)
_SEND = _object(
    ("message",),
    message=_message(_PART, "ROLE_USER"),
    configuration=_object(historyLength={"type": "integer"}, taskPushNotificationConfig=_CONFIG),
)
_OLD_SEND = _object(
    ("message",),
    message=_message(_OLD_PART, "user"),
    configuration=_object(historyLength={"type": "integer"}),
)
_TASK = _object(("id",), id=_TEXT, historyLength={"type": "integer"})
_PAGE = _object(
    pageSize={"type": "integer"}, pageToken=_TEXT, contextId=_TEXT, status=_TEXT, statusTimestampAfter=_TEXT
)
_OF_TASK = _object(("taskId",), taskId=_TEXT, id=_TEXT, url=_TEXT, token=_TEXT)
_OLD_OF_TASK = _object(
    ("id",), id=_TEXT, taskId=_TEXT, pushNotificationConfigId=_TEXT, pushNotificationConfig=_CONFIG
)

# No streams that would not end: who subscribes to a task that waits is answered when it goes on.
METHODS: dict[str, Any] = {
    "SendMessage": _SEND,
    "GetTask": _TASK,
    "ListTasks": _PAGE,
    "CancelTask": _TASK,
    "CreateTaskPushNotificationConfig": _OF_TASK,
    "GetTaskPushNotificationConfig": _OF_TASK,
    "ListTaskPushNotificationConfigs": _OF_TASK,
    "DeleteTaskPushNotificationConfig": _OF_TASK,
    "GetExtendedAgentCard": _object(),
    "message/send": _OLD_SEND,
    "tasks/get": _TASK,
    "tasks/cancel": _TASK,
    "tasks/pushNotificationConfig/set": _OLD_OF_TASK,
    "tasks/pushNotificationConfig/get": _OLD_OF_TASK,
    "tasks/pushNotificationConfig/list": _OLD_OF_TASK,
    "tasks/pushNotificationConfig/delete": _OLD_OF_TASK,
    "agent/getAuthenticatedExtendedCard": _object(),
}


def document(task: str) -> dict[str, Any]:
    """Every A2A route; ``task`` is the id of a task that there is."""
    one, configs = f"/a2a/tasks/{task}", f"/a2a/tasks/{task}/pushNotificationConfigs"
    paths: dict[str, Any] = {
        "/a2a": {"post": _operation([_call(method, params) for method, params in METHODS.items()])},
        "/a2a/message:send": {"post": _operation([_SEND])},
        "/a2a/message:stream": {"post": _operation([_SEND])},
        "/a2a/tasks": {"get": _operation(query=_PAGE)},
        one: {"get": _operation(query=_TASK)},
        f"{one}:cancel": {"post": _operation([_object(metadata={})])},
        configs: {"post": _operation([_CONFIG]), "get": _operation(query=_PAGE)},
        f"{configs}/{{config}}": {"get": _operation(path="config"), "delete": _operation(path="config")},
        "/a2a/tasks/{id}": {"get": _operation(path="id")},
        "/a2a/extendedAgentCard": {"get": _operation()},
        "/.well-known/agent-card.json": {"get": _operation()},
    }
    return {"openapi": "3.1.0", "info": {"title": "A2A", "version": "1.0"}, "paths": paths}


def _call(method: str, params: Any) -> dict[str, Any]:
    number: Any = {"type": ["string", "integer", "null"]}
    return _object(
        ("jsonrpc", "id", "method", "params"),
        jsonrpc={"const": "2.0"},
        id=number,
        method={"const": method},
        params=params,
    )


def _operation(bodies: list[Any] | None = None, query: Any = None, path: str = "") -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": "A2A-Version", "in": "header", "schema": {"enum": ["1.0", "0.3"]}},
        *(
            {"name": name, "in": "query", "schema": kind}
            for name, kind in (query or {}).get("properties", {}).items()
        ),
    ]
    if path:
        parameters.append(
            {"name": path, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        )
    operation: dict[str, Any] = {"parameters": parameters, "responses": {"200": {"description": "answered"}}}
    if bodies:
        content = {"application/json": {"schema": bodies[0] if len(bodies) == 1 else {"oneOf": bodies}}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation
