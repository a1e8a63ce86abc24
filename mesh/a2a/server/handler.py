"""The A2A operations. Each is one or more requests to the keepers.

    SendMessage          Create, Say or Decide, and the task as it stands then
    GetTask, ListTasks   Show, Recent
    CancelTask           Cancel
    push configs         SetWebhook, ListWebhooks, DeleteWebhook (`webhooks`)
    streams              the same, with `TurnUpdates` of the events that a watch receives

There is no state here: a task is its conversation. The handler raises `A2AError`s of the SDK, whose
dispatchers render them.
"""

import asyncio
import heapq
import logging
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import (
    apply_history_length,
    decode_page_token,
    encode_page_token,
    validate_history_length,
    validate_page_size,
)

from mesh.a2a.extensions import OF_MESSAGE
from mesh.a2a.server.agent_card import AgentCards
from mesh.a2a.server.errors import a2a_error, a2a_errors, hides_defects
from mesh.a2a.server.messages import (
    UnsupportedContent,
    caller_context_in,
    decisions_in,
    has_decisions,
    text_of,
    with_files_mentioned,
)
from mesh.a2a.server.requests import A2aRequest, request_of
from mesh.a2a.server.streaming import WAITS, UpdateStream
from mesh.a2a.server.task import STATES, TERMINAL, direct_answer, expected, task_of
from mesh.a2a.server.turn_updates import TurnUpdates
from mesh.a2a.server.webhooks import PushOperations, version_of, webhook_in
from mesh.config.model import Config
from mesh.core.approvals import Decision, is_decision
from mesh.core.errors import (
    BadRequest,
    Conflict,
    MeshError,
    Unavailable,
)
from mesh.core.ids import SESSION_IDS, is_id, is_session_id, new_id
from mesh.core.view import ConversationSummary, ConversationView, is_cursor
from mesh.http.backend import Backend
from mesh.http.streams import Streams
from mesh.keeper.replies import ConversationReply, NothingTaken, TurnAccepted, TurnAnswer, TurnReply
from mesh.keeper.requests import (
    WITHDRAWN,
    Cancel,
    Complete,
    Create,
    Decide,
    FindFirstReply,
    NoteApprovalShown,
    Recent,
    RequestFor,
    SendMessage,
    SetWebhook,
    Show,
    Watch,
)
from mesh.push.webhook import A2aVersion
from mesh.runtime.logs import fields
from mesh.tree.configured_limits import MONEY, unpriced_models

_log = logging.getLogger("mesh.gateway")
_PAGE = 50
_AT_ONCE = 4
"""How many tasks of a list are looked up at once."""
_BY_STATE = {state: name or "" for name, state in STATES.items()}


_REPEATED = "This message came before, with the same messageId: it counts once."
_NOT_SEEN = (
    "Nothing was decided: this message has no messageId, and came before its sender was told what waits. "
    "Send it again if it is meant for what follows, or with a messageId that no other message has."
)


R = TypeVar("R")


class _Taken(msgspec.Struct, frozen=True):
    """The outcome of a message. ``note`` is for its sender; ``turn`` is the turn that it started or resumed,
    0 if none goes on. ``seq`` is the last event before that, or the last event that ``view`` shows."""

    view: ConversationView
    note: str = ""
    turn: int = 0
    seq: int = 0


