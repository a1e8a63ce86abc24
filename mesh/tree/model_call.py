"""One model call of an llm node as a durable step; under a budget, it is reserved before and settled after.

Without a budget the call is made at once: the keeper is not asked, and nothing more is journaled. Under one:

    reserve ── granted ──► call ── answered ────────► llm_call settles the reservation
       │                     ├──── refused ─────────► llm_settled: it cost nothing
       │                     └──── broke off ───────► it may have been charged: it stays unsettled
       ├────── wait ───────► calls in flight hold what it needs: reserve again
       ├────── limit ──────► limit_reached: one last answer, or what is there, or a failure
       └────── ask ────────► a person is asked for more: the pass pauses

After a passing failure, the next attempt reserves anew; after another one, the node fails. Reservation and
limit are events of the step, so that a later pass goes on from them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mesh.core.budget import CallRequest, OnLimit
from mesh.core.concealed import may_have_draft
from mesh.core.errors import LlmError
from mesh.core.events import (
    LimitReached,
    LlmCall,
    LlmLost,
    LlmReserved,
    LlmSettled,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Trace,
    Usage,
)
from mesh.core.messages import Assistant, Message, Results, ToolSpec, User
from mesh.core.places import StepKey
from mesh.core.spending import CostOf
from mesh.llm.parameters import Parameters
from mesh.llm.port import Llm, LlmRequest
from mesh.llm.retry import ATTEMPTS, FAILURE, MODEL_CALLS, kind_of
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.steps import Steps
from mesh.tree.turn import ReserveReply

DEFAULT_OUTPUT = 4096
"""The most tokens of an answer under a budget, where no key of the config bounds it: a reservation needs a
bound."""
_FORM_BYTES = 400
"""What is around a schema of answers in a request: the name and the description of a tool, for instance."""
_MILLION = 1_000_000
_log = logging.getLogger("mesh.model_calls")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a node's model calls. ``timeout_s`` bounds one request to the provider. ``name`` is
    that of the node and ``root_agent`` that of the root agent, for questions; ``expire_after_s`` is how long
    these wait. ``are_drafts``: clients are not shown the answers, which are to be checked. ``output_schema``
    is what answers have to fit."""

    model: str
    max_tokens: int | None = None
    parameters: Parameters = Parameters()
    timeout_s: float = 60.0
    max_llm_calls: int = 500
    max_tool_calls: int = 100
    on_limit: OnLimit = "answer"
    warn_at: float = 0.8
    name: str = ""
    root_agent: str = ""
    expire_after_s: float | None = None
    output_schema: dict[str, Any] | None = None
    are_drafts: bool = False


class Prompt(msgspec.Struct, frozen=True):
    """What a model is sent. ``heard`` as in `LlmCall`, ``as_of`` as in `Steps.unless_told_now`."""

    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    heard: tuple[str, ...] = ()
    as_of: int = 0


