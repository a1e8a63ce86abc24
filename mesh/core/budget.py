"""What turns spend, and whether a model call fits into its budgets. Pure.

Theory of operation
    A budget belongs to one run of a node and everything below it: its *scope* is a place. Before a model call
    under a budget, the keeper reserves the most that the call can cost (`LlmReserved`), in every scope that
    the call lies in. The answer settles the reservation with what it did cost (`LlmCall`, or `LlmSettled`
    where the answer is not used). A reservation that nothing settles counts with its bound: nobody knows
    what the provider charged.

    `BudgetUse` is the fold of these events; `admitted` is the decision. Both are deterministic, so that a
    journal tells what was spent and why a call was refused, whoever reads it.

        spent       what settled calls cost
        reserved    bounds of calls that the present pass may be making
        unsettled   bounds of calls whose answers are lost: of older passes, of attempts that were repeated,
                    of processes that died (`LlmLost`)

    Invariant: in every scope, after every event, spent + unsettled + reserved <= limit, unless a provider
    charged more than the bound of a call, which shows as `overrun`.

    Ordinary calls leave the last tenth of each limit alone (of calls, the last one), where a limit leads to
    one last answer: that call has to fit into the same budget.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from mesh.core.amounts import NOTHING, Amount, reported
from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.events import (
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    Error,
    LlmCall,
    LlmLost,
    LlmReserved,
    LlmSettled,
    NodeCompleted,
    Paused,
    SpentElsewhere,
    ToolIntent,
    ToolResult,
    UserMessage,
    Validation,
)
from mesh.core.overlay import Overlay
from mesh.core.places import ROOT, Place, StepKey
from mesh.core.reservations import OpenReservations, bound_of

LimitName = Literal[
    "max_cost_usd", "max_total_tokens", "max_llm_calls", "max_time_s", "max_conversation_cost_usd"
]
BudgetKey = LimitName | Literal["max_agents"]
"""A limit of a budget. `max_agents` bounds no model calls, and nothing is reserved for it: see
`mesh.core.agent_limits`."""
OnLimit = Literal["answer", "stop", "fail", "ask"]

NUSD = 1_000_000_000
"""10⁻⁹ USD in a dollar."""
LEAST_OUTPUT = 256
"""A call that can be granted fewer tokens for its answer than this, and than it asked for, is not made."""
_MOST_RAISE = 1_000_000_000
"""What a person may allow in addition at most, in the units of the limit: as much as a config may."""
_CONVERSATION = ""
"""The scope of the whole conversation, over all its turns."""
_RATIO_MARGIN = 1.1
"""How much more than the worst so far a model may charge for a byte: texts differ."""
_COUNTED = (
    UserMessage,
    AgentTold,
    LlmReserved,
    LlmCall,
    LlmSettled,
    LlmLost,
    NodeCompleted,
    ToolIntent,
    ToolResult,
    Validation,
    Paused,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    Error,
)
"""The events that change anything here. `BudgetUse` is folded in every conversation: the others, which are
many, cost it nothing."""


class Scope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of one run of a node: ``place`` is where it runs; None means no limit."""

    place: str
    max_nusd: int | None = None
    max_tokens: int | None = None
    max_calls: int | None = None
    max_time_s: float | None = None
    max_conversation_nusd: int | None = None
    max_agents: int | None = None

    @property
    def bounds_calls(self) -> bool:
        """Whether it limits what model calls may use."""
        return bool(limits_in(self))

    @property
    def is_money(self) -> bool:
        """Whether it limits what may be paid."""
        return self.max_nusd is not None or self.max_conversation_nusd is not None


class Use(msgspec.Struct, frozen=True):
    """What one scope has used."""

    spent: Amount = NOTHING
    held: Amount = NOTHING
    """Bounds of calls that nothing has settled: reserved and unsettled."""

    @property
    def total(self) -> Amount:
        """All that counts against the limits."""
        return self.spent + self.held


