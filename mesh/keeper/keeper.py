"""The keeper of a shard: takes messages and decisions, and answers them when the turn ended or waits.

Above: gateways, which send `Request`s and render the `Reply`s; and nodes, to which a keeper is a `Recorder`.
Below: a `Journal`, and a `Tree`, which runs passes. A keeper knows neither HTTP nor Ray, nor what nodes do.

    request ──► keeper ──► shard ──► loaded conversation ──► journal
                  │  │                       ▲
                  │  └──► approvals ─────────┤  decisions of people, and of time
                  └─────► driver ────────────┘  passes over the tree, until the turn ends or waits

A message or a decision makes the turn's driver go on, and waits for it. A keeper that starts does so for
every turn that was left open (`Recovery`).
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest
from itertools import chain
from operator import attrgetter

import msgspec

from mesh.core.agents_of_turn import AgentView, agents_of
from mesh.core.approvals import is_no
from mesh.core.budget import CallRequest, OnLimit, Remaining, Scope, remaining_of
from mesh.core.concealed import as_agents_see
from mesh.core.conversation import Conversation, fold
from mesh.core.errors import Conflict, JournalError, MeshError, NotFound, TooManyRequests
from mesh.core.events import (
    NEWS_ACTIONS,
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalShown,
    ConversationCompleted,
    ConversationCreated,
    NewsAction,
    NodeInfo,
    UserMessage,
    now,
)
from mesh.core.execution import valid_traceparent
from mesh.core.history import messages_of
from mesh.core.pending_approvals import may_be_covered
from mesh.core.places import Place
from mesh.core.verdict import Verdict
from mesh.core.view import summary, view
from mesh.journal.listing import Listing
from mesh.journal.port import Journal
from mesh.keeper.approvals import Approvals
from mesh.keeper.changed_agents import MOST_KEPT, ChangedAgents
from mesh.keeper.covered_approvals import CoveredApprovals
from mesh.keeper.driver import Driver
from mesh.keeper.event_feeds import EventFeeds
from mesh.keeper.idempotency import caller_of_first_message, is_repetition
from mesh.keeper.interventions import Interventions, has_ended, meant_by, shown_for
from mesh.keeper.kept_grants import Grants
from mesh.keeper.list_replies import ListReply, ListRequest, listed
from mesh.keeper.loaded_conversation import LoadedConversation
from mesh.keeper.recovery import Recovery
from mesh.keeper.replies import (
    AgentReply,
    Agents,
    ConversationReply,
    FollowedAgents,
    FollowReply,
    JournalLines,
    NothingTaken,
    PreviewReply,
    Reply,
    TurnAccepted,
    TurnAnswer,
    TurnReply,
    WatchReply,
    Webhooks,
    conversation_reply,
    paused_text,
    refusal,
    turn_answer,
)
from mesh.keeper.requests import (
    Cancel,
    Complete,
    CountVersions,
    Create,
    Decide,
    Delete,
    DeleteWebhook,
    Export,
    FindFirstReply,
    Follow,
    FollowAgents,
    Import,
    Intervene,
    ListAgents,
    ListWebhooks,
    MoveToVersion,
    NoteApprovalShown,
    Page,
    Recent,
    Request,
    SendMessage,
    SetWebhook,
    Show,
    ShowAgent,
    ShowPreview,
    Watch,
)
from mesh.keeper.retention import Retention, RetentionDays
from mesh.keeper.shard import Shard
from mesh.keeper.store_losses import AcknowledgedEnds
from mesh.keeper.transfer import exported_lines, imported_events
from mesh.keeper.version_moves import BondsOf, VersionMoves
from mesh.metrics.meters import Meters, Metric
from mesh.metrics.of_events import note_events
from mesh.metrics.table import APPEND_SECONDS
from mesh.policy.book import GrantBook
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.push.service import PushNotifications
from mesh.runtime.logs import fields
from mesh.tracing.spans import Tracer
from mesh.tree.turn import (
    Ack,
    Activation,
    ReserveReply,
    Restarted,
    SlotReply,
    SlotRequest,
    StartReply,
    Tree,
)

_log = logging.getLogger("mesh.keeper")
_MOST_LISTED = 500
"""Of how many conversations the agents at work are listed: each of these is read into memory."""
_LISTEN_S = 20.0
"""How long a node that waits for calls in flight, or for slots, is kept waiting before it asks again."""


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper needs to know of the agent, and its bounds (times in seconds). ``digest`` is its
    version, the newest for this keeper. ``root`` is the name of the root of its tree, ``root_kind`` its
    type. ``models`` are those that its nodes have, each with whether its price is known, ``startable``
    the agents that each may start (`startable_agents`), ``nodes`` what its journals say of its nodes
    (`infos_of_nodes`), ``limits`` their budgets (`limits_by_path`), ``intervene`` what people may do with
    agents at work, ``retention`` when conversations are deleted by themselves. ``pins_versions``: a
    conversation stays on the version that it is on; else each turn begins on this one."""

    agent: str
    digest: str
    pins_versions: bool = False
    root: str = ""
    root_kind: str = "llm"
    models: dict[str, bool] = {}
    startable: dict[str, dict[str, str]] = {}
    nodes: dict[str, NodeInfo] = {}
    limits: dict[str, dict[str, float]] = {}
    intervene: tuple[NewsAction, ...] = NEWS_ACTIONS
    system_prompt: str = ""
    turn_timeout_s: float = 3600.0
    unavailable_for_s: float = 120.0
    max_queue_per_conversation: int = 100
    max_loaded: int = 5_000
    max_recovering: int = 256
    agents_at_once: int = 32
    retention: RetentionDays = RetentionDays()


