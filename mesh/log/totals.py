"""What a conversation came to: turns, model calls, tokens, cost, tools, time. Pure."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

from mesh.core.approvals import kind_of
from mesh.core.conversation import Conversation
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    Error,
    LlmCall,
    Paused,
    ToolResult,
    Usage,
    UserMessage,
)
from mesh.display.approvals import subject_of
from mesh.display.text import call
from mesh.llm.prices import Prices, source
from mesh.log.line import Line
from mesh.log.moments import between, span
from mesh.log.names import Names, peer_of, short

_MOST_LISTED = 10


class Totals:
    """Adds up one event after the other."""

    def __init__(self, names: Names, prices: Prices) -> None:
        self._names = names
        self._prices = prices
        self._conversation = Conversation()
        self._usage = Usage()
        self._calls: Counter[str] = Counter()
        self._cost = Decimal()
        self._unpriced: Counter[str] = Counter()
        self._tools, self._agents = _Runs(), _Runs()
        self._decisions: Counter[str] = Counter()
        self._working = self._waiting = timedelta()
        self._turn_since = self._paused_since = self._latest = ""

    def add(self, event: AnyEvent) -> None:
        self._conversation.apply(event)
        self._latest = event.time
        match event:
            case UserMessage():
                self._turn_since = event.time
            case Completed() | Error():
                self._working, self._waiting = self._times()
                self._turn_since = self._paused_since = ""
            case Paused():
                self._paused_since = self._paused_since or event.time
            case ApprovalResolved():
                self._decisions[event.decision] += 1
                self._waiting, self._paused_since = self._times()[1], ""
            case LlmCall():
                self._called(event)
            case ToolResult():
                peer = peer_of(event.tool)
                (self._agents if peer else self._tools).add(event, peer)
            case _:
                pass

    def lines(self) -> Iterator[Line]:
        """The summary. Empty for a conversation without turns."""
        turns = self._conversation.turn
        if not turns:
            return
        yield Line("\nsummary", "head")
        rows = (
            ("turns", f"{turns}{self._state()}"),
            ("model calls", _counted(self._calls)),
            ("tokens", self._tokens()),
            ("cost", self._money()),
            ("tools run", self._tools.in_words()),
            ("agents asked", self._agents.in_words()),
            ("decisions", _counted(self._decisions)),
            ("time", self._time_in_words()),
        )
        for label, value in rows:
            if value:
                yield Line(f"  {label:<12} {value}")
        for asked in self._conversation.pending[:_MOST_LISTED]:
            who = self._names.of(asked.node)
            yield Line(f"  {'waits for':<12} {who}: {_wish(asked)}, approval {short(asked.uuid)}", "asks")

    def _called(self, event: LlmCall) -> None:
        model, before, now = short(event.model), self._usage, event.usage
        self._usage = Usage(before.input + now.input, before.output + now.output, before.cached + now.cached)
        self._calls[model] += 1
        cost = self._prices.cost(event)
        if cost is None:
            self._unpriced[model] += 1
        else:
            self._cost += cost

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
        unknown = ", ".join([*self._unpriced][:_MOST_LISTED])
        if len(self._unpriced) == len(self._calls):
            return f"unknown: no price for {unknown} (llm.prices in the config sets one)"
        more = f" and what {unknown} cost: no price is known" if unknown else ""
        return f"{dollars(self._cost)}{more}{f' ({source()})' if self._cost else ''}"

    def _times(self) -> tuple[timedelta, timedelta]:
        """How long turns took so far, and how much of that they waited for a person."""
        turn = between(self._turn_since, self._latest) if self._turn_since else timedelta()
        pause = between(self._paused_since, self._latest) if self._paused_since else timedelta()
        return self._working + turn, self._waiting + pause

    def _time_in_words(self) -> str:
        turns, waited = self._times()
        return f"{span(turns)}{f', {span(waited)} of it waiting for a person' if waited else ''}"


class _Runs:
    """How often what was run."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._failed = self._skipped = 0

    def add(self, event: ToolResult, name: str) -> None:
        if event.skipped:
            self._skipped += 1
            return
        self._names[name or short(event.tool)] += 1
        self._failed += event.is_error

    def in_words(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        skipped = f", {self._skipped} not run by decision" if self._skipped else ""
        return f"{_counted(self._names) or '0'}{failed}{skipped}" if self._names or self._skipped else ""


def _wish(asked: ApprovalRequired) -> str:
    """What a person is to decide, in a few words."""
    if kind_of(asked).is_call and not asked.remote_agent_name:
        return call(asked.tool_name, asked.tool_args)
    return subject_of(asked)


def dollars(cost: Decimal) -> str:
    """An amount with as many places as it needs: cents above a dollar, four places below."""
    if cost and cost < Decimal("0.0001"):
        return "less than $0.0001"
    return f"${cost:,.2f}" if cost >= 1 or not cost else f"${cost:.4f}"


def _counted(counts: Counter[str]) -> str:
    """``3 (add 2, look 1)``, or ``2 add`` if there is one kind only."""
    listed = [f"{name} {count}" for name, count in counts.most_common(_MOST_LISTED)]
    more = ["…"] if len(counts) > _MOST_LISTED else []
    return f"{counts.total()} ({', '.join([*listed, *more])})" if counts else ""
