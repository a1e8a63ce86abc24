"""The actions of a conversation's agents, one after the other, for audits and cost sheets. Pure.

A run of an agent is a turn (the root agent), or a call or a start of it. Each action belongs to one run,
which has a trace id of its own; ``parent_trace`` is that of the run that called or started it. What an action
cost is said once, at its model call, so that the costs of all actions add up to what was spent
(`mesh.core.spending`).
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Literal

import msgspec

from mesh.core.concealed import as_clients_see
from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    Completed,
    ConversationCreated,
    Error,
    LlmCall,
    LlmLost,
    LlmSettled,
    NodeCompleted,
    ToolCall,
    ToolIntent,
    ToolResult,
    UserMessage,
    Validation,
)
from mesh.core.execution import step_id, trace_id_of
from mesh.core.messages import AGENT_TOOL_PREFIX
from mesh.core.places import ROOT, Place, StepKey
from mesh.core.spending import CostOf, recorded_cost, root_agent

ActionName = Literal[
    "agent_start", "llm_call", "tool_call", "agent_call", "validation", "forced_complete", "agent_complete"
]

_NUSD_IN_USD = 10**9
_NUSD_IN_MILLICENT = 10**4
_MOST_TEXT = 1000


class AgentAction(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One action. ``turn`` is the number of the agent's model call that it came of, 0 before the first.
    ``cost`` is in millicents (10⁻⁵ USD), with up to four decimal places; it is None where the model has no
    known price. Texts in ``data`` are cut; the journal has them whole."""

    trace_id: str
    parent_trace: str | msgspec.UnsetType = msgspec.UNSET
    depth: int
    agent_name: str
    turn: int
    action: ActionName
    cost: float | None = 0.0
    cost_usd: float | None = 0.0
    timestamp: str
    data: dict[str, Any] = {}


class _Run:
    """One run of an agent."""

    def __init__(self, place: Place, name: str, trace: str, parent: str) -> None:
        self.place = place
        self.name = name
        self.trace = trace
        self.parent = parent
        self.calls = 0
        self.below: dict[str, _Run] = {}  # of the agents that it called or started, by place, until they end

    def action(self, event: AnyEvent, action: ActionName, turn: int, **data: Any) -> AgentAction:
        return AgentAction(
            trace_id=self.trace,
            parent_trace=self.parent or msgspec.UNSET,
            depth=self.place.depth,
            agent_name=self.name,
            turn=turn,
            action=action,
            timestamp=event.time,
            data={_camel(key): value for key, value in data.items() if value not in ("", None)},
        )