class ModelCalls:
    """The model calls of one node. ``llm_for`` gives the client for a model, ``cost_of`` says what a call
    costs, at the prices of the moment."""

    def __init__(self, settings: ModelSettings, llm_for: Callable[[str], Llm], cost_of: CostOf) -> None:
        self._settings = settings
        self._llm_for = llm_for
        self._llm = llm_for(settings.model)
        self._cost_of = cost_of
        self._with: dict[str, ModelCalls] = {}

    def with_model(self, model: str) -> "ModelCalls":
        """The same calls of another model."""
        if model == self._settings.model:
            return self
        if model not in self._with:
            settings = msgspec.structs.replace(self._settings, model=model)
            self._with[model] = ModelCalls(settings, self._llm_for, self._cost_of)
        return self._with[model]

    async def make(self, steps: Steps, step: StepKey, prompt: Prompt) -> LlmCall | PassEnd | None:
        """The model's answer, recorded; or how the node's pass ends without one. None: the call was broken
        off (`Steps.unless_told_now`). Raises `LlmError`."""
        known = steps.known(step, LlmCall)
        if known is not None:
            return known
        self._check_calls(steps)
        if steps.turn.call_scopes:
            return await self._under_budget(steps, step, prompt)
        answer = await steps.unless_told_now(prompt.as_of, self._answer(steps, step, prompt))
        return answer and steps.record(step, answer)

    def _check_calls(self, steps: Steps) -> None:
        if steps.llm_calls >= self._settings.max_llm_calls:
            made = f"{steps.llm_calls} model calls, as many as limits.max_llm_calls allows"
            raise LlmError(f"the turn has made {made}; what the tools did so far stands")

    # -- under a budget

    async def _under_budget(self, steps: Steps, step: StepKey, prompt: Prompt) -> LlmCall | PassEnd | None:
        """Reserves and makes attempts until one is answered. The provider's client does not repeat a request
        that may have been charged (`LlmRequest.is_reserved`): a reservation covers one request."""
        failures = 0
        while True:
            if steps.is_held:
                return PAUSED
            attempt, reached = _progress(steps, step)
            if reached is not None and reached.then != "answer":
                return self._ended_by(reached, prompt)
            forced = reached.limit if reached is not None else ""
            grant = await self._reserve(steps, self._request(steps, step, prompt, attempt, forced))
            if grant.is_paused:
                return PAUSED
            if not isinstance(grant.event, LlmReserved):
                continue
            failpoint("llm.reserved")
            if steps.is_held or prompt.as_of != steps.told_now:  # it waited for its reservation meanwhile
                steps.record(step, LlmSettled(attempt=grant.event.attempt))
                return PAUSED if steps.is_held else None
            try:
                return await self._reserved_call(steps, step, prompt, grant.event, grant.time_left_s)
            except LlmError as problem:
                if problem.was_free:
                    steps.record(step, LlmSettled(attempt=attempt))
                failures += 1
                if problem.is_final or failures == ATTEMPTS:
                    raise
                await asyncio.sleep(MODEL_CALLS.delay(failures, None))

    async def _reserve(self, steps: Steps, request: CallRequest) -> ReserveReply:
        """The decision about a call. Calls in flight end within their bounds; so does the wait for them. A
        call that is still waiting by then is told the limit that is short (``waits`` False)."""
        longest = ATTEMPTS * (self._settings.timeout_s + MODEL_CALLS.longest_s)
        deadline = asyncio.get_running_loop().time() + longest
        while True:
            grant = await steps.reserve(request)
            if grant.event is not None or grant.is_paused:
                return grant
            if asyncio.get_running_loop().time() > deadline:
                request = msgspec.structs.replace(request, waits=False)

    def _request(self, steps: Steps, step: StepKey, prompt: Prompt, attempt: int, forced: str) -> CallRequest:
        settings, turn = self._settings, steps.turn
        size = size_of(prompt) + _schema_size(settings.output_schema)
        nusd_input, nusd_output = rates(self._cost_of, settings.model, size)
        can_warn = bool(prompt.messages) and isinstance(prompt.messages[-1], Results) and not forced
        return CallRequest(
            step=step.text,
            model=settings.model,
            input_bytes=size,
            max_output=settings.max_tokens or DEFAULT_OUTPUT,
            scopes=turn.call_scopes,
            attempt=attempt,
            nusd_input=nusd_input,
            nusd_output=nusd_output,
            on_limit=settings.on_limit,
            forced=forced,
            warn_at=settings.warn_at if can_warn else None,
            asked_by=settings.name,
            agent_path=turn.agent_path or (settings.root_agent,),
            expire_after_s=settings.expire_after_s,
        )

    async def _reserved_call(
        self, steps: Steps, step: StepKey, prompt: Prompt, reserved: LlmReserved, time_left_s: float | None
    ) -> LlmCall | None:
        call = self._answer(steps, step, told(prompt, reserved), reserved, time_left_s)
        answer = await steps.unless_told_now(prompt.as_of, call)
        if answer is None:  # nobody knows what it cost: it counts with its bound, and no call waits for it
            steps.record(step, LlmLost(attempt=reserved.attempt))
            return None
        return steps.record(
            step, msgspec.structs.replace(answer, attempt=reserved.attempt, forced=reserved.forced)
        )

    def _ended_by(self, reached: LimitReached, prompt: Prompt) -> PassEnd:
        """How the pass ends at a limit that leaves no last answer. Raises `LlmError`."""
        if reached.then == "fail":
            raise LlmError(f"the limit {reached.limit} of the budget is reached; what the tools did stands")
        said = [m.text for m in prompt.messages if isinstance(m, Assistant) and m.text]
        text = said[-1] if said else f"I stopped: the limit {reached.limit} of the budget is reached."
        return PassEnd("completed", text, forced=reached.limit)

    # -- the call itself

    async def _answer(
        self,
        steps: Steps,
        step: StepKey,
        prompt: Prompt,
        reserved: LlmReserved | None = None,
        time_left_s: float | None = None,
    ) -> LlmCall:
        settings = self._settings
        request = LlmRequest(
            model=settings.model,
            system=prompt.system,
            messages=prompt.messages,
            tools=prompt.tools,
            max_tokens=settings.max_tokens if reserved is None else reserved.max_output,
            parameters=settings.parameters,
            timeout_s=settings.timeout_s if time_left_s is None else min(settings.timeout_s, time_left_s),
            deltas=steps.wants_deltas,
            answer_only=reserved is not None and bool(reserved.forced),
            is_reserved=reserved is not None,
            output_schema=settings.output_schema,
        )
        answer: LlmCall | None = None
        offered = frozenset(spec.name for spec in prompt.tools) if settings.are_drafts else None
        # The words of a provider may quote what the model wrote before.
        hides_failures = settings.are_drafts and any(isinstance(m, Assistant) for m in prompt.messages)
        show = _Shown(steps, step, offered, f"model {settings.model}" if hides_failures else "")
        try:
            async for event in self._llm.stream(request):
                match event:
                    case LlmCall():
                        answer = event
                    case TextDelta() | ToolCallDelta() | Trace():
                        show(event)
        except LlmError as problem:
            if not hides_failures:
                raise
            raise _unquoted(problem, settings.model, steps) from None
        failpoint("llm.returned")
        if answer is None:
            raise LlmError(f"model {settings.model} ended its stream without an answer")
        # Cut here, so that the journal stays bounded. One call over the bound is kept: a later pass knows by
        # it that there were too many.
        kept = () if request.answer_only else answer.tool_calls[: settings.max_tool_calls + 1]
        return msgspec.structs.replace(
            answer,
            tool_calls=kept,
            cost_nusd=self._cost_of(answer),
            draft=settings.are_drafts,
            not_offered=() if offered is None else _others(kept, offered),
            heard=prompt.heard,
        )


