"""The state of a conversation is the fold of its events. Pure: no I/O, no clock, no randomness.

Theory of operation
    A `Conversation` starts empty, and `apply` takes one event after the other; `fold` does that for a whole
    journal. Nothing else changes it. It is total: any prefix of any journal is a valid conversation, and an
    event that makes no sense where it stands changes nothing but ``seq``.

    A conversation is a list of turns. `UserMessage` opens a turn, `Completed` or `Error` closes it; at most
    one turn is open. While it is open, ``steps`` holds the events of its steps: the outcomes that a pass over
    the tree gets instead of running a step again. When the turn closes, what the model needs to remember of
    it moves into ``history``.

    A turn is *paused* from `Paused` until the next decision or outcome, or until a person lets an agent go
    on: only a person can make it go on.
    ``state`` is the session state after the last completed turn; `session_state` also has what the nodes of
    the root agent have written in the open turn, each in its `NodeCompleted`.

    An approval is *pending* from its `ApprovalRequired` until its `ApprovalResolved`, or until the step that
    it is about has a result (a tool whose outcome was unknown may report it after all).

    A model's answer that is a *draft* is not among the messages: what passed its validation is what its node,
    or the turn, completes with.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec

from mesh.core.agent_limits import AgentsStarted
from mesh.core.agents_of_turn import AgentsOfTurn
from mesh.core.budget import BudgetUse
from mesh.core.events import (
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    ApprovalShown,
    Artifact,
    Completed,
    ConversationCompleted,
    ConversationCreated,
    Error,
    LlmCall,
    NodeCompleted,
    Paused,
    StepEvent,
    StoreWentBack,
    ToolCall,
    ToolIntent,
    ToolResult,
    UserMessage,
)
from mesh.core.history import NOT_REACHED, NOT_RUN, messages_of
from mesh.core.messages import Assistant, Message, User
from mesh.core.open_steps import STEP_EVENTS, OpenSteps
from mesh.core.places import ROOT, Place
from mesh.core.spending import Sum

ConversationStatus = Literal["active", "waiting_approval", "completed"]
_MOST_ARTIFACTS = 100
_PARTLY_LOST = (
    "the store has lost a part of this turn, so it ended; what was done in it may have taken effect"
)


class ToolCallView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call as REST shows it."""

    name: str
    arguments: dict[str, Any]
    result: str | None = None
    is_error: bool | None = None


class MessageView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as REST shows it. ``id`` is made of the sequence number of its event; ``message_id`` is the
    client's, if it gave one (A2A)."""

    id: str
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    created_at: str
    tool_call: ToolCallView | None = None
    message_id: str = ""


class KeyedRequest(msgspec.Struct, frozen=True):
    """A request with an Idempotency-Key: the hash of its body, and the event that took it. ``answered`` is
    the event at which it was answered; 0: at the next pause or end of the turn."""

    body_hash: str
    seq: int
    answered: int = 0


