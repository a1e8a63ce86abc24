"""Requests that count once. A request with a key is taken once; a repetition gets the first answer. Pure.

The key is the caller's (``Idempotency-Key``, a message id of A2A), or one that the gateway made, so that it
may send the request again itself. It is journaled with what the request did, so repetitions are known after
any restart. ``body_hash`` says what was asked: the same key with another hash is a mistake of the caller.
"""

import msgspec

from mesh.core.conversation import Conversation
from mesh.core.errors import Conflict
from mesh.keeper.requests import WITHDRAWN, Caller

_MESSAGE_SUFFIX = "/1"


def is_repetition(conversation: Conversation, caller: Caller) -> bool:
    """Whether this request was taken before. Raises `Conflict` if its key was another request's."""
    key = caller.idempotency_key
    taken = conversation.requests.get(key) if key else None
    if taken is None:
        return False
    if taken.body_hash == WITHDRAWN != caller.body_hash:
        raise Conflict(f"message {key} was withdrawn before it came")
    if taken.body_hash != caller.body_hash:
        shown = key.removesuffix(_MESSAGE_SUFFIX)
        raise Conflict(
            f"Idempotency-Key {shown!r} was used for another request: on another path or with another body"
        )
    return True


def caller_of_first_message(creator: Caller) -> Caller:
    """The caller of the message that comes with the creation of a conversation. It has a key of its own: the
    creation may be durable, and the message not yet."""
    key = creator.idempotency_key
    return msgspec.structs.replace(creator, idempotency_key=key and f"{key}{_MESSAGE_SUFFIX}")
