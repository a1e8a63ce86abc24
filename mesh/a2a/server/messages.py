"""Reads messages: their text, and the decisions in them. Pure.

Decisions come as data of an extension (see `mesh.a2a.extensions`), or as one word for the oldest approval.
Text that is no decision decides nothing. A bearer token approves all approvals that wait for one, unless the
text rejects: clients send their token with every request, whatever the person behind them says.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from mesh.a2a.budget_data import CallerContext, caller_context
from mesh.a2a.extensions import BUDGET, HITL, MESH
from mesh.a2a.numbers import exact
from mesh.core.approvals import APPROVAL_KINDS, CONTINUE, Decision, is_no
from mesh.core.errors import BadRequest
from mesh.core.view import PendingApproval


class UnsupportedContent(BadRequest):
    """The message has parts of a kind that this agent cannot read."""


class _ExactDecision(Decision, frozen=True):
    edited_args_json: str = ""
    rule_json: str = ""


class _Decisions(msgspec.Struct, frozen=True):
    decisions: tuple[_ExactDecision, ...]


class _Approval(msgspec.Struct, frozen=True):
    id: str
    approved: bool
    rejection_reason: str = ""


class _Approvals(msgspec.Struct, frozen=True, tag="tool_approval_response", tag_field="type"):
    approvals: tuple[_Approval, ...]


class _Answer(msgspec.Struct, frozen=True):
    answer: tuple[str, ...]


class _Answers(msgspec.Struct, frozen=True, tag="ask_user_response", tag_field="type"):
    id: str
    answers: tuple[_Answer, ...]


def text_of(message: "pb.Message") -> str:
    """The text of a message; data is read as JSON. Raises `UnsupportedContent` for files, `BadRequest` for
    none."""
    texts: list[str] = []
    for part in message.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                texts.append(json.dumps(MessageToDict(part.data), ensure_ascii=False))
            case "raw" | "url":
                kind = f" ({part.media_type})" if part.media_type else ""
                raise UnsupportedContent(f"this agent reads text and data, and no files{kind}")
            case _:
                raise BadRequest("a part of the message has no content")
    text = "\n".join(texts)
    if not text.strip():
        raise BadRequest("the message has no text")
    return text


def with_files_mentioned(message: "pb.Message") -> "pb.Message":
    """The message with a line of text in the place of each file: its URL, or that it cannot be read."""
    mentioned = pb.Message()
    mentioned.CopyFrom(message)
    for part in mentioned.parts:
        match part.WhichOneof("content"):
            case "url":
                part.text = f"[{_file(part)}: {part.url}]"
            case "raw":
                part.text = f"[{_file(part)}, {len(part.raw)} bytes: this agent cannot read it]"
            case _:
                pass
    return mentioned


def _file(part: "pb.Part") -> str:
    kind = f"({part.media_type})" if part.media_type else ""
    return " ".join(word for word in ("file", part.filename, kind) if word)


def caller_context_in(message: "pb.Message") -> CallerContext | None:
    """Where the message comes from, if an agent sent it that says so. Raises `BadRequest` if it cannot be
    read."""
    if BUDGET not in message.metadata:
        return None
    try:
        return caller_context(MessageToDict(message.metadata)[BUDGET])
    except (ValueError, RecursionError) as problem:
        raise BadRequest(f"metadata {BUDGET}: {problem}") from None


def has_decisions(message: "pb.Message") -> bool:
    """Whether a message has data that decides: then its text is for people, and never a message by itself."""
    return MESH in message.metadata or HITL in message.metadata


def decisions_in(
    message: "pb.Message", pending: Sequence[PendingApproval], *, has_token: bool = False
) -> list[Decision]:
    """What the message decides of what is pending (oldest first); empty: nothing. ``has_token``: a bearer
    token came with it. Raises `BadRequest` for decisions that are not clear, or about something else."""
    data = MessageToDict(message.metadata)
    if MESH in data:
        found = [_exact(each) for each in _converted(data[MESH], _Decisions, MESH).decisions]
    elif HITL in data:
        found = _hitl(_converted(data[HITL], _Approvals | _Answers, HITL), pending)
    else:
        return _in_words(text_of(message), pending, has_token)
    if not found:
        raise BadRequest(f"the message has no decision in its data; {_waiting(pending)}")
    known = {asked.uuid for asked in pending}
    seen: set[str] = set()
    for decision in found:
        if decision.uuid not in known:
            raise BadRequest(_not_pending(decision.uuid, pending))
        if decision.uuid in seen:
            raise BadRequest(f"approval {decision.uuid} is decided twice; {_waiting(pending)}")
        seen.add(decision.uuid)
    return found


def _exact(data: _ExactDecision) -> Decision:
    """With the edited arguments and the rule as they were written."""
    edited = _exact_object("edited_args_json", data.edited_args_json, data.edited_args)
    rule = _exact_object("rule_json", data.rule_json, data.rule)
    if (data.remember != "none" and data.choice != "approve") or (rule and data.remember == "none"):
        raise BadRequest(f"metadata {MESH}: remember goes with an approval, and rule with remember")
    return Decision(data.uuid, data.choice, edited, data.reason, data.answer, data.remember, rule, data.until)


def _exact_object(key: str, text: str, value: dict[str, Any] | None) -> dict[str, Any] | None:
    try:
        found = exact(text, value)
    except ValueError as problem:
        raise BadRequest(f"metadata {MESH}: {key} is no JSON: {problem}") from None
    if not isinstance(found, dict | None):
        raise BadRequest(f"metadata {MESH}: {key} must be an object")
    return found


def _in_words(text: str, pending: Sequence[PendingApproval], has_token: bool) -> list[Decision]:
    asked = pending[0]
    kind = APPROVAL_KINDS[asked.kind]
    authorized: list[Decision] = []
    if has_token and not is_no(text):
        waiting = [each.uuid for each in pending if APPROVAL_KINDS[each.kind].needs_token]
        authorized = [Decision(uuid, "approve", if_pending=True) for uuid in waiting]
    is_continue = text.strip().lower() == CONTINUE
    choice = None if authorized and is_continue else kind.choice_in(text)
    if choice is None or (kind.needs_token and choice == "approve"):
        return authorized
    return [Decision(asked.uuid, choice, answer=text if choice == "answer" else ""), *authorized]


def _hitl(answer: _Approvals | _Answers, pending: Sequence[PendingApproval]) -> list[Decision]:
    if isinstance(answer, _Answers):
        return [_answered(answer, pending)]
    asked_for = {asked.uuid for asked in pending if APPROVAL_KINDS[asked.kind].is_call}
    if missing := asked_for - {each.id for each in answer.approvals}:
        raise BadRequest(
            f"{HITL}: every tool call is decided at once, and these are missing: {sorted(missing)}"
        )
    for each in answer.approvals:
        if each.approved and each.rejection_reason:
            raise BadRequest(f"{HITL}: {each.id[:64]} is approved, with a reason why not")
    return [
        Decision(each.id, "approve" if each.approved else "reject", reason=each.rejection_reason)
        for each in answer.approvals
    ]


def _answered(data: _Answers, pending: Sequence[PendingApproval]) -> Decision:
    asked = next((asked for asked in pending if asked.uuid == data.id), None)
    if asked is None:
        raise BadRequest(_not_pending(data.id, pending))
    text = "\n".join(", ".join(each.answer) for each in data.answers)
    choice = APPROVAL_KINDS[asked.kind].choice_in(text)
    if choice is None:
        raise BadRequest(f"{HITL}: the answer to {data.id} is empty, or none that it can take")
    return Decision(data.id, choice, answer=text if choice == "answer" else "")


def _converted(data: Mapping[str, Any], kind: Any, uri: str) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"metadata {uri}: {problem}") from None


def _not_pending(uuid: str, pending: Sequence[PendingApproval]) -> str:
    return f"approval {uuid[:64]!r} is not pending any more; {_waiting(pending)}"


def _waiting(pending: Sequence[PendingApproval]) -> str:
    return f"pending: {', '.join(asked.uuid for asked in pending) or 'nothing'}"
