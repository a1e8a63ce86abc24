"""Events as watchers see them over HTTP: JSON objects, each in a frame of Server-Sent Events. Pure."""

from typing import Any

import msgspec

from mesh.core.events import AnyEvent
from mesh.net.sse import encode

_NOT_SHOWN = ("key", "body_hash", "tool_fingerprint")
"""Fields that only serve idempotency and checks of our own."""
_as_json = msgspec.json.Encoder().encode


def shown(event: AnyEvent, conversation_id: str) -> dict[str, Any]:
    """An event as watchers see it: its own fields, and always where and when it happened."""
    head = {"type": "", "conversation_id": conversation_id, "turn": event.turn, "node": event.node}
    fields: dict[str, Any] = msgspec.to_builtins(event)
    for name in _NOT_SHOWN:
        fields.pop(name, None)
    return {**head, "step": event.step, "time": event.time, **fields}


def frame(event: AnyEvent, conversation_id: str, *, numbered: bool = True) -> bytes:
    """An event as one Server-Sent Event: ``event`` is its type, ``id`` its ``seq`` if there is one and it is
    ``numbered``, ``data`` one line of JSON."""
    fields = shown(event, conversation_id)
    number = str(event.seq) if event.seq and numbered else ""
    return encode(_as_json(fields), event=fields["type"], id=number)