class ActionLog:
    """Makes actions of the events of a conversation, one after the other. ``root`` is the name of the root
    agent; empty: as the journal says."""

    def __init__(self, root: str = "", cost_of: CostOf = recorded_cost) -> None:
        self._root = root
        self._cost_of = cost_of
        self._conversation_id = ""
        self._turn = 0
        self._traceparent = ""
        self._runs: dict[str, _Run] = {}  # of this turn, by place, until they end
        self._asked: dict[str, ToolCall] = {}  # step of a call -> what the model asked for
        self._made: dict[str, dict[str, Any]] = {}  # step of a call -> the arguments that it was made with
        self._numbers: dict[str, int] = {}  # step of a model call -> its number in the run
        self._agents: dict[str, Place] = {}  # step of a call -> the agent that it called

    def learn(self, events: Iterable[AnyEvent]) -> None:
        """Takes the name of the root agent from events that are about to be added."""
        self._root = root_agent(events, self._root)

    def add(self, event: AnyEvent) -> Iterator[AgentAction]:
        """Yields the actions of the next event. Many events are none."""
        event = as_clients_see(event)
        match event:
            case ConversationCreated():
                self._conversation_id = event.conversation_id
                self._root = self._root or event.agent
            case UserMessage():
                yield self._opened(event)
            case AgentStarted():
                yield from self._begun(event)
            case LlmCall():
                yield self._model_call(event)
            case LlmLost():
                yield self._lost(event)
            case LlmSettled() if event.calls or event.cost_nusd:
                yield self._settled(event)
            case ToolIntent():
                self._made[event.step] = event.arguments
            case ToolResult():
                yield from self._result(event)
            case Validation():
                yield from self._validation(event)
            case NodeCompleted() if event.place.is_started:
                how = {"result": _cut(event.text), "is_error": event.status != "completed"}
                how["deleted"] = event.status == "deleted" or None
                yield from self._completed(event, event.place, event.forced, how)
            case Completed() | Error():
                yield from self._closed(event)
            case _:
                pass

    def _opened(self, event: UserMessage) -> AgentAction:
        self._turn, self._traceparent = event.turn, event.traceparent
        for known in (self._runs, self._asked, self._made, self._numbers, self._agents):
            known.clear()
        return self._run(ROOT).action(event, "agent_start", 0, input=_cut(event.text), by=event.by)

    def _begun(self, event: AgentStarted) -> Iterator[AgentAction]:
        place, call = event.place, event.place.begun_in
        if call is None:  # an item of a map, which is a part of the agent around it
            return
        arguments: dict[str, Any] | None
        if place.is_started:
            arguments, more = (
                {"task": _cut(event.task)},
                {"title": event.title, "by": event.by, "id": event.id},
            )
        else:
            self._agents[call.text] = place
            arguments, more = self._arguments(call.text), {}
        run = self._run(place)
        yield self._run(call.place.agent).action(
            event,
            "agent_call",
            self._number(call),
            agent=event.name,
            arguments=arguments,
            trace=run.trace,
            **more,
        )
        yield run.action(event, "agent_start", 0, type=event.kind, input=arguments)

    def _model_call(self, event: LlmCall) -> AgentAction:
        run = self._run(event.place.agent)
        run.calls += 1
        self._numbers[event.step] = run.calls
        for index, call in enumerate(event.tool_calls):
            self._asked[StepKey(event.step).tool_call(index).text] = call
        action = run.action(
            event,
            "llm_call",
            run.calls,
            node=event.node,
            model=event.model,
            text=_cut(event.text),
            draft=event.draft or None,
            tool_calls=[call.name for call in event.tool_calls] or None,
            input_tokens=event.usage.input,
            output_tokens=event.usage.output,
            cached_tokens=event.usage.cached or None,
            duration_ms=event.latency_ms,
            forced=event.forced,
        )
        return _with_cost(action, self._cost_of(event))

    def _settled(self, event: LlmSettled) -> AgentAction:
        run = self._run(event.place.agent)
        action = run.action(
            event, "llm_call", run.calls, node=event.node, total_tokens=event.tokens, unused=True
        )
        return _with_cost(action, event.cost_nusd)

    def _lost(self, event: LlmLost) -> AgentAction:
        """A call of which nobody knows what it cost. If that comes to light, another action has it."""
        run = self._run(event.place.agent)
        return _with_cost(run.action(event, "llm_call", run.calls, node=event.node, lost=True), None)

    def _result(self, event: ToolResult) -> Iterator[AgentAction]:
        result = _cut(event.shown or event.content)
        how = {"result": result, "is_error": event.is_error, "duration_ms": event.duration_ms}
        if place := self._agents.pop(event.step, None):
            yield from self._completed(event, place, event.forced, how)
            return
        step = StepKey(event.step)
        is_agent = event.tool.startswith(AGENT_TOOL_PREFIX)
        called = {"agent": event.tool.removeprefix(AGENT_TOOL_PREFIX)} if is_agent else {"tool": event.tool}
        yield self._run(step.place.agent).action(
            event,
            "agent_call" if is_agent else "tool_call",
            self._number(step),
            **called,
            arguments=self._arguments(event.step) or event.arguments,
            skipped=event.skipped or None,
            **how,
        )

    def _validation(self, event: Validation) -> Iterator[AgentAction]:
        if place := self._agents.pop(event.step, None):
            how = {"result": _cut(event.shown or event.feedback), "valid": event.valid}
            yield from self._completed(event, place, "", how)
        step = StepKey(event.step)
        yield self._run(step.place.agent).action(
            event,
            "validation",
            self._number(step),
            node=event.node,
            validator=event.name,
            kind=event.kind,
            valid=event.valid,
            feedback=_cut(event.shown or event.feedback),
            number=event.number,
            of=event.of,
        )

    def _closed(self, event: Completed | Error) -> Iterator[AgentAction]:
        if isinstance(event, Error):
            yield from self._completed(event, ROOT, "", {"result": _cut(event.message), "is_error": True})
        else:
            how = {"result": _cut(event.response), "is_error": False}
            yield from self._completed(event, ROOT, event.forced, how)

    def _completed(
        self, event: AnyEvent, place: Place, forced: str, how: dict[str, Any]
    ) -> Iterator[AgentAction]:
        """A run ends, and with it those below it that have not answered."""
        run = self._run(place)
        for other in _all_below(run):
            yield other.action(event, "agent_complete", other.calls, ended_with_caller=True)
            del self._runs[other.place.text]
        del self._runs[place.text]
        if (call := place.begun_in) is not None:
            self._run(call.place.agent).below.pop(place.text, None)
        if forced:
            yield run.action(event, "forced_complete", run.calls, limit=forced)
        yield run.action(event, "agent_complete", run.calls, **how, forced=forced)

    def _run(self, place: Place) -> _Run:
        """The run of the agent at this place. It is made where the journal has not told of it, as a journal
        of which a part is missing does not."""
        if place.text not in self._runs:
            call, turn = place.begun_in, self._turn
            parent = self._run(call.place.agent) if call else None
            name = place.called_agents[-1] if call else self._root
            run = _Run(place, name, self._trace(place, turn), parent.trace if parent else "")
            self._runs[place.text] = run
            if parent:
                parent.below[place.text] = run
        return self._runs[place.text]

    def _trace(self, place: Place, turn: int) -> str:
        """The trace id of a run: in the root agent, that of the turn."""
        if place == ROOT:
            return trace_id_of(self._traceparent, self._conversation_id, turn)
        return sha256(step_id(self._conversation_id, turn, "", place.text).encode()).hexdigest()[:32]

    def _number(self, call: StepKey) -> int:
        """The number of the model call that asked for this call."""
        asked_by = call.validated or call.asked_by
        return self._numbers.get(asked_by.text, self._run(call.place.agent).calls)

    def _arguments(self, step: str) -> dict[str, Any] | None:
        asked = self._asked.get(step)
        return self._made.get(step) or (asked.arguments if asked else None)


def actions(
    events: Iterable[AnyEvent], root: str = "", cost_of: CostOf = recorded_cost
) -> Iterator[AgentAction]:
    """The actions of a whole journal."""
    known = list(events)
    log = ActionLog(root, cost_of)
    log.learn(known)
    for event in known:
        yield from log.add(event)


def _all_below(run: _Run) -> Iterator[_Run]:
    """The runs below one, each after those below it."""
    for below in run.below.values():
        yield from _all_below(below)
        yield below


def action_lines(found: Iterable[AgentAction]) -> bytes:
    """Actions as JSON lines."""
    return b"".join(msgspec.json.encode(action) + b"\n" for action in found)


def _with_cost(action: AgentAction, nusd: int | None) -> AgentAction:
    if nusd is None:
        return msgspec.structs.replace(action, cost=None, cost_usd=None)
    return msgspec.structs.replace(action, cost=nusd / _NUSD_IN_MILLICENT, cost_usd=nusd / _NUSD_IN_USD)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
