"""The life of a call that must not run twice, as a state machine without I/O.

A call is one step of a turn: of a tool, of another agent, or a question to the person. Its state is what the
journal knows of the step, and nothing else. `next_action` is a pure function of that state and of what the
callee says about itself (`Callee`). The driver (`mesh.tree.calls`) takes the action, journals what came of
it, and asks for the next one.

    state      last event of the step       action
    ─────────────────────────────────────────────────────────────────────────────────────────────────────
    NEW        none                         the call cannot be made          Refuse
                                            it is itself a question          Ask
                                            otherwise                        AskPolicy
    WAITING    approval_required                                             Wait
    DECIDED    approval_resolved            rejected without a reason        Stop
                                            rejected with a reason           Refuse
                                            skipped                          Skip
                                            answered                         Answer
                                            retry, and the callee may know   AskPolicy, then Recover
                                            approved: it cannot be made      Refuse
                                                      otherwise              AskPolicy
    CLAIMED    tool_intent                                                   Recover
    DONE       tool_result                                                   Done

No call is made without a verdict of the policy (`AskPolicy`), which leads to (`action_after_verdict`)

    denied, also if it was approved before                                   Refuse
    ask, and nobody has approved it, nor has it begun                        Ask
    or the callee has changed since it was approved                          Ask
    otherwise: its steps are durable, or running it twice is harmless        Run
               otherwise                                                     MakeClaim

A claim that was made or recovered ends in one of these ways, and each leads to the next event:

    it returned, or failed                                                   tool_result
    it did not begin, and never will        `action_after_not_begun`: another claim, if that is still right
    it found something else than previewed  `action_after_conflict`: who approved it is asked again
    nobody knows                            `action_after_unknown`: the callee's check is asked
                                              applied: tool_result, with what it found
                                              not_applied: another claim, as for one that did not begin
                                              unknown, or there is no check:
                                                approval_required, kind unknown_outcome
    the callee asks                         approval_required, with its question

Where a call needs the bearer token of the turn and that was lost in a crash, an approval of the kind
auth_required comes before MakeClaim and Recover. Once it is granted, it is as if it had never been asked for.

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
from mesh.core.verdict import Verdict

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
    def has_begun(self) -> bool:
        """Whether it is durable and has begun, so that it was let run. That stands, unless it is denied."""
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

    @property
    def is_question(self) -> bool:
        """Whether it has no effect but to ask a person, and no policy decides about it."""
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
    """A claim of which nobody knows the outcome is not repeated: a person has decided that, or the policy
    does, for the reason ``denial``."""

    claim: ToolIntent
    denial: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The person's answer is the result."""

    text: str


class AskPolicy(msgspec.Struct, frozen=True):
    """The policy has to say what becomes of the call. ``is_approved``: a person has agreed to it, or it has
    begun; ``changes`` is how the callee differs from what was agreed to. ``was_claimed``: it is not run
    without a claim. ``answers`` is the approval whose decision it tells the callee, which works on the task
    ``cancels``. ``repeats`` is a claim of which nobody knows the outcome, and which a person wants repeated
    by a callee that may know it. ``found`` as in `MakeClaim`."""

    arguments: dict[str, Any]
    is_approved: bool = False
    changes: str = ""
    was_claimed: bool = False
    answers: str = ""
    cancels: str = ""
    repeats: ToolIntent | None = None
    found: Found | None = None


class Ask(msgspec.Struct, frozen=True):
    """A person has to be asked. ``verdict`` is the policy's, if it has one. ``changes``: how the callee
    differs from what was approved before."""

    kind: ApprovalKindName
    arguments: dict[str, Any]
    verdict: Verdict | None = None
    changes: str = ""


class Run(msgspec.Struct, frozen=True):
    """Make the call, without a claim."""

    arguments: dict[str, Any]
    verdict: Verdict


class MakeClaim(msgspec.Struct, frozen=True):
    """Claim the call, then make it. ``answers`` is the approval whose decision it tells the callee.
    ``found``: a check found that the claim before had no effect."""

    arguments: dict[str, Any]
    verdict: Verdict
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


Action = (
    Done
    | Wait
    | Stop
    | Refuse
    | Skip
    | Answer
    | AskPolicy
    | Ask
    | Run
    | MakeClaim
    | Recover
    | Accept
    | AskWhatToDo
)


def next_action(history: History, callee: Callee) -> Action:
    """What to do next with a call: see the table of the module."""
    match history.state:
        case State.NEW:
            return _begin(callee)
        case State.WAITING:
            return Wait()
        case State.DECIDED:
            return _decided(history, callee)
        case State.CLAIMED:
            return _recover(history, callee, Recover(history.last_claim))
        case State.DONE:
            assert history.result is not None  # that is what DONE means
            return Done(history.result)


