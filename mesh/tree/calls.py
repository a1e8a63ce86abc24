"""Runs durable calls: does what `mesh.core.durable_call` says, and journals what comes of it.

    llm node, a2a node, tool node
      └ `run_call`          the loop: next action, verdict, effect, event
          ├ `Gate`          what the policy says (`mesh.tree.gate`)
          └ `CallDriver`    how one kind of call is made, recovered and described:
                            tools (`tool_call`), agents of the config (`agent_call`), other agents
                            (`remote_call`), the person (`ask_user`)

A driver makes effects and never records anything; the loop records and makes no effects.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.budget import OnLimit
from mesh.core.durable_call import (
    Accept,
    Action,
    Answer,
    Ask,
    AskPolicy,
    AskWhatToDo,
    Done,
    History,
    MakeClaim,
    Recover,
    Refuse,
    Run,
    Skip,
    Stop,
    Wait,
    action_after_conflict,
    action_after_not_begun,
    action_after_unknown,
    action_after_verdict,
    next_action,
)
from mesh.core.events import (
    ApprovalKindName,
    ApprovalRequired,
    Artifact,
    Found,
    Preview,
    SpentElsewhere,
    ToolCall,
    ToolIntent,
    ToolResult,
    moment,
)
from mesh.core.ids import approval_id
from mesh.core.places import StepKey
from mesh.core.verdict import Verdict, strictness
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.tree.gate import NO_POLICY, Gate, GateSources, GrantsOnly, PolicyReply
from mesh.tree.node import PAUSED, REJECTED, PassEnd
from mesh.tree.plan import ApprovalRule
from mesh.tree.steps import Steps
from mesh.tree.turn import AbandonedTask, PassInput, UnsettledCall

_MOST_CLAIMS = 5
"""Claims in one pass. Each but the first means that the session ended between a claim and its call, or during
the call, without an effect."""
MOST_SHOWN = 2_000
"""Bytes of what a question shows of a call."""
_SENTENCE = re.compile(r".*?[.!?](?= [A-Z\[`\"'(])")
_EARLIER = "\nIt is not known whether an earlier attempt ran."

T = TypeVar("T")


class Returned(msgspec.Struct, frozen=True):
    """The callee answered, or failed in a way that is its answer."""

    content: str
    is_error: bool = False
    artifacts: Sequence[Artifact] = ()
    forced: str = ""
    spent: SpentElsewhere | None = None
    output: Any = UNSET
    invalid: str = ""
    told: tuple[str, ...] = ()


class NotRun(msgspec.Struct, frozen=True):
    """It did not run; ``why`` is what its result says. ``by_decision``: a person wanted it so."""

    why: str
    by_decision: bool = False


class NotAsPreviewed(msgspec.Struct, frozen=True):
    """It changed nothing, because what it would have changed is not what the preview was made of."""

    why: str


class NotBegun(msgspec.Struct, frozen=True):
    """It did not begin, and in the name of this claim it never will."""


class Unknown(msgspec.Struct, frozen=True):
    """Nobody knows what came of it."""


class Asks(msgspec.Struct, frozen=True):
    """The callee asks a person. Its question, without what only the loop knows (uuid, attempt, deadline)."""

    question: ApprovalRequired


class Stopped(msgspec.Struct, frozen=True):
    """It took the person's rejection, which had no reason: the turn ends."""


Ended = Returned | NotRun | NotAsPreviewed | NotBegun | Unknown | Asks | Stopped
"""How the attempt to make or recover a claimed call ended."""


