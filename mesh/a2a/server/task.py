"""A conversation as an A2A task (specification 1.0.1, section 4.1): one task is one conversation.

    conversation                task
    id, context_id              id, contextId
    how its newest turn stands  status.state
    the turn's answer           artifacts: the files that tools gave in it, and the answer
    what waits for a person     status.message: words for all, data for those who know the extensions
    what was said               history, without tools

Pure. A turn that ended makes a task that ended; that a person rejected what it wanted to do is an answer
(`Operation cancelled by user.`); a turn that was cancelled on request makes the task canceled.
"""

import json
from base64 import b64decode
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import Parse, ParseError
from google.protobuf.struct_pb2 import Value
from msgspec import UNSET

from mesh.a2a.budget_data import spent_data
from mesh.a2a.extensions import BUDGET, HITL, MESH
from mesh.core.amounts import NOTHING
from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.budget import NUSD
from mesh.core.conversation import MessageView
from mesh.core.events import Artifact, SpentElsewhere
from mesh.core.spending import Spent
from mesh.core.view import ConversationView, PendingApproval, TurnState, TurnView

STATES: dict[TurnState | None, "pb.TaskState"] = {
    None: pb.TASK_STATE_SUBMITTED,
    "working": pb.TASK_STATE_WORKING,
    "paused": pb.TASK_STATE_WORKING,
    "waiting_approval": pb.TASK_STATE_INPUT_REQUIRED,
    "auth_required": pb.TASK_STATE_AUTH_REQUIRED,
    "completed": pb.TASK_STATE_COMPLETED,
    "cancelled": pb.TASK_STATE_CANCELED,
    "failed": pb.TASK_STATE_FAILED,
}
"""The state of a task, by that of the newest turn."""
TERMINAL = ("completed", "cancelled", "failed")
ARTIFACT = "response"
_JSON = "application/json"


def task_of(view: ConversationView, extensions: Collection[str] = (), note: str = "") -> "pb.Task":
    """The task. ``extensions``: URIs that the client activated. ``note`` is put before what waits."""
    turn = view.turn
    return pb.Task(
        metadata=spent_metadata(view, extensions) or None,  # an empty one would be sent as such
        id=view.id,
        context_id=view.context,
        status=status_of(view, extensions, note),
        artifacts=_artifacts(turn) if turn is not None and turn.state == "completed" else [],
        history=[_history_message(view, message) for message in view.messages if message.role in _ROLES],
    )


def direct_answer(view: ConversationView, extensions: Collection[str] = ()) -> "pb.Message | None":
    """The answer of a first turn that called no tool; None: it is another turn, or has no answer."""
    turn, is_first = view.turn, view.turn is not None and view.turn.number == 1
    if (
        turn is None
        or not is_first
        or turn.state != "completed"
        or any(m.role == "tool" for m in view.messages)
    ):
        return None
    message = pb.Message(message_id=f"{view.id}/{turn.number}", context_id=view.context, role=pb.ROLE_AGENT)
    message.parts.extend(_parts(turn, turn.response))
    if spent := spent_metadata(view, extensions):
        message.metadata.update(spent)
        message.extensions.append(BUDGET)
    return message


def spent_metadata(view: ConversationView, extensions: Collection[str]) -> dict[str, Any]:
    """What the task has spent, for who activated the extension, once it has ended. What may have been charged
    for answers that were lost is in it. ``forced`` is there when a limit forced the answer."""
    turn = view.turn
    if BUDGET not in extensions or turn is None or turn.state not in TERMINAL:
        return {}
    spent, more = view.spent or Spent(), view.unsettled or NOTHING
    cost = None if spent.unpriced_calls else round(spent.cost_usd * NUSD) + more.nusd
    data = spent_data(SpentElsewhere(cost, spent.total_tokens + more.tokens, spent.calls + more.calls))
    return {BUDGET: {**data, "forced": turn.forced} if turn.forced else data}


def status_of(view: ConversationView, extensions: Collection[str] = (), note: str = "") -> "pb.TaskStatus":
    """The task's status alone."""
    turn = view.turn
    status = pb.TaskStatus(state=STATES[turn.state if turn else None])
    status.timestamp.FromJsonString(turn.since if turn else view.created_at)
    if turn is not None and turn.state in ("waiting_approval", "auth_required"):
        status.message.CopyFrom(_question(view, extensions, note))
    elif turn is not None and turn.state in ("failed", "cancelled"):
        status.message.CopyFrom(_agent_message(view, f"{view.id}/{turn.number}", turn.response))
    return status


def _artifacts(turn: TurnView) -> list["pb.Artifact"]:
    files = [file_of(turn.number, index, file) for index, file in enumerate(turn.artifacts)]
    return [*files, answer_of(turn)]


def file_of(turn: int, index: int, file: Artifact) -> "pb.Artifact":
    """A file that a tool gave in a turn. One of JSON is data, if it can be read."""
    part = pb.Part(media_type=file.media_type, filename=file.name)
    if file.url:
        part.url = file.url
    elif file.media_type == _JSON and (data := _parsed(file.data)) is not None:
        part.data.CopyFrom(data)
    else:
        part.raw = b64decode(file.data)
    return pb.Artifact(artifact_id=f"file-{turn}-{index}", name=file.name, parts=[part])


