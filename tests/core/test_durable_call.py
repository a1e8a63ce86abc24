"""The life of a call: every row of the table of `mesh.core.durable_call`, and what must never happen."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.durable_call import (
    MESSAGE_REFUSED,
    Accept,
    Action,
    Answer,
    Ask,
    AskPolicy,
    AskWhatToDo,
    Done,
    History,
    IllegalTransition,
    MakeClaim,
    Recover,
    Refuse,
    Run,
    Skip,
    State,
    Stop,
    Wait,
    action_after_conflict,
    action_after_not_begun,
    action_after_unknown,
    action_after_verdict,
    next_action,
)
from mesh.core.events import (
    AnyEvent,
    ApprovalKindName,
    ApprovalRequired,
    ApprovalResolved,
    Choice,
    Found,
    Outcome,
    Preview,
    RemoteQuestion,
    ToolIntent,
    ToolResult,
)
from mesh.core.verdict import PolicyDecision, Verdict

ARGUMENTS = {"line": "a"}
EDITED = {"line": "b"}


@dataclass
class Tool:
    """A `Callee` that says what it is told to say."""

    arguments: dict[str, Any] = field(default_factory=lambda: ARGUMENTS)
    is_repeatable: bool = False
    is_durable: bool = False
    lacks_token: bool = False
    may_know_later: bool = False
    wrong: str = ""
    is_question: bool = False
    has_begun: bool = False
    policy: PolicyDecision = "allowed"
    changed: str = ""

    def problem(self, arguments: dict[str, Any]) -> str:
        return self.wrong

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.policy, "prod", "Not now.")

    def changes_since(self, asked: ApprovalRequired) -> str:
        return self.changed


def required(uuid: str = "u", kind: ApprovalKindName = "tool_call", **more: Any) -> ApprovalRequired:
    fields = {"call_id": "c", "tool_name": "add", "tool_args": ARGUMENTS, "description": "", **more}
    return ApprovalRequired(uuid=uuid, kind=kind, **fields)


def resolved(decision: Choice, uuid: str = "u", **more: Any) -> ApprovalResolved:
    return ApprovalResolved(uuid=uuid, choice=decision, **more)


def claimed(attempt: int = 0, answers: str = "") -> ToolIntent:
    return ToolIntent(run=1, tool="add", arguments=ARGUMENTS, attempt=attempt, answers=answers)


RESULT = ToolResult(call_id="c", tool="add", content="done")
FROM_AGENT = required("r", remote_task_id="t", remote_question=RemoteQuestion("x", "q", "mesh"))
WANTS_TOKEN = required("k", "auth_required", remote_question=RemoteQuestion("x", "", "text"))
REFUSED_US = required("k", "auth_required", remote_question=RemoteQuestion("x", MESSAGE_REFUSED, "text"))


ALLOWED, ASKED, DENIED = (Tool(policy=policy).verdict for policy in get_args(PolicyDecision))


def judged(action: Action, tool: Tool) -> Action:
    """The action, after the policy was asked if it has to be."""
    return action_after_verdict(action, tool.verdict, tool) if isinstance(action, AskPolicy) else action


def action(events: Sequence[AnyEvent], tool: Tool | None = None) -> Action:
    tool = tool or Tool()
    return judged(next_action(History(events), tool), tool)


ROWS: list[tuple[str, list[AnyEvent], Tool, Action]] = [
    ("a call that cannot be made is refused", [], Tool(wrong="no"), Refuse("no")),
    ("a call that cannot be made asks nobody", [], Tool(wrong="no", policy="ask"), Refuse("no")),
    ("a person is asked first", [], Tool(policy="ask"), Ask("tool_call", ARGUMENTS, ASKED)),
    (
        "a person is asked also about what could be repeated",
        [],
        Tool(is_repeatable=True, policy="ask"),
        Ask("tool_call", ARGUMENTS, ASKED),
    ),
    (
        "what was let run, and has begun, is not asked about again",
        [],
        Tool(is_durable=True, has_begun=True, policy="ask"),
        Run(ARGUMENTS, ASKED),
    ),
    (
        "but what is denied by now does not go on",
        [],
        Tool(is_durable=True, has_begun=True, policy="denied"),
        Refuse("Not now. (rule prod of the policy)", was_allowed=True),
    ),
    ("what is denied is refused", [], Tool(policy="denied"), Refuse("Not now. (rule prod of the policy)")),
    (
        "what is denied by now is refused, although a person has approved it",
        [required(), resolved("approve")],
        Tool(policy="denied"),
        Refuse("Not now. (rule prod of the policy)", was_allowed=True),
    ),
    (
        "what is denied by now is not told the decision, and cancelled",
        [claimed(), FROM_AGENT, resolved("approve", "r")],
        Tool(policy="denied"),
        Refuse("Not now. (rule prod of the policy)", was_allowed=True, cancels="t"),
    ),
    (
        "a question is asked whatever the policy says",
        [],
        Tool(policy="denied", is_question=True),
        Ask("question", ARGUMENTS),
    ),
    (
        "other arguments than those that were previewed are asked about again",
        [required(preview=Preview("diff", "+b")), resolved("approve", edited_args=EDITED)],
        Tool(policy="ask"),
        Ask("tool_call", EDITED, ASKED, "a person changed the arguments; this is what it would do with them"),
    ),
    ("what may run twice is run", [], Tool(is_repeatable=True), Run(ARGUMENTS, ALLOWED)),
    ("what must not run twice is claimed", [], Tool(), MakeClaim(ARGUMENTS, ALLOWED)),
    ("an approval is waited for", [required()], Tool(), Wait()),
    ("a rejection without a reason stops", [required(), resolved("reject")], Tool(), Stop()),
    (
        "a rejection with a reason is told to the model",
        [required(), resolved("reject", reason="later")],
        Tool(),
        Refuse(reason="later"),
    ),
    (
        "what nobody knows and a person skips is not run",
        [claimed(), required(kind="unknown_outcome"), resolved("skip")],
        Tool(),
        Skip(claimed()),
    ),
    (
        "an answer is the result",
        [required(kind="question"), resolved("answer", answer="blue")],
        Tool(),
        Answer("blue"),
    ),
    (
        "what was approved is claimed",
        [required(), resolved("approve")],
        Tool(),
        MakeClaim(ARGUMENTS, ALLOWED),
    ),
    (
        "what was approved is claimed even if it could be repeated",
        [required(), resolved("approve")],
        Tool(is_repeatable=True),
        MakeClaim(ARGUMENTS, ALLOWED),
    ),
    (
        "what was edited is claimed as it was edited",
        [required(), resolved("approve", edited_args=EDITED)],
        Tool(),
        MakeClaim(EDITED, ALLOWED),
    ),
    (
        "what was approved and cannot be made any more is refused",
        [required(), resolved("approve")],
        Tool(wrong="gone"),
        Refuse("gone", was_allowed=True),
    ),
    (
        "a tool that has changed since is asked about again",
        [required(), resolved("approve")],
        Tool(changed="schema"),
        Ask("tool_call", ARGUMENTS, ALLOWED, "schema"),
    ),
    (
        "a retry is claimed",
        [claimed(), required(kind="unknown_outcome"), resolved("retry")],
        Tool(),
        MakeClaim(ARGUMENTS, ALLOWED),
    ),
    (
        "a retry asks first whom can tell by now",
        [claimed(), required(kind="unknown_outcome"), resolved("retry")],
        Tool(may_know_later=True),
        Recover(claimed(), is_retry=True),
    ),
    (
        "a retry that is denied by now is not made, whoever can tell",
        [claimed(), required(kind="unknown_outcome"), resolved("retry")],
        Tool(may_know_later=True, policy="denied"),
        Skip(claimed(), "Not now. (rule prod of the policy)"),
    ),
    (
        "a retry asks for a lost token first",
        [claimed(), required(kind="unknown_outcome"), resolved("retry")],
        Tool(may_know_later=True, lacks_token=True),
        Ask("auth_required", ARGUMENTS),
    ),
    ("a claim is recovered", [required(), resolved("approve"), claimed()], Tool(), Recover(claimed())),
    ("a result is the end", [claimed(), RESULT], Tool(), Done(RESULT)),
    (
        "a late result ends what waits",
        [claimed(), required(kind="unknown_outcome"), RESULT],
        Tool(),
        Done(RESULT),
    ),
    # other agents
    (
        "the decision is told to who asked",
        [claimed(), FROM_AGENT, resolved("approve", "r")],
        Tool(),
        MakeClaim(ARGUMENTS, ALLOWED, "r"),
    ),
    (
        "a rejection, too",
        [claimed(), FROM_AGENT, resolved("reject", "r")],
        Tool(),
        MakeClaim(ARGUMENTS, ALLOWED, "r"),
    ),
    (
        "a token that is refused to a task cancels it",
        [claimed(), required(kind="auth_required", remote_task_id="t"), resolved("reject")],
        Tool(),
        Stop(cancels="t"),
    ),
    ("a lost token is asked for before a claim", [], Tool(lacks_token=True), Ask("auth_required", ARGUMENTS)),
    (
        "a lost token is asked for before a recovery",
        [claimed()],
        Tool(lacks_token=True),
        Ask("auth_required", ARGUMENTS),
    ),
    (
        "a token that came is as if it had always been there",
        [claimed(), required("k", "auth_required"), resolved("approve", "k")],
        Tool(),
        Recover(claimed()),
    ),
    (
        "also where another agent wanted it, and took the message",
        [claimed(), WANTS_TOKEN, resolved("approve", "k")],
        Tool(),
        Recover(claimed()),
    ),
    (
        "a message that was refused for want of a token is sent again",
        [claimed(answers="r"), REFUSED_US, resolved("approve", "k")],
        Tool(),
        MakeClaim(ARGUMENTS, ALLOWED, "r"),
    ),
]


@pytest.mark.parametrize(
    ("events", "tool", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_what_follows(events: list[AnyEvent], tool: Tool, expected: Action) -> None:
    assert action(events, tool) == expected


NOT_BEGUN: list[tuple[str, list[AnyEvent], Recover, Tool, Action]] = [
    (
        "what was approved is claimed again, as it was approved",
        [required(), resolved("approve", edited_args=EDITED), claimed()],
        Recover(claimed()),
        Tool(),
        MakeClaim(EDITED, ALLOWED),
    ),
    (
        "earlier claims have not begun either",
        [required(), resolved("approve"), claimed(0), claimed(1)],
        Recover(claimed(1)),
        Tool(),
        MakeClaim(ARGUMENTS, ALLOWED),
    ),
    (
        "a tool that is destructive by now is asked about",
        [claimed()],
        Recover(claimed()),
        Tool(policy="ask"),
        Ask("tool_call", ARGUMENTS, ASKED),
    ),
    (
        "what was claimed once is not run without a claim",
        [claimed()],
        Recover(claimed()),
        Tool(is_repeatable=True),
        MakeClaim(ARGUMENTS, ALLOWED),
    ),
    (
        "what cannot be made any more says that it was not run",
        [claimed()],
        Recover(claimed()),
        Tool(wrong="gone"),
        Refuse("gone", was_allowed=True),
    ),
    (
        "a retry is claimed again, and tells the same decision",
        [
            FROM_AGENT,
            resolved("approve", "r"),
            claimed(0, "r"),
            required(kind="unknown_outcome"),
            resolved("retry"),
        ],
        Recover(claimed(0, "r"), is_retry=True),
        Tool(may_know_later=True, policy="ask"),
        MakeClaim(ARGUMENTS, ASKED, "r"),
    ),
]


@pytest.mark.parametrize(
    ("events", "recovered", "tool", "expected"),
    [row[1:] for row in NOT_BEGUN],
    ids=[row[0] for row in NOT_BEGUN],
)
def test_what_follows_a_claim_that_never_began(
    events: list[AnyEvent], recovered: Recover, tool: Tool, expected: Action
) -> None:
    assert judged(action_after_not_begun(History(events), recovered, tool), tool) == expected


def found(outcome: Outcome) -> Found:
    return Found("was_added", outcome, "as it says")


UNKNOWN: list[tuple[str, list[AnyEvent], Found | None, Tool, Action]] = [
    ("without a check a person is asked", [claimed()], None, Tool(), AskWhatToDo(claimed())),
    (
        "a person is asked what the check does not know either",
        [claimed()],
        found("unknown"),
        Tool(),
        AskWhatToDo(claimed(), found("unknown")),
    ),
    (
        "what was applied is the result",
        [required(), resolved("approve"), claimed()],
        found("applied"),
        Tool(policy="ask"),
        Accept(found("applied")),
    ),
    (
        "what was applied is the result, whatever the tool is by now",
        [claimed()],
        found("applied"),
        Tool(wrong="gone"),
        Accept(found("applied")),
    ),
    (
        "what was not applied is claimed again, as it was approved",
        [required(), resolved("approve", edited_args=EDITED), claimed()],
        found("not_applied"),
        Tool(policy="ask"),
        MakeClaim(EDITED, ASKED, found=found("not_applied")),
    ),
    (
        "what was not applied is claimed again after a retry, too",
        [claimed(), required(kind="unknown_outcome"), resolved("retry"), claimed(1)],
        found("not_applied"),
        Tool(policy="ask"),
        MakeClaim(ARGUMENTS, ASKED, found=found("not_applied")),
    ),
    (
        "what was not applied and is destructive by now is asked about",
        [claimed()],
        found("not_applied"),
        Tool(policy="ask"),
        Ask("tool_call", ARGUMENTS, ASKED),
    ),
    (
        "what was not applied is asked about again if its tool has changed",
        [required(), resolved("approve"), claimed()],
        found("not_applied"),
        Tool(changed="schema"),
        Ask("tool_call", ARGUMENTS, ALLOWED, "schema"),
    ),
    (
        "what was not applied and cannot be made any more was not run",
        [claimed()],
        found("not_applied"),
        Tool(wrong="gone"),
        Refuse("gone", was_allowed=True),
    ),
    (
        "what was not applied is not run without a claim",
        [claimed()],
        found("not_applied"),
        Tool(is_repeatable=True),
        MakeClaim(ARGUMENTS, ALLOWED, found=found("not_applied")),
    ),
]


@pytest.mark.parametrize(
    ("events", "told", "tool", "expected"), [row[1:] for row in UNKNOWN], ids=[row[0] for row in UNKNOWN]
)
def test_what_follows_a_claim_of_which_nobody_knows_what_came(
    events: list[AnyEvent], told: Found | None, tool: Tool, expected: Action
) -> None:
    history = History(events)
    assert judged(action_after_unknown(history, Recover(history.last_claim), tool, told), tool) == expected


def test_who_approved_what_has_changed_meanwhile_is_asked_again() -> None:
    history = History([required(), resolved("approve"), claimed()])
    tool = Tool(policy="ask")
    follows = judged(action_after_conflict(history, tool, "changed"), tool)
    assert follows == Ask("tool_call", ARGUMENTS, ASKED, "changed")


def test_what_a_policy_allows_is_made_again_if_it_has_changed_meanwhile() -> None:
    follows = judged(action_after_conflict(History([claimed()]), Tool(), "changed"), Tool())
    assert follows == MakeClaim(ARGUMENTS, ALLOWED)


def test_no_two_approvals_of_a_step_and_kind_have_the_same_number() -> None:
    history = History([required("a", attempt=0), resolved("approve", "a"), required("b", attempt=3)])
    assert history.next_attempt("tool_call") == 4
    assert history.next_attempt("unknown_outcome") == 0


IN_STATE: dict[State, list[AnyEvent]] = {
    State.NEW: [],
    State.WAITING: [required()],
    State.DECIDED: [required(), resolved("approve")],
    State.CLAIMED: [claimed()],
    State.DONE: [RESULT],
}
LEGAL = {
    (State.NEW, ApprovalRequired),
    (State.NEW, ToolIntent),
    (State.NEW, ToolResult),
    (State.WAITING, ApprovalResolved),
    (State.WAITING, ToolResult),
    (State.DECIDED, ApprovalRequired),
    (State.DECIDED, ToolIntent),
    (State.DECIDED, ToolResult),
    (State.CLAIMED, ApprovalRequired),
    (State.CLAIMED, ToolIntent),
    (State.CLAIMED, ToolResult),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    "event", [required("n"), resolved("approve"), claimed(1), RESULT], ids=lambda e: e.wire_name
)
def test_only_legal_transitions_may_be_recorded(state: State, event: AnyEvent) -> None:
    history = History(IN_STATE[state])
    assert history.state is state
    if (state, type(event)) in LEGAL:
        history.check(event)
    else:
        with pytest.raises(IllegalTransition, match=state.value):
            history.check(event)


EVENTS = st.lists(
    st.one_of(
        st.builds(claimed, st.integers(0, 2), st.sampled_from(["", "r"])),
        st.builds(
            required,
            st.sampled_from("ab"),
            st.sampled_from(["tool_call", "unknown_outcome", "auth_required"]),
        ),
        st.sampled_from([FROM_AGENT, WANTS_TOKEN, REFUSED_US]),
        st.builds(
            resolved,
            st.sampled_from(["approve", "reject", "answer"]),
            st.sampled_from("abrk"),
        ),
    ),
    max_size=8,
)
TOOLS = st.builds(
    Tool,
    is_repeatable=st.booleans(),
    lacks_token=st.booleans(),
    may_know_later=st.booleans(),
    wrong=st.sampled_from(["", "wrong"]),
    policy=st.sampled_from(["allowed", "ask", "denied"]),
    changed=st.sampled_from(["", "changed"]),
)


@settings(deadline=None)
@given(EVENTS, TOOLS)
def test_whatever_the_journal_has_there_is_a_next_action_and_it_may_be_recorded(
    events: list[AnyEvent], tool: Tool
) -> None:
    history = History(events)
    match judged(next_action(history, tool), tool):
        case MakeClaim():
            history.check(claimed())
        case Ask():
            history.check(required())
        case Refuse() | Skip() | Answer() | Run():
            history.check(RESULT)
        case Wait():
            assert history.state is State.WAITING
        case Recover(claim=claim):
            assert claim in history.claims
        case _:
            pass


@settings(deadline=None)
@given(EVENTS, TOOLS)
def test_nothing_is_claimed_while_a_person_is_asked(events: list[AnyEvent], tool: Tool) -> None:
    history = History(events)
    if history.state is State.WAITING:
        assert next_action(history, tool) == Wait()


@settings(deadline=None)
@given(EVENTS, TOOLS)
def test_a_callee_that_needs_a_person_is_never_claimed_without_one(
    events: list[AnyEvent], tool: Tool
) -> None:
    tool.policy = "ask"
    history = History(events)
    if isinstance(judged(next_action(history, tool), tool), MakeClaim | Run):
        assert any(history.decision_on(asked) is not None for asked in history.approvals)


@settings(deadline=None)
@given(EVENTS, TOOLS)
def test_what_the_policy_denies_is_never_run_and_never_claimed(events: list[AnyEvent], tool: Tool) -> None:
    tool.policy = "denied"
    assert not isinstance(judged(next_action(History(events), tool), tool), MakeClaim | Run)


FOUND = st.one_of(st.none(), st.sampled_from(["applied", "not_applied", "unknown"]).map(found))


@settings(deadline=None)
@given(EVENTS.filter(lambda events: any(isinstance(e, ToolIntent) for e in events)), TOOLS, FOUND)
def test_whatever_the_journal_and_the_check_say_a_claim_follows_only_what_was_not_applied(
    events: list[AnyEvent], tool: Tool, told: Found | None
) -> None:
    history = History(events)
    recovering = next_action(history, tool)
    if not isinstance(recovering, Recover):
        return
    follows = judged(action_after_unknown(history, recovering, tool, told), tool)
    assert isinstance(follows, AskWhatToDo) == (told is None or told.outcome == "unknown")
    assert isinstance(follows, Accept) == (told is not None and told.outcome == "applied")
    match follows:
        case MakeClaim(found=why):
            assert why == told
            history.check(claimed(history.last_claim.attempt + 1))
        case AskWhatToDo() | Ask():
            history.check(required())
        case Accept() | Refuse():
            history.check(RESULT)


Fate = Literal["dies before", "dies after", "runs"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["dies before", "dies after", "runs"]), max_size=8), TOOLS)
def test_with_a_check_that_knows_the_truth_a_call_has_its_effect_once_and_nobody_is_asked(
    fates: list[Fate], tool: Tool
) -> None:
    """The life of a call that was approved, with a session that dies at any point, driven by hand."""
    tool.wrong, tool.changed, tool.lacks_token, tool.policy = "", "", False, "ask"
    events: list[AnyEvent] = [required(), resolved("approve")]
    effects = 0
    action = judged(next_action(History(events), tool), tool)
    for fate in [*fates, "runs"]:
        assert isinstance(action, MakeClaim)
        claim = claimed(sum(isinstance(e, ToolIntent) for e in events))
        History(events).check(claim)
        events.append(claim)
        effects += fate != "dies before"
        if fate == "runs":
            break
        recovering = next_action(History(events), tool)
        assert recovering == Recover(claim)
        truth = found("applied" if effects else "not_applied")
        action = judged(action_after_unknown(History(events), recovering, tool, truth), tool)
        if isinstance(action, Accept):
            break
    assert effects == 1
