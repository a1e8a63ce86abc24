"""What the page sends, and what the mesh gets for it. Pure: nothing is sent here.

Arguments that a person edited are passed on as the bytes that arrived, so that no number changes on the way.
"""

import re
from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from mesh.core.errors import BadRequest
from mesh.core.verdict import Remember

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Who asks, and what keeps a repeated request from acting twice.
_FORWARDED = ("authorization", "idempotency-key", "x-session-id", "x-user", "traceparent")

T = TypeVar("T")


class MessageForm(msgspec.Struct, forbid_unknown_fields=True):
    """A message. Without ``conversation_id`` it opens a conversation."""

    message: str
    conversation_id: str = ""


class DecideApproval(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A decision in the JSON of `POST /approvals/{uuid}`, with the ``uuid`` of the approval.

    It is not a `mesh.core.approvals.Decision`, because that one has parsed the edited arguments.
    """

    uuid: str
    approved: bool | msgspec.UnsetType = msgspec.UNSET
    action: Literal["approve", "reject", "retry", "skip"] | msgspec.UnsetType = msgspec.UNSET
    edited_args: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    answer: str | msgspec.UnsetType = msgspec.UNSET
    remember: Remember | msgspec.UnsetType = msgspec.UNSET
    rule: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    until: str | msgspec.UnsetType = msgspec.UNSET


class CancelTurn(msgspec.Struct, forbid_unknown_fields=True):
    """Cancels the open turn of a conversation."""

    conversation_id: str


class StepIn(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a person does with an agent at work: see docs/steer.md."""

    agent_id: str
    action: Literal["comment", "modify", "pause", "resume", "delete"]
    text: str | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    changes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    restart: bool = False


class CreateConversation(msgspec.Struct, forbid_unknown_fields=True):
    """A conversation without a message, so that it is watched before anything happens in it."""


def read(body: bytes, kind: type[T]) -> T:
    """Reads a body as one of the types above. Raises `BadRequest`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not what was expected: {error}") from None


def checked_id(text: str) -> str:
    """An id that may be a part of a path. Raises `BadRequest`."""
    if not _ID.fullmatch(text):
        raise BadRequest("an id is 1 to 128 of A-Z a-z 0-9 . _ -")
    return text


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are passed on to the mesh."""
    return {name: headers[name] for name in _FORWARDED if name in headers}


def message_request(sent: MessageForm) -> tuple[str, bytes]:
    """Path and body of a message."""
    path = (
        f"/conversations/{checked_id(sent.conversation_id)}/messages"
        if sent.conversation_id
        else "/conversations"
    )
    return path, msgspec.json.encode({"message": sent.message})


def decision_request(decided: DecideApproval) -> tuple[str, bytes]:
    """Path and body of a decision."""
    fields = msgspec.structs.asdict(decided)
    uuid = fields.pop("uuid")
    given = {key: value for key, value in fields.items() if value is not msgspec.UNSET}
    return f"/approvals/{checked_id(uuid)}", msgspec.json.encode(given)


def intervention_request(step: StepIn) -> tuple[str, bytes]:
    """Path and body of an intervention."""
    given = {key: value for key, value in msgspec.structs.asdict(step).items() if key != "agent_id"}
    body = {key: value for key, value in given.items() if value is not msgspec.UNSET and value is not False}
    return f"/agent/{checked_id(step.agent_id)}/intervene", msgspec.json.encode(body)


def cancel_request(cancelled: CancelTurn) -> tuple[str, bytes]:
    """Path and body of a cancellation."""
    return f"/conversations/{checked_id(cancelled.conversation_id)}/cancel", b"{}"
