"""What another agent asks, and how it is told the answer: by an extension where it has one, always in words.

Pure. Words go along with every decision, so that whoever knows no extension understands; that is why edited
arguments are refused where only words would arrive: "yes" would run what nobody approved.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from mesh.a2a.client.port import InputRequest, OutgoingMessage, RelayedDecision, RemoteApproval, RemoteFailed
from mesh.a2a.extensions import HITL, MESH
from mesh.a2a.numbers import exact, whole
from mesh.core import strict_json
from mesh.core.approvals import APPROVAL_KINDS, CONTINUE, kind_named
from mesh.core.events import ApprovalKindName

MOST_ASKED = 50
MOST_NAME = 256
MOST_ARGS_BYTES = 64 * 1024
_WORDS = {"approve": "yes", "reject": "no", "retry": "retry", "skip": "skip"}
_MOST_DESCRIBED = 2_000


def question_of(message: dict[str, Any], text: str, moment: str, *, wants_token: bool) -> InputRequest:
    """What ``status.message`` asks; ``text`` are its words, ``moment`` is ``status.timestamp``. Raises
    `RemoteFailed` when it is more than a question may hold."""
    metadata = message.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    message_id = named(message, "messageId")
    told = message_id or moment
    asked = _mesh(known.get(MESH))
    if asked:
        return _checked(InputRequest(",".join(sorted(one.id for one in asked)), "mesh", asked))
    asked, answers = _hitl(known.get(HITL), text)
    if asked:
        # An agent may give the id of a tool or a question again; not the id of a message.
        ids = ",".join(sorted(one.id for one in asked))
        return _checked(InputRequest(f"{answers}:{ids}@{told}", "hitl", asked))
    kind: ApprovalKindName = "auth_required" if wants_token else "tool_call"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    question_id = message_id or f"{moment}#{digest}"
    return InputRequest(
        question_id, "text", (RemoteApproval(text or "The agent waits for an answer.", kind=kind),)
    )


def named(holder: dict[str, Any], key: str) -> str:
    """An id or a name, empty if there is none. Raises `RemoteFailed` when it is longer than any is."""
    return _short(_text(holder.get(key)), key)


def still_waits(question: InputRequest | None, decision: RelayedDecision) -> bool:
    """Whether the question that was decided is one that waits now."""
    if question is None:
        return False
    if decision.protocol == "mesh":  # each by itself: others may have come or gone meanwhile
        return any(one.id in decision.ids for one in question.approvals)
    return question.id == decision.request_id


def words_of(message: OutgoingMessage) -> str:
    """What a message says in words. Never empty."""
    decision = message.decision
    if decision is None:
        return message.text or CONTINUE
    return _WORDS.get(decision.choice, decision.answer) or CONTINUE


def metadata_of(decision: RelayedDecision, agent: str) -> dict[str, Any]:
    """What a decision says to the extension that asked. Raises `RemoteFailed` when it cannot be."""
    if decision.protocol == "mesh":
        return {MESH: {"decisions": [_decision(uuid, decision) for uuid in decision.ids]}}
    if decision.edited_args is not None:
        raise RemoteFailed(f"agent {agent} takes no edited arguments: approve what it asks, or reject it")
    if decision.protocol == "text":
        return {}
    if APPROVAL_KINDS[decision.kind].is_question:
        given = _answers(decision)
        return {HITL: {"type": "ask_user_response", "id": decision.ids[0], "answers": given}}
    return {
        HITL: {
            "type": "tool_approval_response",
            "approvals": [_approval(one, decision) for one in decision.ids],
        }
    }


def _mesh(request: Any) -> tuple[RemoteApproval, ...]:
    return tuple(
        RemoteApproval(
            description=_text(one.get("description")) or _called(one.get("tool_name")),
            id=one["uuid"],
            kind=kind_named(one.get("kind")).name,
            tool_name=_text(one.get("tool_name")),
            tool_args=_arguments(one),
        )
        for one in _objects(request, "approvals")
        if _text(one.get("uuid"))
    )


def _hitl(request: Any, text: str) -> tuple[tuple[RemoteApproval, ...], int]:
    """What is asked, and how many answers it takes."""
    kind = request.get("type") if isinstance(request, dict) else None
    if kind == "tool_approval_request":
        # With a child that asks, it is the child's calls that must be decided, and nothing else.
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
    return RemoteApproval(_described(name, args, hint), one["id"], "tool_call", name, args)


def _described(name: str, args: dict[str, Any], hint: str) -> str:
    """The call as a person reads it, below the hint if that does not say it already. Sorted: protobuf's JSON
    has its keys in another order each time."""
    lines = [_plain(name) or "a call", *(f"  {_plain(key)} = {_json(args[key])}" for key in sorted(args))]
    if all(line.strip() in hint for line in lines):
        return _bounded(hint, _MOST_DESCRIBED)
    call = _bounded("\n".join(lines), _MOST_DESCRIBED // 2)
    return f"{_bounded(hint, _MOST_DESCRIBED - len(call))}\n{call}" if hint else call


def _plain(name: str) -> str:
    """A name, which is not to look like several lines."""
    return name if name.isprintable() else _json(name)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[cut: {len(text)} characters in all]"


def _question_line(one: dict[str, Any]) -> str:
    options = one.get("options") or one.get("choices")
    named = ", ".join(map(str, options)) if isinstance(options, list) else ""
    return f"{_text(one.get('question'))} ({named})" if named else _text(one.get("question"))


def _decision(uuid: str, decision: RelayedDecision) -> dict[str, Any]:
    said: dict[str, Any] = {"uuid": uuid, "decision": decision.choice}
    if decision.edited_args is not None:
        said["edited_args"] = decision.edited_args
        said["edited_args_json"] = json.dumps(decision.edited_args, ensure_ascii=False)
    if decision.reason:
        said["reason"] = decision.reason
    if decision.choice == "answer":
        said["answer"] = decision.answer
    return said


def _approval(one: str, decision: RelayedDecision) -> dict[str, Any]:
    if decision.choice == "approve":
        return {"id": one, "approved": True}
    reason = {"rejection_reason": decision.reason} if decision.reason else {}
    return {"id": one, "approved": False, **reason}


def _answers(decision: RelayedDecision) -> list[dict[str, list[str]]]:
    """An answer to each question: a line each where there are as many, else the whole of it to all."""
    number, _, _ = decision.request_id.partition(":")
    count = int(number) if number.isdigit() else 1
    answer = words_of(OutgoingMessage(id="", text="", context_id="", decision=decision))
    lines = answer.splitlines()
    each = lines if len(lines) == count else [answer] * count
    return [{"answer": [line]} for line in each]


def _arguments(one: dict[str, Any]) -> dict[str, Any]:
    try:
        return _object(exact(one.get("tool_args_json"), one.get("tool_args")))
    except ValueError as problem:
        raise RemoteFailed(f"it answered arguments that are no JSON: {problem}") from None


def _checked(question: InputRequest) -> InputRequest:
    """The question, if all of it can be kept: a person must not decide about half of it."""
    if len(question.approvals) > MOST_ASKED:
        raise RemoteFailed(
            f"it answered {len(question.approvals)} things to decide: {MOST_ASKED} are the most"
        )
    for one in question.approvals:
        _short(one.id, "id of what is to be decided")
        _short(one.tool_name, "tool name")
        try:
            size = len(msgspec.json.encode(strict_json.checked(one.tool_args)))
        except ValueError as error:
            raise RemoteFailed(f"it answered arguments that cannot be kept: {error}") from None
        if size > MOST_ARGS_BYTES:
            raise RemoteFailed(f"it answered arguments of {size} bytes: {MOST_ARGS_BYTES} are the most")
    return question


def _short(text: str, what: str) -> str:
    if len(text) > MOST_NAME:
        raise RemoteFailed(f"it answered a {what} of {len(text)} characters: {MOST_NAME} are the most")
    return text


def _called(name: Any) -> str:
    return f"Approve {_text(name) or 'the call'}?"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _object(value: Any) -> dict[str, Any]:
    return whole(value) if isinstance(value, dict) else {}


def _objects(holder: Any, key: str) -> Sequence[dict[str, Any]]:
    listed = holder.get(key) if isinstance(holder, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
