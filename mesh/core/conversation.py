"""The state of a conversation = fold(events). Pure: no I/O, no clock, no randomness.

Theory of operation
    A `Conversation` starts empty and `apply` takes one event after the other; `fold` does that for a
    whole journal. Nothing else changes it. It is total: any prefix of any journal is a valid
    conversation, and an event that makes no sense where it stands changes nothing but ``seq``.

    A conversation is a list of turns. `UserMessage` opens a turn, `Completed` or `Error` closes it;
    there is at most one open turn. While a turn is open, ``steps`` holds its step events: the known
    outcomes that a pass over the tree gets instead of running a step again. When it closes, what the
    model needs to remember of it moves into ``history``.

    A turn is *paused* from `Paused` until the next decision or outcome: it can go on with a person only.
    ``state`` is the session state after the last turn that completed; `session_state` has besides what
    the nodes of the open turn wrote, each in its `NodeCompleted`.

    An approval is *pending* from its `ApprovalRequired` until its `ApprovalResolved`, or until the
    step it asks about has a result after all (a tool whose outcome nobody knew may still report it).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.events import (
    Answered,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Artifact,
    Completed,
    ConversationCompleted,
    ConversationCreated,
    Error,
    LlmCall,
    NodeCompleted,
    Paused,
    ToolCall,
    ToolIntent,
    ToolResult,
    UserMessage,
)
from mesh.core.history import asked_for, exchange
from mesh.core.messages import Assistant, Message, User
from mesh.core.places import ROOT, Place

Status = Literal["active", "waiting_approval", "completed"]
StepEvent = LlmCall | ToolIntent | ToolResult | ApprovalRequired | ApprovalResolved | NodeCompleted

_MOST_ARTIFACTS = 100


class ToolCallView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call as REST shows it."""

    name: str
    arguments: dict[str, Any]
    result: str | None = None
    is_error: bool | None = None