def action_after_verdict(asked: AskPolicy, verdict: Verdict, callee: Callee) -> Action:
    """What to do next with a call about which the policy says this."""
    arguments, may_have_begun = asked.arguments, asked.is_approved or asked.was_claimed
    if asked.repeats is not None:
        return _repeated(asked.repeats, arguments, verdict, callee)
    if verdict.decision == "denied":
        return Refuse(verdict.told, was_allowed=may_have_begun, cancels=asked.cancels)
    if asked.changes or (verdict.decision == "ask" and not asked.is_approved):
        return Ask("tool_call", arguments, verdict, asked.changes)
    if callee.is_durable or (callee.is_repeatable and not may_have_begun):
        return Run(arguments, verdict)
    if callee.lacks_token:
        return Ask("auth_required", arguments)
    return MakeClaim(arguments, verdict, asked.answers, asked.found)


def _repeated(claim: ToolIntent, arguments: dict[str, Any], verdict: Verdict, callee: Callee) -> Action:
    if verdict.decision == "denied":
        return Skip(claim, verdict.told)
    return Ask("auth_required", arguments) if callee.lacks_token else Recover(claim, is_retry=True)


def action_after_not_begun(history: History, recovered: Recover, callee: Callee) -> Action:
    """What to do next when the claim to be recovered has not begun, and never will.

    A retry was decided, so it is claimed again. Otherwise it is as if the claim had not been made, but for
    two things: what was claimed once is not run without a claim, and a refusal says that the call was not
    run.
    """
    if recovered.is_retry:
        arguments = history.arguments(callee.arguments)
        return AskPolicy(arguments, is_approved=True, answers=recovered.claim.answers)
    match next_action(history.before(recovered.claim), callee):
        case AskPolicy() as asks:
            return msgspec.structs.replace(asks, was_claimed=True)
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
    return msgspec.structs.replace(action, found=found) if isinstance(action, AskPolicy) else action


def action_after_conflict(history: History, callee: Callee, why: str) -> Action:
    """What to do next when a claimed call changed nothing, because what is there is not what was previewed.
    Who approved it has to see what it would do now; a call that the policy allows is made again."""
    is_approved = any(history.decision_on(asked) is not None for asked in history.approvals)
    arguments = history.arguments(callee.arguments)
    if is_approved:
        return AskPolicy(arguments, is_approved=True, changes=why)
    return AskPolicy(arguments, was_claimed=True)


def _begin(callee: Callee) -> Action:
    arguments = callee.arguments
    if problem := callee.problem(arguments):
        return Refuse(problem)
    if callee.is_question:
        return Ask("question", arguments)
    return AskPolicy(arguments, is_approved=callee.has_begun)


def _decided(history: History, callee: Callee) -> Action:
    asked, arguments = history.asked, history.arguments(callee.arguments)
    decision = history.decision_on(asked)
    assert decision is not None  # that is what DECIDED means
    is_denied_token = APPROVAL_KINDS[asked.kind].needs_token and decision.choice == "reject"
    if asked.remote_task_id and not is_denied_token:
        return AskPolicy(arguments, is_approved=True, answers=asked.uuid, cancels=asked.remote_task_id)
    match decision.choice:
        case "reject":
            cancels = asked.remote_task_id
            return Refuse(reason=decision.reason, cancels=cancels) if decision.reason else Stop(cancels)
        case "skip":
            return Skip(history.last_claim)
        case "answer":
            return Answer(decision.answer)
        case "retry" if callee.may_know_later:
            return AskPolicy(arguments, is_approved=True, repeats=history.last_claim)
        case _:
            return _approved(history, callee, arguments)


def _approved(history: History, callee: Callee, arguments: dict[str, Any]) -> Action:
    if problem := callee.problem(arguments):
        return Refuse(problem, was_allowed=True)
    return AskPolicy(
        arguments,
        is_approved=True,
        changes=callee.changes_since(history.asked) or _edited(history.asked, arguments),
        answers=history.last_claim.answers if history.claims else "",
    )


def _edited(asked: ApprovalRequired, arguments: dict[str, Any]) -> str:
    """What a person saw is what happens: with other arguments, something else would."""
    is_other = asked.preview is not None and arguments != asked.tool_args
    return "a person changed the arguments; this is what it would do with them" if is_other else ""


def _recover(history: History, callee: Callee, action: Recover) -> Action:
    return Ask("auth_required", history.arguments(callee.arguments)) if callee.lacks_token else action


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
