"""The summary of a conversation: turns, model calls, tokens, cost, tools and time. Pure."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

from mesh.core.approvals import kind_of
from mesh.core.conversation import Conversation
from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    Error,
    LlmCall,
    LlmSettled,
    NodeCompleted,
    Paused,
    ToolResult,
    Usage,
    UserMessage,
    Validation,
)
from mesh.core.places import ROOT
from mesh.core.spending import Spending
from mesh.display.approvals import subject_of
from mesh.display.outcomes import stopped
from mesh.display.text import call
from mesh.llm.prices import Prices, source
from mesh.log.log_line import LogLine
from mesh.log.node_names import NodeNames, other_agent_of, short_name
from mesh.log.times import between, milliseconds, span

_MAX_LISTED = 10


class Summary:
    """Adds up events, one after the other."""

    def __init__(self, names: NodeNames, prices: Prices) -> None:
        self._names = names
        self._prices = prices
        self._conversation = Conversation()
        self._usage = Usage()
        self._calls: Counter[str] = Counter()
        self._cost = Decimal()
        self._unpriced: Counter[str] = Counter()
        self._tools, self._agents = _Runs(), _Runs()
        self._decisions: Counter[str] = Counter()
        self._validations: Counter[str] = Counter()
        self._spending = Spending("", prices.nusd)
        self._is_estimated = False
        self._started: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._items: set[tuple[int, str]] = set()  # turn and place of the items of maps
        self._called: set[tuple[int, str]] = set()  # turn and step of the calls of agents of the config
        self._working = self._waiting = timedelta()
        self._turn_since = self._paused_since = self._latest = ""

    def add(self, event: AnyEvent) -> None:
        self._conversation.apply(event)
        self._latest = event.time
        self._spending.add(event)
        match event:
            case UserMessage():
                self._turn_since = event.time
            case Completed() | Error():
                self._working, self._waiting = self._times()
                self._turn_since = self._paused_since = ""
            case Paused():
                self._paused_since = self._paused_since or event.time
            case ApprovalResolved():
                self._decisions[event.choice] += 1
                self._waiting, self._paused_since = self._times()[1], ""
            case LlmCall():
                self._add_call(event)
            case Validation():
                self._validations["accepted" if event.valid else "objected"] += 1
            case LlmSettled():
                self._cost += Decimal(event.cost_nusd) / 10**9
            case AgentStarted() | NodeCompleted():
                self._agent_began_or_ended(event)
            case ToolResult():
                agent = other_agent_of(event.tool)
                is_agent = agent or (event.turn, event.step) in self._called
                (self._agents if is_agent else self._tools).add(event, agent)
            case _:
                pass

    def _agent_began_or_ended(self, event: AgentStarted | NodeCompleted) -> None:
        if isinstance(event, NodeCompleted):
            if event.place.is_started or (event.turn, event.step) in self._items:
                self._ended[event.status] += 1
            return
        if call := event.place.call:
            self._called.add((event.turn, call.text))
        if event.by:
            self._started[short_name(event.name)] += 1
        if event.by == "map":
            self._items.add((event.turn, event.step))

    def lines(self) -> Iterator[LogLine]:
        """Yields the lines of the summary. A conversation without turns has none."""
        turns = self._conversation.turn
        if not turns:
            return
        yield LogLine("\nsummary", "head")
        rows = (
            ("turns", f"{turns}{self._state()}"),
            ("model calls", _counted(self._calls)),
            ("tokens", self._tokens()),
            ("cost", self._money()),
            ("tools run", self._tools.in_words()),
            ("agents asked", self._agents.in_words()),
            ("agents begun", self._started_in_words()),
            ("validations", _counted(self._validations)),
            ("decisions", _counted(self._decisions)),
            ("time", self._time_in_words()),
        )
        for label, value in rows:
            if value:
                yield LogLine(f"  {label:<12} {value}")
        yield from self._agents_in_lines()
        for asked in self._conversation.pending[:_MAX_LISTED]:
            what = f"{self._names.of(asked.node)}: {_question(asked)}, approval {short_name(asked.uuid)}"
            yield LogLine(f"  {'waits for':<12} {what}", "asks")

    def _agents_in_lines(self) -> Iterator[LogLine]:
        """Yields what each agent has spent itself, if agents were called."""
        agents = self._spending.report().by_agent
        if len(agents) < 2:
            return
        for spent in agents:
            path = " → ".join([self._names.of(ROOT.text), *map(short_name, spent.agent_path[1:])])
            parts = (
                f"{spent.runs} {'run' if spent.runs == 1 else 'runs'}",
                f"{spent.calls} model {'call' if spent.calls == 1 else 'calls'}",
                f"{spent.input_tokens:,} in, {spent.output_tokens:,} out" if spent.total_tokens else "",
                dollars(Decimal(str(spent.cost_usd))) if spent.cost_usd else "",
                milliseconds(spent.time_ms) if spent.time_ms else "",
                f"{spent.forced} ended by a limit" if spent.forced else "",
            )
            yield LogLine(f"  {'agent':<12} {path}: {', '.join(part for part in parts if part)}")

    def _started_in_words(self) -> str:
        ends = [f"{number:,} {status}" for status, number in self._ended.items()]
        return ", ".join([_counted(self._started), *ends]) if self._started else ""

    def _add_call(self, event: LlmCall) -> None:
        model, before, now = short_name(event.model), self._usage, event.usage
        self._usage = Usage(before.input + now.input, before.output + now.output, before.cached + now.cached)
        self._calls[model] += 1
        cost = self._prices.cost(event)
        if cost is None:
            self._unpriced[model] += 1
        else:
            self._cost += cost
            self._is_estimated = self._is_estimated or event.cost_nusd is None

    def _state(self) -> str:
        if not self._conversation.turn_open:
            return ""
        return ", the last one waits for a person" if self._conversation.pending else ", the last one is open"

    def _tokens(self) -> str:
        usage = self._usage
        cached = f" ({usage.cached:,} cached)" if usage.cached else ""
        return f"{usage.input:,} in{cached}, {usage.output:,} out" if usage != Usage() else ""

    def _money(self) -> str:
        if not self._calls:
            return ""
        unknown = ", ".join([*self._unpriced][:_MAX_LISTED])
        if len(self._unpriced) == len(self._calls):
            return f"unknown: no price for {unknown} (llm.prices in the config sets one)"
        more = f" and what {unknown} cost: no price is known" if unknown else ""
        return f"{dollars(self._cost)}{more}{f' ({source()})' if self._cost and self._is_estimated else ''}"

    def _times(self) -> tuple[timedelta, timedelta]:
        """Returns how long the turns have taken, and how much of that they waited for a person."""
        turn = between(self._turn_since, self._latest) if self._turn_since else timedelta()
        pause = between(self._paused_since, self._latest) if self._paused_since else timedelta()
        return self._working + turn, self._waiting + pause

    def _time_in_words(self) -> str:
        turns, waited = self._times()
        return f"{span(turns)}{f', {span(waited)} of it waiting for a person' if waited else ''}"


class _Runs:
    """Counts tool runs by name."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._failed = self._stopped = self._skipped = self._denied = 0

    def add(self, event: ToolResult, name: str) -> None:
        if event.skipped:
            self._skipped += 1
            return
        if event.denied:
            self._denied += 1
            return
        self._names[name or short_name(event.tool)] += 1
        is_stopped = bool(stopped(event))
        self._stopped += is_stopped
        self._failed += event.is_error and not is_stopped

    def in_words(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        failed += f", {self._stopped} stopped" if self._stopped else ""
        skipped = f", {self._skipped} not run by decision" if self._skipped else ""
        skipped += f", {self._denied} denied" if self._denied else ""
        return f"{_counted(self._names) or '0'}{failed}{skipped}" if self._names or skipped else ""


def _question(asked: ApprovalRequired) -> str:
    """Returns what a person has to decide, in a few words."""
    if kind_of(asked).is_call and not asked.remote_agent_name:
        return call(asked.tool_name, asked.tool_args)
    return subject_of(asked)


def dollars(cost: Decimal) -> str:
    """Returns an amount in cents, or with four decimal places if it is below a dollar."""
    if cost and cost < Decimal("0.0001"):
        return "less than $0.0001"
    return f"${cost:,.2f}" if cost >= 1 or not cost else f"${cost:.4f}"


def _counted(counts: Counter[str]) -> str:
    """Returns counts as ``3 (add 2, look 1)``."""
    listed = [f"{name} {count}" for name, count in counts.most_common(_MAX_LISTED)]
    more = ["…"] if len(counts) > _MAX_LISTED else []
    return f"{counts.total()} ({', '.join([*listed, *more])})" if counts else ""
