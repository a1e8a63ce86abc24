"""The keeper: starts turns, runs passes over the tree, takes decisions, recovers after a crash.

Above: a gateway, which sends `Request`s and passes the replies on. Below: a `Journal`, and a `Tree`, which
takes passes. A keeper knows neither HTTP nor Ray, nor what nodes do. To nodes it is a `Recorder`.

A message or a decision makes the turn's driver go on and waits for it; a keeper that starts does so for
every turn that was left open.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from mesh.core.approvals import is_no
from mesh.core.conversation import Conversation, fold
from mesh.core.errors import (
    Conflict,
    JournalDamaged,
    JournalError,
    MeshError,
    NotFound,
    StaleEpoch,
    TooManyRequests,
)
from mesh.core.events import (
    Answered,
    AnyEvent,
    ConversationCompleted,
    ConversationCreated,
    UserMessage,
    now,
)
from mesh.core.view import view
from mesh.journal.port import Journal
from mesh.keeper.approvals import Approvals
from mesh.keeper.carried import exported, imported
from mesh.keeper.cell import Cell
from mesh.keeper.cells import Cells
from mesh.keeper.driver import Driver
from mesh.keeper.pushes import Pushes
from mesh.keeper.replies import (
    ConversationReply,
    Conversations,
    FollowedEvents,
    JournalLines,
    NothingTaken,
    RecentConversations,
    Reply,
    TurnAccepted,
    TurnAnswer,
    TurnReply,
    WatchReply,
    conversation_reply,
    refusal,
    turn_answer,
)
from mesh.keeper.requests import (
    WITHDRAWN,
    Caller,
    Cancel,
    Create,
    Decide,
    Export,
    Finish,
    Follow,
    Import,
    Page,
    PushDelete,
    PushList,
    PushSet,
    Recent,
    Repeat,
    Request,
    Say,
    Show,
    Told,
    Watch,
)
from mesh.keeper.watching import Watching
from mesh.net.backoff import Backoff
from mesh.push.service import PushNotifications
from mesh.runtime.logs import fields
from mesh.tree.turn import Ack, Decisions, Tree

_log = logging.getLogger("mesh.keeper")

_LISTEN_S = 20.0
_RECOVERY = Backoff(first_s=0.1, longest_s=10.0)
"""How long a node that listens for decisions is kept waiting before it asks again."""


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper needs to know of the agent, and its bounds (times in seconds)."""

    agent: str
    digest: str
    system_prompt: str = ""
    turn_timeout_s: float = 3600.0
    unavailable_for_s: float = 120.0
    max_queue_per_conversation: int = 100
    max_loaded: int = 5_000
    max_recovering: int = 256


