"""The life of a call that must not run twice, as a state machine without I/O.

A call is one step of a turn: of a tool, of another agent, or a question to the person. Its state is what the
journal knows of the step, and nothing else. `next_action` is a pure function of that state and of what the
callee says about itself (`Callee`). The driver (`mesh.tree.calls`) takes the action, journals what came of
it, and asks for the next one.

    state      last event of the step       action
    ─────────────────────────────────────────────────────────────────────────────────────────────────────
    NEW        none                         the call cannot be made          Refuse
                                            a person has to agree first      Ask
                                            running it twice is harmless,
                                            or its steps are durable         Run
                                            otherwise                        Claim
    WAITING    approval_required                                             Wait
    DECIDED    approval_resolved            rejected without a reason        Stop
                                            rejected with a reason           Refuse
                                            skipped                          Skip
                                            answered                         Answer
                                            the callee had asked             Claim, to tell it the decision
                                            retry, and the callee may know   Recover
                                            approved: it cannot be made      Refuse
                                                      the tool has changed   Ask
                                                      its steps are durable  Run
                                                      otherwise              Claim
    CLAIMED    tool_intent                                                   Recover
    DONE       tool_result                                                   Done

A claim that was made or recovered ends in one of these ways, and each leads to the next event:

    it returned, or failed                                                   tool_result
    it did not begin, and never will        `action_after_not_begun`: another claim, if that is still right
    nobody knows                            `action_after_unknown`: the callee's check is asked
                                              applied: tool_result, with what it found
                                              not_applied: another claim, as for one that did not begin
                                              unknown, or there is no check:
                                                approval_required, kind unknown_outcome
    the callee asks                         approval_required, with its question

Where a call needs the bearer token of the turn and that was lost in a crash, an approval of the kind
auth_required comes before Claim and Recover. Once it is granted, it is as if it had never been asked for.

Invariant: there is no way from WAITING to a claim. Only the keeper writes approval_resolved.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.events import (
    AnyEvent,
    ApprovalKindName,
    ApprovalRequired,
    ApprovalResolved,
    Found,
    ToolIntent,
    ToolResult,
)

MESSAGE_REFUSED = "refused"
"""The question id of an approval that asks for a token because another agent refused the message."""


class State(Enum):
    """See the table of the module."""

    NEW = "new"
    WAITING = "waiting"
    DECIDED = "decided"
    CLAIMED = "claimed"
    DONE = "done"


_RECORDED_IN: dict[type[AnyEvent], frozenset[State]] = {
    ApprovalRequired: frozenset({State.NEW, State.DECIDED, State.CLAIMED}),
    ApprovalResolved: frozenset({State.WAITING}),
    ToolIntent: frozenset({State.NEW, State.DECIDED, State.CLAIMED}),
    # Also while a person is asked: the callee of an unknown outcome may report it after all.
    ToolResult: frozenset({State.NEW, State.WAITING, State.DECIDED, State.CLAIMED}),
}


class IllegalTransition(Exception):
    """A driver was about to record what must not follow the present state. A bug in the driver."""


class History:
    """The events of one step, the oldest first. Any sequence of events is accepted, because a journal cannot
    be corrected."""

    def __init__(self, events: Sequence[AnyEvent]) -> None:
        self._events = [e for e in events if not (isinstance(e, ApprovalRequired) and _is_granted(e, events))]
        self.claims = [e for e in events if isinstance(e, ToolIntent)]
        self.approvals = [e for e in events if isinstance(e, ApprovalRequired)]
        self.result = next((e for e in reversed(events) if isinstance(e, ToolResult)), None)
        self._all = events

    @property
    def state(self) -> State:
        """Where the call is in its life."""
        if self.result is not None:
            return State.DONE
        match self._last:
            case None:
                return State.NEW
            case ToolIntent():
                return State.CLAIMED
            case asked:
                return State.WAITING if self.decision_on(asked) is None else State.DECIDED

    @property
    def _last(self) -> ToolIntent | ApprovalRequired | None:
        """The last claim or question: what followed it belongs to it."""
        found = (e for e in reversed(self._events) if isinstance(e, ToolIntent | ApprovalRequired))
        return next(found, None)

    @property
    def last_claim(self) -> ToolIntent:
        """The newest claim; there must be one."""
        return self.claims[-1]

    @property
    def asked(self) -> ApprovalRequired:
        """The approval that waits or was decided last; the state must be WAITING or DECIDED."""
        assert isinstance(self._last, ApprovalRequired)
        return self._last

    @property
    def has_unknown_outcome(self) -> bool:
        """Whether it was unknown, at any time, what came of a claim."""
        return any(asked.kind == "unknown_outcome" for asked in self.approvals)

    def decision_on(self, asked: ApprovalRequired) -> ApprovalResolved | None:
        """What a person decided about an approval of this step."""
        return _decision_on(asked, self._all)

    def approval(self, uuid: str) -> ApprovalRequired | None:
        """The approval with this uuid."""
        return next((asked for asked in self.approvals if asked.uuid == uuid), None)

    def next_attempt(self, kind: ApprovalKindName) -> int:
        """The number of the next approval of this kind. Invariant: no other of the step has it; the journal
        would take the two for one."""
        return 1 + max((asked.attempt for asked in self.approvals if asked.kind == kind), default=-1)

    def arguments(self, original: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the person last approved them; the model's, if nobody was asked."""
        for asked in reversed(self.approvals):
            decision = None if asked.remote_task_id else self.decision_on(asked)
            if decision is not None:
                return asked.tool_args if decision.edited_args is None else decision.edited_args
        return original

    def before(self, claim: ToolIntent) -> "History":
        """The same step without a claim, and without the claims right before it: each of them was made
        because the one before it was known not to have begun."""
        events = list(self._all[: self._all.index(claim)])
        while events and isinstance(events[-1], ToolIntent):
            events.pop()
        return History(events)

    def check(self, event: AnyEvent) -> None:
        """Raises `IllegalTransition` if this event must not be recorded now."""
        if self.state not in _RECORDED_IN[type(event)]:
            raise IllegalTransition(
                f"{event.wire_name} of step {event.step} cannot be recorded in state {self.state.value}"
            )