class Conversation:
    """One conversation. Read it freely; change it only by `apply`."""

    def __init__(self) -> None:
        self.id = ""
        self.session_id = ""
        self.context_id = ""  # empty: it is the session id
        self.turn_session_id = ""  # of the request that opened the newest turn
        self.agent = ""
        self.first_digest = ""
        self.digest = ""  # of the newest turn
        self.seq = 0
        self.created_at = ""
        self.imported_at = ""
        self.updated_at = ""
        self.is_completed = False
        self.turn = 0
        self.turn_open = False
        self.user_message = ""
        self.turn_started_at = ""
        self.turn_nonce = ""
        self.message_id = ""
        self.had_token = False
        self.artifacts: tuple[Artifact, ...] = ()  # of the newest turn
        self.last_answer: Completed | Error | None = None
        self.budget: dict[str, float] = {}  # of the request that opened the newest turn
        self.depth = 0  # of the agent that sent it, and its path
        self.called_by: tuple[str, ...] = ()
        self.by = ""
        self.traceparent = ""
        self.budget_use = BudgetUse()
        self.agents_started = AgentsStarted()
        self.agents = AgentsOfTurn()
        # What an agent returned to the user: the open turn ends by it.
        self.returned: ToolResult | None = None
        self.is_stopped = False  # a person has deleted the root agent of the open turn
        self.store_loss: StoreWentBack | None = None  # the newest one
        self.paused = False
        self.state: dict[str, str] = {}
        self.llm_calls = 0  # of the newest turn
        self.spent = Sum()  # of all turns
        self.history: list[Message] = []
        self.messages: list[MessageView] = []
        self.asked: set[str] = set()
        self.decided: dict[str, ApprovalResolved] = {}
        self._open = OpenSteps(self.decided)
        self.granted: list[tuple[ApprovalRequired, ApprovalResolved]] = []
        self._shown: dict[str, int] = {}  # approval -> the event at which a client was told of it
        self.requests: dict[str, KeyedRequest] = {}
        self.pauses: list[int] = []  # the events at which a client may have been answered
        self._seen: set[str] = set()

    @property
    def status(self) -> ConversationStatus:
        if self.is_completed:
            return "completed"
        return "waiting_approval" if self.is_waiting else "active"

    @property
    def steps(self) -> list[StepEvent]:
        """The events of the steps of the open turn."""
        return self._open.events

    @property
    def claims(self) -> Mapping[str, Sequence[ToolIntent]]:
        """The claims of the open turn, by step."""
        return self._open.claims

    @property
    def results(self) -> Mapping[str, ToolResult]:
        """The results of the open turn, by step."""
        return self._open.results

    @property
    def pending(self) -> list[ApprovalRequired]:
        """The approvals that wait for a person, oldest first. A completed node waits for nothing, and neither
        does a turn that an agent has answered, or that can only end. What can do without the list asks one of
        the next ones: there may be very many."""
        return self._open.approvals.pending if self.is_waiting else []

    @property
    def is_waiting(self) -> bool:
        """Whether an approval is pending."""
        return self.returned is None and not self.ends_because and bool(self._open.approvals)

    @property
    def is_held(self) -> bool:
        """Whether nothing but agents that a person has paused could go on."""
        return self.turn_open and self.paused and not self.is_waiting and bool(self.agents.held)

    @property
    def oldest_pending(self) -> ApprovalRequired | None:
        """The first of `pending`."""
        return self._open.approvals.oldest if self.is_waiting else None

    @property
    def first_deadline(self) -> str:
        """When the first pending approval expires; empty if none does."""
        return self._open.approvals.first_deadline if self.is_waiting else ""

    def deadline(self, uuid: str) -> str:
        """When a pending approval expires; empty if it does not, or not while its agent is paused."""
        return self._open.approvals.deadline(uuid)

    @property
    def asking(self) -> tuple[str, ...]:
        """For which agents an approval is pending that a grant may cover: see `PendingApprovals.asking`."""
        return self._open.approvals.asking if self.is_waiting else ()

    def questions(self, uuid: str) -> list[ApprovalRequired]:
        """What was asked in the newest turn under this uuid, answered or not, as long as the turn is open."""
        return self._open.approvals.questions(uuid)

    def pending_approval(self, uuid: str) -> ApprovalRequired | None:
        """The pending approval with this uuid, if it is one."""
        return self._open.approvals.get(uuid) if self.is_waiting else None

    def times_asked(self, step: str) -> int:
        """How many approvals a step has asked for in the open turn."""
        return self._open.approvals.times_asked(step)

    def decisions_after(self, seq: int) -> list[ApprovalResolved]:
        """The decisions of the open turn after an event."""
        decisions = self._open.decisions
        return decisions[bisect_right(decisions, seq, key=attrgetter("seq")) :]

    def has_ended(self, place: Place) -> bool:
        """Whether a node has completed, or a called agent has answered, at a place or around it."""
        return self._open.has_ended(place)

    def within(self, place: Place) -> list[StepEvent]:
        """Of the `outcomes`, those at a place and below it. Costs what they are, whatever else happened in
        the turn."""
        return self._open.within(place)

    def done_before(self, place: Place) -> list[StepEvent]:
        """The claims of an agent, and their results, before it began anew at a place."""
        return self._open.claimed_before(place)

    def has_news(self, since: int, more: Sequence[AnyEvent]) -> bool:
        """Whether there is a decision after event ``since`` that its step has not acted on, neither in the
        journal nor in the ``more`` events that are about to follow."""
        return self._open.has_news(since, more)

    def unheard(self, since: int, more: Sequence[AnyEvent]) -> list[AgentTold]:
        """What people have told agents after event ``since`` that these have not read, neither in the journal
        nor in the ``more`` events that are about to follow."""
        return self._open.unheard(since, more)

    @property
    def remote_approvals(self) -> list[ApprovalRequired]:
        """The approvals of this turn that other agents wait for, those inside of completed nodes included."""
        return [asked for asked in self._open.approvals.unanswered if asked.remote_task_id]

    @property
    def unsettled(self) -> list[tuple[ToolIntent, ToolCall | None]]:
        """The claims of MCP tools in this turn that nothing has followed, each with the model's call."""
        return self._open.unsettled

    @property
    def needs_token(self) -> bool:
        """Whether an approval waits for a caller with a bearer token."""
        return self.is_waiting and self._open.approvals.needs_token

    @property
    def needs_pass(self) -> bool:
        """Whether a pass over the tree can bring the open turn on without a person."""
        waits = self.paused and (self.is_waiting or self.is_held)
        ends = self.is_stopped or self.returned is not None or bool(self.ends_because)
        return self.turn_open and (ends or not waits)

    @property
    def ends_because(self) -> str:
        """Why the open turn can only end, for a person; empty if it may go on."""
        is_lost = self.store_loss is not None and self.store_loss.turn == self.turn
        return _PARTLY_LOST if is_lost and self.turn_open else ""

    @property
    def session_state(self) -> dict[str, str]:
        """The session state, with what the nodes of the root agent have written in the open turn. The state
        of a called agent is its own, and may tell of a draft."""
        state = dict(self.state)
        for event in self.outcomes:
            if isinstance(event, NodeCompleted) and event.place.agent == ROOT:
                state |= event.state
        return state

    @property
    def outcomes(self) -> list[StepEvent]:
        """The step events that a pass needs: all but those inside of completed nodes."""
        return self._open.outcomes

    def has(self, event: AnyEvent) -> bool:
        """Whether an event with this key has been applied in the open turn."""
        return event.key in self._seen

    def answered_at(self, key: str) -> int:
        """The ``seq`` at which the request with this Idempotency-Key was answered; 0: it has not been."""
        taken = self.requests[key]
        if taken.answered:
            return taken.answered
        later = bisect_right(self.pauses, taken.seq)
        return self.pauses[later] if later < len(self.pauses) else 0

    def was_shown(self, uuid: str, by: int) -> bool:
        """Whether a client had been told of this approval by event ``by``."""
        return uuid in self._shown and self._shown[uuid] <= by

    def apply(self, event: AnyEvent) -> None:
        """Applies the next event of the journal."""
        self.seq = event.seq
        self._seen.add(event.key)
        self.spent.add(event)
        self.budget_use.apply(event)
        self.agents_started.apply(event)
        self.agents.apply(event)
        match event:
            case ConversationCreated():
                self._created(event)
            case UserMessage():
                self._opened(event)
            case Completed() | Error():
                self._closed(event)
            case StoreWentBack():
                self.store_loss = event
                self._say("assistant", event.message, event)
            case ConversationCompleted():
                self.is_completed = True
            case Paused():
                self.digest = event.digest or self.digest
                self.paused = self.turn_open
                if not self.needs_pass:  # else all of it was decided meanwhile, and nobody was answered
                    self.pauses.append(event.seq)
            case ApprovalShown():
                self._answered(event)
            case _ if isinstance(event, STEP_EVENTS):
                self._stepped(event)
            case _:
                pass
        if not isinstance(event, ApprovalShown):  # it changes nothing that a client sees
            self.updated_at = max(event.time or self.updated_at, self.imported_at)

    def _created(self, event: ConversationCreated) -> None:
        self.id, self.session_id = event.conversation_id, event.session_id
        self.context_id = event.context_id
        self.agent, self.digest, self.first_digest = event.agent, event.digest, event.digest
        self.created_at, self.imported_at = event.time, event.imported_at
        self._remember(event.idempotency_key, event.body_hash, event.seq)
        self.pauses.append(event.seq)
        if event.system_prompt:
            self._say("system", event.system_prompt, event)

    def _opened(self, event: UserMessage) -> None:
        self.turn, self.turn_open, self.paused = event.turn, True, False
        self.llm_calls, self.returned, self.budget = 0, None, event.budget
        self.is_stopped = False
        self.depth, self.called_by, self.traceparent = event.depth, event.called_by, event.traceparent
        self.by, self.digest = event.by, event.digest or self.digest
        self.user_message, self.message_id = event.text, event.message_id
        self.turn_started_at, self.turn_nonce = event.time, event.nonce
        self.turn_session_id = event.session_id or self.session_id
        self.had_token, self.artifacts = event.had_token, ()
        self._remember(event.idempotency_key, event.body_hash, event.seq)
        self.messages.append(
            MessageView(f"m{event.seq}", "user", event.text, event.time, message_id=event.message_id)
        )

    def _closed(self, event: Completed | Error) -> None:
        if not self.turn_open:
            return
        text = event.response if isinstance(event, Completed) else event.message
        if not self.messages or self.messages[-1].role != "assistant" or self.messages[-1].content != text:
            self._say("assistant", text, event)
        is_answered = isinstance(event, Completed) and not event.stopped_by_person
        said = messages_of(self.steps, ROOT, not_run=NOT_REACHED if is_answered else NOT_RUN)
        if said[-2:-1] == [Assistant(text)] and isinstance(said[-1], User):
            said.pop()  # an objection in spite of which the answer was accepted
        if said[-1:] != [Assistant(text)]:
            said.append(Assistant(text))
        self.history += [User(self.user_message), *said]
        if isinstance(event, Completed):
            self.state |= event.state
        self.turn_open, self._open, self.last_answer = False, OpenSteps(self.decided), event
        self._seen.clear()
        self.pauses.append(event.seq)

    def _stepped(self, event: StepEvent) -> None:
        if not self.turn_open:
            return
        self._open.add(event)
        self.llm_calls += isinstance(event, LlmCall)
        self.paused = self.paused and isinstance(event, AgentTold) and not event.lets_go_on
        match event:
            case LlmCall(text=text, draft=False) if text and event.place == ROOT:
                self._say("assistant", text, event)
            case ToolResult():
                if event.artifacts and not event.concealed:
                    self.artifacts = (*self.artifacts, *event.artifacts)[:_MOST_ARTIFACTS]
                if event.ends_turn and self.returned is None:  # of two, the first in the journal counts
                    self.returned = event
                told = self._tool_call_view(event)
                self._say("tool", told.result or "", event, told)
            case ApprovalRequired():
                self.asked.add(event.uuid)
            case AgentTold():
                self._answers(event)
                self.is_stopped |= event.stops and event.place == ROOT
            case ApprovalResolved():
                self.decided[event.uuid] = event
                if event.grant is not None:
                    asked = self._open.approvals.questions(event.uuid)
                    # What another agent asked is remembered there: its rules allow nothing here.
                    self.granted += [(one, event) for one in asked if one.remote_question is None]
                if event.choice == "answer":
                    self._say("user", event.answer, event)
                self.had_token = self.had_token or event.had_token
                self._remember(event.idempotency_key, event.body_hash, event.seq)
            case _:
                pass

    def _answered(self, event: ApprovalShown) -> None:
        if event.uuid:
            self._shown.setdefault(event.uuid, event.seq)
        self._answers(event)

    def _answers(self, event: ApprovalShown | AgentTold) -> None:
        """Its request was answered with the event itself."""
        if event.idempotency_key:
            self.requests[event.idempotency_key] = KeyedRequest(event.body_hash, event.seq, event.seq)

    def _tool_call_view(self, event: ToolResult) -> ToolCallView:
        if event.concealed:
            return ToolCallView(event.tool, {}, "", event.is_error)
        call = self._open.call_of(event)
        arguments = call.arguments if call and not self._open.hides_arguments(event) else {}
        if claims := self.claims.get(event.step):
            arguments = claims[-1].arguments
        return ToolCallView(event.tool, arguments, event.shown or event.content, event.is_error)

    def _remember(self, key: str, body_hash: str, seq: int) -> None:
        if key:
            self.requests[key] = KeyedRequest(body_hash, seq)

    def _say(
        self,
        role: Literal["system", "user", "assistant", "tool"],
        text: str,
        event: AnyEvent,
        call: ToolCallView | None = None,
    ) -> None:
        self.messages.append(MessageView(f"m{event.seq}", role, text, event.time, call))


def fold(events: Iterable[AnyEvent]) -> Conversation:
    """The conversation after these events."""
    conversation = Conversation()
    for event in events:
        conversation.apply(event)
    return conversation