class CallDriver:
    """One call of one kind, for one pass: a `Callee` with its effects and its words. The base class is a
    callee without effects; a kind of call that is claimed overrides the second part."""

    is_question = False
    has_begun = False
    is_repeatable = False
    is_durable = False
    lacks_token = False
    may_know_later = False
    leaves_doubt = False
    """Whether an unknown outcome stays unknown, so that the result of a later claim has to tell of it."""

    may_be_broken_off = True
    """Whether a call without a claim ends with its pass; otherwise a pass that is cancelled waits for it."""

    tells_arguments = False
    """Whether the result of a call without a claim tells its arguments, because no model asked for it."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call

    @property
    def arguments(self) -> dict[str, Any]:
        """See `Callee`."""
        return self.call.arguments

    def problem(self, arguments: dict[str, Any]) -> str:
        """See `Callee`."""
        raise NotImplementedError

    def policy_call(self, arguments: dict[str, Any]) -> PolicyCall:
        """The call with these arguments, as policies see it."""
        raise NotImplementedError

    def policy_calls(self, arguments: dict[str, Any]) -> Sequence[PolicyCall]:
        """All that a policy is asked about before the call is made: the strictest verdict holds."""
        return (self.policy_call(arguments),)

    def changes_since(self, asked: ApprovalRequired) -> str:
        """See `Callee`."""
        return ""

    def attempt(self, kind: ApprovalKindName, history: History) -> int:
        """The number of the next approval of this kind in the step."""
        return history.next_attempt(kind)

    async def preview(self, arguments: dict[str, Any]) -> Preview | Returned | None:
        """What the call would do, or the error that it would return, if the callee can tell that."""
        return None

    def approval(self, action: Ask, description: str) -> ApprovalRequired:
        """What a person is asked, with a description for them to read."""
        return ApprovalRequired(
            uuid="",
            call_id=self.call.id,
            tool_name=self.call.name,
            tool_args=action.arguments,
            description=bounded(description, MOST_SHOWN),
            kind=action.kind,
        )

    def question(self, action: Ask) -> ApprovalRequired:
        """The question that asks a person to agree, without what only the loop knows."""
        raise NotImplementedError

    def refusal(self, action: Refuse) -> NotRun:
        """The result of a call that cannot be made, or that a person rejected."""
        raise NotImplementedError

    # -- kinds that claim their calls

    async def claim(self, action: MakeClaim) -> ToolIntent | NotRun | Returned:
        """The claim that is about to be journaled; ``run`` and ``attempt`` are the loop's. Or why there is
        none: it cannot be made, or is known to fail."""
        raise NotImplementedError

    async def run(self, arguments: dict[str, Any]) -> Returned | PassEnd:
        """Makes the call without a claim. Only for callees that are repeatable or durable. Returns how the
        pass ends, if the call goes on in a later one."""
        raise NotImplementedError

    async def run_claimed(self, claim: ToolIntent) -> Ended:
        """Makes the call that this pass has claimed. Runs to its end, even if the pass is cancelled."""
        raise NotImplementedError

    async def recover(self, claim: ToolIntent, *, is_retry: bool) -> Ended:
        """Finds out what came of a claim, and repeats what can be repeated."""
        raise NotImplementedError

    async def check(self, claim: ToolIntent) -> Found | None:
        """Nobody knows what came of a claim: asks the check of the callee, if it has one."""
        return None

    async def settle(self, claim: ToolIntent) -> None:
        """The pass is cancelled: a claimed call that has not begun must not begin any more."""

    async def skip(self, claim: ToolIntent) -> None:
        """A person decided against repeating the claim: what may still be on its way is withdrawn."""

    async def cancel(self, task_id: str) -> None:
        """Nobody will answer this task of another agent any more."""

    def question_about_unknown(self, action: AskWhatToDo) -> ApprovalRequired:
        """The question whether to repeat a claim of which nobody knows the outcome."""
        raise NotImplementedError

    def skipped(self) -> str:
        """The text of the result of a call that is not repeated."""
        raise NotImplementedError


class NodeCalls(Protocol):
    """What the keeper asks of a node about its calls, while the node does not run."""

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        ...

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """See `Tree.verdict`."""
        ...

    async def preview(self, call: ToolCall, offset: int) -> Preview | None:
        """See `Tree.preview`."""
        ...

    async def cancel(self, task: AbandonedTask) -> None:
        """See `Tree.cancel`."""
        ...

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`."""
        ...