class Callee(Protocol):
    """What is called, as it describes itself. The answers may differ from pass to pass: a tool can change."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments as the model wrote them."""
        ...

    @property
    def is_repeatable(self) -> bool:
        """Whether running it twice is harmless, so that it needs no claim."""
        ...

    @property
    def is_durable(self) -> bool:
        """Whether everything that it does is a step of its own, so that running it again goes on where it
        was. It never needs a claim."""
        ...

    @property
    def lacks_token(self) -> bool:
        """Whether it may need the turn's bearer token, and that was lost with the process that had it."""
        ...

    @property
    def may_know_later(self) -> bool:
        """Whether it may be able to tell later what came of a call, so that "retry" asks it first."""
        ...

    def problem(self, arguments: dict[str, Any]) -> str:
        """Why it cannot be called with these arguments, for whoever wrote them; empty if it can."""
        ...

    def kind_of_approval(self) -> ApprovalKindName | None:
        """What a person has to be asked before the first claim, if anything."""
        ...

    def changes_since(self, asked: ApprovalRequired) -> str:
        """How it differs from what a person was asked about; empty if it does not."""
        ...


class Done(msgspec.Struct, frozen=True):
    """The call is over, and this is its result."""

    result: ToolResult


class Wait(msgspec.Struct, frozen=True):
    """A person has to decide."""


class Stop(msgspec.Struct, frozen=True):
    """A person rejected the call without a reason: the turn ends. ``cancels`` is the other agent's task that
    nobody will answer any more."""

    cancels: str = ""


class Refuse(msgspec.Struct, frozen=True):
    """The call is not run; its result says why. ``reason`` is the person's; without one the call cannot be
    made, for this ``problem``. ``was_allowed``: the call had been approved, or
    claimed, before. ``cancels`` as in `Stop`."""

    problem: str = ""
    reason: str = ""
    was_allowed: bool = False
    cancels: str = ""


class Skip(msgspec.Struct, frozen=True):
    """A person decided that a claim of which nobody knows the outcome is not repeated."""

    claim: ToolIntent


class Answer(msgspec.Struct, frozen=True):
    """The person's answer is the result."""

    text: str


class Ask(msgspec.Struct, frozen=True):
    """A person has to be asked. ``changes``: how the callee differs from what was approved before."""

    kind: ApprovalKindName
    arguments: dict[str, Any]
    changes: str = ""


class Run(msgspec.Struct, frozen=True):
    """Make the call, without a claim."""

    arguments: dict[str, Any]


class MakeClaim(msgspec.Struct, frozen=True):
    """Claim the call, then make it. ``answers`` is the approval whose decision it tells the callee.
    ``found``: a check found that the claim before had no effect."""

    arguments: dict[str, Any]
    answers: str = ""
    found: Found | None = None


class Recover(msgspec.Struct, frozen=True):
    """Find out what came of a claim. ``is_retry``: a person wants it repeated if nobody knows."""

    claim: ToolIntent
    is_retry: bool = False


class Accept(msgspec.Struct, frozen=True):
    """A check found that the claim had its effect: that is the result."""

    found: Found


