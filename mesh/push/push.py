"""Push notifications of a shard, as its keeper sees them: webhooks that are set, and told what happens.

A webhook is durable before whoever set it hears so. What it still is to be told is found out from the
journal, at every start too, so that no crash loses any of it; one may be told again what it acknowledged just
before.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

import msgspec

from mesh.core.errors import BadRequest, JournalError, TooManyRequests
from mesh.core.events import AnyEvent, Completed, Error, Paused, ToolResult, UserMessage, moment, now
from mesh.journal.port import Journal
from mesh.push.delivery import Deliveries, Pace
from mesh.push.port import PushStore
from mesh.push.post import Post
from mesh.push.webhook import Webhook
from mesh.push.webhooks import Place, Webhooks
from mesh.runtime.logs import fields

MOST_PER_CONVERSATION = 10
MOST_PER_KEEPER = 10_000
_KEPT_FOR = timedelta(days=7)
"""How long webhooks stay that know all of a turn that ended, when nothing else happens."""
_ORPHANED_FOR = timedelta(hours=1)
"""How long webhooks stay whose conversation was about to be created."""
_LOOK_EVERY_S = 86_400.0
_log = logging.getLogger("mesh.push")


class Push:
    """See the module's text. ``named``: hosts that may have private addresses. `open` before anything else;
    ``store`` and ``post`` are the caller's to close."""

    def __init__(
        self,
        shard: int,
        store: PushStore,
        journal: Journal,
        post: Post,
        named: Collection[str] = (),
        pace: Pace = Pace(),  # noqa: B008 - it never changes
        on_fenced: Callable[[], None] = lambda: None,
    ) -> None:
        self._named = named
        self._journal = journal
        self._webhooks = Webhooks(shard, store, on_fenced)
        self._deliveries = Deliveries(self._webhooks, journal, post, pace)
        self._ended: dict[str, None] = {}
        self._looking: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()

    async def open(self, epoch: int, owns: Callable[[str], bool]) -> None:
        """Takes the shard over, and goes on with what was not told yet."""
        await self._webhooks.open(epoch, owns)
        self._looking = asyncio.create_task(self._look_now_and_then())

    async def close(self) -> None:
        """Stops sending."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._deliveries.close()

    def of(self, conversation_id: str) -> list[Webhook]:
        """A conversation's webhooks."""
        return self._webhooks.of(conversation_id)

    async def set(self, conversation_id: str, webhook: Webhook, seq: int, *, ended: bool = False) -> Webhook:
        """Sets a webhook, which is told what happens after event ``seq``; one with the same id is changed,
        and told what it does not know yet. ``ended``: no turn is open. Raises `BadRequest`,
        `TooManyRequests`, `JournalError`."""
        await asyncio.to_thread(_check, webhook, self._named)
        place = Place(conversation_id, webhook.id)
        known = self._webhooks.get(place)
        webhook = webhook.unmasked(known)
        if known is not None and known.says_as(webhook):
            return known
        if known is None:
            await self._make_room(conversation_id)
            kept = msgspec.structs.replace(webhook, since=now(), seq=seq, parts=0)
        else:
            parts = known.parts if known.form == webhook.form else 0
            kept = msgspec.structs.replace(webhook, since=now(), seq=known.seq, parts=parts)
        self._deliveries.stop(place)
        try:
            await self._webhooks.put(conversation_id, kept)
        finally:
            self._deliveries.wake(place)  # something may have happened meanwhile
        if ended:
            self._ended.setdefault(conversation_id)
        return kept

    async def remove(self, conversation_id: str, webhook_id: str) -> None:
        """Removes a webhook, if there is one; it is told nothing more. Raises `JournalError`."""
        place = Place(conversation_id, webhook_id)
        if self._webhooks.get(place) is None:
            return
        self._deliveries.stop(place)
        try:
            await self._webhooks.remove(place)
        except JournalError:
            self._deliveries.wake(place)
            raise

    def happened(self, conversation_id: str, events: Sequence[AnyEvent]) -> None:
        """Events were journaled."""
        if conversation_id not in self._webhooks:
            return
        for event in events:
            if isinstance(event, UserMessage):
                self._ended.pop(conversation_id, None)
            elif isinstance(event, Completed | Error):
                self._ended[conversation_id] = None
        if any(_tells(event) for event in events):
            for webhook in self._webhooks.of(conversation_id):
                self._deliveries.wake(Place(conversation_id, webhook.id))

    async def _make_room(self, conversation_id: str) -> None:
        """Above its bound, a keeper forgets the webhooks that know all of a task that ended, oldest first."""
        if len(self._webhooks.of(conversation_id)) >= MOST_PER_CONVERSATION:
            most = f"{MOST_PER_CONVERSATION} push notification configs"
            raise BadRequest(f"conversation {conversation_id} has {most} already; delete one")
        if len(self._webhooks) < MOST_PER_KEEPER:
            return
        for ended in self._ended:
            if not self._deliveries.is_busy(ended):
                await self._drop(ended)
                return
        raise TooManyRequests(
            f"{MOST_PER_KEEPER} push notification configs wait for news here; try again", 60
        )

    async def _drop(self, conversation_id: str) -> None:
        self._ended.pop(conversation_id, None)
        await self._webhooks.drop(conversation_id)

    async def _look_now_and_then(self) -> None:
        while True:
            for conversation_id in list(self._webhooks):
                try:
                    await self._look_at(conversation_id)
                except JournalError as problem:
                    _log.error(
                        "event=push_unread conversation=%s %s", conversation_id, fields(message=problem)
                    )
            self._looked.set()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _look_at(self, conversation_id: str) -> None:
        """Goes on where a webhook is behind its journal; forgets those that nobody needs."""
        events = await self._journal.read(conversation_id)
        webhooks = self._webhooks.of(conversation_id)
        last = max((event.seq for event in events if _tells(event)), default=0)
        for webhook in webhooks:
            if webhook.seq < last:
                self._deliveries.wake(Place(conversation_id, webhook.id))
        turns = [event for event in events if isinstance(event, UserMessage | Completed | Error)]
        if turns and isinstance(turns[-1], UserMessage):
            return
        if events:
            self._ended.setdefault(conversation_id)
        quiet = moment(-(_KEPT_FOR if events else _ORPHANED_FOR))
        touched = [webhook.since for webhook in webhooks] + [event.time for event in events[-1:]]
        if webhooks and max(touched) < quiet and not self._deliveries.is_busy(conversation_id):
            await self._drop(conversation_id)


def _tells(event: AnyEvent) -> bool:
    """Whether an event may be news."""
    return isinstance(event, Completed | Error | Paused) or (
        isinstance(event, ToolResult) and bool(event.artifacts)
    )


def _check(webhook: Webhook, named: Collection[str]) -> None:
    """In a thread: the guard comes with a whole HTTP client, which takes a while to import."""
    from mesh.push.checks import check

    check(webhook, named)