class BudgetUse:
    """What a conversation has spent, by scope. Read it freely; change it only by `apply`."""

    def __init__(self) -> None:
        self.uses: MutableMapping[str, Use] = {}  # of the newest turn, by place; and of the conversation
        self.open = OpenReservations()
        self.turn_open = False
        self.run = 0  # the newest pass that is known of
        self.overrun = NOTHING
        # By scope and limit: what people allowed in addition, where they did not, where the model was told.
        self.raised: MutableMapping[tuple[str, str], float] = {}
        self.refused: MutableMapping[tuple[str, str], None] = {}
        self.warned: MutableMapping[tuple[str, str], None] = {}
        self.tokens_per_byte: MutableMapping[str, float] = {}  # the most a model has charged for one of input
        self._asked: MutableMapping[str, ApprovalRequired] = {}
        self._times_asked: MutableMapping[
            tuple[str, str], int
        ] = {}  # those of ``_asked``, by scope and limit
        self._unreserved_nusd = 0
        # When each run began, as events write it, how long people had been waited for by then, and for how
        # long the run had been held. Times are read only where somebody was waited for, or a limit of time
        # asks for them.
        self._started: MutableMapping[str, tuple[str, float, float]] = {}
        self._waited_s = 0.0
        self._paused_at: str | None = None
        # The places of agents that a person has paused, each since when, as `_clock` counts; None: one around
        # it is held, too. And for how long each was held before.
        self._held: MutableMapping[str, float | None] = {}
        self._held_s: MutableMapping[str, float] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BudgetUse) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def use(self, place: str) -> Use:
        """What the run at a place has used in the newest turn."""
        return self.uses.get(place, _UNUSED)

    @property
    def conversation(self) -> Use:
        """What all turns together have used."""
        use = self.use(_CONVERSATION)
        return Use(use.spent + Amount(self._unreserved_nusd), use.held) if self._unreserved_nusd else use

    def after(self, events: Iterable[AnyEvent]) -> "BudgetUse":
        """What would be spent after these events, which are not durable yet: this one stays as it is."""
        after = BudgetUse()
        for name, value in vars(self).items():
            setattr(after, name, Overlay(value) if isinstance(value, dict) else value)
        after.open = self.open.overlaid()
        for event in events:
            after.apply(event)
        return after

    def is_asked(self, scope: str, limit: str) -> bool:
        """Whether a person is being asked to raise this limit."""
        return (scope, limit) in self._times_asked

    def unsettled(self, place: str, run: int) -> Amount:
        """The bounds of calls below a place whose answers are lost to the pass ``run``."""
        return self.open.lost(place, run) if self.turn_open else self.use(place).held

    def in_flight(self, place: Place, run: int) -> list[LlmReserved]:
        """The calls that the pass ``run`` may be making at a place and below it. Runs that began in it in
        the place of lost ones have greater numbers, and what those have lost is given up."""
        return self.open.live(place.text, run)

    def was_warned(self, scope: str, limit: str, step: str) -> bool:
        """Whether a model was told of a limit. What a lost attempt of this step was to tell, its model may
        never have read."""
        lost = (each for reserved in self.open.of_step(step) for each in reserved.warned)
        return (scope, limit) in self.warned and (scope, limit) not in lost

    def time_s(self, place: str, now: str) -> float:
        """The seconds since the run at a place began, without those in which people were waited for, or had
        paused it. The root begins with the turn, any other run with its first model call."""
        if place not in self._started:
            return 0.0
        began, waited_before, held_before = self._started[place]
        ran = self._clock(now) - (_seconds(began) - waited_before)
        return ran - (self._held_for(Place(place), now) - held_before)

    def _clock(self, now: str) -> float:
        """The time in seconds, without that in which people were waited for."""
        at, waited = _seconds(now), self._waited_s
        if self._paused_at is not None:
            waited += max(0.0, at - _seconds(self._paused_at))
        return at - waited

    def _held_for(self, place: Place, now: str) -> float:
        """For how long a person has held the run at a place in this turn, or what is around it."""
        if not self._held and not self._held_s:
            return 0.0
        clock, held = self._clock(now), 0.0
        for at in place.scopes:
            since = self._held.get(at.text)
            held += self._held_s.get(at.text, 0.0) + (0.0 if since is None else clock - since)
        return held

    def apply(self, event: AnyEvent) -> None:
        """Applies the next event of the journal."""
        if not isinstance(event, _COUNTED):
            return
        match event:
            case UserMessage():
                self._open_turn(event)
            case AgentTold():
                self._told(event)
            case LlmReserved() | LlmCall() | LlmSettled() | LlmLost():
                self._apply_call(event)
            case ToolResult():
                self._returned(event)
            case NodeCompleted():
                self.open.end(event.step)
            case Validation():
                self._resume(event)
                self.open.end(event.step)
            case ToolIntent():
                self._resume(event)
            case Paused():
                self.run = max(self.run, event.run)
                self._resume(event)  # it went on, and only paused again
                self._paused_at = event.time
            case ApprovalRequired() | ApprovalResolved():
                self._decide(event)
            case Completed() | Error():
                self.open = OpenReservations()  # what they held stays, as unsettled
                self.turn_open = False
            case _:
                pass

    def _apply_call(self, event: LlmReserved | LlmCall | LlmSettled | LlmLost) -> None:
        match event:
            case LlmReserved():
                self._reserve(event)
            case LlmCall():
                self._answered(event)
            case LlmSettled():
                self._settle(event, event.attempt, reported(event.cost_nusd, event.tokens, event.calls))
            case LlmLost():
                self.open.lose(event.step, event.attempt)

    def _answered(self, event: LlmCall) -> None:
        usage = event.usage
        spent = reported(event.cost_nusd, max(0, usage.input) + max(0, usage.output), 1)
        reserved = self._settle(event, event.attempt, spent)
        if reserved is None:  # a call without a budget
            self._unreserved_nusd += reported(event.cost_nusd).nusd
        elif reserved.input_bytes > 0:
            ratio = reported(0, usage.input).tokens / reserved.input_bytes
            self.tokens_per_byte[event.model] = max(ratio, self.tokens_per_byte.get(event.model, 0.0))

    def _returned(self, event: ToolResult) -> None:
        self._resume(event)
        self.open.end(event.step)
        if event.spent is not None:
            self._add_elsewhere(event, event.spent)

    def _add_elsewhere(self, event: ToolResult, elsewhere: SpentElsewhere) -> None:
        """What another agent has spent, for which nothing was reserved."""
        spent = reported(elsewhere.cost_nusd, elsewhere.tokens, elsewhere.llm_calls)
        for place in _scopes_of(event):
            self._add(place, spent, NOTHING)

    def _open_turn(self, event: UserMessage) -> None:
        self.turn_open = True
        self.uses = {_CONVERSATION: self.use(_CONVERSATION)}
        self.open = OpenReservations()
        lasts = "max_conversation_cost_usd"  # what people allowed there, they allowed for all turns
        self.raised = {key: more for key, more in self.raised.items() if key[1] == lasts}
        self.refused, self.warned = {}, {}
        self._asked, self._times_asked = {}, {}
        self._waited_s, self._paused_at = 0.0, None
        self._held, self._held_s = {}, {}
        self._started = {ROOT.text: (event.time, 0.0, 0.0)}

    def _reserve(self, event: LlmReserved) -> None:
        self.run = max(self.run, event.pass_run or event.run)
        self._resume(event)
        self.open.add(event)
        bound = bound_of(event)
        for place in _scopes_of(event):
            if place not in self._started:
                held_before = self._held_for(Place(place), event.time)
                self._started[place] = (event.time, self._waited_s, held_before)
            self._add(place, NOTHING, bound)
        for each in event.warned:
            self.warned[each] = None

    def _settle(self, event: AnyEvent, attempt: int, spent: Amount) -> LlmReserved | None:
        reserved = self.open.settle(event.step, attempt)
        if reserved is None:  # nothing was reserved for it, or it is settled already
            return None
        bound = bound_of(reserved)
        if spent.calls and not spent.tokens:  # the provider did not say what it charges
            spent = bound
        for place in _scopes_of(event):
            self._add(place, spent, NOTHING - bound)
        over = spent - bound
        self.overrun += Amount(max(0, over.nusd), max(0, over.tokens), max(0, over.calls))
        return reserved

    def _add(self, place: str, spent: Amount, held: Amount) -> None:
        use = self.use(place)
        self.uses[place] = Use(use.spent + spent, use.held + held)

    def _decide(self, event: ApprovalRequired | ApprovalResolved) -> None:
        if isinstance(event, ApprovalResolved):
            self._resume(event)
            self._raise(event)
        elif APPROVAL_KINDS[event.kind].raises_limit and StepKey(event.step).is_limit:
            # Not what another agent asks in one of its own steps: that raises a limit of its own.
            self._forget(event.uuid)
            self._asked[event.uuid] = event
            for limit in event.tool_args:
                self._times_asked[event.node, limit] = self._times_asked.get((event.node, limit), 0) + 1

    def _forget(self, uuid: str) -> ApprovalRequired | None:
        """A person is not asked any more; returns what was asked."""
        asked = self._asked.pop(uuid, None)
        if asked is None:
            return None
        for limit in asked.tool_args:
            key = (asked.node, limit)
            self._times_asked[key] -= 1
            if not self._times_asked[key]:
                del self._times_asked[key]
        return asked

    def _told(self, event: AgentTold) -> None:
        if event.action in ("pause", "resume"):
            self._hold(event)
        # What a person sets takes the place of what people have decided about the limit before.
        for limit in event.limits:
            key = (event.step, limit)
            self.raised.pop(key, None)
            self.refused.pop(key, None)
            self.warned.pop(key, None)

    def _hold(self, event: AgentTold) -> None:
        """A person has paused an agent, or lets it go on. Of those that are around each other, the time of
        the outermost one counts."""
        clock = self._clock(event.time)
        for place, since in self._held.items():
            if since is not None:
                self._held_s[place] = self._held_s.get(place, 0.0) + clock - since
        held = {*self._held} | {event.step} if event.action == "pause" else {*self._held} - {event.step}
        self._held = {
            place: None if any(at.text in held for at in Place(place).enclosing) else clock
            for place in sorted(held)
        }

    def _resume(self, event: AnyEvent) -> None:
        """The turn goes on, if it was paused."""
        if self._paused_at is not None:
            self._waited_s += max(0.0, _seconds(event.time) - _seconds(self._paused_at))
            self._paused_at = None

    def _raise(self, event: ApprovalResolved) -> None:
        asked = self._forget(event.uuid)
        if asked is None:
            return
        given = asked.tool_args if event.edited_args is None else event.edited_args
        for limit, more in given.items():
            key = (asked.node, limit)
            if event.choice != "approve":
                self.refused[key] = None
            elif _is_raise(more):  # an imported journal may say anything
                self.raised[key] = self.raised.get(key, 0) + more


class CallRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model call that asks to be admitted: of ``step``, as ``attempt``.

    ``input_bytes`` is the size of what the model is sent, ``max_output`` the most tokens of its answer.
    ``nusd_input`` and ``nusd_output`` are prices in 10⁻⁹ USD per million tokens, None if there is none.
    ``scopes`` are the budgets that it must fit into, ``on_limit`` what follows if it does not. ``forced``
    names the limit for which this is the last answer, which may use what ordinary calls leave alone.
    ``warn_at`` is the part of a limit from which the model is to be told, None if it cannot be told now.
    ``waits`` False: it has waited long enough for calls in flight. ``at_once``: the reply is wanted at once,
    even if it is that the call has to wait. ``asked_by``, ``agent_path`` and ``expire_after_s`` are those of
    the question, where a person is asked for more.
    """

    step: str
    model: str
    input_bytes: int
    max_output: int
    scopes: Sequence[Scope]
    attempt: int = 0
    nusd_input: int | None = None
    nusd_output: int | None = None
    on_limit: OnLimit = "answer"
    forced: str = ""
    warn_at: float | None = None
    waits: bool = True
    at_once: bool = False
    asked_by: str = ""
    agent_path: Sequence[str] = ()
    expire_after_s: float | None = None

    @property
    def leaves_rest(self) -> bool:
        """Whether it has to leave alone what a last answer needs."""
        return not self.forced and self.on_limit in ("answer", "ask")


class Granted(msgspec.Struct, frozen=True, tag=True):
    """The call may be made. ``reserved`` is to be journaled first."""

    reserved: LlmReserved


class MustWait(msgspec.Struct, frozen=True, tag=True):
    """It fits only if calls in flight turn out cheaper than their bounds. ``limit`` is the first that they
    leave no room in, ``scope`` the place at whose run it is measured."""

    limit: LimitName
    scope: str


class Reached(msgspec.Struct, frozen=True, tag=True):
    """It does not fit, whatever the calls in flight cost: this limit of the run at this place is reached.
    ``used`` and ``allowed`` are in the units of the limit."""

    limit: LimitName
    scope: str
    used: float
    allowed: float


def admitted(budget_use: BudgetUse, request: CallRequest, run: int, now: str) -> Granted | MustWait | Reached:
    """Whether the pass ``run`` may make a call now: with as many tokens for the answer as fit, up to what
    it asks for."""
    least = _least_output(request)
    tokens_in = _input_tokens(budget_use, request)
    fits_now = request.max_output
    reached: Reached | None = None
    short: _Room | None = None
    for room in _rooms(budget_use, request, run, now):
        fits = room.output(room.used_now, tokens_in, request)
        if fits < least and short is None:
            short = room
        fits_now = min(fits_now, fits)
        if reached is None and room.output(room.used_at_least, tokens_in, request) < least:
            reached = Reached(
                room.limit, room.scope, room.shown(room.used_at_least), room.shown(room.allowed)
            )
    if reached is not None:
        return reached
    if short is not None and request.waits:
        return MustWait(short.limit, short.scope)
    if short is not None:
        return Reached(short.limit, short.scope, short.shown(short.used_now), short.shown(short.allowed))
    warned = _to_warn(budget_use, request, run, now)
    bound = _bound_of(request, tokens_in, fits_now)
    reserved = LlmReserved(
        step=request.step,
        run=run,
        input_bytes=request.input_bytes,
        tokens=bound.tokens,
        max_output=fits_now,
        nusd=bound.nusd,
        attempt=request.attempt,
        forced=request.forced,
        warned=warned,
    )
    return Granted(reserved)


def time_left_s(budget_use: BudgetUse, request: CallRequest, now: str) -> float | None:
    """What is left of the time of the scopes around a call, None if none of them has a limit."""
    timed = [
        Scope(scope.place, max_time_s=scope.max_time_s)
        for scope in request.scopes
        if scope.max_time_s is not None
    ]
    rooms = _rooms(budget_use, msgspec.structs.replace(request, scopes=timed), budget_use.run, now)
    return min((room.shown(room.allowed - room.used_now) for room in rooms), default=None)


def least_bound(request: CallRequest) -> Amount:
    """The least that a call can be granted, before anything is spent: no smaller limit lets it be made."""
    return _bound_of(request, _input_tokens(BudgetUse(), request), _least_output(request))


def _least_output(request: CallRequest) -> int:
    return min(LEAST_OUTPUT, request.max_output)


def _bound_of(request: CallRequest, tokens_in: int, tokens_out: int) -> Amount:
    nusd = 0
    if request.nusd_input is not None and request.nusd_output is not None:
        nusd = _price(tokens_in, request.nusd_input) + _price(tokens_out, request.nusd_output)
    return Amount(nusd, tokens_in + tokens_out, 1)


class _Room(msgspec.Struct, frozen=True):
    """One limit of one scope, in whole units (10⁻⁹ USD, tokens, calls, milliseconds). ``used_now`` counts the
    calls in flight with their bounds, ``used_at_least`` as if they cost nothing."""

    limit: LimitName
    scope: str
    allowed: int
    used_now: int
    used_at_least: int

    def output(self, used: int, tokens_in: int, request: CallRequest) -> int:
        """How many tokens of an answer fit."""
        room = self.allowed - used
        match self.limit:
            case "max_llm_calls":
                return request.max_output if room >= 1 else 0
            case "max_time_s":
                return request.max_output if room > 0 else 0
            case "max_total_tokens":
                return max(0, room - tokens_in)
            case "max_cost_usd" | "max_conversation_cost_usd":
                if request.nusd_input is None or request.nusd_output is None:
                    return 0
                rest = room - _price(tokens_in, request.nusd_input)
                if rest < 0:
                    return 0
                if not request.nusd_output:
                    return request.max_output
                return rest * 1_000_000 // request.nusd_output

    def shown(self, amount: int) -> float:
        """An amount in the units of the limit."""
        match self.limit:
            case "max_cost_usd" | "max_conversation_cost_usd":
                return amount / NUSD
            case "max_time_s":
                return amount / 1000
            case _:
                return amount


def _rooms(budget_use: BudgetUse, request: CallRequest, run: int, now: str) -> Iterable[_Room]:
    for scope in request.scopes:
        use, lost = budget_use.use(scope.place), budget_use.unsettled(scope.place, run)
        now_, least = use.total, use.spent + lost
        whole = budget_use.conversation
        in_flight = use.held - lost
        is_timed = scope.max_time_s is not None
        time_ms = round(budget_use.time_s(scope.place, now) * 1000) if is_timed else 0
        for limit, allowed, used_now, used_at_least in (
            ("max_cost_usd", scope.max_nusd, now_.nusd, least.nusd),
            ("max_total_tokens", scope.max_tokens, now_.tokens, least.tokens),
            ("max_llm_calls", scope.max_calls, now_.calls, least.calls),
            ("max_time_s", _ms(scope.max_time_s), time_ms, time_ms),
            (
                "max_conversation_cost_usd",
                scope.max_conversation_nusd,
                whole.total.nusd,
                whole.total.nusd - in_flight.nusd,
            ),
        ):
            if allowed is not None:
                more = _units(limit, budget_use.raised.get((scope.place, limit), 0))  # type: ignore[arg-type]
                cap = _cap(limit, allowed + more, request)  # type: ignore[arg-type]
                yield _Room(limit, scope.place, cap, used_now, used_at_least)  # type: ignore[arg-type]


def _cap(limit: LimitName, allowed: int, request: CallRequest) -> int:
    """What this call may use of a limit."""
    if not request.leaves_rest:
        return allowed
    return allowed - 1 if limit == "max_llm_calls" else allowed - -(-allowed // 10)


def _units(limit: LimitName, amount: float) -> int:
    """An amount of a budget's key in whole units."""
    match limit:
        case "max_cost_usd" | "max_conversation_cost_usd":
            return round(amount * NUSD)
        case "max_time_s":
            return round(amount * 1000)
        case _:
            return round(amount)


