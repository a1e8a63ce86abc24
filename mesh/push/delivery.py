"""Delivery: one task for each webhook that is behind its conversation, until it is not.

The journal is the queue: a task reads it from where its webhook is, sends one notification after the other,
and forgets what it read before it waits. So a webhook that is down for a day costs a small task that sleeps.
What was acknowledged, or given up, is noted before the next one is sent.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from mesh.core.errors import JournalDamaged, JournalError
from mesh.core.events import AnyEvent
from mesh.journal.port import Journal
from mesh.net.backoff import Backoff
from mesh.push.gates import Gates
from mesh.push.post import Outcome, Post
from mesh.push.webhook import Webhook
from mesh.push.webhooks import Place, Webhooks
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields

if TYPE_CHECKING:
    from mesh.push.news import News

_log = logging.getLogger("mesh.push")


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """When a notification is tried again, in seconds: first after about ``first_s``, then after twice that,
    and so on up to ``most_s``; given up when what it tells happened ``patience_s`` ago."""

    first_s: float = 1.0
    most_s: float = 300.0
    patience_s: float = 86_400.0

    def pause(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return Backoff(self.first_s, self.most_s).delay(failures)


class Deliveries:
    """See the module's text."""

    def __init__(self, webhooks: Webhooks, journal: Journal, post: Post, pace: Pace) -> None:
        self._webhooks = webhooks
        self._journal = journal
        self._post = post
        self._pace = pace
        self._gates = Gates()
        self._news: set[Place] = set()
        self._tasks: dict[Place, asyncio.Task[None]] = {}

    def wake(self, place: Place) -> None:
        """There may be news for this webhook."""
        self._news.add(place)
        if place not in self._tasks:
            task = asyncio.create_task(self._work(place))
            self._tasks[place] = task
            task.add_done_callback(lambda done: self._ended(place, done))

    def stop(self, place: Place) -> None:
        """Nothing more is sent to it, not even what is on its way."""
        self._news.discard(place)
        task = self._tasks.pop(place, None)
        if task is not None:
            task.cancel()

    def is_busy(self, conversation_id: str) -> bool:
        """Whether a webhook of this conversation is behind."""
        webhooks = self._webhooks.of(conversation_id)
        return any(Place(conversation_id, webhook.id) in self._tasks for webhook in webhooks)

    async def close(self) -> None:
        """Stops all; where they were is known."""
        tasks = list(self._tasks.values())
        for place in list(self._tasks):
            self.stop(place)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, place: Place) -> None:
        while place in self._news:
            self._news.discard(place)
            await self._catch_up(place)
        # Invariant: nothing waits between the look at the news and the end of this task's entry.
        self._tasks.pop(place, None)

    async def _catch_up(self, place: Place) -> None:
        failures = 0
        while True:
            done, trouble = await self._round(place)
            if trouble is None:
                if not done:
                    return
                continue
            failures = 1 if done else failures + 1
            if failures == 1:
                _log.warning("event=push_delayed %s %s", self._about(place), fields(why=trouble.why))
            # The longer of the two: a receiver that keeps saying "at once" and keeps failing is spared too.
            await asyncio.sleep(max(self._pace.pause(failures), trouble.retry_after_s))

    async def _round(self, place: Place) -> tuple[int, Outcome | None]:
        """Sends what there is, up to the first that fails: how many notifications are done with, and why the
        next one failed."""
        webhook = self._webhooks.get(place)
        if webhook is None:
            return 0, None
        done = 0
        async with self._gates.through(_host(webhook)):
            try:
                events = await self._journal.read(place.conversation_id)
            except JournalDamaged:
                raise
            except JournalError as problem:
                return 0, Outcome("failed", str(problem))
            for news in await asyncio.to_thread(_batch, events, webhook):
                for part in range(webhook.parts, len(news.bodies)):
                    outcome = await self._post.send(webhook, news.bodies[part])
                    failpoint("push.sent")
                    if outcome.kind == "failed" and not self._is_old(news.time):
                        return done, outcome
                    if outcome.kind != "delivered":
                        _log.error("event=push_given_up %s %s", self._about(place), fields(why=outcome.why))
                    webhook = await self._advanced(place, webhook, news, part + 1)
                    done += 1
        return done, None

    async def _advanced(self, place: Place, webhook: Webhook, news: "News", parts: int) -> Webhook:
        """Notes that these parts of the news are done with."""
        seq, parts = (news.seq, 0) if parts == len(news.bodies) else (webhook.seq, parts)
        try:
            await self._webhooks.advance(place, seq, parts)
        except JournalError as problem:  # told once more after a crash, not before
            _log.error("event=push_not_noted %s %s", self._about(place), fields(message=problem))
        return msgspec.structs.replace(webhook, seq=seq, parts=parts)

    def _is_old(self, time: str) -> bool:
        age = datetime.now(UTC) - datetime.fromisoformat(time)
        return age.total_seconds() > self._pace.patience_s

    def _about(self, place: Place) -> str:
        """Which webhook it is, for the log: its URL may be a secret."""
        webhook = self._webhooks.get(place)
        host = _host(webhook) if webhook else ""
        return fields(conversation=place.conversation_id, webhook=place.id, host=host)

    def _ended(self, place: Place, task: asyncio.Task[None]) -> None:
        if self._tasks.get(place) is task:
            del self._tasks[place]
        if not task.cancelled() and (problem := task.exception()):
            _log.error("event=push_stopped %s", self._about(place), exc_info=problem)


def _batch(events: Iterable[AnyEvent], webhook: Webhook) -> "list[News]":
    """In a thread: it takes a while, at first above all, when it imports the words of A2A."""
    from mesh.push.news import batch

    return batch(events, webhook)


def _host(webhook: Webhook) -> str:
    return urlsplit(webhook.url).netloc
