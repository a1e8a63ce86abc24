"""What a conversation has spent: the sum of its events, by agent and by model. Pure.

Costs are counted as they were recorded when the calls were made (`LlmCall.cost_nusd`). A reader that has
prices may give the cost of calls of older journals, which recorded none.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    Completed,
    LlmCall,
    LlmSettled,
    NodeCompleted,
    SpentElsewhere,
    ToolResult,
    UserMessage,
)
from mesh.core.messages import AGENT_TOOL_PREFIX
from mesh.core.places import Place

CostOf = Callable[[LlmCall], int | None]
"""The cost of a model call in 10⁻⁹ USD; None if its model has no known price."""

NUSD = 10**9
"""How many of the units of costs in events are one USD."""
_MOST = 10**15
"""What a sum is shown as at most: an imported journal may hold numbers that JSON readers cannot."""
_UNKNOWN = "unknown"
_COUNTED = (LlmCall, LlmSettled, UserMessage, AgentStarted, ToolResult, NodeCompleted, Completed)


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """A sum. ``total_tokens`` are more than the others together where a call was settled without its answer.
    ``unpriced_calls`` are those whose cost is not known and not in ``cost_usd``, among them calls of other
    agents that do not say what they spent. ``time_ms`` is how long the model calls took. ``runs`` counts
    turns, and calls and starts of agents, ``forced`` those that a limit ended."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    total_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    time_ms: int = 0
    runs: int = 0
    forced: int = 0


class SpentByAgent(Spent, frozen=True, kw_only=True):
    """What one agent has spent itself, without the agents that it called or started. ``agent_path`` are the
    names of the agents from the root agent down to it."""

    agent_path: tuple[str, ...]


class SpentByModel(Spent, frozen=True, kw_only=True):
    """What one model has cost. ``runs`` counts the runs of agents that called it, ``forced`` the calls that a
    limit made the last of their run."""

    model: str


class RunSpend(msgspec.Struct, frozen=True, kw_only=True):
    """What the run at a place has used of its budget, by the keys of the budget. ``unsettled`` are bounds of
    model calls whose answers were lost, ``reserved`` those of calls under way."""

    place: str
    limits: dict[str, float]
    spent: dict[str, float]
    unsettled: dict[str, float]
    reserved: dict[str, float]


class TurnSpend(RunSpend, frozen=True, kw_only=True):
    """What the newest turn has used of its budget, up to event ``seq``. ``number`` is that of the turn.
    ``runs`` are those of nodes and called agents in it that have budgets of their own."""

    number: int
    seq: int
    runs: list[RunSpend] = []


class SpendReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation has spent. The sums by agent add up to ``spent``. ``turn`` is None without a
    budget."""

    spent: Spent
    turn: TurnSpend | None = None
    by_agent: list[SpentByAgent] = []
    by_model: list[SpentByModel] = []


def recorded_cost(call: LlmCall) -> int | None:
    """`CostOf` of what the journal says, and nothing else."""
    return call.cost_nusd


def root_agent(events: Iterable[AnyEvent], default: str) -> str:
    """The name of the root agent as far as the events tell it."""
    for event in events:
        if isinstance(event, AgentStarted | ApprovalRequired) and event.agent_path:
            return event.agent_path[0]
    return default


class Sum:
    """A sum of events."""

    def __init__(self) -> None:
        self._amounts: Counter[str] = Counter()

    def add(self, event: AnyEvent, cost_of: CostOf = recorded_cost) -> None:
        """Adds what an event says was spent, if it says so."""
        if isinstance(event, _COUNTED):
            self.put(amounts_of(event, cost_of))

    def put(self, amounts: Mapping[str, int]) -> None:
        """Adds amounts by their names in `Spent`, costs as ``cost_nusd``."""
        have = self._amounts
        for name, amount in amounts.items():
            have[name] += amount

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and self._amounts == other._amounts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __bool__(self) -> bool:
        return self._amounts["calls"] > 0 or self._amounts["unpriced_calls"] > 0

    @property
    def cost_nusd(self) -> int:
        """The cost in 10⁻⁹ USD."""
        return self._amounts["cost_nusd"]

    @property
    def spent(self) -> Spent:
        """The sum, as clients see it."""
        return Spent(**self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `Spent`."""
        found: dict[str, Any] = {name: shown_amount(n) for name, n in self._amounts.items()}
        cost_nusd = found.pop("cost_nusd", 0)
        return {**found, "cost_usd": cost_nusd / NUSD}


