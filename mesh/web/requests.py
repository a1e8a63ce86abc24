"""What the page sends, and what the mesh gets for it. Pure: nothing is sent here.

Arguments that a person edited go on as the bytes they came in: no number changes on its way through.
"""

import re
from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from mesh.core.errors import BadRequest

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FORWARDED = ("authorization", "idempotency-key", "x-session-id", "x-user", "traceparent")

T = TypeVar("T")


class Send(msgspec.Struct, forbid_unknown_fields=True):
    """A message; without ``conversation_id`` it opens a conversation."""

    message: str
    conversation_id: str = ""


class Approve(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A decision, as the mesh takes it, and the approval it is about."""

    uuid: str
    approved: bool | msgspec.UnsetType = msgspec.UNSET
    action: Literal["approve", "reject", "retry", "skip"] | msgspec.UnsetType = msgspec.UNSET
    edited_args: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    answer: str | msgspec.UnsetType = msgspec.UNSET


class Cancel(msgspec.Struct, forbid_unknown_fields=True):
    """Stops the turn of a conversation."""

    conversation_id: str


class Create(msgspec.Struct, forbid_unknown_fields=True):
    """A conversation without a message: to be watched before anything happens in it."""


def read(body: bytes, kind: type[T]) -> T:
    """A body as what it must be. Raises `BadRequest`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not what was expected: {error}") from None


def checked(some_id: str) -> str:
    """An id that may be part of a path. Raises `BadRequest`."""
    if not _ID.fullmatch(some_id):
        raise BadRequest("an id is 1 to 128 of A-Z a-z 0-9 . _ -")
    return some_id


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that the mesh gets: who asks, and what keeps a repeated request from acting twice."""
    return {name: headers[name] for name in _FORWARDED if name in headers}


def message_of(send: Send) -> tuple[str, bytes]:
    """Path and body of a message."""
    place = (
        f"/conversations/{checked(send.conversation_id)}/messages"
        if send.conversation_id
        else "/conversations"
    )
    return place, msgspec.json.encode({"message": send.message})


def decision_of(approve: Approve) -> tuple[str, bytes]:
    """Path and body of a decision."""
    said = {key: value for key, value in msgspec.structs.asdict(approve).items() if key != "uuid"}
    body = {key: value for key, value in said.items() if value is not msgspec.UNSET}
    return f"/approvals/{checked(approve.uuid)}", msgspec.json.encode(body)
