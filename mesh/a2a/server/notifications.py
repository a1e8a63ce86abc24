"""The push notifications about a conversation's events, in the words of A2A. Pure.

1.0    what a stream sends, without the pieces of the answer: each file and the answer, then the task's status
       (`mesh.a2a.server.turn_updates`)
0.3    the whole task, each time that it ends or waits
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict

from mesh.a2a.server.task import task_of
from mesh.a2a.server.turn_updates import TurnUpdates, Update
from mesh.core.conversation import Conversation
from mesh.core.events import AnyEvent, Completed, Error, Paused, UserMessage
from mesh.core.view import view
from mesh.push.port import EventNotifications
from mesh.push.webhook import A2aVersion


def notifications(
    events: Iterable[AnyEvent], after: int, version: A2aVersion
) -> Iterator[EventNotifications]:
    """See `mesh.push.port.Renderer`."""
    conversation = Conversation()
    turn_updates: TurnUpdates | None = None
    for event in events:
        conversation.apply(event)
        if isinstance(event, UserMessage):
            turn_updates = TurnUpdates(view(conversation), event.turn)
        if turn_updates is None:
            continue
        # Events up to ``after`` are narrated too: the ids of later files count the earlier ones.
        updates = list(turn_updates.of_event(event))
        if event.seq <= after:
            continue
        if _asks_anew(event, conversation):
            updates.append(turn_updates.paused(view(conversation)))
        bodies = _stream_responses(updates) if version == "1.0" else _tasks_0_3(conversation, event)
        if bodies:
            yield EventNotifications(event.seq, event.time, bodies)


def _stream_responses(updates: Iterable[Update]) -> list[bytes]:
    return [_json(MessageToDict(to_stream_response(update))) for update in updates]


def _tasks_0_3(conversation: Conversation, event: AnyEvent) -> list[bytes]:
    if not isinstance(event, Completed | Error) and not _asks_anew(event, conversation):
        return []
    # Imported here because it takes half a second, which only users of 0.3 need to spend.
    from a2a.compat.v0_3.conversions import to_compat_task

    task = to_compat_task(task_of(view(conversation)))
    return [_json(task.model_dump(mode="json", by_alias=True, exclude_none=True))]


def _asks_anew(event: AnyEvent, conversation: Conversation) -> bool:
    """Whether the turn has come to ask a person; not where what asks was moved to another version."""
    return isinstance(event, Paused) and not event.is_move and conversation.is_waiting


def _json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