def _others(calls: Sequence[ToolCall], offered: frozenset[str]) -> tuple[str, ...]:
    """The tools that are called and not offered."""
    return tuple(sorted({call.name for call in calls} - offered))


def _unquoted(problem: LlmError, model: str, steps: Steps) -> LlmError:
    """A failure without the words of the provider, which go to the log."""
    turn = steps.turn
    at = fields(conversation=turn.conversation_id, turn=turn.turn, node=turn.at)
    _log.warning("event=model_failed %s %s", at, fields(message=problem))
    return LlmError(
        f"model {model}: {kind_of(problem.status)} (the log has more)",
        was_free=problem.was_free,
        is_final=problem.is_final,
        status=problem.status,
    )


class _Shown:
    """What watchers are shown of a model call while it goes on: of a draft, neither text nor the calls that
    may be an answer. ``offered`` are the tools; None: it is no draft. ``model``: whose failures are shown
    without the words of the provider; empty: they are shown as they are."""

    def __init__(self, steps: Steps, step: StepKey, offered: frozenset[str] | None, model: str) -> None:
        self._steps = steps
        self._step = step
        self._offered = offered
        self._model = model
        self._answers: set[str] = set()  # the ids of the calls that may be answers

    def __call__(self, event: TextDelta | ToolCallDelta | Trace) -> None:
        if self._offered is not None and self._is_answer(event, self._offered):
            return
        if isinstance(event, Trace) and self._model:
            failure = event.data.get(FAILURE, "a note of the provider")
            event = Trace(message=f"{self._model}: {failure} (the log has more)")
        self._steps.show(self._step, event)

    def _is_answer(self, event: TextDelta | ToolCallDelta | Trace, offered: frozenset[str]) -> bool:
        if isinstance(event, ToolCallDelta):
            name = event.call.name if event.call else event.name
            if name and may_have_draft(name, offered):
                self._answers.add(event.call_id)
            return event.call_id in self._answers
        return isinstance(event, TextDelta)


def told(prompt: Prompt, reserved: LlmReserved | None) -> Prompt:
    """The prompt with what the model is told about its budget: in the last result, so that everything before
    it stays the same for the caches of providers."""
    note = _note(reserved) if reserved is not None else ""
    if not note or not prompt.messages:
        return prompt
    *before, last = prompt.messages
    match last:
        case Results(results=(*first, result)):
            told_result = msgspec.structs.replace(result, content=f"{result.content}\n\n{note}")
            last = Results((*first, told_result))
        case User(text=text):
            last = User(f"{text}\n\n{note}")
        case _:
            pass
    return msgspec.structs.replace(prompt, messages=(*before, last))


def _note(reserved: LlmReserved) -> str:
    if reserved.forced:
        return (
            f"[The limit {reserved.forced} of the budget is reached: this is your last answer, without "
            "tools. Answer with what you have.]"
        )
    if reserved.warned:
        limits = ", ".join(dict.fromkeys(limit for _, limit in reserved.warned))
        return f"[Most of the budget is used ({limits}). Come to an end soon.]"
    return ""


def _progress(steps: Steps, step: StepKey) -> tuple[int, LimitReached | None]:
    """The number of the next attempt, and the limit that the last one met."""
    events = [e for e in steps.of(step) if isinstance(e, LlmReserved | LimitReached)]
    attempt = 1 + max((event.attempt for event in events), default=-1)
    reached = [event for event in events if isinstance(event, LimitReached)]
    return attempt, reached[-1] if reached else None


def rates(cost_of: CostOf, model: str, size: int) -> tuple[int | None, int | None]:
    """The prices of input and output in 10⁻⁹ USD per million tokens, for a prompt of this size."""
    tokens = max(1, size)  # no prompt has more tokens than bytes, and longer ones may cost more
    both = LlmCall(model=model, usage=Usage(tokens, _MILLION))
    read = cost_of(msgspec.structs.replace(both, usage=Usage(tokens, 0)))
    total = cost_of(both)
    if read is None or total is None:
        return None, None
    return -(-read * _MILLION // tokens), total - read


def _schema_size(schema: dict[str, Any] | None) -> int:
    """The most bytes that the schema of the answer adds to a prompt, in whichever form it goes out."""
    return 0 if schema is None else len(msgspec.json.encode(schema)) + _FORM_BYTES


def size_of(prompt: Prompt) -> int:
    """The bytes of a prompt, as far as they are its own."""
    return len(prompt.system.encode()) + len(msgspec.json.encode((prompt.messages, prompt.tools)))