class AskWhatToDo(msgspec.Struct, frozen=True):
    """Nobody knows what came of the claim, so a person is asked. ``found``: nor does the check, for this
    reason."""

    claim: ToolIntent
    found: Found | None = None


Action = Done | Wait | Stop | Refuse | Skip | Answer | Ask | Run | MakeClaim | Recover | Accept | AskWhatToDo


def next_action(history: History, callee: Callee) -> Action:
    """What to do next with a call: see the table of the module."""
    action = _wanted(history, callee)
    if callee.lacks_token and isinstance(action, MakeClaim | Recover):
        return Ask("auth_required", history.arguments(callee.arguments))
    return action


def action_after_not_begun(history: History, recovered: Recover, callee: Callee) -> Action:
    """What to do next when the claim to be recovered has not begun, and never will.

    A retry was decided, so it is claimed again. Otherwise it is as if the claim had not been made, but for
    two things: what was claimed once is not run without a claim, and a refusal says that the call was not
    run.
    """
    if recovered.is_retry:
        return MakeClaim(history.arguments(callee.arguments), recovered.claim.answers)
    match next_action(history.before(recovered.claim), callee):
        case Run(arguments=arguments):
            return MakeClaim(arguments)
        case Refuse(problem=problem) if problem:
            return Refuse(problem, was_allowed=True)
        case action:
            return action


def action_after_unknown(history: History, recovered: Recover, callee: Callee, found: Found | None) -> Action:
    """What to do next when nobody knows what came of the claim to be recovered, and the callee's check found
    this. None: it has no check."""
    if found is None or found.outcome == "unknown":
        return AskWhatToDo(recovered.claim, found)
    if found.outcome == "applied":
        return Accept(found)
    action = action_after_not_begun(history, recovered, callee)
    return msgspec.structs.replace(action, found=found) if isinstance(action, MakeClaim) else action


def _wanted(history: History, callee: Callee) -> Action:
    match history.state:
        case State.NEW:
            return _begin(callee)
        case State.WAITING:
            return Wait()
        case State.DECIDED:
            return _decided(history, callee)
        case State.CLAIMED:
            return Recover(history.last_claim)
        case State.DONE:
            assert history.result is not None  # that is what DONE means
            return Done(history.result)


def _begin(callee: Callee) -> Action:
    arguments = callee.arguments
    if problem := callee.problem(arguments):
        return Refuse(problem)
    if kind := callee.kind_of_approval():
        return Ask(kind, arguments)
    return Run(arguments) if callee.is_repeatable or callee.is_durable else MakeClaim(arguments)


def _decided(history: History, callee: Callee) -> Action:
    asked, arguments = history.asked, history.arguments(callee.arguments)
    decision = history.decision_on(asked)
    assert decision is not None  # that is what DECIDED means
    is_denied_token = APPROVAL_KINDS[asked.kind].needs_token and decision.choice == "reject"
    if asked.remote_task_id and not is_denied_token:
        return MakeClaim(arguments, asked.uuid)
    match decision.choice:
        case "reject":
            cancels = asked.remote_task_id
            return Refuse(reason=decision.reason, cancels=cancels) if decision.reason else Stop(cancels)
        case "skip":
            return Skip(history.last_claim)
        case "answer":
            return Answer(decision.answer)
        case "retry" if callee.may_know_later:
            return Recover(history.last_claim, is_retry=True)
        case _:
            return _approved(history, callee, arguments)


def _approved(history: History, callee: Callee, arguments: dict[str, Any]) -> Action:
    if problem := callee.problem(arguments):
        return Refuse(problem, was_allowed=True)
    if changes := callee.changes_since(history.asked):
        return Ask("tool_call", arguments, changes)
    if callee.is_durable:
        return Run(arguments)
    return MakeClaim(arguments, history.last_claim.answers if history.claims else "")


def _is_granted(asked: ApprovalRequired, events: Sequence[AnyEvent]) -> bool:
    """Whether it asked for a token that has come since, and nothing but that. A message that another agent
    did not take for want of a token has to be sent again, so there the approval counts."""
    if asked.remote_task_id or not APPROVAL_KINDS[asked.kind].needs_token:
        return False
    question = asked.remote_question
    if question is not None and question.question_id == MESSAGE_REFUSED:
        return False
    decision = _decision_on(asked, events)
    return decision is not None and decision.choice == "approve"


def _decision_on(asked: ApprovalRequired, events: Sequence[AnyEvent]) -> ApprovalResolved | None:
    found = (e for e in reversed(events) if isinstance(e, ApprovalResolved) and e.uuid == asked.uuid)
    return next(found, None)
