"""What a gateway asks of a keeper, and what it answers: small messages in one union.

A reply's body is finished JSON, so that a gateway passes bytes on and reads none of them.
"""

from typing import Any

import msgspec

from mesh.events import Decision


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who asks. ``token`` is for the turn's downstream calls: kept in memory, never written.

    ``body_hash`` is of the request's body: with ``idempotency_key`` it says whether two requests
    are one. ``by`` names the person who decides, for the record.
    """

    session_id: str = ""
    token: str = ""
    traceparent: str = ""
    idempotency_key: str = ""
    body_hash: str = ""
    by: str = ""

    def __repr__(self) -> str:
        return f"Caller({self.session_id})"


class Create(msgspec.Struct, frozen=True, tag=True):
    """A new conversation, and its first message if there is one."""

    id: str
    caller: Caller
    message: str | None = None
    wait: bool = True


class Say(msgspec.Struct, frozen=True, tag=True):
    """A message. ``wait`` False: answer once it is durable."""

    id: str
    caller: Caller
    message: str
    wait: bool = True


class Decide(msgspec.Struct, frozen=True, tag=True):
    """A person's decision about an approval: see `ApprovalResolved`."""

    uuid: str
    caller: Caller
    decision: Decision
    edited_args: dict[str, Any] | None = None
    reason: str = ""
    wait: bool = True


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Makes a conversation final."""

    id: str


class Show(msgspec.Struct, frozen=True, tag=True):
    """One conversation."""

    id: str


class Page(msgspec.Struct, frozen=True, tag=True):
    """Conversations, newest first, older than ``before`` (``created_at|id``), of one status or any."""

    limit: int = 50
    before: str = ""
    status: str = ""


Request = Create | Say | Decide | Finish | Show | Page


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished answer: an HTTP status and a JSON body."""

    status: int
    body: bytes
    session_id: str = ""
    location: str = ""
    retry_after_s: int = 0


_encode = msgspec.json.Encoder().encode


def reply(status: int, body: Any, session_id: str = "", location: str = "") -> Reply:
    """A reply with anything that msgspec can make JSON of."""
    return Reply(status, _encode(body), session_id, location)


def refusal(status: int, message: str, session_id: str = "", retry_after_s: int = 0) -> Reply:
    """A reply that says what is wrong."""
    return Reply(status, _encode({"error": message}), session_id, retry_after_s=retry_after_s)


pack = msgspec.msgpack.Encoder().encode
unpack_request = msgspec.msgpack.Decoder(Request).decode
unpack_reply = msgspec.msgpack.Decoder(Reply).decode
