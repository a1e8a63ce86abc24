"""Which version of A2A a request is in, and whether it is valid in that version. Pure.

Requests that the SDK would fail at later, or answer with an error of the server, are found here. Beside 1.0
and 0.3 there is the *plain form*, older than both: that of 0.3 with ``type`` for ``kind``, and less of
everything.

    asks      message/send {"taskId"?, "message": {"role", "parts": [{"type": "text", "text"}]}}
    answers   the task of 0.3, and its text once more: "artifact": {"parts": [{"type": "text", "text"}]}
"""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from a2a.compat.v0_3 import conversions as to
from a2a.compat.v0_3 import types as v03
from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.utils.constants import VERSION_HEADER
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

VERSIONS = ("1.0", "0.3")
_TRANSLATIONS: dict[type[BaseModel], Callable[[Any], Any]] = {
    v03.SendMessageRequest: to.to_core_send_message_request,
    v03.SendStreamingMessageRequest: to.to_core_send_message_request,
    v03.GetTaskRequest: to.to_core_get_task_request,
    v03.CancelTaskRequest: to.to_core_cancel_task_request,
    v03.TaskResubscriptionRequest: to.to_core_subscribe_to_task_request,
    v03.SetTaskPushNotificationConfigRequest: to.to_core_create_task_push_notification_config_request,
}
"""How the SDK makes requests of 1.0 of those of 0.3. It fails at what 1.0 cannot hold, and calls that a fault
of the server."""
_MOST_ERRORS = 5


def normalize_version(request: Request) -> str:
    """Returns the version of a request, from the header or the query parameter (specification 1.0.1, section
    3.6.1); empty if it names none. It is in the header afterwards, where the SDK reads it: so this has to be
    called before anything reads the headers."""
    name = VERSION_HEADER.lower().encode()
    version = next((value for key, value in request.scope["headers"] if key == name and value), b"")
    if not version:
        version = request.query_params.get(VERSION_HEADER, "").encode("ascii", "replace")
    members = {member.strip() for member in version.split(b",")}
    if len(members) == 1:  # the same twice is what a proxy makes of two lines
        (version,) = members
    others = [(key, value) for key, value in request.scope["headers"] if key != name]
    request.scope["headers"] = [*others, (name, version)] if version else others
    return version.decode("latin-1")


def is_method_of_0_3_in(method: str, version: str) -> bool:
    """Whether a request of another version has a method of 0.3."""
    return bool(version) and not version.startswith("0.3") and method in JSONRPC03Adapter.METHOD_TO_MODEL


def is_supported(version: str) -> bool:
    """Whether a version is supported, by its major and minor; an empty one means 0.3 (section 3.6.2)."""
    return not version or ".".join(version.split(".")[:2]) in VERSIONS


def message_id_in(body: Any) -> str:
    """The id that a client gave its message; empty: none."""
    params = body.get("params") if isinstance(body, dict) else None
    message = params.get("message") if isinstance(params, dict) else None
    fields = message if isinstance(message, dict) else {}
    message_id = fields.get("messageId") or fields.get("message_id")
    return message_id if isinstance(message_id, str) else ""


def problem_in_0_3(body: dict[str, Any]) -> str:
    """What is wrong with the parameters of a request, if it is one of 0.3; empty: nothing."""
    model: type[BaseModel] | None = JSONRPC03Adapter.METHOD_TO_MODEL.get(body["method"])
    if model is None or body.get("jsonrpc") != "2.0":
        return ""
    try:
        asked = model.model_validate(body)
        if translate := _TRANSLATIONS.get(model):
            translate(asked)
    except ValidationError as problem:
        wrong = problem.errors(include_url=False, include_input=False)
        if not any(error["loc"][:1] == ("params",) for error in wrong):
            return ""
        return "; ".join(
            f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in wrong[:_MOST_ERRORS]
        )
    except Exception as problem:  # noqa: BLE001 - whatever it is, it cannot be translated
        return f"params: {str(problem)[:200]}"
    return ""


_PLAIN_METHODS = ("message/send", "message/stream")


def is_plain(body: Any) -> bool:
    """Whether a JSON-RPC request is in the plain form."""
    if not isinstance(body, dict) or body.get("method") not in _PLAIN_METHODS:
        return False
    message = _dict(_dict(body.get("params")).get("message"))
    parts = message.get("parts")
    return (
        "kind" not in message
        and isinstance(parts, list)
        and bool(parts)
        and all(isinstance(part, dict) and "type" in part and "kind" not in part for part in parts)
    )


def plain_as_0_3(body: dict[str, Any]) -> dict[str, Any]:
    """A request in the plain form, in that of 0.3."""
    params = dict(body["params"])
    message = dict(params["message"])
    for name in ("taskId", "contextId"):
        outside = params.pop(name, None)
        if outside and not message.get(name):
            message[name] = outside
    message |= {
        "kind": "message",
        "role": message.get("role", "user"),
        "messageId": message.get("messageId") or str(uuid4()),
        "parts": [_part(part) for part in message["parts"]],
    }
    return {**body, "params": {**params, "message": message}}


def with_plain_artifact(answer: dict[str, Any]) -> dict[str, Any]:
    """A response of 0.3, with the field that clients of the plain form read."""
    task = answer.get("result")
    if not isinstance(task, dict) or task.get("kind") != "task":
        return answer
    parts = [{"type": "text", "text": text} for text in _texts(task)]
    return {**answer, "result": {**task, "artifact": {"parts": parts}}}


def _texts(task: dict[str, Any]) -> list[str]:
    """The texts of the answer, or of what the task waits for while there is none."""
    sources = task.get("artifacts") or [_dict(_dict(task.get("status")).get("message"))]
    return [part["text"] for source in sources for part in source.get("parts", ()) if "text" in part]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    return {("kind" if name == "type" else name): value for name, value in part.items()}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
