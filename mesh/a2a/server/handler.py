"""A2A's operations over the keepers: every one is a REST request in other words.

    SendMessage          Create, Say or Decide, and the task as it stands then
    GetTask, ListTasks   Show, Recent
    CancelTask           Cancel
    push configs         SetWebhook, ListWebhooks, DeleteWebhook (`webhooks`)
    streams              the same, told by `Narration` from what a watch sees

No state here: a task is its conversation. Raises the SDK's `A2AError`s, which its dispatchers write down.
"""

import asyncio
import heapq
import logging
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
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
from starlette.exceptions import HTTPException

from mesh.a2a.extensions import OF_MESSAGE
from mesh.a2a.server.call import Call, call_of
from mesh.a2a.server.cards import Cards
from mesh.a2a.server.careful import careful
from mesh.a2a.server.narration import Narration
from mesh.a2a.server.said import (
    Unreadable,
    decisions_in,
    has_decisions,
    text_of,
    with_files_mentioned,
)
from mesh.a2a.server.streaming import WAITS, Telling
from mesh.a2a.server.task import STATES, TERMINAL, direct_answer, expected, task_of
from mesh.a2a.server.webhooks import PushOperations, version_of, webhook_in
from mesh.config.model import Config
from mesh.core.approvals import Decision, is_decision
from mesh.core.errors import (
    BadRequest,
    Conflict,
    JournalDamaged,
    JournalError,
    MeshError,
    NotFound,
    RequestError,
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
from mesh.net.http_status import retry_after_of
from mesh.push.webhook import A2aVersion
from mesh.runtime.logs import fields

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
    """What came of a message. ``note`` is for who sent it; ``turn`` is the turn that it started or woke, 0 if
    none goes on. ``seq`` is the last event before what that does next; of a look, the last that it shows."""

    view: ConversationView
    note: str = ""
    turn: int = 0
    seq: int = 0


@careful
class Handler(PushOperations):
    """See the module's text."""

    def __init__(
        self, backend: Backend, streams: Streams, cards: Cards, config: Config, secret: bytes
    ) -> None:
        self._backend = backend
        self._secret = secret
        self._cards = cards
        self._streams = streams
        self._telling = Telling(streams, self._show, self._describe)
        self._max_message_bytes = config.limits.max_message_bytes
        self._card = config.card

    # -- messages

    async def on_message_send(
        self, params: "pb.SendMessageRequest", context: ServerCallContext
    ) -> "pb.Task | pb.Message":
        call = call_of(context)
        validate_history_length(params.configuration)
        taken = await self._take(params, context, wait=not params.configuration.return_immediately)
        if not await call.request.is_disconnected():
            await self._describe(taken.view)
        direct = direct_answer(taken.view) if self._may_be_direct(params) else None
        task = task_of(taken.view, call.extensions, taken.note)
        return direct or apply_history_length(task, params.configuration)

    async def on_message_send_stream(
        self, params: "pb.SendMessageRequest", context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        call = call_of(context)
        validate_history_length(params.configuration)
        taken = await self._take(params, context, wait=False, watched=True)
        task = task_of(taken.view, call.extensions, taken.note)
        task = apply_history_length(task, params.configuration)
        if not taken.turn:
            await self._describe(taken.view)
            yield task
            return
        narration = Narration(taken.view, taken.turn, call.extensions)
        watch = Watch(taken.view.id, new_id(), taken.seq, wait=False)
        may_be_direct = self._may_be_direct(params)
        async with aclosing(self._telling.after(task, narration, watch, may_be_direct)) as updates:
            async for update in updates:
                yield update

    def _may_be_direct(self, params: "pb.SendMessageRequest") -> bool:
        return self._card.direct_answers and not params.message.task_id

    async def _take(
        self, params: "pb.SendMessageRequest", context: ServerCallContext, wait: bool, watched: bool = False
    ) -> _Taken:
        call, version, message = call_of(context), version_of(context), params.message
        if not message.message_id:
            raise InvalidParamsError("message.messageId is missing")
        if self._card.files == "mention":
            message.CopyFrom(with_files_mentioned(message))
        if not message.task_id:
            return await self._begin(params, call, version, wait, watched)
        shown, call = await self._look(message.task_id), call.to_task()
        view = shown.view
        if message.context_id and message.context_id != view.context:
            raise InvalidParamsError(f"task {view.id} is in context {view.context!r}, not in that one")
        if call.key and (first := await self._first(view.id, call)):
            return msgspec.structs.replace(first, note="" if call.key == call.message_id else _REPEATED)
        decisions = _decisions(message, view, has_token=bool(call.caller.token))
        state = view.turn.state if view.turn else None
        if decisions is None and state in TERMINAL and not call.is_plain:
            raise UnsupportedOperationError(f"task {view.id} has ended ({state}); start another one")
        if webhook := webhook_in(params.configuration, view.id, version):
            await self._ask(view.id, SetWebhook(view.id, webhook))  # first: it is told what comes of it
        if not call.message_id and not has_decisions(message):
            return await self._take_words(shown, decisions, message, call, wait, watched)
        if decisions is None:
            return await self._say(view.id, message, call, wait, watched)
        return await self._decide(view, decisions, call, wait, watched)

    async def _begin(
        self, params: "pb.SendMessageRequest", call: Call, version: A2aVersion, wait: bool, watched: bool
    ) -> _Taken:
        message, caller, task = params.message, call.caller, call.new_task(self._secret)
        text, webhook = self._text(message), webhook_in(params.configuration, task, version)
        context = message.context_id or caller.session_id or secrets.token_hex(4)
        if not is_session_id(context):
            raise InvalidParamsError(f"contextId must be {SESSION_IDS}")
        create = Create(task, caller, text, wait, watched, context, message.message_id, webhook)
        return _taken(await self._ask(task, create))

    async def _first(self, task: str, call: Call) -> _Taken | None:
        """The first answer to a message that came before."""
        reply = await self._ask(task, FindFirstReply(task, call.caller))
        return None if isinstance(reply, NothingTaken) else _taken(reply)

    async def _say(self, task: str, message: "pb.Message", call: Call, wait: bool, watched: bool) -> _Taken:
        text, ends = self._text(message), not call.is_plain
        say = SendMessage(task, call.caller, text, wait, watched, message.message_id, for_newest_turn=ends)
        return _taken(await self._ask(task, say))

    async def _decide(
        self, view: ConversationView, decisions: list[Decision], call: Call, wait: bool, watched: bool
    ) -> _Taken:
        """Decides; what is no decision is answered with what is expected."""
        if not decisions:
            return _Taken(view, f"That is no decision. Expected: {expected(view.pending_approvals[0])}.")
        reply = await self._ask(view.id, Decide(call.caller, tuple(decisions), wait, watched))
        assert not isinstance(reply, NothingTaken)  # only a decision that says what its sender has seen
        return _taken(reply)

    async def _take_words(
        self,
        shown: _Taken,
        decisions: list[Decision] | None,
        message: "pb.Message",
        call: Call,
        wait: bool,
        watched: bool,
    ) -> _Taken:
        """A message without an id may be a former one that came again. It decides what had been described to
        a client when it came. What came before that is told how things stand, and decides nothing."""
        view = shown.view
        if decisions is None:
            is_at_work = view.turn is not None and view.turn.state == "working"
            if not is_at_work or not _is_repetition(self._text(message), view):
                return await self._say(view.id, message, call, wait, watched)
            return await self._repeat(view.id, message, call, wait, watched)
        if not decisions:
            return await self._decide(view, decisions, call, wait, watched)
        decide = Decide(call.caller, tuple(decisions), wait, watched, shown.seq)
        try:
            reply = await self._backend.ask(view.id, decide)
        except Conflict:  # it was decided already: this may be the message that did
            return await self._repeat(view.id, message, call, wait, watched)
        except MeshError as problem:
            raise a2a_error(problem) from None
        if isinstance(reply, NothingTaken):
            return _Taken(await self._show(view.id), _NOT_SEEN)
        return _taken(reply)

    async def _repeat(
        self, task: str, message: "pb.Message", call: Call, wait: bool, watched: bool
    ) -> _Taken:
        """What comes of the turn that is at work, or came of it."""
        say = SendMessage(task, call.caller, self._text(message), wait, watched, for_newest_turn=True)
        try:
            return _taken(await self._backend.ask(task, say))
        except Conflict:  # the turn is at work, or has ended: how it stands is the answer
            shown = await self._look(task)
        except MeshError as problem:
            raise a2a_error(problem) from None
        turn = shown.view.turn
        return msgspec.structs.replace(shown, turn=turn.number) if turn and turn.state == "working" else shown

    async def _describe(self, view: ConversationView) -> None:
        """Notes that a client is told what waits. Where that cannot be noted, words without an id have to be
        said once more; the answer itself is right."""
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
        task = task_of(await self._show(params.id), call_of(context).extensions)
        return apply_history_length(task, params)

    async def on_list_tasks(
        self, params: "pb.ListTasksRequest", context: ServerCallContext
    ) -> "pb.ListTasksResponse":
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        call_of(context)
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
        """A few at a time: a list takes the place of few other requests (limits.max_ongoing_requests)."""
        found: list[ConversationView] = []
        for first in range(0, len(entries), _AT_ONCE):
            group = entries[first : first + _AT_ONCE]
            found += await asyncio.gather(*(self._show(entry.id) for entry in group))
        return found

    async def on_cancel_task(self, params: "pb.CancelTaskRequest", context: ServerCallContext) -> "pb.Task":
        call = call_of(context)
        if params.id.startswith(OF_MESSAGE):
            call = call.of_message(params.id.removeprefix(OF_MESSAGE))
            if withdrawn := await self._withdraw(call):
                return withdrawn
            params.id = call.new_task(self._secret)
        view = await self._show(params.id)
        if view.turn is None or view.turn.state in TERMINAL:
            state = view.turn.state if view.turn else "no message yet"
            raise TaskNotCancelableError(f"task {view.id} does not run ({state})")
        view = (await self._ask(view.id, Cancel(view.id))).conversation
        if view.turn is None or view.turn.state != "cancelled":
            raise TaskNotCancelableError(f"task {view.id} ended before it could be canceled")
        return task_of(view, call.extensions)

    async def _withdraw(self, call: Call) -> "pb.Task | None":
        """The task that a message would have begun, canceled; None: it has begun it. Its place is taken by a
        conversation that is over, so that it is refused when it comes."""
        task = call.new_task(self._secret)
        caller = msgspec.structs.replace(call.caller, idempotency_key=call.key, body_hash=WITHDRAWN)
        create = Create(task, caller, context_id=caller.session_id or call.key)
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
        call = call_of(context)
        await self._show(params.id)
        # The watch begins before the look at the task: what happens between the two is told twice, not never.
        watch = Watch(params.id, new_id(), wait=False)
        with a2a_errors():
            seen = await self._streams.begun(watch)
        view = await self._show(params.id)
        if view.turn is not None and view.turn.state in TERMINAL:
            raise UnsupportedOperationError(f"task {view.id} has ended ({view.turn.state})")
        yield task_of(view, call.extensions)
        turn = view.turn.number if view.turn else 1
        narration = Narration(view, turn, call.extensions)
        async with aclosing(self._telling.told(narration, watch, seen)) as updates:
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
            return await self._cards.made(call_of(context).request, extended=True)

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
    """What is wrong with a message, in A2A's errors."""
    try:
        yield
    except Unreadable as problem:
        raise ContentTypeNotSupportedError(str(problem)) from None
    except BadRequest as problem:
        raise InvalidParamsError(str(problem)) from None


def _decisions(message: "pb.Message", view: ConversationView, *, has_token: bool) -> list[Decision] | None:
    """What a message to a task decides, maybe nothing; None: it is something new to say."""
    is_waiting = view.turn is not None and view.turn.state in WAITS
    if not is_waiting and not has_decisions(message):
        return None
    with _readable():
        return decisions_in(message, view.pending_approvals, has_token=has_token)


def _is_repetition(text: str, view: ConversationView) -> bool:
    """Whether a message says what decides, or what was said last."""
    said = next((each.content for each in reversed(view.messages) if each.role == "user"), "")
    return is_decision(text) or text == said


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


@contextmanager
def a2a_errors() -> Iterator[None]:
    """What goes wrong inside, in A2A's errors."""
    try:
        yield
    except MeshError as problem:
        raise a2a_error(problem) from None


def a2a_error(problem: MeshError) -> Exception:
    """The error of A2A that stands for an error of ours."""
    match problem:
        case NotFound():
            return TaskNotFoundError(f"Task not found: {problem}")
        case Conflict():
            return UnsupportedOperationError(str(problem))
        case RequestError():
            return InvalidParamsError(str(problem))
        case Unavailable() | JournalError() if not isinstance(problem, JournalDamaged):
            # The mesh cannot answer just now, and the request may have had its effect: that is no answer of
            # the protocol, which would be one of the agent.
            return HTTPException(503, str(problem), {"Retry-After": str(retry_after_of(problem) or 1)})
        case _:
            return InternalError(str(problem))


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