class _NoCalls:
    """The calls of a node that makes none."""

    def problems(self, call: ToolCall) -> str:
        return "this node has no tools"

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        return Verdict("ask", "", self.problems(call))

    async def preview(self, call: ToolCall, offset: int) -> Preview | None:
        return None

    async def cancel(self, task: AbandonedTask) -> None:
        """It has asked no other agent."""

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        return None


NO_CALLS: NodeCalls = _NoCalls()


class CallSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What calls of one node have in common. ``name`` and ``output_key`` are the node's, for its questions.
    ``agent`` is the name of the agent that the node belongs to, and ``root`` that of the root agent, with
    which the paths of agents begin. ``gate`` asks the policy. ``approvals`` says whether destructive tools
    wait for a person; ``expire_after_s`` how long, None for ever. ``max_result_bytes``
    bounds the text of a result. ``on_limit`` is what follows at a limit of the budget: it says how much of
    what is left a callee may be told."""

    name: str = ""
    agent: str = ""
    root: str = ""
    output_key: str = ""
    gate: Gate = NO_POLICY
    approvals: ApprovalRule = ApprovalRule()
    expire_after_s: float | None = None
    max_result_bytes: int = 65_536
    on_limit: OnLimit = "answer"

    async def denial(self, call: PolicyCall, sources: GateSources) -> str:
        """Why a call that only checks something is not made; empty if it is. Nobody is asked about one."""
        verdict = (await self.gate.ask_policy(call, sources)).verdict
        return verdict.told if verdict.decision == "denied" else ""

    async def verdict(self, call: PolicyCall, grants: Sequence[Grant]) -> Verdict:
        """What the policy says about a call outside of a turn."""
        return (await self.gate.ask_policy(call, GrantsOnly(grants))).verdict

    def asks(self, turn: PassInput) -> bool:
        """Whether destructive tools wait for a person in this turn."""
        return self.approvals.asks_in(turn)


async def run_call(
    driver: CallDriver, steps: Steps, step: StepKey, call: ToolCall, settings: CallSettings
) -> ToolResult | PassEnd:
    """The call's result, recorded; or how the node's pass ends, if there is none yet."""
    return await _DurableCall(driver, steps, step, call, settings).run()


class _DurableCall:
    """One call in one pass."""

    def __init__(
        self, driver: CallDriver, steps: Steps, step: StepKey, call: ToolCall, settings: CallSettings
    ) -> None:
        self._driver = driver
        self._steps = steps
        self._step = step
        self._call = call
        self._settings = settings
        self._started: float | None = None  # when the effect began; None: nothing was called
        self._policy_reply: PolicyReply | None = None  # what the policy has said in this pass

    @property
    def _history(self) -> History:
        return History(self._steps.of(self._step))

    async def run(self) -> ToolResult | PassEnd:
        """Claims the call, or recovers its claim; again if nothing came of that."""
        action = await self._after_verdict(next_action(self._history, self._driver))
        is_retry = isinstance(action, Recover) and action.is_retry
        for _ in range(_MOST_CLAIMS + isinstance(action, Recover)):
            claim = await self._claim_of(action)
            if not isinstance(claim, ToolIntent):
                return claim
            done = await self._make(Recover(claim, is_retry), is_new=isinstance(action, MakeClaim))
            if isinstance(done, ToolResult | PassEnd):
                return done
            action = await self._after_verdict(done)
        return self._not_run(NotRun(self._given_up(action)))

    def _given_up(self, action: Action) -> str:
        """Why the call is not claimed once more. Who looks for its traces has to know how often it began."""
        begun = sum(isinstance(event, ToolIntent) for event in self._steps.of(self._step))
        found = action.found if isinstance(action, AskPolicy | MakeClaim) else None
        how = f"the check {found.check} says that it did not run" if found else "it did not run"
        return f"{self._call.name} was begun {begun} times, each time without an effect; {how}"

    async def _after_verdict(self, action: Action) -> Action:
        """What to do, once the policy has been asked if it has to be."""
        if not isinstance(action, AskPolicy):
            return action
        calls = self._driver.policy_calls(action.arguments)
        replies = [await self._settings.gate.ask_policy(call, self._steps) for call in calls]
        self._policy_reply = max(replies, key=lambda reply: strictness(reply.verdict.decision))
        return action_after_verdict(action, self._policy_reply.verdict, self._driver)

    async def _claim_of(self, action: Action) -> ToolIntent | ToolResult | PassEnd:
        """The claim that is to be made or recovered; otherwise what the call came to without one."""
        match action:
            case Recover(claim=claim):
                return claim
            case MakeClaim() if self._steps.is_held:
                return PAUSED
            case MakeClaim():
                made = await self._claim(action)
                return made if isinstance(made, ToolIntent | PassEnd) else self._recorded(made)
            case Run() | Stop() if self._steps.is_held and not self._driver.has_begun:
                return PAUSED
            case _:
                return await self._act(action)

    async def _make(self, claimed: Recover, *, is_new: bool) -> ToolResult | PassEnd | Action:
        """Makes the call of a new claim, or recovers an earlier one. Returns what to do next, if nothing came
        of it."""
        driver, claim = self._driver, claimed.claim
        if not is_new:
            effect = partial(driver.recover, claim, is_retry=claimed.is_retry)
            return await run_to_completion(self._effect(effect, claimed))
        effect, settle = partial(driver.run_claimed, claim), partial(driver.settle, claim)
        return await run_to_completion(self._effect(effect, claimed), settle)

    async def _act(self, action: Action) -> ToolResult | PassEnd:
        """Everything but claims."""
        driver = self._driver
        match action:
            case Done(result=result):
                return result
            case Wait():
                return PAUSED
            case Stop() | Refuse():
                if action.cancels:
                    await driver.cancel(action.cancels)
                return REJECTED if isinstance(action, Stop) else self._not_run(driver.refusal(action))
            case Skip(claim=claim, denial=denial):
                await driver.skip(claim)
                text = denial + _EARLIER if denial else driver.skipped()
                return self._record(text, is_error=True, skipped=True)
            case Answer(text=text):
                return self._record(text)
            case Accept(found=found):
                return self._record(applied(found), found=found, is_error=bool(found.stopped))
            case Ask():
                return await self._ask_first(action)
            case AskWhatToDo():
                return self._ask(driver.question_about_unknown(action))
            case Run(arguments=arguments):
                if driver.may_be_broken_off:
                    return await self._run(arguments)
                return await run_to_completion(self._run_durably(arguments))
            case AskPolicy() | MakeClaim() | Recover():
                raise AssertionError("run asks the policy and makes claims")

    async def _ask_first(self, action: Ask) -> ToolResult | PassEnd:
        """Asks a person to agree to a call, unless it would fail anyway."""
        preview = None
        if action.verdict is not None:
            preview = await self._driver.preview(action.arguments)
        if isinstance(preview, Returned):
            return self._returned(preview)
        return self._ask(self._with_reason(self._driver.question(action), action.verdict, preview))

    def _with_reason(
        self, question: ApprovalRequired, verdict: Verdict | None, preview: Preview | None
    ) -> ApprovalRequired:
        if verdict is None or not verdict.rule:
            return msgspec.structs.replace(question, preview=preview)
        suggestion = self._policy_reply.suggested_rule if self._policy_reply else None
        return msgspec.structs.replace(
            question,
            rule=verdict.rule,
            why=verdict.why,
            parts=verdict.parts,
            remember=verdict.remember,
            suggested_rule=suggestion,
            preview=preview,
        )

    async def _run(self, arguments: dict[str, Any]) -> ToolResult | PassEnd:
        self._started = time.monotonic()
        ended = await self._driver.run(arguments)
        return ended if isinstance(ended, PassEnd) else self._returned(ended)

    async def _run_durably(self, arguments: dict[str, Any]) -> ToolResult | PassEnd:
        """As `_run`; the result is kept even if the pass is cancelled meanwhile."""
        recorded = await self._run(arguments)
        await self._steps.send_ahead()
        return recorded

    async def _claim(self, action: MakeClaim) -> ToolIntent | NotRun | Returned | PassEnd:
        history = self._history
        prepared = await self._driver.claim(action)
        if not isinstance(prepared, ToolIntent):
            return prepared
        if self._steps.is_held:  # since it was looked at last
            return PAUSED
        attempt = history.last_claim.attempt + 1 if history.claims else 0
        claim = msgspec.structs.replace(
            prepared,
            run=self._steps.turn.run,
            attempt=attempt,
            found=action.found,
            rule=action.verdict.rule,
        )
        history.check(claim)
        return await self._steps.claim(self._step, claim)

    async def _effect(
        self, effect: Callable[[], Coroutine[Any, Any, Ended]], claimed: Recover
    ) -> ToolResult | PassEnd | Action:
        """Awaits an effect of a claimed call and records how it ended. Returns what to do next, if it did not
        begin, or a check found that it had no effect.

        What came of it is journaled at once: while it is not, a crash leaves an outcome that nobody knows.
        """
        self._started = time.monotonic()
        ended = await effect()
        match ended:
            case NotBegun():
                return action_after_not_begun(self._history, claimed, self._driver)
            case Unknown():
                action = await self._after_unknown(claimed)
                if not isinstance(action, Accept | AskWhatToDo):
                    return action
                recorded = await self._act(action)
            case NotAsPreviewed(why=why):
                return action_after_conflict(self._history, self._driver, why)
            case _:
                recorded = self._recorded(ended)
        await self._steps.send_ahead()
        return recorded

    async def _after_unknown(self, claimed: Recover) -> Action:
        found = await self._driver.check(claimed.claim)
        return action_after_unknown(self._history, claimed, self._driver, found)

    def _recorded(self, ended: Returned | NotRun | Asks | Stopped) -> ToolResult | PassEnd:
        match ended:
            case Returned():
                return self._returned(ended)
            case NotRun():
                return self._not_run(ended)
            case Asks(question=question):
                return self._ask(question)
            case Stopped():
                return REJECTED

    def _ask(self, question: ApprovalRequired) -> PassEnd:
        """Records a question; the pass pauses then."""
        attempt = self._driver.attempt(question.kind, self._history)
        question = completed_question(question, self._steps.turn, self._settings, attempt)
        self._history.check(question)
        self._steps.record(self._step, question)
        return PAUSED

    def _returned(self, returned: Returned) -> ToolResult:
        return self._record(
            returned.content,
            is_error=returned.is_error,
            artifacts=returned.artifacts,
            forced=returned.forced,
            spent=returned.spent,
            output=returned.output,
            invalid=returned.invalid,
            told=returned.told,
        )

    def _not_run(self, ended: NotRun) -> ToolResult:
        """Records that the call was not run; if nobody knows that of an earlier attempt, says so."""
        is_in_doubt = self._driver.leaves_doubt and self._history.has_unknown_outcome
        content = f"{ended.why}{_EARLIER}" if is_in_doubt else ended.why
        is_denied = self._is_denied and not ended.by_decision
        return self._record(content, is_error=True, skipped=ended.by_decision, denied=is_denied)

    def _record(self, content: str, **more: Any) -> ToolResult:
        duration_ms = 0 if self._started is None else round((time.monotonic() - self._started) * 1000)
        most = self._settings.max_result_bytes
        if self._driver.tells_arguments and not self._history.claims:
            more["arguments"] = self._call.arguments
        result = result_of(self._call, content, most=most, duration_ms=duration_ms, rule=self._rule, **more)
        self._history.check(result)
        return self._steps.record(self._step, result)

    @property
    def _is_denied(self) -> bool:
        return self._policy_reply is not None and self._policy_reply.verdict.decision == "denied"

    @property
    def _rule(self) -> str:
        """The rule that let the call run, or denied it; empty if none was asked."""
        if self._policy_reply is not None:
            return self._policy_reply.verdict.rule
        claims = self._history.claims
        return claims[-1].rule if claims else ""


def completed_question(
    question: ApprovalRequired, turn: PassInput, settings: CallSettings, attempt: int
) -> ApprovalRequired:
    """A question of a node, with what does not depend on what is asked."""
    expires = settings.expire_after_s if APPROVAL_KINDS[question.kind].expires else None
    return msgspec.structs.replace(
        question,
        uuid=approval_id(turn.conversation_id),
        attempt=attempt,
        asked_by=settings.name,
        output_key=settings.output_key,
        agent_path=tuple(turn.agent_path),
        expires_at="" if expires is None else moment(timedelta(seconds=expires)),
    )


async def run_to_completion(
    effect: Coroutine[Any, Any, T], settle: Callable[[], Coroutine[Any, Any, object]] | None = None
) -> T:
    """Awaits an effect of a claimed call and the recording of its outcome. If the pass is cancelled, both
    are waited for, within the callee's own bound: an outcome that nobody records would be unknown. ``settle``
    sees to it that a call which has not begun by then does not begin."""
    task = asyncio.create_task(effect)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        settling = [asyncio.create_task(settle())] if settle and not task.done() else []
        await asyncio.wait({task})
        for each in settling:
            each.cancel()
        # The cancellation is what this call ends in; how these ended, nobody asks.
        await asyncio.gather(task, *settling, return_exceptions=True)
        raise


def result_of(call: ToolCall, content: str, *, most: int, **more: Any) -> ToolResult:
    """The result of a call as an event, with at most ``most`` bytes of text."""
    return ToolResult(call_id=call.id, tool=call.name, content=bounded(content, most), **more)


def applied(found: Found) -> str:
    """The text of a result that is known from a check alone."""
    if found.stopped:
        how = f"[This call was stopped while it ran: {found.stopped}. What {found.check} says about it:]"
    else:
        how = f"[No answer to this call arrived. {found.check} found that the call had its effect.]"
    return f"{how}\n{found.text}" if found.text else how


def refused(action: Refuse) -> NotRun:
    """The result of a call that cannot be made, or that a person rejected."""
    if action.reason:
        return NotRun(f"This call was not run: {action.reason}", by_decision=True)
    return NotRun(f"{action.problem}\nThe call was not run." if action.was_allowed else action.problem)


def too_deep(tool: str, depth: int, max_depth: int) -> str:
    """Why an agent is not called from here: as many agents call each other already as may; empty if it can
    be called."""
    if depth < max_depth:
        return ""
    return (
        f"{tool} was not called: {depth} agents call each other already, as many as budget.max_depth allows. "
        "Do it without another agent."
    )


def fitting(artifacts: Sequence[Artifact], room: int) -> tuple[Artifact, ...]:
    """The files for which there is room: so many characters of all that they say."""
    kept = []
    for artifact in artifacts:
        size = sum(map(len, (artifact.data, artifact.url, artifact.name, artifact.media_type)))
        if size <= room:
            kept.append(artifact)
            room -= size
    return tuple(kept)


def bounded(text: str, limit: int) -> str:
    """The text, cut to a number of UTF-8 bytes, saying so where it was cut."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    kept = encoded[:limit].decode(errors="ignore")
    return f"{kept}\n[cut: {len(encoded)} bytes in all, {limit} kept]"


def first_sentence(text: str) -> str:
    """The first sentence of a tool's description, in one line.

    >>> first_sentence("Changes lines, e.g. one of them. Fails if …")
    'Changes lines, e.g. one of them.'
    """
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    found = _SENTENCE.match(paragraph)
    return found.group() if found else paragraph


def listed(arguments: Mapping[str, Any]) -> str:
    """Arguments for a person to read, one a line."""
    lines = (f"  {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return bounded("\n".join(lines) or "  (no arguments)", MOST_SHOWN)