class MessageView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as REST shows it. ``id`` is made of the sequence number of its event; ``message_id`` is that
    of the client, if it gave one (A2A)."""

    id: str
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    created_at: str
    tool_call: ToolCallView | None = None
    message_id: str = ""


class KeyedRequest(msgspec.Struct, frozen=True):
    """A request with an Idempotency-Key: what it said and after which event it was taken. ``answered`` is the
    event at which it was answered; 0: when the turn pauses or ends."""

    body_hash: str
    seq: int
    answered: int = 0


class Conversation:
    """One conversation. Read it freely; change it only by `apply`."""

    def __init__(self) -> None:
        self.id = ""
        self.session_id = ""
        self.context_id = ""  # empty: the session's id
        self.turn_session_id = ""  # that of the newest turn's request
        self.agent = ""
        self.digest = ""
        self.seq = 0
        self.created_at = ""
        self.updated_at = ""
        self.is_completed = False
        self.turn = 0
        self.turn_open = False
        self.user_message = ""
        self.message_id = ""
        self.had_token = False
        self.artifacts: tuple[Artifact, ...] = ()  # of the newest turn
        self.last_answer: Completed | Error | None = None
        self.paused = False
        self.state: dict[str, str] = {}
        self.llm_calls = 0  # of the newest turn
        self.steps: list[StepEvent] = []
        self.history: list[Message] = []
        self.messages: list[MessageView] = []
        self.asked: set[str] = set()
        self.decided: dict[str, ApprovalResolved] = {}
        self._shown: dict[str, int] = {}  # since which event a client knows of an approval
        self.requests: dict[str, KeyedRequest] = {}
        self.pauses: list[int] = []  # the seq of each event a client may have been answered at
        self._seen: set[str] = set()

    @property
    def status(self) -> Status:
        if self.is_completed:
            return "completed"
        return "waiting_approval" if self.pending else "active"

    @property
    def pending(self) -> list[ApprovalRequired]:
        """The approvals that wait for a person, oldest first. A node that is done waits for nothing."""
        asked = self._unanswered
        done = self._done if asked else set()
        return [e for e in asked if not _is_inside(e, done)] if done else asked

    @property
    def _done(self) -> set[Place]:
        """The places of the nodes that are done."""
        return {e.place for e in self.steps if isinstance(e, NodeCompleted)}

    @property
    def _unanswered(self) -> list[ApprovalRequired]:
        if not self.turn_open:
            return []
        results = {e.step for e in self.steps if isinstance(e, ToolResult)}
        return [
            e
            for e in self.steps
            if isinstance(e, ApprovalRequired) and e.uuid not in self.decided and e.step not in results
        ]

    def has_news(self, since: int, more: Sequence[AnyEvent]) -> bool:
        """Whether something was decided after event ``since`` that no step went on with, neither in the
        journal nor in ``more`` events that follow."""
        done = self._done
        for index, event in enumerate(self.steps):
            if isinstance(event, ApprovalResolved) and event.seq > since and not _is_inside(event, done):
                later = (*self.steps[index + 1 :], *more)
                if not any(e.step == event.step and not isinstance(e, ApprovalResolved) for e in later):
                    return True
        return False

    @property
    def remote_approvals(self) -> list[ApprovalRequired]:
        """What other agents wait for in this turn, also where nobody here will answer it any more."""
        return [asked for asked in self._unanswered if asked.remote_task_id]

    @property
    def unsettled(self) -> list[tuple[ToolIntent, ToolCall | None]]:
        """The calls of MCP tools in this turn that were claimed, and of which nothing was heard since, each
        with the model's call."""
        if not self.turn_open:
            return []
        last = {e.step: e for e in self.steps if not isinstance(e, ApprovalResolved)}
        claimed = [e for e in last.values() if isinstance(e, ToolIntent) and e.session]
        return [(intent, asked_for(self.steps, intent)) for intent in claimed]

    @property
    def needs_token(self) -> bool:
        """Whether something waits for a caller with a bearer token."""
        return any(APPROVAL_KINDS[asked.kind].needs_token for asked in self.pending)

    @property
    def needs_pass(self) -> bool:
        """Whether the open turn needs a pass over the tree: something of it may run without a person."""
        return self.turn_open and not (self.paused and self.pending)

    @property
    def session_state(self) -> dict[str, str]:
        """The session state now, with what the nodes of the open turn wrote."""
        state = dict(self.state)
        for event in self.outcomes:
            if isinstance(event, NodeCompleted):
                state |= event.state
        return state

    @property
    def outcomes(self) -> list[StepEvent]:
        """What a pass over the tree needs to know: the steps, without those inside of completed nodes."""
        done = self._done
        if not done:
            return self.steps
        return [e for e in self.steps if not _is_inside(e, done)]

    def has(self, event: AnyEvent) -> bool:
        """Whether an event with this key was applied already (of the open turn, or a decision)."""
        return event.key in self._seen

    def answered_at(self, key: str) -> int:
        """The seq at which the request with this Idempotency-Key got its answer; 0: not yet."""
        taken = self.requests[key]
        return taken.answered or next((seq for seq in self.pauses if seq > taken.seq), 0)

    def was_shown(self, uuid: str, by: int) -> bool:
        """Whether an answer had described this approval to a client by event ``by``."""
        return uuid in self._shown and self._shown[uuid] <= by

    def apply(self, event: AnyEvent) -> None:
        """Takes the next event of the journal."""
        self.seq = event.seq
        self._seen.add(event.key)
        if not isinstance(event, Answered):  # which changes nothing that a client sees
            self.updated_at = event.time or self.updated_at
        match event:
            case ConversationCreated():
                self._created(event)
            case UserMessage():
                self._opened(event)
            case Completed() | Error():
                self._closed(event)
            case ConversationCompleted():
                self.is_completed = True
            case Paused():
                self.paused = self.turn_open
                if self.pending:  # else all was decided meanwhile: the turn goes on, and nobody was answered
                    self.pauses.append(event.seq)
            case Answered():
                self._answered(event)
            case (
                LlmCall()
                | ToolIntent()
                | ToolResult()
                | ApprovalRequired()
                | ApprovalResolved()
                | NodeCompleted()
            ):
                self._stepped(event)
            case _:
                pass

    def _created(self, event: ConversationCreated) -> None:
        self.id, self.session_id = event.conversation_id, event.session_id
        self.context_id = event.context_id
        self.agent, self.digest = event.agent, event.digest
        self.created_at = event.time
        self._remember(event.idempotency_key, event.body_hash, event.seq)
        self.pauses.append(event.seq)
        if event.system_prompt:
            self._say("system", event.system_prompt, event)

    def _opened(self, event: UserMessage) -> None:
        self.turn, self.turn_open, self.paused = event.turn, True, False
        self.llm_calls = 0
        self.user_message, self.message_id = event.text, event.message_id
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
        self.history.append(User(self.user_message))
        self.history.extend(exchange(self.steps, ROOT))
        if self.history[-1] != Assistant(text):
            self.history.append(Assistant(text))
        if isinstance(event, Completed):
            self.state |= event.state
        self.turn_open, self.steps, self.last_answer = False, [], event
        self._seen.clear()
        self.pauses.append(event.seq)

    def _stepped(self, event: StepEvent) -> None:
        if not self.turn_open:
            return
        self.steps.append(event)
        self.llm_calls += isinstance(event, LlmCall)
        self.paused = False
        match event:
            case LlmCall(text=text) if text and event.place == ROOT:
                self._say("assistant", text, event)
            case ToolResult():
                self.artifacts = (*self.artifacts, *event.artifacts)[:_MOST_ARTIFACTS]
                self._say("tool", event.content, event, self._tool_call_view(event))
            case ApprovalRequired():
                self.asked.add(event.uuid)
            case ApprovalResolved():
                self.decided[event.uuid] = event
                if event.decision == "answer":
                    self._say("user", event.answer, event)
                self.had_token = self.had_token or event.had_token
                self._remember(event.idempotency_key, event.body_hash, event.seq)
            case _:
                pass

    def _answered(self, event: Answered) -> None:
        if event.uuid:
            self._shown.setdefault(event.uuid, event.seq)
        if event.idempotency_key:
            self.requests[event.idempotency_key] = KeyedRequest(event.body_hash, event.seq, event.seq)

    def _tool_call_view(self, event: ToolResult) -> ToolCallView:
        call = asked_for(self.steps, event)
        arguments = call.arguments if call else {}
        for step in self.steps:
            if isinstance(step, ToolIntent) and step.step == event.step:
                arguments = step.arguments
        return ToolCallView(event.tool, arguments, event.content, event.is_error)

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


def _is_inside(event: StepEvent, done: set[Place]) -> bool:
    """Whether an event belongs to a completed node and is not the completion of the outermost one."""
    place = event.place
    if not isinstance(event, NodeCompleted) and place in done:
        return True
    return any(outer in done for outer in place.enclosing)