class Keeper:
    """Owner of shard ``shard`` of ``shards``. Call `start` before anything else."""

    def __init__(
        self,
        shard: int,
        shards: int,
        journal: Journal,
        tree: Tree,
        settings: KeeperSettings,
        push: PushNotifications,
        book: GrantBook,
        denial: Callable[[PolicyCall, str, int, str], Awaitable[Verdict | None]],
        bonds_of: BondsOf,
        on_fenced: Callable[[], None] = lambda: None,
        listing: Listing | None = None,
        recovering: asyncio.Semaphore | None = None,
        acknowledged: AcknowledgedEnds | None = None,
        meters: Meters | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.meters = meters or Meters()
        self._tracer = tracer
        self._journal = journal
        self._settings = settings
        self._push = push
        self._shard = Shard(
            shard,
            shards,
            journal,
            listing,
            settings.max_loaded,
            settings.agents_at_once,
            (settings.digest, settings.limits),
            on_fenced,
            self._appended,
            self._unloaded,
            acknowledged or AcknowledgedEnds(),
        )
        self._feeds = EventFeeds(journal)
        self._changed_agents = ChangedAgents()
        self._driver = Driver(
            tree, settings.digest, settings.turn_timeout_s, settings.unavailable_for_s, tracer
        )
        self._grants = Grants(tree, book, settings.root)
        self._denial = denial
        self._covered = CoveredApprovals(self._shard.listing, book, settings.root, self._approve_covered)
        self._approvals = Approvals(self._shard.get, tree, self._driver, self._grants, self._covered)
        self._interventions = Interventions(
            self._driver,
            settings.digest,
            settings.root,
            settings.root_kind,
            settings.models,
            settings.startable,
            settings.intervene,
        )
        self._moves = VersionMoves(settings.digest, bonds_of)
        self._retention = Retention(self._shard.listing, settings.retention, self._delete_old)
        self._recovery = Recovery(
            self._shard,
            self._driver,
            self._grants,
            recovering or asyncio.Semaphore(settings.max_recovering),
        )

    def gauges(self) -> dict[Metric, int]:
        """How much is here now."""
        return self._shard.gauges()

    async def waiting_since(self) -> str:
        """See `Listing`."""
        return await self._shard.listing.waiting_since()

    async def start(self, tokens: Mapping[str, str] | None = None) -> None:
        """Takes the shard over and goes on with every turn that was left open. ``tokens`` are the `tokens` of
        the keeper that gave it away."""
        epoch = await self._shard.open(tokens or {})
        await self._push.open(epoch, self._shard.owns)
        listing = self._shard.listing
        for when, conversation_id in await listing.deadlines():
            self._approvals.expire_at(conversation_id, when)
        # What expires in a journal that cannot be read is found out as soon as it can.
        for conversation_id in self._shard.unreadable:
            self._approvals.expire_at(conversation_id, now())
        for conversation_id in await listing.open_turns():
            self._recovery.start(conversation_id)
        self._covered.start()
        self._retention.start()

    def tokens(self) -> dict[str, str]:
        """The bearer tokens for which open turns act, by conversation; whoever goes on with them needs
        these."""
        return self._shard.tokens()

    async def look_for_losses(self) -> None:
        """Looks whether the store has lost something. Raises `JournalError`."""
        await self._shard.look_for_losses()

    async def close(self) -> None:
        """Stops driving turns (they stay open) and writes what is only derived."""
        await self._retention.close()
        await self._recovery.close()
        await self._covered.close()
        await self._approvals.close()
        await self._push.close()
        await self._shard.close()

    async def handle(self, request: Request) -> Reply:
        """Answers any request. What is wrong with it becomes a reply too."""
        try:
            return await self._dispatch(request)
        except MeshError as problem:
            return refusal(problem)

    async def watch(self, request: Watch) -> WatchReply:
        """Returns the events that are new to a watcher of a conversation; waits a while for some."""
        try:
            return await self._feeds.watch(await self._flushed(request.id), request)
        except MeshError as problem:
            return refusal(problem)

    async def follow(self, request: Follow | FollowAgents) -> FollowReply:
        """Returns what is new in the shard; waits a while for some."""
        try:
            match request:
                case Follow():
                    return await self._feeds.follow(request)
                case FollowAgents():
                    return await self._follow_agents(request)
        except MeshError as problem:
            return refusal(problem)

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        """See `Recorder`. Raises `JournalError` when the events are not durable."""
        loaded = await self._shard.get(activation.conversation_id)
        accepted = await loaded.append_from_pass(activation, events)
        if not accepted and loaded.needs_pass:
            self._driver.start(loaded)
        if loaded.ends_now:
            loaded.cancel_pass()
        return Ack(accepted, loaded.audience.is_there, loaded.conversation.llm_calls)

    async def reserve(
        self, activation: Activation, events: Sequence[AnyEvent], request: CallRequest
    ) -> ReserveReply:
        """See `Recorder`. Raises `JournalError` when the events are not durable."""
        loaded = await self._shard.get(activation.conversation_id)
        grant = await loaded.reserve(activation, events, request, 0 if request.at_once else _LISTEN_S)
        if not grant.ack.taken and loaded.needs_pass:
            self._driver.start(loaded)
        return grant

    async def start_agents(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        """See `Recorder.start`. Raises `JournalError` when the events are not durable."""
        loaded = await self._shard.get(activation.conversation_id)
        reply = await loaded.start_agents(activation, events, scopes, asker)
        self._note_changed_agents(loaded)
        if not reply.ack.taken and loaded.needs_pass:
            self._driver.start(loaded)
        return reply

    async def slots(self, activation: Activation, request: SlotRequest) -> SlotReply | None:
        """See `Recorder`."""
        loaded = await self._shard.get(activation.conversation_id)
        reply = await loaded.ask_for_slots(activation, request, _LISTEN_S)
        self._note_changed_agents(loaded)
        return reply

    async def restart(self, lost: Activation) -> Restarted:
        """See `Recorder`. Raises `JournalError` when that is not durable."""
        loaded = await self._shard.get(lost.conversation_id)
        restarted = await loaded.restart(lost)
        if not restarted.ack.taken and loaded.needs_pass:
            self._driver.start(loaded)
        return restarted

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        """See `Recorder`."""
        budget_use = (await self._shard.get(conversation_id)).conversation.budget_use
        return remaining_of(budget_use, scopes, on_limit, now())

    async def grants(self, conversation_id: str, agent: str) -> Sequence[Grant]:
        """See `Recorder`."""
        conversation = (await self._shard.get(conversation_id)).conversation
        return await self._grants.of(conversation, agent)

    async def denial(self, conversation_id: str, call: PolicyCall) -> Verdict | None:
        """See `Recorder`."""
        conversation = (await self._shard.get(conversation_id)).conversation
        return await self._denial(call, conversation.id, conversation.turn, conversation.by)

    async def _dispatch(self, request: Request) -> Reply:
        match request:
            case Create():
                return await self._create(request)
            case SendMessage():
                return await self._send_message(request)
            case Decide():
                return await self._decide(request)
            case NoteApprovalShown():
                return await self._note_approval_shown(request)
            case FindFirstReply():
                return await self._find_first_reply(request)
            case Complete() | Delete():
                return await self._end(request)
            case Show() | ShowPreview():
                return await self._show(request)
            case Page() | Recent() | CountVersions():
                return await self._list(request)
            case Cancel() | MoveToVersion():
                return await self._with_open_turn(request)
            case Intervene() | ShowAgent() | ListAgents():
                return await self._agents(request)
            case Export() | Import():
                return await self._transfer(request)
            case SetWebhook() | ListWebhooks() | DeleteWebhook():
                return await self._webhooks(request)

    # -- conversations

    async def _show(self, request: Show | ShowPreview) -> ConversationReply | PreviewReply:
        if isinstance(request, ShowPreview):
            loaded = await self._shard.with_approval(request.uuid)
            return PreviewReply(await self._approvals.preview(loaded, request.uuid, request.offset))
        return conversation_reply((await self._flushed(request.id)).conversation)

    async def _create(self, request: Create) -> TurnReply | ConversationReply:
        if await self._shard.has(request.id):
            loaded = await self._shard.get(request.id)
            if not is_repetition(loaded.conversation, request.caller):
                raise Conflict(f"conversation {request.id} exists already")
        else:
            if request.webhook is not None:  # before the conversation: it is never there without its webhook
                await self._push.set(request.id, request.webhook, 0)
            loaded = await self._shard.create(request.id, [self._created(request)])
        if request.message is None:
            return await self._as_created(loaded, request.caller.idempotency_key)
        return await self._send_message(
            SendMessage(
                request.id,
                caller_of_first_message(request.caller),
                request.message,
                request.wait,
                request.watched,
                request.message_id,
                budget=request.budget,
            )
        )

    def _created(self, request: Create) -> ConversationCreated:
        caller, settings = request.caller, self._settings
        session_id = caller.session_id or request.context_id
        return ConversationCreated(
            conversation_id=request.id,
            session_id=session_id,
            agent=settings.agent,
            digest=settings.digest,
            system_prompt=settings.system_prompt,
            nodes=settings.nodes,
            context_id=request.context_id if request.context_id != session_id else "",
            idempotency_key=caller.idempotency_key,
            body_hash=caller.body_hash,
        )

    async def _as_created(self, loaded: LoadedConversation, key: str) -> ConversationReply:
        """The reply to a creation without a message: the conversation as it was then."""
        conversation = loaded.conversation
        seq = conversation.requests[key].seq if key else 0
        if seq and conversation.seq > seq:
            conversation = await self._as_of(conversation.id, seq)
        return conversation_reply(conversation)

    async def _list(self, request: ListRequest) -> ListReply:
        await self._shard.flush()
        return await listed(self._shard.listing, request)

    async def _end(self, request: Complete | Delete) -> ConversationReply:
        match request:
            case Complete():
                return await self._complete(request)
            case Delete():
                return await self._delete(request)

    async def _complete(self, request: Complete) -> ConversationReply:
        loaded = await self._shard.get(request.id)
        async with loaded.turn_lock:  # after the messages that came before
            await self._driver.run_to_completion(loaded)
            conversation = loaded.conversation
            if asked := conversation.oldest_pending:
                raise Conflict(f"conversation {request.id} waits for approval {asked.uuid}; decide it first")
            if conversation.is_held:
                raise Conflict(f"conversation {request.id}: {paused_text(conversation)}")
            if not conversation.is_completed:
                await loaded.append([ConversationCompleted(turn=conversation.turn)])
            return conversation_reply(conversation)

    async def _delete(self, request: Delete) -> ConversationReply:
        loaded = await self._shard.get(request.id)
        await self._erase(loaded, by=request.by)
        return conversation_reply(loaded.conversation)

    async def _delete_old(self, conversation_id: str, before: str) -> None:
        loaded = await self._shard.get(conversation_id)
        if summary(loaded.conversation).updated_at < before:
            await self._erase(loaded, by="retention")

    async def _erase(self, loaded: LoadedConversation, by: str) -> None:
        """Deletes a conversation. Raises `Conflict` if something happens in it."""
        id, seq = loaded.conversation.id, loaded.conversation.seq
        _check_may_be_deleted(loaded)  # at once, and not when the turn has ended that runs
        async with loaded.turn_lock:
            loaded.check_current()
            _check_may_be_deleted(loaded)
            if loaded.conversation.seq != seq:
                raise Conflict(f"something happened in conversation {id} meanwhile; delete it again")
            # Before the journal: none of them may stay, with its secret, after the conversation.
            await self._push.forget(id)
            await self._shard.erase(loaded)
            await self._push.forget(id)  # one that came meanwhile
        _log.info("event=conversation_deleted %s", fields(conversation=id, by=by))

    async def _transfer(self, request: Export | Import) -> JournalLines | ConversationReply:
        if isinstance(request, Import):
            return await self._import(request)
        loaded = await self._flushed(request.id)
        lines = exported_lines(await self._shard.events_of(request.id))
        return JournalLines(loaded.conversation.session_id, lines)

    async def _import(self, request: Import) -> ConversationReply:
        if await self._shard.has(request.id):
            raise Conflict(f"conversation {request.id} is here already")
        agent, digest = self._settings.agent, self._settings.digest
        events = imported_events(request.content, agent, digest, now(), request.by)
        return conversation_reply((await self._shard.create(request.id, events)).conversation)

    async def _webhooks(self, request: SetWebhook | ListWebhooks | DeleteWebhook) -> Webhooks:
        """Replies with the webhooks there are then. Their secrets can be set, and not read."""
        conversation = (await self._shard.get(request.id)).conversation
        match request:
            case SetWebhook():
                ended = not conversation.turn_open
                webhooks = [await self._push.set(request.id, request.webhook, conversation.seq, ended=ended)]
                try:
                    await self._shard.get(request.id)
                except (NotFound, Conflict):  # it was deleted meanwhile
                    await self._push.forget(request.id)
                    raise
            case ListWebhooks():
                webhooks = self._push.of(request.id)
            case DeleteWebhook():
                await self._push.remove(request.id, request.webhook_id)
                webhooks = self._push.of(request.id)
        return Webhooks([webhook.masked() for webhook in webhooks])

    # -- turns

    async def _send_message(self, request: SendMessage) -> TurnReply:
        loaded = await self._shard.get(request.id)
        is_new = not is_repetition(loaded.conversation, request.caller)
        if is_new and loaded.conversation.is_waiting:
            return await self._message_while_waiting(loaded, request)
        if is_new and request.for_newest_turn and loaded.needs_pass and not request.wait:
            raise Conflict(f"{request.id} is at work, and takes no message until it asks for something")
        if loaded.waiting_messages >= self._settings.max_queue_per_conversation:
            raise TooManyRequests(
                f"conversation {request.id}: {loaded.waiting_messages} messages wait already"
            )
        loaded.waiting_messages += 1
        try:
            async with loaded.turn_lock:
                if not loaded.is_dropped:
                    return await self._begin_turn(loaded, request)
        finally:
            loaded.waiting_messages -= 1
        return await self._send_message(request)  # the conversation was read again meanwhile

    async def _message_while_waiting(self, loaded: LoadedConversation, request: SendMessage) -> TurnReply:
        """A message does not start a turn while an approval is pending. A request that carries a token may
        resume the steps that wait for one."""
        brings_token = loaded.conversation.needs_token and request.caller.token
        if is_no(request.message) or not brings_token:
            return await self._not_taken(loaded, request)
        before = loaded.conversation.seq
        if request.watched:
            loaded.audience.expect(before)
        await self._approvals.authorize(loaded, request.caller)
        return await self._turn_reply(loaded, request.wait, before)

    async def _begin_turn(self, loaded: LoadedConversation, request: SendMessage) -> TurnReply:
        """Starts a turn with the message, once the turn before has ended. The turn lock is held."""
        caller, conversation = request.caller, loaded.conversation
        if is_repetition(conversation, caller):
            return await self._first_reply(loaded, caller.idempotency_key)
        await self._driver.run_to_completion(loaded)
        # Once more: the request that this one repeats may have been only held before, and is durable by now.
        if is_repetition(conversation, caller):
            return await self._first_reply(loaded, caller.idempotency_key)
        if conversation.is_completed:
            raise Conflict(f"conversation {conversation.id} is completed; start a new one")
        if conversation.is_waiting:
            return await self._not_taken(loaded, request)
        if conversation.is_held:
            raise Conflict(f"the turn of {conversation.id} is paused: {paused_text(conversation)}")
        if request.for_newest_turn and conversation.turn:
            raise Conflict(f"the turn of {conversation.id} that this message is for has ended; start another")
        loaded.token = caller.token
        if request.watched:
            loaded.audience.expect(conversation.seq)
        settings = self._settings
        is_newest = conversation.digest == settings.digest
        begins_on_newest = not is_newest and not settings.pins_versions
        # An imported journal counts as one of the newest version, and has the nodes that it had elsewhere.
        lacks_nodes = (
            is_newest and bool(conversation.imported_at) and conversation.agents.nodes != settings.nodes
        )
        says_version = begins_on_newest or lacks_nodes
        loaded.hold(
            UserMessage(
                time=now(),
                turn=conversation.turn + 1,
                text=request.message,
                session_id=caller.session_id if caller.session_id != conversation.session_id else "",
                had_token=bool(caller.token),
                message_id=request.message_id,
                by=caller.by,
                depth=caller.depth,
                called_by=caller.called_by,
                traceparent=valid_traceparent(caller.traceparent),
                idempotency_key=caller.idempotency_key,
                body_hash=caller.body_hash,
                budget=request.budget,
                nonce=secrets.token_hex(4),
                digest=settings.digest if says_version else "",
                nodes=settings.nodes if says_version else {},
            )
        )
        return await self._turn_reply(loaded, request.wait, conversation.seq)

    async def _not_taken(self, loaded: LoadedConversation, request: SendMessage) -> TurnAnswer:
        """The reply to a message that cannot be taken because an approval is pending. A message with an id of
        its own may be sent again after that: it is noted as answered, so that it is not taken then for the
        decision of something that its sender had not seen."""
        key, body_hash = request.caller.idempotency_key, request.caller.body_hash
        if request.message_id and body_hash:
            turn = loaded.conversation.turn
            await loaded.append([ApprovalShown(turn=turn, idempotency_key=key, body_hash=body_hash)])
        return msgspec.structs.replace(turn_answer(loaded.conversation), is_taken=False)

    async def _note_approval_shown(self, request: NoteApprovalShown) -> NothingTaken:
        loaded = await self._shard.get(request.id)
        shown = ApprovalShown(turn=loaded.conversation.turn, uuid=request.uuid)
        await loaded.append(
            [shown], only_if=lambda: loaded.conversation.pending_approval(shown.uuid) is not None
        )
        return NothingTaken()

    async def _decide(self, request: Decide) -> TurnReply | NothingTaken:
        loaded = await self._shard.with_approval(request.decisions[0].uuid)
        conversation, caller = loaded.conversation, request.caller
        if is_repetition(conversation, caller):
            return await self._first_reply(loaded, caller.idempotency_key)
        if request.seen:
            request = _without_unseen(conversation, request)
            if not request.decisions:
                return NothingTaken()
        before = conversation.seq
        if request.watched:
            loaded.audience.expect(before)
        try:
            with loaded.in_use():
                await self._approvals.decide(loaded, request)
        except Conflict:
            if not is_repetition(conversation, caller):
                raise
            # The same request, sent again while the first was being journaled, has decided it.
            return await self._first_reply(loaded, caller.idempotency_key)
        return await self._turn_reply(loaded, request.wait, before)

    async def _with_open_turn(self, request: Cancel | MoveToVersion) -> TurnAnswer | ConversationReply:
        loaded = await self._flushed(request.id)
        with loaded.in_use():
            match request:
                case Cancel():
                    await self._driver.cancel(loaded)
                    return turn_answer(loaded.conversation)
                case MoveToVersion():
                    await self._moves.move(loaded, request)
                    return conversation_reply(loaded.conversation)

    # -- agents of turns

    async def _agents(self, request: Intervene | ShowAgent | ListAgents) -> AgentReply | Agents:
        match request:
            case Intervene():
                return await self._intervene(request)
            case ShowAgent():
                return await self._show_agent(request)
            case ListAgents():
                return Agents(await self._agents_of(request))

    async def _intervene(self, request: Intervene) -> AgentReply:
        loaded = await self._shard.with_agent(request.agent)
        with loaded.in_use():
            if is_repetition(loaded.conversation, request.caller):
                await self._interventions.repeat(loaded, request)
            elif loaded.conversation.agents.view(request.agent) is None:  # its turn is over
                raise has_ended((await self._show_agent(ShowAgent(request.agent))).agent)
            else:
                await self._interventions.intervene(loaded, request)
        agent = meant_by(loaded, request)
        if agent is None:  # of an earlier turn, by now
            return await self._show_agent(ShowAgent(await self._meant_before(loaded, request)))
        (shown,) = loaded.as_they_stand([agent])
        return AgentReply(shown)

    async def _meant_before(self, loaded: LoadedConversation, request: Intervene) -> str:
        """The id of the agent that an intervention of an earlier turn was about, or that it added."""
        events, key = await self._shard.events_of(loaded.conversation.id), request.caller.idempotency_key
        for told in events:
            if key and isinstance(told, AgentTold) and told.idempotency_key == key:
                return shown_for(told, loaded.conversation.id)
        return request.agent

    async def _show_agent(self, request: ShowAgent) -> AgentReply:
        loaded = await self._shard.with_agent(request.agent)
        events = [as_agents_see(event) for event in await self._shard.events_of(loaded.conversation.id)]
        agent = loaded.conversation.agents.view(request.agent) or next(
            each for each in agents_of(events) if each.agent_id == request.agent
        )
        steps = [event for event in events if event.turn == agent.turn]
        messages = messages_of(steps, Place(agent.place))
        (shown,) = loaded.as_they_stand([agent])
        return AgentReply(shown, messages)

    async def _agents_of(self, request: ListAgents) -> Sequence[AgentView]:
        if request.conversation:
            found = [await self._flushed(request.conversation)]
        else:
            found = await self._under_way()
        shown = chain.from_iterable(each.as_they_stand(each.conversation.agents.views()) for each in found)
        after = (a for a in shown if a.cursor > request.after and (request.ended or not a.has_ended))
        return nsmallest(request.limit, after, key=attrgetter("cursor"))

    async def _follow_agents(self, request: FollowAgents) -> FollowedAgents:
        changed, cursor = await self._changed_agents.since(request)
        if changed is None:
            if request.conversation and not self._shard.owns(request.conversation):
                return FollowedAgents((), cursor, is_whole=True)
            whole = ListAgents(request.conversation, limit=MOST_KEPT)
            try:
                return FollowedAgents(await self._agents_of(whole), cursor, is_whole=True)
            except Conflict:  # it is just being deleted
                return FollowedAgents((), cursor, is_whole=True)
        by_conversation: dict[str, list[str]] = {}
        for id, agent in changed:
            if request.conversation in ("", id):
                by_conversation.setdefault(id, []).append(agent)
        found: list[AgentView] = []
        for id, agents in by_conversation.items():
            with suppress(NotFound, Conflict):  # it was deleted, or is just being so
                found += await self._agents_with(id, agents)
        return FollowedAgents(found, cursor)

    async def _agents_with(self, id: str, agents: Sequence[str]) -> list[AgentView]:
        """Agents of a conversation that have changed. Their turn may be over, and another one have begun."""
        loaded = await self._flushed(id)
        found = [*loaded.as_they_stand(loaded.conversation.agents.views_of(agents))]
        if len(found) < len(agents):
            missing = {*agents} - {agent.agent_id for agent in found}
            events = await self._shard.events_of(id)
            found += [agent for agent in agents_of(events) if agent.agent_id in missing]
        return found

    async def _under_way(self) -> list[LoadedConversation]:
        """The newest conversations whose turns have not ended."""
        found: list[LoadedConversation] = []
        for id in await self._shard.listing.turns_under_way(_MOST_LISTED):
            try:
                found.append(await self._flushed(id))
            except (JournalError, NotFound) as problem:  # one that cannot be read hides no other
                _log.warning("event=not_listed conversation=%s %s", id, fields(message=problem))
        return found

    async def _turn_reply(self, loaded: LoadedConversation, wait: bool, before: int) -> TurnReply:
        """The reply of the turn under way. Without ``wait``, that it goes on, once its message is durable;
        ``before`` is the last event before that."""
        driver = self._driver.start(loaded)
        if wait:
            await asyncio.shield(driver)  # the turn goes on without this request
            return turn_answer(loaded.conversation)
        try:
            await loaded.append(())
        except JournalError as problem:
            if await loaded.drop_held_message():  # a message that is refused must not run later
                raise
            if loaded.is_unsure:
                raise loaded.nobody_knows(problem) from None
            # It is durable by now.
        return TurnAccepted(view(loaded.conversation), loaded.conversation.turn, before)

    # -- requests that come again

    async def _find_first_reply(self, request: FindFirstReply) -> TurnAnswer | NothingTaken:
        loaded = await self._shard.get(request.id)
        if not is_repetition(loaded.conversation, request.caller):
            return NothingTaken()
        return await self._first_reply(loaded, request.caller.idempotency_key)

    async def _first_reply(self, loaded: LoadedConversation, key: str) -> TurnAnswer:
        """The reply that the request with this key got, or would have got, the first time."""
        if not loaded.conversation.answered_at(key):
            await self._driver.run_to_completion(loaded)
        seq = loaded.conversation.answered_at(key)
        return turn_answer(await self._as_of(loaded.conversation.id, seq))

    async def _as_of(self, conversation_id: str, seq: int) -> Conversation:
        """The conversation as it was when event ``seq`` had just been journaled."""
        events = await self._shard.events_of(conversation_id)
        return fold(event for event in events if event.seq <= seq)

    async def _flushed(self, conversation_id: str) -> LoadedConversation:
        """A conversation that is to be shown: the message that is held, if one is, is in its journal."""
        loaded = await self._shard.get(conversation_id)
        await loaded.flush()
        return loaded

    def _note_changed_agents(self, loaded: LoadedConversation) -> None:
        self._changed_agents.changed(loaded.conversation.id, loaded.take_changed_agents())

    # -- called by the shard and by what looks for covered approvals

    def _appended(self, loaded: LoadedConversation, events: Sequence[AnyEvent]) -> None:
        self.meters.observe(APPEND_SECONDS, loaded.append_took_s)
        note_events(self.meters, loaded.conversation, events)
        if self._tracer is not None:
            self._tracer.note(loaded.conversation, events, loaded.append_took_s)
        self._feeds.appended(loaded, events)
        self._note_changed_agents(loaded)
        self._push.on_journaled(loaded.conversation.id, events)
        self._approvals.expire_at(loaded.conversation.id, loaded.conversation.first_deadline)
        asked = [event for event in events if isinstance(event, ApprovalRequired)]
        self._driver.cancel_tasks_below(loaded, events)
        if new := [each.uuid for each in asked if may_be_covered(each, "conversation")]:
            self._covered.check(loaded.conversation.id, new)

    def _approve_covered(self, conversation_id: str, uuids: Collection[str] | None) -> Awaitable[None]:
        return self._approvals.approve_covered(conversation_id, uuids)

    def _unloaded(self, conversation_id: str) -> None:
        self._recovery.start(conversation_id)


def _without_unseen(conversation: Conversation, request: Decide) -> Decide:
    """The decisions about approvals that the sender had been shown. Decisions that were made about no
    approval in particular (`Decision.if_pending`) are kept."""
    seen = tuple(
        decision
        for decision in request.decisions
        if decision.if_pending or conversation.was_shown(decision.uuid, request.seen)
    )
    return msgspec.structs.replace(request, decisions=seen)


def _check_may_be_deleted(loaded: LoadedConversation) -> None:
    if loaded.held_message is not None or loaded.conversation.turn_open:
        raise Conflict(f"conversation {loaded.conversation.id} has an open turn; cancel it first")
