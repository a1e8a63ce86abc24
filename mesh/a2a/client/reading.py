"""What another agent answered, in any dialect, as one thing: how its task stands.

Pure, and lenient where agents differ: states in both spellings, parts of 1.0, of 0.3 and of the plain form,
the text in artifacts, in one `artifact`, in the status or in the history. Read from JSON as it is: the
SDK's types would turn the numbers in a tool's arguments into floats, and know no plain form.
"""

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from mesh.a2a.client.port import InputRequest, RemoteFailed, RemoteTask, State
from mesh.a2a.client.questions import named, question_of

GOES_ON = ("submitted", "working")
_STATES: dict[str, State] = {state: state for state in get_args(State)} | {"cancelled": "canceled"}


class Standing(msgspec.Struct, frozen=True):
    """How a task stands. ``state`` None: it goes on. ``moment``: since when, RFC 3339, or empty."""

    state: State | None
    text: str
    task_id: str = ""
    context_id: str = ""
    moment: str = ""
    input_request: InputRequest | None = None

    def incoming(self) -> RemoteTask:
        """The same for the port; not of a task that goes on."""
        assert self.state is not None
        return RemoteTask(self.state, self.text, self.task_id, self.context_id, self.input_request)


def standing_of(result: Any) -> Standing:
    """Reads a result: a task, or a message instead of one. Raises `RemoteFailed` when it is neither, or
    more than can be kept."""
    if isinstance(result, dict):
        for wrapped in ("task", "message"):
            if isinstance(result.get(wrapped), dict):
                return standing_of(result[wrapped])
        if isinstance(result.get("status"), dict):
            return _task(result)
        if isinstance(result.get("parts"), list):
            return Standing("completed", _words(result), named(result, "taskId"), named(result, "contextId"))
    raise RemoteFailed("it answered neither a task nor a message")


def newest_of(result: Any) -> Standing | None:
    """The newest task of a list of them. Raises `RemoteFailed` when it is no list of tasks."""
    listed = result.get("tasks") if isinstance(result, dict) else None
    if not isinstance(listed, list):
        # An empty list may be left out: protobuf's JSON does so.
        if isinstance(result, dict) and "tasks" not in result:
            return None
        raise RemoteFailed("it answered no list of tasks")
    # Sorted by their last change already, as the specification says: the first of equals is the newest.
    return max(map(standing_of, listed), key=lambda task: task.moment, default=None)


def _task(task: dict[str, Any]) -> Standing:
    task_id, status = named(task, "id"), task["status"]
    if not task_id:
        raise RemoteFailed("it answered a task without an id")
    name = _text(status, "state").lower().removeprefix("task_state_").replace("_", "-")
    state = _STATES.get(name)
    if state is None and name not in GOES_ON:
        raise RemoteFailed("it answered a task in no state that A2A knows")
    message = status["message"] if isinstance(status.get("message"), dict) else {}
    moment = named(status, "timestamp")
    told, made = _words(message), _artifacts(task)
    text = (made or told if state == "completed" else told or made) or _last_said(task)
    question = None
    if state in ("input-required", "auth-required"):
        question = question_of(message, text, moment, wants_token=state == "auth-required")
    return Standing(state, text, task_id, named(task, "contextId"), moment, question)


def _artifacts(task: dict[str, Any]) -> str:
    listed = task.get("artifacts")
    artifacts = listed if isinstance(listed, list) and listed else [task.get("artifact")]
    return _joined(_words(artifact) for artifact in artifacts if isinstance(artifact, dict))


def _last_said(task: dict[str, Any]) -> str:
    history = task.get("history")
    for message in reversed(history if isinstance(history, list) else []):
        if isinstance(message, dict) and _text(message, "role").lower().removeprefix("role_") == "agent":
            return _words(message)
    return ""


def _words(holder: dict[str, Any]) -> str:
    parts = holder.get("parts")
    listed = parts if isinstance(parts, list) else []
    return _joined(_part(part) for part in listed if isinstance(part, dict))


def _part(part: dict[str, Any]) -> str:
    """A part as a model may read it: text as it is, data as JSON, a file by its name or URL."""
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if "data" in part:
        return msgspec.json.encode(part["data"]).decode()
    file = part["file"] if isinstance(part.get("file"), dict) else part
    named = next((file[key] for key in ("filename", "name", "url", "uri") if _text(file, key)), "")
    return f"[file {named}]" if named or "raw" in file or "bytes" in file else ""


def _joined(texts: Iterable[str]) -> str:
    return "\n".join(text for text in texts if text)


def _text(holder: dict[str, Any], key: str) -> str:
    value = holder.get(key)
    return value if isinstance(value, str) else ""
