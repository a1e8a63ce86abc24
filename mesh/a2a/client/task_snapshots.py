"""Reads the state of a task from an agent's result, whatever the dialect. Pure.

It is lenient where agents differ: states in both spellings; parts of 1.0, 0.3 and the plain form; the text in
artifacts, in one `artifact`, in the status or in the history. The JSON is read as it is and not by the SDK's
types: those turn the integers in a tool's arguments into floats, do not know the plain form, and reject tasks
of 0.3 without a context (docs/decisions/a2a-client.md).
"""

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from mesh.a2a.budget_data import spent_in
from mesh.a2a.client.input_requests import id_or_name, input_request_of
from mesh.a2a.client.port import InputRequest, RemoteFailed, RemoteTask, TaskState
from mesh.a2a.extensions import BUDGET
from mesh.core.events import SpentElsewhere

_WORKING = ("submitted", "working")
_STATES: dict[str, TaskState] = {state: state for state in get_args(TaskState)} | {"cancelled": "canceled"}


class TaskSnapshot(msgspec.Struct, frozen=True):
    """A task at one moment. ``state`` is None while the agent works on it. ``timestamp`` is when it entered
    the state (RFC 3339), or empty."""

    state: TaskState | None
    text: str
    task_id: str = ""
    context_id: str = ""
    timestamp: str = ""
    input_request: InputRequest | None = None
    spent: SpentElsewhere = SpentElsewhere()

    def settled(self) -> RemoteTask:
        """Returns the task in the port's type. Must not be called while the agent works on it."""
        assert self.state is not None
        return RemoteTask(
            self.state, self.text, self.task_id, self.context_id, self.input_request, spent=self.spent
        )


def snapshot_of(result: Any) -> TaskSnapshot:
    """Reads a task, or a message that an agent answers instead of one. Raises `RemoteFailed` if the result is
    neither, or exceeds a bound."""
    if isinstance(result, dict):
        for wrapped in ("task", "message"):
            if isinstance(result.get(wrapped), dict):
                return snapshot_of(result[wrapped])
        if isinstance(result.get("status"), dict):
            return _task(result)
        if isinstance(result.get("parts"), list):
            return TaskSnapshot(
                "completed",
                _text_of(result),
                id_or_name(result, "taskId"),
                id_or_name(result, "contextId"),
                spent=_spent(result),
            )
    raise RemoteFailed("it answered neither a task nor a message")


def newest_of(result: Any) -> TaskSnapshot | None:
    """Returns the newest of a list of tasks, or None if it is empty. Raises `RemoteFailed` if the result is
    no list of tasks."""
    listed = result.get("tasks") if isinstance(result, dict) else None
    if not isinstance(listed, list):
        # Protobuf leaves empty lists out of its JSON.
        if isinstance(result, dict) and "tasks" not in result:
            return None
        raise RemoteFailed("it answered no list of tasks")
    # The specification has the list sorted by the last change, and `max` returns the first of equal ones.
    return max(map(snapshot_of, listed), key=lambda task: task.timestamp, default=None)


def _task(task: dict[str, Any]) -> TaskSnapshot:
    task_id, status = id_or_name(task, "id"), task["status"]
    if not task_id:
        raise RemoteFailed("it answered a task without an id")
    name = _text(status, "state").lower().removeprefix("task_state_").replace("_", "-")
    state = _STATES.get(name)
    if state is None and name not in _WORKING:
        raise RemoteFailed("it answered a task in no state that A2A knows")
    message = status["message"] if isinstance(status.get("message"), dict) else {}
    timestamp = id_or_name(status, "timestamp")
    status_text, artifact_text = _text_of(message), _artifacts(task)
    text = (artifact_text or status_text) if state == "completed" else (status_text or artifact_text)
    text = text or _last_agent_text(task)
    input_request = None
    if state in ("input-required", "auth-required"):
        input_request = input_request_of(message, text, timestamp, wants_token=state == "auth-required")
    context_id = id_or_name(task, "contextId")
    return TaskSnapshot(state, text, task_id, context_id, timestamp, input_request, _spent(task))


def _spent(holder: dict[str, Any]) -> SpentElsewhere:
    metadata = holder.get("metadata")
    return spent_in(metadata.get(BUDGET)) if isinstance(metadata, dict) else SpentElsewhere()


def _artifacts(task: dict[str, Any]) -> str:
    listed = task.get("artifacts")
    artifacts = listed if isinstance(listed, list) and listed else [task.get("artifact")]
    return _joined(_text_of(artifact) for artifact in artifacts if isinstance(artifact, dict))


def _last_agent_text(task: dict[str, Any]) -> str:
    history = task.get("history")
    for message in reversed(history if isinstance(history, list) else []):
        if isinstance(message, dict) and _text(message, "role").lower().removeprefix("role_") == "agent":
            return _text_of(message)
    return ""


def _text_of(holder: dict[str, Any]) -> str:
    parts = holder.get("parts")
    listed = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    texts = [part["text"] for part in listed if isinstance(part.get("text"), str)]
    return _joined(_part(part) for part in listed if not _repeats(part, texts))


def _repeats(part: dict[str, Any], texts: Iterable[str]) -> bool:
    """Returns whether a part says as data what another one says as text."""
    return "data" in part and "text" not in part and any(_is_json(text, part["data"]) for text in texts)


def _is_json(text: str, value: Any) -> bool:
    try:
        return bool(msgspec.json.decode(text) == value)
    except (msgspec.DecodeError, RecursionError):
        return False


def _part(part: dict[str, Any]) -> str:
    """Returns a part as a model can read it: text as it is, data as JSON, a file by its name or URL."""
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if "data" in part:
        return msgspec.json.encode(part["data"]).decode()
    file = part["file"] if isinstance(part.get("file"), dict) else part
    name = next((file[key] for key in ("filename", "name", "url", "uri") if _text(file, key)), "")
    return f"[file {name}]" if name or "raw" in file or "bytes" in file else ""


def _joined(texts: Iterable[str]) -> str:
    return "\n".join(text for text in texts if text)


def _text(holder: dict[str, Any], key: str) -> str:
    value = holder.get(key)
    return value if isinstance(value, str) else ""