class Keeper:
    """Owner of shard ``shard`` of ``shards``. `start` before anything else."""

    def __init__(
        self,
        shard: int,
        shards: int,
        journal: Journal,
        tree: Tree,
        settings: KeeperSettings,
        push: PushNotifications,
        on_fenced: Callable[[], None] = lambda: None,
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._cells = Cells(
            shard, shards, journal, settings.max_loaded, on_fenced, self._changed, self._recover_soon
        )
        self._watching = Watching(journal)
        self._push = push
        self._pushes = Pushes(self._cells.get, push)
        self._driver = Driver(tree, settings.turn_timeout_s, settings.unavailable_for_s)
        self._approvals = Approvals(self._cells.get, tree, self._driver)
        self._recovery: dict[str, asyncio.Task[None]] = {}
        self._recovering = asyncio.Semaphore(settings.max_recovering)

    async def start(self) -> None:
        """Takes the shard over and goes on with every turn that was left open."""
        epoch = await self._cells.open()
        await self._push.open(epoch, self._cells.owns)
        for when, conversation_id in self._cells.index.deadlines():
            self._approvals.note(conversation_id, [when])
        for conversation_id in self._cells.unreadable:  # whether anything expires there is found once it can
            self._approvals.note(conversation_id, [now()])
        for conversation_id in list(self._cells.index.open_turns()):
            self._recover_soon(conversation_id)

    async def close(self) -> None:
        """Stops driving turns (they stay open) and writes what is only derived."""
        recovery = list(self._recovery.values())
        for task in recovery:
            task.cancel()
        await asyncio.gather(*recovery, self._approvals.close(), return_exceptions=True)
        await self._push.close()
        await self._cells.close()

    async def handle(self, request: Request) -> Reply:
        """Answers any request; what is wrong becomes a reply too."""
        try:
            return await self._dispatch(request)
        except MeshError as problem:
            return refusal(problem)

    async def watch(self, request: Watch) -> WatchReply:
        """What is new to a watcher of a conversation; waits a while for something."""
        try:
            return await self._watching.watch(await self._shown(request.id), request)
        except MeshError as problem:
            return refusal(problem)

    async def follow(self, request: Follow) -> FollowedEvents:
        """What is new in the shard; waits a while for something."""
        return await self._watching.follow(request)

    async def append(self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]) -> Ack:
        """See `Recorder`. Raises `JournalError` when the events are not durable."""
        cell = await self._cells.get(conversation_id)
        accepted = await cell.append_of_run(turn, run, events)
        if not accepted and cell.needs_pass:
            self._driver.start(cell)
        return Ack(accepted, cell.audience.is_there, cell.conversation.llm_calls)

    async def decisions(self, conversation_id: str, turn: int, run: int, after: int) -> Decisions | None:
        """See `Recorder`."""
        cell = await self._cells.get(conversation_id)
        try:
            async with asyncio.timeout(_LISTEN_S):
                return await cell.decisions(turn, run, after)
        except TimeoutError:
            return Decisions()

    async def _dispatch(self, request: Request) -> Reply:
        match request:
            case Create():
                return await self._create(request)
            case Say():
                return await self._say(request)
            case Decide():
                return await self._decide(request)
            case Told():
                return await self._told(request)
            case Repeat():
                return await self._repeat(request)
            case Finish():
                return await self._finish(request)
            case Show():
                return conversation_reply((await self._shown(request.id)).conversation)
            case Page() | Recent():
                return await self._list(request)
            case Cancel():
                return await self._cancel(request)
            case Export():
                cell = await self._shown(request.id)
                lines = exported(await self._journal.read(request.id))
                return JournalLines(cell.conversation.session_id, lines)
            case Import():
                return await self._import(request)
            case PushSet() | PushList() | PushDelete():
                return await self._pushes.answer(request)

    async def _list(self, request: Page | Recent) -> Conversations | RecentConversations:
        await self._cells.flush()
        index = self._cells.index
        if isinstance(request, Recent):
            return RecentConversations(*index.recent(request))
        found = index.page(request.limit + 1, request.before, request.status)
        return Conversations(found, dict(index.counts))

    async def _shown(self, conversation_id: str) -> Cell:
        """The cell of a conversation that is to be looked at: what was said in it is in its journal."""
        cell = await self._cells.get(conversation_id)
        await cell.flush()
        return cell

    async def _repeat(self, request: Repeat) -> TurnAnswer | NothingTaken:
        cell = await self._cells.get(request.id)
        if not self._is_repeated(cell, request.caller):
            return NothingTaken()
        return await self._first_answer(cell, request.caller.idempotency_key)

    async def _create(self, request: Create) -> TurnReply | ConversationReply:
        caller = request.caller
        if request.id in self._cells.index:
            cell = await self._cells.get(request.id)
            if not self._is_repeated(cell, caller):
                raise Conflict(f"conversation {request.id} exists already")
        else:
            if request.webhook is not None:  # first: where the conversation is, its webhook is too
                await self._push.set(request.id, request.webhook, 0)
            cell = await self._new_cell(request)
        if request.message is None:
            return await self._created(cell, caller.idempotency_key)
        keyed = msgspec.structs.replace(
            caller, idempotency_key=caller.idempotency_key and f"{caller.idempotency_key}/1"
        )
        return await self._say(
            Say(request.id, keyed, request.message, request.wait, request.watched, request.message_id)
        )

    async def _new_cell(self, request: Create) -> Cell:
        caller, settings = request.caller, self._settings
        session_id = caller.session_id or request.context_id
        created = ConversationCreated(
            conversation_id=request.id,
            session_id=session_id,
            agent=settings.agent,
            digest=settings.digest,
            system_prompt=settings.system_prompt,
            context_id=request.context_id if request.context_id != session_id else "",
            idempotency_key=caller.idempotency_key,
            body_hash=caller.body_hash,
        )
        return await self._cells.create(request.id, [created])

    async def _say(self, request: Say) -> TurnReply:
        cell = await self._cells.get(request.id)
        if cell.conversation.pending and not self._is_repeated(cell, request.caller):
            return await self._told_while_it_waits(cell, request)
        is_at_work = request.is_to_turn and cell.needs_pass
        if is_at_work and not request.wait and not self._is_repeated(cell, request.caller):
            raise Conflict(f"{request.id} is at work, and takes no message until it asks for something")
        if cell.queued >= self._settings.max_queue_per_conversation:
            raise TooManyRequests(f"conversation {request.id}: {cell.queued} messages wait already")
        cell.queued += 1
        try:
            async with cell.turns:
                return await self._say_in_turn(cell, request)
        finally:
            cell.queued -= 1

    async def _told_while_it_waits(self, cell: Cell, request: Say) -> TurnReply:
        """A message does not go past a question. But whoever comes with a token may be who was waited for."""
        if is_no(request.message) or not (cell.conversation.needs_token and request.caller.token):
            return await self._not_taken(cell, request)
        before = cell.conversation.seq
        if request.watched:
            cell.audience.expect(before)
        self._adopt(cell, request.caller)
        await self._approvals.authorize(cell, request.caller)
        return await self._outcome(cell, request.wait, before)

    async def _say_in_turn(self, cell: Cell, request: Say) -> TurnReply:
        caller, conversation = request.caller, cell.conversation
        if self._is_repeated(cell, caller):
            return await self._first_answer(cell, caller.idempotency_key)
        await self._driver.finish(cell)
        if self._is_repeated(cell, caller):  # what was only held before is durable by now
            return await self._first_answer(cell, caller.idempotency_key)
        if conversation.is_completed:
            raise Conflict(f"conversation {conversation.id} is completed; start a new one")
        if conversation.pending:
            return await self._not_taken(cell, request)
        if request.is_to_turn and conversation.turn:
            raise Conflict(f"the turn of {conversation.id} that this message is for has ended; start another")
        cell.token, cell.traceparent = caller.token, caller.traceparent
        if request.watched:
            cell.audience.expect(conversation.seq)
        cell.hold(
            UserMessage(
                time=now(),
                turn=conversation.turn + 1,
                text=request.message,
                session_id=caller.session_id if caller.session_id != conversation.session_id else "",
                had_token=bool(caller.token),
                message_id=request.message_id,
                by=caller.by,
                idempotency_key=caller.idempotency_key,
                body_hash=caller.body_hash,
            )
        )
        return await self._outcome(cell, request.wait, conversation.seq)

    async def _not_taken(self, cell: Cell, request: Say) -> TurnReply:
        """The answer to a message that came before what waits now. One that has an id of its own could come
        again, and then be taken for the decision of what its sender had not seen."""
        key, body_hash = request.caller.idempotency_key, request.caller.body_hash
        if request.message_id and body_hash:
            turn = cell.conversation.turn
            await cell.append([Answered(turn=turn, idempotency_key=key, body_hash=body_hash)])
        return turn_answer(cell.conversation)

    async def _told(self, request: Told) -> NothingTaken:
        cell = await self._cells.get(request.id)
        told = Answered(turn=cell.conversation.turn, uuid=request.uuid)
        await cell.append([told], only_if=lambda: any(e.uuid == told.uuid for e in cell.conversation.pending))
        return NothingTaken()

    async def _decide(self, request: Decide) -> TurnReply | NothingTaken:
        cell = await self._cells.that_asked(request.decisions[0].uuid)
        if self._is_repeated(cell, request.caller):
            return await self._first_answer(cell, request.caller.idempotency_key)
        if request.seen:
            request = _without_unseen(cell.conversation, request)
            if not request.decisions:
                return NothingTaken()
        before = cell.conversation.seq
        if request.watched:
            cell.audience.expect(before)
        try:
            with cell.used():
                await self._approvals.decide(cell, request)
        except Conflict:
            if not self._is_repeated(cell, request.caller):
                raise
            # The same request, sent again while the first was being journaled, has decided it.
            return await self._first_answer(cell, request.caller.idempotency_key)
        self._adopt(cell, request.caller)
        return await self._outcome(cell, request.wait, before)

    def _changed(self, cell: Cell, events: Sequence[AnyEvent]) -> None:
        self._watching.happened(cell, events)
        self._push.on_journaled(cell.conversation.id, events)
        deadlines = [asked.expires_at for asked in cell.conversation.pending if asked.expires_at]
        self._approvals.note(cell.conversation.id, deadlines)

    async def _finish(self, request: Finish) -> ConversationReply:
        cell = await self._cells.get(request.id)
        async with cell.turns:
            await self._driver.finish(cell)
            conversation = cell.conversation
            if conversation.pending:
                raise Conflict(
                    f"conversation {request.id} waits for approval {conversation.pending[0].uuid}; "
                    f"decide it first"
                )
            if not conversation.is_completed:
                await cell.append([ConversationCompleted(turn=conversation.turn)])
            return conversation_reply(conversation)

    async def _outcome(self, cell: Cell, wait: bool, before: int) -> TurnReply:
        """The answer of the turn under way, or the promise of one once its message is durable; ``before``:
        the last event before that."""
        driver = self._driver.start(cell)
        if wait:
            await asyncio.shield(driver)
            return turn_answer(cell.conversation)
        try:
            await cell.append(())
        except JournalError:
            await cell.drop_held()  # a message that is refused is not to run later
            raise
        return TurnAccepted(view(cell.conversation), cell.conversation.turn, before)

    async def _cancel(self, request: Cancel) -> TurnAnswer:
        cell = await self._shown(request.id)
        with cell.used():
            await self._driver.cancel(cell)
        return turn_answer(cell.conversation)

    async def _import(self, request: Import) -> ConversationReply:
        if request.id in self._cells.index:
            raise Conflict(f"conversation {request.id} is here already")
        events = imported(request.content, self._settings.agent, self._settings.digest, request.by)
        cell = await self._cells.create(request.id, events)
        return conversation_reply(cell.conversation)

    def _adopt(self, cell: Cell, caller: Caller) -> None:
        """The open turn acts for this caller from now on."""
        cell.token = caller.token or cell.token
        cell.traceparent = caller.traceparent or cell.traceparent

    async def _created(self, cell: Cell, key: str) -> ConversationReply:
        """The answer to a creation without a message: the conversation as it was then."""
        conversation, seq = cell.conversation, cell.conversation.requests[key].seq if key else 0
        if seq and conversation.seq > seq:
            conversation = _rewound(await self._journal.read(conversation.id), seq)
        return conversation_reply(conversation)

    # -- idempotency

    def _is_repeated(self, cell: Cell, caller: Caller) -> bool:
        """Whether this request was taken before. Raises `Conflict` if the key was another request's."""
        taken = cell.conversation.requests.get(caller.idempotency_key) if caller.idempotency_key else None
        if taken is None:
            return False
        if taken.body_hash == WITHDRAWN != caller.body_hash:
            raise Conflict(f"message {caller.idempotency_key} was withdrawn before it came")
        if taken.body_hash != caller.body_hash:
            key = caller.idempotency_key.removesuffix("/1")
            raise Conflict(
                f"Idempotency-Key {key!r} was used for another request: on another path or with another body"
            )
        return True

    async def _first_answer(self, cell: Cell, key: str) -> TurnAnswer:
        if not cell.conversation.answered_at(key):
            await self._driver.finish(cell)
        seq = cell.conversation.answered_at(key)
        return turn_answer(_rewound(await self._journal.read(cell.conversation.id), seq))

    # -- recovery

    def _recover_soon(self, conversation_id: str) -> None:
        """Goes on with the open turn of a conversation, if there is one."""
        if conversation_id not in self._recovery:
            recovery = asyncio.create_task(self._recover(conversation_id))
            self._recovery[conversation_id] = recovery
            recovery.add_done_callback(lambda _: self._recovery.pop(conversation_id))

    async def _recover(self, conversation_id: str) -> None:
        """Ends when the turn is over, waits for a person, or can certainly not go on here."""
        async with self._recovering:
            for delay in _RECOVERY.delays():
                try:
                    cell = await self._cells.get(conversation_id)
                    _log.info("event=recover %s", cell.about)
                    await self._driver.finish(cell)
                    break
                except (JournalDamaged, StaleEpoch, NotFound) as problem:
                    _log.error(
                        "event=recover_failed conversation=%s %s", conversation_id, fields(message=problem)
                    )
                    break
                except JournalError as problem:
                    _log.warning(
                        "event=recover_later conversation=%s %s", conversation_id, fields(message=problem)
                    )
                    await asyncio.sleep(delay)


def _without_unseen(conversation: Conversation, request: Decide) -> Decide:
    """The decisions about what the sender had been shown. Those that were said about nothing in particular
    (`Decision.if_pending`) need not have been."""
    seen = tuple(
        decision
        for decision in request.decisions
        if decision.if_pending or conversation.was_shown(decision.uuid, request.seen)
    )
    return msgspec.structs.replace(request, decisions=seen)


def _rewound(events: Sequence[AnyEvent], seq: int) -> Conversation:
    """The conversation as it was when event ``seq`` had just been journaled."""
    return fold(event for event in events if event.seq <= seq)
