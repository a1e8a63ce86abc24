"""Push notifications of a shard, as its keeper uses them: sets webhooks and reports journaled events.

A webhook is stored before the request that set it is answered. What is still to be sent to it is found out
from the journal, also after every start, so a crash loses no notification. A notification whose receipt was
acknowledged just before a crash may be sent again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

import msgspec

from mesh.core.errors import BadRequest, JournalError, TooManyRequests
from mesh.core.events import (
    AnyEvent,
    Completed,
    Error,
    Paused,
    StoreWentBack,
    ToolResult,
    UserMessage,
    moment,
    now,
)
from mesh.journal.port import Journal
from mesh.push.delivery import Deliveries, RetryPolicy
from mesh.push.port import PushStore, Renderer
from mesh.push.registry import WebhookKey, WebhookRegistry
from mesh.push.sender import WebhookSender
from mesh.push.webhook import Webhook
from mesh.runtime.logs import fields

MAX_PER_CONVERSATION = 10
MAX_PER_KEEPER = 10_000
"""All webhooks are in memory, and each may have a task: this bounds both."""
_KEEP_FOR = timedelta(days=7)
"""How long webhooks are kept that have nothing to be sent, when nothing else happens in the conversation."""
_KEEP_ORPHANS_FOR = timedelta(hours=1)
"""How long webhooks are kept whose conversation was about to be created and never was."""
_CHECK_INTERVAL_S = 86_400.0
_log = logging.getLogger("mesh.push")


class PushNotifications:
    """The push notifications of one shard. Call `open` first.

    ``count`` returns how many webhooks the process has, where it has those of other shards too. ``render``
    writes the notifications. ``named`` are hosts that may have private addresses. ``store`` and ``sender``
    are closed by the caller.
    """

    def __init__(
        self,
        shard: int,
        store: PushStore,
        journal: Journal,
        sender: WebhookSender,
        render: Renderer,
        named: Collection[str] = (),
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - it is immutable
        on_fenced: Callable[[], None] = lambda: None,
        count: Callable[[], int] | None = None,
    ) -> None:
        self._count = count or self.count
        self._named = named
        self._journal = journal
        self._webhooks = WebhookRegistry(shard, store, on_fenced)
        self._deliveries = Deliveries(self._webhooks, journal, sender, render, policy)
        # Conversations without an open turn, in the order in which their turns ended: the first to be
        # forgotten when there is no room.
        self._idle: dict[str, None] = {}
        self._checking: asyncio.Task[None] | None = None
        self._checked = asyncio.Event()

    def count(self) -> int:
        """Returns the number of webhooks."""
        return len(self._webhooks)

    async def open(self, epoch: int, owns: Callable[[str], bool]) -> None:
        """Takes over the shard and resumes delivery. Raises `StaleEpoch`."""
        await self._webhooks.open(epoch, owns)
        self._checking = asyncio.create_task(self._check_periodically())

    async def close(self) -> None:
        """Stops delivery."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        await self._deliveries.close()

    def of(self, conversation_id: str) -> list[Webhook]:
        """Returns the webhooks of a conversation."""
        return self._webhooks.of(conversation_id)

    async def set(self, conversation_id: str, webhook: Webhook, seq: int, *, ended: bool = False) -> Webhook:
        """Adds a webhook, or replaces the one with its id, and returns what is stored.

        A new webhook gets the notifications about what happens after event ``seq``; a replaced one keeps its
        position. ``ended``: the conversation has no open turn. Raises `BadRequest`,
        `TooManyRequests`, `JournalError`.
        """
        await asyncio.to_thread(_check, webhook, self._named)
        key = WebhookKey(conversation_id, webhook.id)
        known = self._webhooks.get(key)
        webhook = webhook.unmasked(known)
        if known is not None and known.has_same_settings(webhook):
            return known
        if known is None:
            await self._make_room(conversation_id)
            stored = msgspec.structs.replace(webhook, since=now(), seq=seq, parts=0)
        else:
            # The parts of an event differ between versions of A2A: half of one is no position in the other.
            parts = known.parts if known.version == webhook.version else 0
            stored = msgspec.structs.replace(webhook, since=now(), seq=known.seq, parts=parts)
        # Stopped first, so that nothing is sent to the old URL any more once the new one is stored.
        self._deliveries.stop(key)
        try:
            await self._webhooks.put(conversation_id, stored)
        finally:
            self._deliveries.wake(key)  # something may have happened meanwhile
        if ended:
            self._idle.setdefault(conversation_id)
        return stored

    async def remove(self, conversation_id: str, webhook_id: str) -> None:
        """Removes a webhook if there is one; nothing more is sent to it. Raises `JournalError`."""
        key = WebhookKey(conversation_id, webhook_id)
        if self._webhooks.get(key) is None:
            return
        self._deliveries.stop(key)
        try:
            await self._webhooks.remove(key)
        except JournalError:
            self._deliveries.wake(key)
            raise

    def on_journaled(self, conversation_id: str, events: Sequence[AnyEvent]) -> None:
        """Takes note of events that were journaled, and wakes delivery if there is something to be sent."""
        if conversation_id not in self._webhooks:
            return
        for event in events:
            if isinstance(event, UserMessage):
                self._idle.pop(conversation_id, None)
            elif isinstance(event, Completed | Error):
                self._idle[conversation_id] = None
            elif isinstance(event, StoreWentBack):
                self._set_back(conversation_id, event.seq - 1)
        if any(_may_notify(event) for event in events):
            for webhook in self._webhooks.of(conversation_id):
                self._deliveries.wake(WebhookKey(conversation_id, webhook.id))

    def _set_back(self, conversation_id: str, seq: int) -> None:
        """Delivery goes on from event ``seq``, where it was further, in what the store has lost, or is about
        to be: nothing of that is sent any more."""
        for webhook in self._webhooks.of(conversation_id):
            key = WebhookKey(conversation_id, webhook.id)
            self._deliveries.stop(key)
            if webhook.seq > seq:
                self._webhooks.set_back(key, seq)
            self._deliveries.wake(key)

    async def _make_room(self, conversation_id: str) -> None:
        """Checks the bounds before a webhook is added. A keeper that is full forgets the webhooks of the
        conversation that has been idle for longest and has nothing to be sent."""
        if len(self._webhooks.of(conversation_id)) >= MAX_PER_CONVERSATION:
            most = f"{MAX_PER_CONVERSATION} push notification configs"
            raise BadRequest(f"conversation {conversation_id} has {most} already; delete one")
        if self._count() < MAX_PER_KEEPER:
            return
        for idle in self._idle:
            if not self._deliveries.is_busy(idle):
                await self._drop(idle)
                return
        raise TooManyRequests(f"{MAX_PER_KEEPER} push notification configs wait for news here; try again", 60)

    async def forget(self, conversation_id: str) -> None:
        """Removes all webhooks of a conversation; nothing more is sent to them. Raises `JournalError`."""
        for webhook in self._webhooks.of(conversation_id):
            self._deliveries.stop(WebhookKey(conversation_id, webhook.id))
        if self._webhooks.of(conversation_id):
            await self._drop(conversation_id)
        self._idle.pop(conversation_id, None)

    async def _drop(self, conversation_id: str) -> None:
        self._idle.pop(conversation_id, None)
        await self._webhooks.drop(conversation_id)

    async def _check_periodically(self) -> None:
        while True:
            for conversation_id in list(self._webhooks):
                try:
                    await self._check_conversation(conversation_id)
                except JournalError as problem:
                    # The other conversations go on; this one is checked again next time.
                    _log.error(
                        "event=push_unread conversation=%s %s", conversation_id, fields(message=problem)
                    )
            self._checked.set()
            await asyncio.sleep(_CHECK_INTERVAL_S)

    async def _check_conversation(self, conversation_id: str) -> None:
        """Wakes delivery for webhooks that are behind the journal, and drops webhooks that are not needed."""
        furthest = max((webhook.seq for webhook in self._webhooks.of(conversation_id)), default=0)
        events = await self._journal.read(conversation_id)
        if events and events[-1].seq < furthest:  # the store went back, and this process did not see it
            told = (event for event in events if isinstance(event, StoreWentBack))
            lost = (event.seq - 1 for event in told if event.seq <= furthest <= event.lost_up_to)
            self._set_back(conversation_id, next(lost, events[-1].seq))
        webhooks = self._webhooks.of(conversation_id)
        last = max((event.seq for event in events if _may_notify(event)), default=0)
        for webhook in webhooks:
            if webhook.seq < last:
                self._deliveries.wake(WebhookKey(conversation_id, webhook.id))
        turns = [event for event in events if isinstance(event, UserMessage | Completed | Error)]
        if turns and isinstance(turns[-1], UserMessage):
            return  # a turn is open
        if events:
            self._idle.setdefault(conversation_id)
        limit = moment(-(_KEEP_FOR if events else _KEEP_ORPHANS_FOR))
        touched = [webhook.since for webhook in webhooks] + [event.time for event in events[-1:]]
        if webhooks and max(touched) < limit and not self._deliveries.is_busy(conversation_id):
            await self._drop(conversation_id)


def _may_notify(event: AnyEvent) -> bool:
    """Returns whether there may be notifications about an event. Cheaper than to render them."""
    if isinstance(event, Paused):
        return not event.is_move
    return isinstance(event, Completed | Error) or (isinstance(event, ToolResult) and bool(event.artifacts))


def _check(webhook: Webhook, named: Collection[str]) -> None:
    # Imported here, and called in a thread: the address guard brings a whole HTTP client, whose import takes
    # 0.2 s that keepers without webhooks are spared, and turns need not wait for.
    from mesh.push.checks import check

    check(webhook, named)