def _to_warn(budget_use: BudgetUse, request: CallRequest, run: int, now: str) -> tuple[tuple[str, str], ...]:
    """The scopes and limits of which the model is to be told now, each once."""
    if request.warn_at is None:
        return ()
    # ``warn_at`` is a part of the whole limit, which only a last answer may use: hence ``forced``.
    return tuple(
        (room.scope, room.limit)
        for room in _rooms(budget_use, msgspec.structs.replace(request, forced="-"), run, now)
        if room.used_at_least >= room.allowed * request.warn_at
        and not budget_use.was_warned(room.scope, room.limit, request.step)
    )


def _input_tokens(budget_use: BudgetUse, request: CallRequest) -> int:
    """The most tokens that the input can be: half a token a byte, or a tenth more than the model has charged
    for a byte in this conversation."""
    ratio = max(0.5, _RATIO_MARGIN * budget_use.tokens_per_byte.get(request.model, 0.0))
    return _ceil(request.input_bytes * ratio)


def limit_question(reached: Reached, request: CallRequest) -> ApprovalRequired:
    """Asks a person for as much again, without uuid, attempt and deadline. It belongs to the run whose limit
    it is, so that all calls that have to wait share it."""
    path = " > ".join(request.agent_path)
    scope = next(each for each in request.scopes if each.place == reached.scope)
    return ApprovalRequired(
        step=f"{reached.scope}/limit/{reached.limit}",
        uuid="",
        call_id="",
        tool_name="budget",
        tool_args={reached.limit: max(limits_in(scope)[reached.limit], _needed(reached.limit, request))},
        description=(
            f"The limit {reached.limit} is reached: {reached.used:g} of {reached.allowed:g} are used"
            f"{f', in {path}' if path else ''}. Allow as much again? A rejection lets the agent answer with "
            "what it has."
        ),
        kind="limit",
        asked_by=request.asked_by,
        agent_path=tuple(request.agent_path),
    )


