"""What a journal tells a webhook, wherever in it the webhook begins."""

import json
from typing import Any

import msgspec

from mesh.a2a.server.notifications import notifications
from mesh.core.events import (
    AnyEvent,
    Artifact,
    Completed,
    ConversationCreated,
    ToolResult,
    UserMessage,
)
from mesh.journal.memory import MemoryJournal
from mesh.push.delivery import Deliveries, RetryPolicy
from mesh.push.memory import MemoryPushStore
from mesh.push.port import EventNotifications
from mesh.push.registry import WebhookRegistry
from mesh.push.sender import WebhookSender
from mesh.push.webhook import Webhook
from tests.worlds.receiver import short

TIME = "2026-01-01T00:00:00.000Z"


def journal(turns: int = 2) -> list[AnyEvent]:
    """Each turn gives two files, one after the other, and an answer."""
    told: list[AnyEvent] = [
        ConversationCreated(conversation_id="c", session_id="s", agent="a", digest="d"),
    ]
    for turn in range(1, turns + 1):
        files = [
            ToolResult(
                turn=turn,
                step=f"0/tool/{i}.0",
                call_id=f"{i}",
                tool="draw",
                content="",
                artifacts=(Artifact(f"{i}.txt", "text/plain", "aGk="),),
            )
            for i in range(2)
        ]
        told += [UserMessage(turn=turn, text="hi"), *files, Completed(turn=turn, response="done")]
    return [_placed(event, seq) for seq, event in enumerate(told, 1)]


def _placed(event: AnyEvent, seq: int) -> AnyEvent:
    return msgspec.structs.replace(event, seq=seq, time=TIME)


def batch(events: list[AnyEvent], webhook: Webhook) -> list[EventNotifications]:
    registry = WebhookRegistry(0, MemoryPushStore(), lambda: None)
    deliveries = Deliveries(registry, MemoryJournal(), WebhookSender(), notifications, RetryPolicy())
    return deliveries._batch(events, webhook)


def bodies(events: list[AnyEvent], **webhook: Any) -> list[dict[str, Any]]:
    """All that is told, in the batches in which it is."""
    found: list[dict[str, Any]] = []
    seq = webhook.pop("seq", 0)
    while news := batch(events, Webhook("w", "", seq=seq, **webhook)):
        found += [json.loads(body) for each in news for body in each.bodies]
        seq = news[-1].seq
    return found


def test_files_and_the_answer_come_before_the_status() -> None:
    assert [short(body) for body in bodies(journal(1))] == ["artifact", "artifact", "artifact", "completed"]


def test_a_webhook_that_begins_later_gets_the_same_rest() -> None:
    events = journal()
    everything = bodies(events)
    assert len(everything) == 8
    for after in range(len(events) + 1):
        rest = bodies(events, seq=after)
        assert rest == everything[len(everything) - len(rest) :]
    assert bodies(events, seq=len(events)) == []


def test_much_news_comes_in_batches_and_none_is_lost() -> None:
    events = journal(30)
    assert len(batch(events, Webhook("w", ""))) < 3 * 30
    assert len(bodies(events)) == 4 * 30


def test_a_webhook_of_0_3_gets_the_task_as_it_was_each_time_it_ended() -> None:
    tasks = bodies(journal(), version="0.3")
    assert [(task["kind"], task["status"]["state"]) for task in tasks] == [("task", "completed")] * 2
    assert len(tasks[0]["history"]) < len(tasks[1]["history"])