def _parsed(data: str) -> Value | None:
    try:
        return Parse(b64decode(data), Value())
    except (ParseError, ValueError):
        return None


def answer_of(turn: TurnView) -> "pb.Artifact":
    """What a turn answered."""
    return answer_artifact(turn, turn.response)


def answer_artifact(turn: TurnView, text: str) -> "pb.Artifact":
    """The end of an answer: its last piece of text, and what belongs to the whole. The answer is data too
    where it has a schema; ``invalid`` is the objection in spite of which it was accepted."""
    artifact = pb.Artifact(artifact_id=artifact_id(turn.number), name=ARTIFACT, parts=_parts(turn, text))
    if turn.invalid:
        artifact.metadata.update({MESH: {"invalid": turn.invalid}})
    return artifact


def _parts(turn: TurnView, text: str) -> list["pb.Part"]:
    parts = [pb.Part(text=text)]
    if turn.output is not UNSET:
        data = pb.Part(media_type=_JSON)
        data.data.CopyFrom(Parse(json.dumps(turn.output), Value()))
        parts.append(data)
    return parts


def artifact_id(turn: int) -> str:
    """The artifact of a turn: it is the same in its stream and in its task."""
    return f"{ARTIFACT}-{turn}"


def waiting_text(view: ConversationView) -> str:
    """What waits, in words: the oldest question first, and how to answer it."""
    asked = view.pending_approvals[0]
    lines = [asked.text, f"Answer {expected(asked)}. (approval {asked.uuid})"]
    if len(view.pending_approvals) > 1:
        lines.append(f"{len(view.pending_approvals)} approvals wait; this is the oldest.")
    return "\n".join(lines)


def expected(asked: PendingApproval) -> str:
    """Which words decide an approval."""
    return APPROVAL_KINDS[asked.kind].how_in_words


_ROLES = {"user": pb.ROLE_USER, "assistant": pb.ROLE_AGENT}


def _history_message(view: ConversationView, message: MessageView) -> "pb.Message":
    return pb.Message(
        message_id=message.message_id or f"{view.id}/{message.id}",
        context_id=view.context,
        task_id=view.id,
        role=_ROLES[message.role],
        parts=[pb.Part(text=message.content)],
    )


def _agent_message(view: ConversationView, message_id: str, text: str) -> "pb.Message":
    return pb.Message(
        message_id=message_id,
        context_id=view.context,
        task_id=view.id,
        role=pb.ROLE_AGENT,
        parts=[pb.Part(text=text)],
    )


def _question(view: ConversationView, extensions: Collection[str], note: str) -> "pb.Message":
    """What waits. Its id changes with what waits, and with nothing else."""
    pending = view.pending_approvals
    text = waiting_text(view)
    message = _agent_message(view, pending[0].uuid, f"{note}\n{text}" if note else text)
    message.metadata.update({MESH: {"approvals": [_approval_data(asked) for asked in pending]}})
    message.extensions.append(MESH)
    if HITL in extensions:
        message.metadata.update({HITL: _hitl(pending, text)})
        message.extensions.append(HITL)
    return message


def _approval_data(asked: PendingApproval) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(asked)
    exact = {"tool_args_json": asked.tool_args, "suggested_rule_json": fields.get("suggested_rule")}
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in exact.items() if value is not None}
    return fields | texts


def _hitl(pending: Sequence[PendingApproval], hint: str) -> dict[str, Any]:
    """What waits, in the form of the HITL extension: the tool calls; if there is none, the first question."""
    calls = [asked for asked in pending if APPROVAL_KINDS[asked.kind].is_call]
    if not calls:
        return _ask_user_request(pending[0])
    request: dict[str, Any] = {
        "type": "tool_approval_request",
        "hint": hint,
        "tools": [_tool(asked) for asked in calls],
    }
    # One child's task or none: whoever gets `nested` decides what is in there and nothing else.
    children = {asked.remote_task_id for asked in calls}
    return (
        {**request, "nested": _nested(calls)} if len(children) == 1 and calls[0].remote_task_id else request
    )


def _ask_user_request(asked: PendingApproval) -> dict[str, Any]:
    kind = APPROVAL_KINDS[asked.kind]
    choices = [] if kind.takes_text or kind.needs_token else list(kind.choices)
    question = {"question": asked.text, "choices": choices, "multiple": False}
    return {"type": "ask_user_request", "id": asked.uuid, "questions": [question]}


def _tool(asked: PendingApproval) -> dict[str, Any]:
    return {"id": asked.uuid, "call_id": asked.uuid, "name": asked.tool_name, "args": asked.tool_args}


def _nested(calls: Sequence[PendingApproval]) -> dict[str, Any]:
    return {
        "subagent_name": calls[0].remote_agent_name,
        "task_id": calls[0].remote_task_id,
        "tools": [_tool(asked) for asked in calls],
    }
