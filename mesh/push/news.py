"""What a conversation's journal tells a webhook: what a stream would have told, without the pieces. Pure.

1.0    as streams do: each file and the answer, then how the task stands (`mesh.a2a.server.narration`)
0.3    the whole task, each time it ends or waits
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict

from mesh.a2a.server.narration import Narration, Update
from mesh.a2a.server.task import task_of
from mesh.core.conversation import Conversation
from mesh.core.events import AnyEvent, Completed, Error, Paused, UserMessage
from mesh.core.view import view
from mesh.push.webhook import Form, Webhook

_MOST_NEWS = 16
_MOST_BYTES = 1024 * 1024


class News(msgspec.Struct, frozen=True):
    """What one event tells: ``bodies`` in order, at least one. ``time`` is the event's."""

    seq: int
    time: str
    bodies: Sequence[bytes]


def batch(events: Iterable[AnyEvent], webhook: Webhook) -> list[News]:
    """The first of what a webhook is still to be told, a bounded amount of it; empty: it knows all."""
    found: list[News] = []
    size = 0
    for each in _news(events, webhook.seq, webhook.form):
        found.append(each)
        size += sum(map(len, each.bodies))
        if len(found) == _MOST_NEWS or size > _MOST_BYTES:
            break
    return found


def _news(events: Iterable[AnyEvent], after: int, form: Form) -> Iterator[News]:
    conversation = Conversation()
    narration: Narration | None = None
    for event in events:
        conversation.apply(event)
        if isinstance(event, UserMessage):
            narration = Narration(view(conversation), event.turn)
        if narration is None:
            continue
        updates = list(narration.tell(event))  # also what was told: later files are counted after it
        if event.seq <= after:
            continue
        if isinstance(event, Paused) and conversation.pending:
            updates.append(narration.paused(view(conversation)))
        bodies = _written(updates) if form == "1.0" else _as_0_3(conversation, event)
        if bodies:
            yield News(event.seq, event.time, bodies)


def _written(updates: Iterable[Update]) -> list[bytes]:
    return [_json(MessageToDict(to_stream_response(update))) for update in updates]


def _as_0_3(conversation: Conversation, event: AnyEvent) -> list[bytes]:
    if not isinstance(event, Completed | Error) and not (isinstance(event, Paused) and conversation.pending):
        return []
    from a2a.compat.v0_3.conversions import to_compat_task  # half a second: only for those who need it

    task = to_compat_task(task_of(view(conversation)))
    return [_json(task.model_dump(mode="json", by_alias=True, exclude_none=True))]


def _json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
