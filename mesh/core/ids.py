"""Ids of conversations, approvals and agents, and the shard that owns them.

The uuid of an approval, and the id of an agent, end in the same eight hex digits as the id of their
conversation. So a request that has only the uuid (from a link in a mail, say) finds the keeper without an
index.
"""

import hmac
import re
import uuid
import zlib
from hashlib import sha256

from mesh.core.places import ROOT, Place

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SESSION = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def is_id(text: str) -> bool:
    """Whether this has the form of an id, so that it may become part of a file name."""
    return _UUID.fullmatch(text) is not None


SESSION_IDS = "1 to 128 of A-Z a-z 0-9 . _ : -"
"""The form of a session id, for error messages."""


def is_session_id(text: str) -> bool:
    """Whether this may be a session id. It becomes a header, a field of log lines and an A2A contextId."""
    return _SESSION.fullmatch(text) is not None


def new_id() -> str:
    """A new conversation's id: a random uuid4."""
    return str(uuid.uuid4())


def id_for_key(secret: bytes, idempotency_key: str, caller: str) -> str:
    """The id of the conversation that this caller creates under this Idempotency-Key: always the same one.
    Only the mesh can compute it, with its ``secret``: nobody must be able to address a conversation that they
    have not seen."""
    digest = hmac.digest(secret, f"conversation\0{caller}\0{idempotency_key}".encode(), "sha256")
    return str(uuid.UUID(bytes=digest[:16], version=4))


def approval_id(conversation_id: str) -> str:
    """A new approval's uuid, in the shard of its conversation."""
    return new_id()[:-8] + id_suffix(conversation_id)


def agent_id(conversation_id: str, turn: int, place: Place) -> str:
    """The id of the agent at a place, always the same one: that of the root is its conversation's."""
    if place == ROOT:
        return conversation_id
    digest = sha256(f"{conversation_id}|{turn}|{place.text}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))[:-8] + id_suffix(conversation_id)


def id_suffix(some_id: str) -> str:
    """The part that the uuid of an approval shares with the id of its conversation."""
    return some_id[-8:]


def shard_of(some_id: str, shards: int) -> int:
    """The shard that owns a conversation or an approval. Every text has one."""
    return zlib.crc32(id_suffix(some_id).encode()) % shards if shards > 1 else 0