def _needed(limit: LimitName, request: CallRequest) -> float:
    """How much a call needs at least of a limit, so that it fits: a caller may have left next to nothing,
    and as much again would change nothing, however often a person allowed it. Ten ninths of it, because of
    what a person allows, too, the last tenth is left alone."""
    least = least_bound(request)
    match limit:
        case "max_cost_usd" | "max_conversation_cost_usd":
            return -(-least.nusd * 10 // 9) / NUSD
        case "max_total_tokens":
            return -(-least.tokens * 10 // 9)
        case "max_llm_calls":
            return least.calls
        case "max_time_s":
            return 0


def limits_in(scope: Scope) -> dict[LimitName, float]:
    """The limits of a scope for model calls, by the keys of a budget, in their units."""
    limits: dict[LimitName, float | None] = {
        "max_cost_usd": None if scope.max_nusd is None else scope.max_nusd / NUSD,
        "max_total_tokens": scope.max_tokens,
        "max_llm_calls": scope.max_calls,
        "max_time_s": scope.max_time_s,
        "max_conversation_cost_usd": (
            None if scope.max_conversation_nusd is None else scope.max_conversation_nusd / NUSD
        ),
    }
    return {limit: value for limit, value in limits.items() if value is not None}


def problem_of_raise(asked: ApprovalRequired, edited: Mapping[str, object]) -> str:
    """What is wrong with the amount that a person allows instead of the one asked for; empty if nothing."""
    (limit,) = asked.tool_args
    if set(edited) != {limit} or not _is_raise(edited[limit]):
        return f'expected {{"{limit}": N}}, how much is allowed in addition, and nothing else'
    return ""


def _is_raise(amount: object) -> bool:
    """Whether a limit can be raised by this."""
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    return is_number and 0 < amount <= _MOST_RAISE  # type: ignore[operator]


class Remaining(msgspec.Struct, frozen=True, omit_defaults=True):
    """What may still be used, and what the run with the least left has used, by the keys of a budget."""

    left: dict[LimitName, float] = {}
    used: dict[LimitName, float] = {}


def remaining_of(budget_use: BudgetUse, scopes: Sequence[Scope], on_limit: OnLimit, now: str) -> Remaining:
    """What may still be used of these budgets: the least of all scopes, without what they keep for their last
    answers. Calls in flight count with their bounds."""
    request = CallRequest(step="", model="", input_bytes=0, max_output=0, scopes=scopes, on_limit=on_limit)
    left: dict[LimitName, float] = {}
    used: dict[LimitName, float] = {}
    for room in _rooms(budget_use, request, budget_use.run, now):
        # What is left of the conversation is a limit for this turn.
        limit = "max_cost_usd" if room.limit == "max_conversation_cost_usd" else room.limit
        more = room.shown(max(0, room.allowed - room.used_now))
        if more <= left.get(limit, more):
            left[limit], used[limit] = more, room.shown(room.used_now)
    return Remaining(left, used)


def tightest(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The smaller of two limits, for each key of two budgets."""
    return {key: min(each[key] for each in (one, other) if key in each) for key in {**one, **other}}


def scope_of(place: str, limits: Mapping[str, float]) -> Scope:
    """The limits of a budget, by its keys, at the place of a run."""

    def units(limit: LimitName) -> int | None:
        return _units(limit, limits[limit]) if limit in limits else None

    return Scope(
        place,
        max_nusd=units("max_cost_usd"),
        max_tokens=units("max_total_tokens"),
        max_calls=units("max_llm_calls"),
        max_time_s=limits.get("max_time_s"),
        max_conversation_nusd=units("max_conversation_cost_usd"),
        max_agents=int(limits["max_agents"]) if "max_agents" in limits else None,
    )


def with_limits(scopes: Sequence[Scope], place: str, limits: Mapping[str, float]) -> list[Scope]:
    """Scopes in which these limits are those of the run at a place."""
    changed = msgspec.structs.asdict(scope_of(place, limits))
    changed = {name: value for name, value in changed.items() if value is not None}
    own = next((scope for scope in scopes if scope.place == place), Scope(place))
    others = [scope for scope in scopes if scope.place != place]
    return [*others, msgspec.structs.replace(own, **changed)]


def _scopes_of(event: AnyEvent) -> list[str]:
    return [_CONVERSATION, *(place.text for place in event.place.scopes)]


def _price(tokens: int, nusd_per_million: int) -> int:
    """Rounded up, so that a bound is one."""
    return -(-tokens * nusd_per_million // 1_000_000)


def _ceil(value: float) -> int:
    return -int(-value // 1)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:  # an imported journal may say anything
        return 0.0


_UNUSED = Use()