class Spending:
    """Adds up the events of a conversation, one after the other. ``root`` is the name of the root agent."""

    def __init__(self, root: str, cost_of: CostOf = recorded_cost) -> None:
        self._root = root
        self._cost_of = cost_of
        self._all = Sum()
        self._agents: defaultdict[tuple[str, ...], Sum] = defaultdict(Sum)
        self._models: defaultdict[str, Sum] = defaultdict(Sum)
        self._model_at: dict[str, str] = {}  # node path -> the model that it called last
        self._runs: set[tuple[str, int, str]] = set()  # model, turn, place of the agent
        self._called: dict[tuple[int, str], Place] = {}  # turn and step of a call -> the agent's place

    def add(self, event: AnyEvent) -> None:
        """Adds the next event of the journal."""
        if isinstance(event, AgentStarted) and (call := event.place.call):
            self._called[event.turn, call.text] = event.place
        amounts = amounts_of(event, self._cost_of)
        if not amounts:
            return
        self._all.put(amounts)
        self._agents[self._agent_path(event)].put(amounts)
        if isinstance(event, LlmCall | LlmSettled):
            self._add_to_model(event, amounts)

    def report(self) -> SpendReport:
        """What was spent so far; agents as they were first called, models by what they cost."""
        by_model = sorted(self._models.items(), key=lambda item: -item[1].cost_nusd)
        return SpendReport(
            spent=self._all.spent,
            by_agent=[SpentByAgent(agent_path=path, **found.fields) for path, found in self._agents.items()],
            by_model=[SpentByModel(model=model, **found.fields) for model, found in by_model],
        )

    def _agent_path(self, event: AnyEvent) -> tuple[str, ...]:
        """The agent whose amounts these are. The result of a call tells how the called agent ended."""
        place = event.place
        if isinstance(event, ToolResult):
            place = self._called.get((event.turn, event.step), place)
        path = (self._root, *place.called_agents)
        if isinstance(event, ToolResult) and event.spent is not None:
            return (*path, event.tool.removeprefix(AGENT_TOOL_PREFIX))
        return path

    def _add_to_model(self, event: LlmCall | LlmSettled, amounts: Mapping[str, int]) -> None:
        place = event.place
        if isinstance(event, LlmCall):
            self._model_at[place.path] = event.model
        model = self._model_at.get(place.path, _UNKNOWN)
        run = (model, event.turn, place.agent.text)
        is_new = run not in self._runs
        self._runs.add(run)
        is_forced = isinstance(event, LlmCall) and bool(event.forced)
        self._models[model].put({**amounts, "runs": int(is_new), "forced": int(is_forced)})


def spend_report(events: Iterable[AnyEvent], root: str, cost_of: CostOf = recorded_cost) -> SpendReport:
    """What these events spent."""
    spending = Spending(root, cost_of)
    for event in events:
        spending.add(event)
    return spending.report()


def shown_amount(amount: int) -> int:
    """A sum as clients see it."""
    return max(0, min(amount, _MOST))


def amounts_of(event: AnyEvent, cost_of: CostOf = recorded_cost) -> dict[str, int]:
    """What an event adds to a sum, by the names in `Spent`, costs as ``cost_nusd``."""
    match event:
        case LlmCall(usage=usage):
            cost = cost_of(event)
            return {
                "calls": 1,
                "input_tokens": usage.input,
                "output_tokens": usage.output,
                "cached_tokens": usage.cached,
                "total_tokens": usage.input + usage.output,
                "cost_nusd": cost or 0,
                "unpriced_calls": int(cost is None),
                "time_ms": event.latency_ms,
            }
        case LlmSettled():
            return {"calls": event.calls, "total_tokens": event.tokens, "cost_nusd": event.cost_nusd}
        case UserMessage():
            return {"runs": 1}
        case AgentStarted():
            return {} if event.by == "map" else {"runs": 1}
        case ToolResult(spent=SpentElsewhere() as elsewhere):
            cost = elsewhere.cost_nusd
            return {
                "runs": 1,
                "calls": elsewhere.llm_calls,
                "total_tokens": elsewhere.tokens,
                "cost_nusd": cost or 0,
                "unpriced_calls": int(cost is None),
            }
        case ToolResult() | Completed() if event.forced:
            return {"forced": 1}
        case NodeCompleted() if event.forced and event.place.is_started:
            return {"forced": 1}
        case _:
            return {}
