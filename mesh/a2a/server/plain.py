"""The plain form of A2A, older than its versions: 0.3 with ``type`` for ``kind``, and less of all. Pure.

asks      message/send {"taskId"?, "message": {"role", "parts": [{"type": "text", "text"}]}}
answers   the task of 0.3, and its text once more: "artifact": {"parts": [{"type": "text", "text"}]}
"""

from typing import Any
from uuid import uuid4

METHODS = ("message/send", "message/stream")


def is_plain(body: Any) -> bool:
    """Whether a JSON-RPC request is in the plain form."""
    if not isinstance(body, dict) or body.get("method") not in METHODS:
        return False
    message = _dict(_dict(body.get("params")).get("message"))
    parts = message.get("parts")
    return (
        "kind" not in message
        and isinstance(parts, list)
        and bool(parts)
        and all(isinstance(part, dict) and "type" in part and "kind" not in part for part in parts)
    )


def as_0_3(body: dict[str, Any]) -> dict[str, Any]:
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


def answered(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of 0.3, with what clients of the plain form look for."""
    task = answer.get("result")
    if not isinstance(task, dict) or task.get("kind") != "task":
        return answer
    parts = [{"type": "text", "text": text} for text in _texts(task)]
    return {**answer, "result": {**task, "artifact": {"parts": parts}}}


def _texts(task: dict[str, Any]) -> list[str]:
    """Of the answer, or while there is none of what the task waits for."""
    sources = task.get("artifacts") or [_dict(_dict(task.get("status")).get("message"))]
    return [part["text"] for source in sources for part in source.get("parts", ()) if "text" in part]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    return {("kind" if name == "type" else name): value for name, value in part.items()}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
