"""Reads what another agent asks a person, and writes the person's decision for that agent. Pure.

An agent asks by one of two extensions, or in text only. A decision is sent in the protocol in which the agent
asked and always in text as well, for agents that know no extension. Edited arguments are refused where only
the text would arrive: "yes" would run a call that nobody approved.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from mesh.a2a.client.foreign_policy import asked_why
from mesh.a2a.client.port import InputRequest, OutgoingMessage, RelayedDecision, RemoteApproval, RemoteFailed
from mesh.a2a.extensions import HITL, MESH
from mesh.a2a.numbers import exact, whole
from mesh.core import strict_json
from mesh.core.approvals import APPROVAL_KINDS, CONTINUE, kind_named
from mesh.core.events import ApprovalKindName

MAX_APPROVALS = 50
MAX_NAME = 256
MAX_ARGS_BYTES = 64 * 1024
_MAX_DESCRIPTION = 2_000
_CHOICE_TEXTS = {"approve": "yes", "reject": "no", "retry": "retry", "skip": "skip"}


def input_request_of(
    message: dict[str, Any], text: str, timestamp: str, *, wants_token: bool
) -> InputRequest:
    """Returns what a task asks for. ``message`` is its ``status.message``, ``text`` the text of that message,
    ``timestamp`` its ``status.timestamp``. Raises `RemoteFailed` if a bound is exceeded."""
    metadata = message.get("metadata")
    extensions = metadata if isinstance(metadata, dict) else {}
    message_id = id_or_name(message, "messageId")
    approvals = _mesh_approvals(extensions.get(MESH))
    if approvals:
        return _checked(InputRequest(_joined_ids(approvals), "mesh", approvals))
    approvals, answers = _hitl_approvals(extensions.get(HITL), text)
    if approvals:
        # An agent may use the id of a tool call or a question again, but not the id of a message.
        request_id = f"{answers}:{_joined_ids(approvals)}@{message_id or timestamp}"
        return _checked(InputRequest(request_id, "hitl", approvals))
    kind: ApprovalKindName = "auth_required" if wants_token else "tool_call"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    approval = RemoteApproval(text or "The agent waits for an answer.", kind=kind)
    return InputRequest(message_id or f"{timestamp}#{digest}", "text", (approval,))


def id_or_name(holder: dict[str, Any], key: str) -> str:
    """Returns a text, or an empty one if there is none. Raises `RemoteFailed` if it is too long for an id or
    a name."""
    return _short(_text(holder.get(key)), key)


def is_pending(request: InputRequest | None, decision: RelayedDecision) -> bool:
    """Returns whether a task that asks for ``request`` now still waits for a decision."""
    if request is None:
        return False
    if decision.protocol == "mesh":
        # Each approval is decided by itself, and others may have been added or resolved meanwhile.
        return any(one.id in decision.ids for one in request.approvals)
    return request.id == decision.request_id


def text_of(message: OutgoingMessage) -> str:
    """Returns the text of a message. It is never empty."""
    decision = message.decision
    if decision is None:
        return message.text or CONTINUE
    return _CHOICE_TEXTS.get(decision.choice, decision.answer) or CONTINUE


def metadata_of(decision: RelayedDecision, agent: str) -> dict[str, Any]:
    """Returns a decision in the protocol in which the agent asked. Raises `RemoteFailed` if the protocol
    cannot express it."""
    if decision.protocol == "mesh":
        return {MESH: {"decisions": [_mesh_decision(uuid, decision) for uuid in decision.ids]}}
    if decision.edited_args is not None:
        raise RemoteFailed(f"agent {agent} takes no edited arguments: approve what it asks, or reject it")
    if decision.protocol == "text":
        return {}
    if APPROVAL_KINDS[decision.kind].is_question:
        answers = _hitl_answers(decision)
        return {HITL: {"type": "ask_user_response", "id": decision.ids[0], "answers": answers}}
    return {
        HITL: {
            "type": "tool_approval_response",
            "approvals": [_hitl_approval(one, decision) for one in decision.ids],
        }
    }


def _joined_ids(approvals: Sequence[RemoteApproval]) -> str:
    return ",".join(sorted(one.id for one in approvals))


def _mesh_approvals(request: Any) -> tuple[RemoteApproval, ...]:
    return tuple(
        RemoteApproval(
            description=_text(one.get("description")) or _default_description(one.get("tool_name")),
            id=one["uuid"],
            kind=kind_named(one.get("kind")).name,
            tool_name=_text(one.get("tool_name")),
            tool_args=_arguments(one),
            asked_why=asked_why(one),
        )
        for one in _objects(request, "approvals")
        if _text(one.get("uuid"))
    )


def _hitl_approvals(request: Any, text: str) -> tuple[tuple[RemoteApproval, ...], int]:
    """Returns what is asked, and how many answers the agent expects."""
    kind = request.get("type") if isinstance(request, dict) else None
    if kind == "tool_approval_request":
        # If a child of the agent asks, the child's calls must be decided, and only those.
        asking = request["nested"] if _objects(request.get("nested"), "tools") else request
        tools = [one for one in _objects(asking, "tools") if _text(one.get("id"))]
        hints = [_text(request.get("hint")) or text, *[""] * len(tools)]
        return tuple(map(_tool, tools, hints)), len(tools)
    if kind == "ask_user_request" and _text(request.get("id")):
        questions = _objects(request, "questions")
        lines = [line for line in map(_question_line, questions) if line]
        described = "\n".join(lines) or _text(request.get("hint")) or text
        return (RemoteApproval(described, request["id"], "question"),), max(1, len(questions))
    return (), 0


def _tool(one: dict[str, Any], hint: str) -> RemoteApproval:
    name, args = _text(one.get("name")), _object(one.get("args"))
    return RemoteApproval(_description(name, args, hint), one["id"], "tool_call", name, args)


def _description(name: str, args: dict[str, Any], hint: str) -> str:
    """Returns a call as a person reads it, with the agent's hint above it, or only the hint if that contains
    the call. The arguments are sorted, as protobuf writes the keys of JSON in a different order each time."""
    lines = [
        _one_line(name) or "a call",
        *(f"  {_one_line(key)} = {_json(args[key])}" for key in sorted(args)),
    ]
    if all(line.strip() in hint for line in lines):
        return _bounded(hint, _MAX_DESCRIPTION)
    call = _bounded("\n".join(lines), _MAX_DESCRIPTION // 2)
    return f"{_bounded(hint, _MAX_DESCRIPTION - len(call))}\n{call}" if hint else call


def _one_line(name: str) -> str:
    """Returns a name as one line: a line break in it could imitate the lines that follow."""
    return name if name.isprintable() else _json(name)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[cut: {len(text)} characters in all]"


def _question_line(one: dict[str, Any]) -> str:
    options = one.get("options") or one.get("choices")
    listed = ", ".join(map(str, options)) if isinstance(options, list) else ""
    return f"{_text(one.get('question'))} ({listed})" if listed else _text(one.get("question"))


def _mesh_decision(uuid: str, decision: RelayedDecision) -> dict[str, Any]:
    written: dict[str, Any] = {"uuid": uuid, "decision": decision.choice}
    if decision.edited_args is not None:
        written["edited_args"] = decision.edited_args
        written["edited_args_json"] = json.dumps(decision.edited_args, ensure_ascii=False)
    if decision.reason:
        written["reason"] = decision.reason
    if decision.remember != "none":
        written["remember"] = decision.remember
    if decision.until:
        written["until"] = decision.until
    if decision.rule is not None:
        written["rule"] = decision.rule
        written["rule_json"] = json.dumps(decision.rule, ensure_ascii=False)
    if decision.choice == "answer":
        written["answer"] = decision.answer
    return written


def _hitl_approval(one: str, decision: RelayedDecision) -> dict[str, Any]:
    if decision.choice == "approve":
        return {"id": one, "approved": True}
    reason = {"rejection_reason": decision.reason} if decision.reason else {}
    return {"id": one, "approved": False, **reason}


def _hitl_answers(decision: RelayedDecision) -> list[dict[str, list[str]]]:
    """Returns an answer for each question: a line for each if there are as many lines, else the whole
    text."""
    number, _, _ = decision.request_id.partition(":")
    count = int(number) if number.isdigit() else 1
    answer = text_of(OutgoingMessage(id="", text="", context_id="", decision=decision))
    lines = answer.splitlines()
    each = lines if len(lines) == count else [answer] * count
    return [{"answer": [line]} for line in each]


def _arguments(one: dict[str, Any]) -> dict[str, Any]:
    try:
        return _object(exact(one.get("tool_args_json"), one.get("tool_args")))
    except ValueError as problem:
        raise RemoteFailed(f"it answered arguments that are no JSON: {problem}") from None


def _checked(request: InputRequest) -> InputRequest:
    """Returns the request if it is within the bounds. It is refused and not cut, because a person must not
    decide about a part of a call."""
    if len(request.approvals) > MAX_APPROVALS:
        raise RemoteFailed(
            f"it answered {len(request.approvals)} things to decide: {MAX_APPROVALS} are the most"
        )
    for one in request.approvals:
        _short(one.id, "id of what is to be decided")
        _short(one.tool_name, "tool name")
        try:
            size = len(msgspec.json.encode(strict_json.checked(one.tool_args)))
        except ValueError as error:
            raise RemoteFailed(f"it answered arguments that cannot be kept: {error}") from None
        if size > MAX_ARGS_BYTES:
            raise RemoteFailed(f"it answered arguments of {size} bytes: {MAX_ARGS_BYTES} are the most")
    return request


def _short(text: str, what: str) -> str:
    if len(text) > MAX_NAME:
        raise RemoteFailed(f"it answered a {what} of {len(text)} characters: {MAX_NAME} are the most")
    return text


def _default_description(name: Any) -> str:
    return f"Approve {_text(name) or 'the call'}?"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _object(value: Any) -> dict[str, Any]:
    return whole(value) if isinstance(value, dict) else {}


def _objects(holder: Any, key: str) -> Sequence[dict[str, Any]]:
    listed = holder.get(key) if isinstance(holder, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
