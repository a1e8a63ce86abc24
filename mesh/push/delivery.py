"""Delivery: one task for each webhook that has notifications to be sent, as long as it has any.

The journal is the queue. A task reads it from the webhook's position, sends one notification after the
other, and forgets what it read before it waits, so a webhook that is down for a day costs one small task that
sleeps. The position is stored after every notification that was delivered or given up, before the next one
is sent.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec

from mesh.core.errors import JournalDamaged, JournalError
from mesh.core.events import AnyEvent
from mesh.journal.port import Journal
from mesh.net.backoff import Backoff
from mesh.push.limits import DeliveryLimits
from mesh.push.port import EventNotifications, Renderer
from mesh.push.registry import WebhookKey, WebhookRegistry
from mesh.push.sender import SendResult, WebhookSender
from mesh.push.webhook import Webhook
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields

_MAX_BATCH = 16
_MAX_BATCH_BYTES = 1024 * 1024
_log = logging.getLogger("mesh.push")


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a notification is sent again: first after about ``first_s`` seconds, then after twice as long each
    time, up to ``max_s``. It is given up when the event is ``give_up_after_s`` seconds old."""

    first_s: float = 1.0
    max_s: float = 300.0
    give_up_after_s: float = 86_400.0

    def pause(self, failures: int) -> float:
        """Returns how long to wait after so many failures in a row. It is random, so that the webhooks of a
        host that was down do not come back at the same moment."""
        return Backoff(self.first_s, self.max_s).delay(failures)


class Deliveries:
    """The delivery tasks of a shard."""

    def __init__(
        self,
        webhooks: WebhookRegistry,
        journal: Journal,
        sender: WebhookSender,
        render: Renderer,
        policy: RetryPolicy,
    ) -> None:
        self._webhooks = webhooks
        self._journal = journal
        self._sender = sender
        self._render = render
        self._policy = policy
        self._limits = DeliveryLimits()
        self._woken: set[WebhookKey] = set()
        self._tasks: dict[WebhookKey, asyncio.Task[None]] = {}

    def wake(self, key: WebhookKey) -> None:
        """Makes sure that the journal is read for this webhook, again if it is being read just now."""
        self._woken.add(key)
        if key not in self._tasks:
            task = asyncio.create_task(self._work(key))
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))

    def stop(self, key: WebhookKey) -> None:
        """Sends nothing more to this webhook, and breaks off a request that is under way."""
        self._woken.discard(key)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def is_busy(self, conversation_id: str) -> bool:
        """Returns whether a webhook of this conversation has notifications to be sent."""
        webhooks = self._webhooks.of(conversation_id)
        return any(WebhookKey(conversation_id, webhook.id) in self._tasks for webhook in webhooks)

    async def close(self) -> None:
        """Stops all tasks. Their positions are stored already."""
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self.stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: WebhookKey) -> None:
        while key in self._woken:
            self._woken.discard(key)
            await self._catch_up(key)
        # Invariant: no await between the check of `_woken` and the removal of this task. A `wake` in between
        # would find a task that does not look any more.
        self._tasks.pop(key, None)

    async def _catch_up(self, key: WebhookKey) -> None:
        failures = 0
        while True:
            sent, failure = await self._send_batch(key)
            if failure is None:
                if not sent:
                    return
                continue
            failures = 1 if sent else failures + 1
            if failures == 1:
                _log.warning("event=push_delayed %s %s", self._log_fields(key), fields(why=failure.why))
            await asyncio.sleep(max(self._policy.pause(failures), failure.retry_after_s))

    async def _send_batch(self, key: WebhookKey) -> tuple[int, SendResult | None]:
        """Sends a bounded number of notifications, up to the first that fails. Returns how many were
        delivered or given up, and why the next one failed."""
        webhook = self._webhooks.get(key)
        if webhook is None:
            return 0, None
        sent = 0
        async with self._limits.slot(_host(webhook)):
            try:
                events = await self._journal.read(key.conversation_id)
            except JournalDamaged:
                raise
            except JournalError as problem:
                return 0, SendResult("failed", str(problem))
            # In a thread: a long conversation takes a while to render, and turns must not wait for it.
            for about in await asyncio.to_thread(self._batch, events, webhook):
                for part in range(webhook.parts, len(about.bodies)):
                    result = await self._sender.send(webhook, about.bodies[part])
                    failpoint("push.sent")
                    if result.kind == "failed" and not self._is_expired(about.time):
                        return sent, result
                    if result.kind != "delivered":
                        _log.error("event=push_given_up %s %s", self._log_fields(key), fields(why=result.why))
                    webhook = await self._advance(key, webhook, about, part + 1)
                    sent += 1
        return sent, None

    def _batch(self, events: Iterable[AnyEvent], webhook: Webhook) -> list[EventNotifications]:
        """Returns the first notifications that are to be sent, or an empty list if all were.

        The bounds keep a webhook that is far behind from having its whole backlog in memory.
        """
        batch: list[EventNotifications] = []
        size = 0
        for about in self._render(events, webhook.seq, webhook.version):
            batch.append(about)
            size += sum(map(len, about.bodies))
            if len(batch) == _MAX_BATCH or size > _MAX_BATCH_BYTES:
                break
        return batch

    async def _advance(
        self, key: WebhookKey, webhook: Webhook, about: EventNotifications, parts: int
    ) -> Webhook:
        """Notes that so many notifications about the event are done with."""
        seq, parts = (about.seq, 0) if parts == len(about.bodies) else (webhook.seq, parts)
        try:
            await self._webhooks.advance(key, seq, parts)
        except JournalError as problem:
            # Delivery goes on: the position is right in memory, so at worst this notification is sent once
            # more after a crash. To wait for the disk would delay all the following ones.
            _log.error("event=push_not_noted %s %s", self._log_fields(key), fields(message=problem))
        return msgspec.structs.replace(webhook, seq=seq, parts=parts)

    def _is_expired(self, time: str) -> bool:
        age = datetime.now(UTC) - datetime.fromisoformat(time)
        return age.total_seconds() > self._policy.give_up_after_s

    def _log_fields(self, key: WebhookKey) -> str:
        """Returns what identifies the webhook in the log: the host of its URL, as the rest may be secret."""
        webhook = self._webhooks.get(key)
        host = _host(webhook) if webhook else ""
        return fields(conversation=key.conversation_id, webhook=key.webhook_id, host=host)

    def _ended(self, key: WebhookKey, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (problem := task.exception()):
            _log.error("event=push_stopped %s", self._log_fields(key), exc_info=problem)


def _host(webhook: Webhook) -> str:
    return urlsplit(webhook.url).netloc