@hides_defects
class Handler(PushOperations):
    """See the module's text."""

    def __init__(
        self, backend: Backend, streams: Streams, cards: AgentCards, config: Config, secret: bytes
    ) -> None:
        self._backend = backend
        self._secret = secret
        self._cards = cards
        self._streams = streams
        self._update_stream = UpdateStream(streams, self._show, self._note_shown)
        self._max_message_bytes = config.limits.max_message_bytes
        self._card = config.card
        self._max_depth = config.budget.max_depth
        self._config = config

    # -- messages

    async def on_message_send(
        self, params: "pb.SendMessageRequest", context: ServerCallContext
    ) -> "pb.Task | pb.Message":
        request = request_of(context)
        validate_history_length(params.configuration)
        taken = await self._take(params, context, wait=not params.configuration.return_immediately)
        if not await request.http.is_disconnected():
            await self._note_shown(taken.view)
        direct = direct_answer(taken.view, request.extensions) if self._may_be_direct(params) else None
        task = task_of(taken.view, request.extensions, taken.note)
        return direct or apply_history_length(task, params.configuration)

    async def on_message_send_stream(
        self, params: "pb.SendMessageRequest", context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        request = request_of(context)
        validate_history_length(params.configuration)
        taken = await self._take(params, context, wait=False, watched=True)
        task = task_of(taken.view, request.extensions, taken.note)
        task = apply_history_length(task, params.configuration)
        if not taken.turn:
            await self._note_shown(taken.view)
            yield task
            return
        turn_updates = TurnUpdates(taken.view, taken.turn, request.extensions)
        watch = Watch(taken.view.id, new_id(), taken.seq, wait=False)
        may_be_direct = self._may_be_direct(params)
        async with aclosing(
            self._update_stream.task_and_updates(task, turn_updates, watch, may_be_direct)
        ) as updates:
            async for update in updates:
                yield update

    def _may_be_direct(self, params: "pb.SendMessageRequest") -> bool:
        return self._card.direct_answers and not params.message.task_id

    async def _take(
        self, params: "pb.SendMessageRequest", context: ServerCallContext, wait: bool, watched: bool = False
    ) -> _Taken:
        request, version, message = request_of(context), version_of(context), params.message
        if not message.message_id:
            raise InvalidParamsError("message.messageId is missing")
        request = self._within(message, request)
        if self._card.files == "mention":
            message.CopyFrom(with_files_mentioned(message))
        if not message.task_id:
            return await self._begin(params, request, version, wait, watched)
        shown, request = await self._look(message.task_id), request.to_task()
        view = shown.view
        if message.context_id and message.context_id != view.context:
            raise InvalidParamsError(f"task {view.id} is in context {view.context!r}, not in that one")
        if request.key and (first := await self._first(view.id, request)):
            return msgspec.structs.replace(first, note="" if request.key == request.message_id else _REPEATED)
        decisions = _decisions(message, view, has_token=bool(request.caller.token))
        state = view.turn.state if view.turn else None
        if decisions is None and state in TERMINAL and not request.is_plain:
            raise UnsupportedOperationError(f"task {view.id} has ended ({state}); start another one")
        if webhook := webhook_in(params.configuration, view.id, version):
            await self._ask(view.id, SetWebhook(view.id, webhook))  # first, so that it gets what follows
        if not request.message_id and not has_decisions(message):
            return await self._take_words(shown, decisions, message, request, wait, watched)
        if decisions is None:
            return await self._say(view.id, message, request, wait, watched)
        return await self._decide(view, decisions, request, wait, watched)

    def _within(self, message: "pb.Message", request: A2aRequest) -> A2aRequest:
        """The request with what the agent that sent it says about itself. A message of the deepest agent that
        may be is refused: it is the model of its sender that has to go on without this agent."""
        with _readable():
            context = caller_context_in(message)
        if context is None:
            return request
        if context.depth >= self._max_depth:
            raise UnsupportedOperationError(
                f"{context.depth} agents call each other already, as many as budget.max_depth allows here. "
                "Do it without this agent"
            )
        caller = msgspec.structs.replace(request.caller, depth=context.depth, called_by=context.agent_path)
        # A limit of money needs prices. Without them it is dropped: the card has told the caller that it
        # will not know the cost, which it may allow or refuse (budget.unpriced_peers).
        left: dict[str, float] = {
            key: limit for key, limit in context.left.items() if self._is_priced or key not in MONEY
        }
        return replace(request, caller=caller, budget=left)

    @cached_property
    def _is_priced(self) -> bool:
        # On the first message of an agent with a budget: the lists of prices take 0.1 s to load.
        return not unpriced_models(self._config)

    async def _begin(
        self,
        params: "pb.SendMessageRequest",
        request: A2aRequest,
        version: A2aVersion,
        wait: bool,
        watched: bool,
    ) -> _Taken:
        message, caller, task = params.message, request.caller, request.new_task(self._secret)
        text, webhook = self._text(message), webhook_in(params.configuration, task, version)
        context = message.context_id or caller.session_id or secrets.token_hex(4)
        if not is_session_id(context):
            raise InvalidParamsError(f"contextId must be {SESSION_IDS}")
        budget = dict(request.budget)
        create = Create(task, caller, text, wait, watched, context, message.message_id, webhook, budget)
        return _taken(await self._ask(task, create))

    async def _first(self, task: str, request: A2aRequest) -> _Taken | None:
        """The reply that a message got the first time, if this is a repetition."""
        reply = await self._ask(task, FindFirstReply(task, request.caller))
        return None if isinstance(reply, NothingTaken) else _taken(reply)

    async def _say(
        self, task: str, message: "pb.Message", request: A2aRequest, wait: bool, watched: bool
    ) -> _Taken:
        text, ends = self._text(message), not request.is_plain
        say = SendMessage(
            task,
            request.caller,
            text,
            wait,
            watched,
            message.message_id,
            for_newest_turn=ends,
            budget=dict(request.budget),
        )
        return _taken(await self._ask(task, say))

    async def _decide(
        self,
        view: ConversationView,
        decisions: list[Decision],
        request: A2aRequest,
        wait: bool,
        watched: bool,
    ) -> _Taken:
        """Decides. A message without a decision is answered with which decisions are expected."""
        if not decisions:
            return _Taken(view, f"That is no decision. Expected: {expected(view.pending_approvals[0])}.")
        reply = await self._ask(view.id, Decide(request.caller, tuple(decisions), wait, watched))
        assert not isinstance(reply, NothingTaken)  # only a decision that says what its sender has seen
        return _taken(reply)

    async def _take_words(
        self,
        shown: _Taken,
        decisions: list[Decision] | None,
        message: "pb.Message",
        request: A2aRequest,
        wait: bool,
        watched: bool,
    ) -> _Taken:
        """Takes a message without an id, which may be a repetition that cannot be recognized. So it decides
        only approvals that had been shown to a client when it arrived; otherwise it is answered with how the
        task stands."""
        view = shown.view
        if decisions is None:
            is_at_work = view.turn is not None and view.turn.state == "working"
            if not is_at_work or not _is_repetition(self._text(message), view):
                return await self._say(view.id, message, request, wait, watched)
            return await self._repeat(view.id, message, request, wait, watched)
        if not decisions:
            return await self._decide(view, decisions, request, wait, watched)
        decide = Decide(request.caller, tuple(decisions), wait, watched, shown.seq)
        try:
            reply = await self._backend.ask(view.id, decide)
        except Conflict:  # it was decided already: this may be the message that did
            return await self._repeat(view.id, message, request, wait, watched)
        except MeshError as problem:
            raise a2a_error(problem) from None
        if isinstance(reply, NothingTaken):
            return _Taken(await self._show(view.id), _NOT_SEEN)
        return _taken(reply)

    async def _repeat(
        self, task: str, message: "pb.Message", request: A2aRequest, wait: bool, watched: bool
    ) -> _Taken:
        """Sends the message to the newest turn alone, so that a repetition starts no other."""
        say = SendMessage(task, request.caller, self._text(message), wait, watched, for_newest_turn=True)
        try:
            return _taken(await self._backend.ask(task, say))
        except Conflict:  # the turn is at work, or has ended: how it stands is the answer
            shown = await self._look(task)
        except MeshError as problem:
            raise a2a_error(problem) from None
        turn = shown.view.turn
        return msgspec.structs.replace(shown, turn=turn.number) if turn and turn.state == "working" else shown

    async def _note_shown(self, view: ConversationView) -> None:
        """Records that a client is shown the pending approvals. If that fails, a message without an id has to
        be sent once more; the response itself is right."""
        if not view.pending_approvals:
            return
        try:
            await self._backend.ask(view.id, NoteApprovalShown(view.id, view.pending_approvals[0].uuid))
        except Unavailable as problem:
            _log.warning("event=answer_not_noted conversation=%s %s", view.id, fields(message=problem))

    def _text(self, message: "pb.Message") -> str:
        with _readable():
            text = text_of(message)
        if len(text.encode()) > self._max_message_bytes:
            limit = f"{self._max_message_bytes} bytes (limits.max_message_bytes)"
            raise InvalidParamsError(f"the message is over {limit}")
        return text

    # -- tasks

    async def on_get_task(self, params: "pb.GetTaskRequest", context: ServerCallContext) -> "pb.Task":
        validate_history_length(params)
        task = task_of(await self._show(params.id), request_of(context).extensions)
        return apply_history_length(task, params)

    async def on_list_tasks(
        self, params: "pb.ListTasksRequest", context: ServerCallContext
    ) -> "pb.ListTasksResponse":
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        request_of(context)
        limit = params.page_size or _PAGE
        entries, total = await self._recent(_recent_of(params, limit + 1))
        page = entries[:limit]
        views = await self._views(page)
        tasks = [apply_history_length(task_of(view), params) for view in views]
        for task in tasks:
            if not params.include_artifacts:
                task.ClearField("artifacts")
        more = encode_page_token(page[-1].updated_cursor) if len(entries) > limit else ""
        return pb.ListTasksResponse(tasks=tasks, total_size=total, page_size=limit, next_page_token=more)

    async def _views(self, entries: list[ConversationSummary]) -> list[ConversationView]:
        """A few at a time, so that a long list leaves room for other requests
        (limits.max_ongoing_requests)."""
        found: list[ConversationView] = []
        for first in range(0, len(entries), _AT_ONCE):
            group = entries[first : first + _AT_ONCE]
            found += await asyncio.gather(*(self._show(entry.id) for entry in group))
        return found

    async def on_cancel_task(self, params: "pb.CancelTaskRequest", context: ServerCallContext) -> "pb.Task":
        request = request_of(context)
        if params.id.startswith(OF_MESSAGE):
            request = request.of_message(params.id.removeprefix(OF_MESSAGE))
            if withdrawn := await self._withdraw(request):
                return withdrawn
            params.id = request.new_task(self._secret)
        view = await self._show(params.id)
        if view.turn is None or view.turn.state in TERMINAL:
            state = view.turn.state if view.turn else "no message yet"
            raise TaskNotCancelableError(f"task {view.id} does not run ({state})")
        view = (await self._ask(view.id, Cancel(view.id))).conversation
        if view.turn is None or view.turn.state != "cancelled":
            raise TaskNotCancelableError(f"task {view.id} ended before it could be canceled")
        return task_of(view, request.extensions)

    async def _withdraw(self, request: A2aRequest) -> "pb.Task | None":
        """Creates the task that a message would have begun, and completes it, so that the message is refused
        when it arrives. Returns None if the message came first."""
        task = request.new_task(self._secret)
        caller = msgspec.structs.replace(request.caller, idempotency_key=request.key, body_hash=WITHDRAWN)
        create = Create(task, caller, context_id=caller.session_id or request.key)
        try:
            created = (await self._backend.ask(task, create)).conversation
        except Conflict:  # the message came first
            return None
        except MeshError as problem:
            raise a2a_error(problem) from None
        await self._ask(task, Complete(task))
        return pb.Task(
            id=task, context_id=created.context, status=pb.TaskStatus(state=pb.TASK_STATE_CANCELED)
        )

    async def on_subscribe_to_task(
        self, params: "pb.SubscribeToTaskRequest", context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        request = request_of(context)
        await self._show(params.id)
        # The watch begins before the task is read: an event between the two is sent twice, instead of never.
        watch = Watch(params.id, new_id(), wait=False)
        with a2a_errors():
            seen = await self._streams.begun(watch)
        view = await self._show(params.id)
        if view.turn is not None and view.turn.state in TERMINAL:
            raise UnsupportedOperationError(f"task {view.id} has ended ({view.turn.state})")
        yield task_of(view, request.extensions)
        turn = view.turn.number if view.turn else 1
        turn_updates = TurnUpdates(view, turn, request.extensions)
        async with aclosing(self._update_stream.updates(turn_updates, watch, seen)) as updates:
            async for update in updates:
                yield update

    async def on_get_extended_agent_card(
        self, params: "pb.GetExtendedAgentCardRequest", context: ServerCallContext
    ) -> "pb.AgentCard":
        old, has_one = version_of(context) == "0.3", self._card.public_skills is not None
        if not has_one and not old:  # section 3.1.11: what the card does not offer is no operation
            raise UnsupportedOperationError("this agent shows everybody the same card")
        if not has_one or (old and "0.3" not in self._card.versions):
            raise ExtendedAgentCardNotConfiguredError("this agent shows everybody the same card")
        with a2a_errors():
            return await self._cards.card(request_of(context).http, extended=True)

    # -- the keepers

    async def _ask(self, task: str, request: RequestFor[R]) -> R:
        with a2a_errors():
            return await self._backend.ask(_known(task), request)

    async def _show(self, task: str) -> ConversationView:
        return (await self._ask(task, Show(task))).conversation

    async def _look(self, task: str) -> _Taken:
        return _taken(await self._ask(task, Show(task)))

    async def _recent(self, request: Recent) -> tuple[list[ConversationSummary], int]:
        with a2a_errors():
            shards = await self._backend.ask_all(request)
        found = (summary for shard in shards for summary in shard.conversations)
        newest = heapq.nlargest(request.limit, found, key=attrgetter("updated_cursor"))
        return newest, sum(shard.total for shard in shards)


@contextmanager
def _readable() -> Iterator[None]:
    """Raises what is wrong with a message as errors of A2A."""
    try:
        yield
    except UnsupportedContent as problem:
        raise ContentTypeNotSupportedError(str(problem)) from None
    except BadRequest as problem:
        raise InvalidParamsError(str(problem)) from None


def _decisions(message: "pb.Message", view: ConversationView, *, has_token: bool) -> list[Decision] | None:
    """The decisions in a message to a task, maybe none. Returns None if the message is not about
    approvals."""
    is_waiting = view.turn is not None and view.turn.state in WAITS
    if not is_waiting and not has_decisions(message):
        return None
    with _readable():
        return decisions_in(message, view.pending_approvals, has_token=has_token)


def _is_repetition(text: str, view: ConversationView) -> bool:
    """Whether a message may repeat an earlier one: a word that decides, or the text of the last message."""
    last = next((each.content for each in reversed(view.messages) if each.role == "user"), "")
    return is_decision(text) or text == last


def _known(task: str) -> str:
    if not is_id(task):
        raise TaskNotFoundError(f"Task not found: there is no task {task[:64]!r}")
    return task


def _taken(reply: TurnReply | ConversationReply) -> _Taken:
    match reply:
        case TurnAccepted():
            return _Taken(reply.conversation, turn=reply.turn, seq=reply.seq)
        case ConversationReply():
            return _Taken(reply.conversation, seq=reply.seq)
        case TurnAnswer():
            return _Taken(reply.conversation)


def _recent_of(params: "pb.ListTasksRequest", limit: int) -> Recent:
    states: tuple[str, ...] | None = None
    if params.status:
        states = (_BY_STATE[params.status],) if params.status in _BY_STATE else ()
    since = ""
    if params.HasField("status_timestamp_after"):
        moment = params.status_timestamp_after.ToDatetime()
        since = moment.isoformat(timespec="milliseconds") + "Z"
    before = decode_page_token(params.page_token) if params.page_token else ""
    if params.page_token and not is_cursor(before):
        raise InvalidParamsError("pageToken must be the nextPageToken of an earlier page")
    if params.context_id and not is_session_id(params.context_id):
        raise InvalidParamsError(f"contextId must be {SESSION_IDS}")
    return Recent(limit, before, since, params.context_id, states)
