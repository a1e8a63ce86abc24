"""The steps of the open turn: their events, and what follows from them, up to date after each event. Pure.

Theory of operation
    A turn may hold a thousand agents, and each of their events comes through here: what an event costs must
    not depend on how many came before it. So nothing is looked for among all events. What a step needs is
    kept by its key; what belongs to a place is kept in a tree of places, as long as it counts.

    A place *has ended* when a node has completed there, or when the agent that was called there has answered.
    What happened inside of it does not count any more: a pass gets the end, and needs nothing of the way
    there. Of the tree, all below the place is dropped in that moment. Each event is dropped at most once.

    The end itself counts, and so does the start of an agent that worked beside what started it: a replay
    needs to know which agents there were, in which order.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import get_args

from mesh.core.concealed import hides_arguments
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    LlmCall,
    NodeCompleted,
    StepEvent,
    ToolCall,
    ToolIntent,
    ToolResult,
    Validation,
)
from mesh.core.pending_approvals import PendingApprovals
from mesh.core.places import Place, StepKey

STEP_EVENTS = get_args(StepEvent)


class _Entry:
    """A place in the tree of places: the numbers of its own events that count, and the entries below it, by
    the last part of their places."""

    __slots__ = ("below", "events", "has_ended")

    def __init__(self) -> None:
        self.events: list[int] = []
        self.below: dict[str, _Entry] = {}
        self.has_ended = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Entry) and (self.events, self.below, self.has_ended) == (
            other.events,
            other.below,
            other.has_ended,
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def all_events(self) -> Iterator[int]:
        """The numbers of its events and of those below it, in no order."""
        entries = [self]
        while entries:
            entry = entries.pop()
            yield from entry.events
            entries += entry.below.values()


class OpenSteps:
    """See the module. Read it freely; change it only by `add`. ``decided`` has the uuids of the approvals of
    the whole conversation that are decided."""

    def __init__(self, decided: Container[str] = ()) -> None:
        self.events: list[StepEvent] = []
        # By the key of the step: its claims, its result, its validation, the model's answers.
        self.claims: dict[str, list[ToolIntent]] = {}
        self.results: dict[str, ToolResult] = {}
        self.validated: set[str] = set()
        self.decisions: list[ApprovalResolved] = []
        self.approvals = PendingApprovals()
        self._decided = decided
        self._answers: dict[str, list[LlmCall]] = {}
        self._calls: dict[str, ToolCall] = {}  # by the step of the call
        self._counting: dict[int, StepEvent] = {}  # those that count, by their number
        self._tree = _Entry()
        self._called: dict[str, list[Place]] = {}  # the agents that a step called and that have not answered
        self._decisions: list[int] = []  # their numbers
        self._acted: dict[str, int] = {}  # the newest event of each step that is no decision
        self._unsettled: dict[str, ToolIntent] = {}
        self._unheard: dict[str, int] = {}  # what people have told agents, by its id: the number of the event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenSteps) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def outcomes(self) -> list[StepEvent]:
        """The events that count, in their order."""
        return [*self._counting.values()]

    @property
    def unsettled(self) -> list[tuple[ToolIntent, ToolCall | None]]:
        """The claims of MCP tools that nothing has followed, each with the model's call."""
        return [(intent, self.call_of(intent)) for intent in self._unsettled.values()]

    def has_ended(self, place: Place) -> bool:
        """Whether a node has completed, or a called agent has answered, at a place or around it."""
        entry = self._tree
        for part in place.text.split("."):
            below = entry.below.get(part)
            if below is None:
                return False
            if below.has_ended:
                return True
            entry = below
        return False

    def within(self, place: Place) -> list[StepEvent]:
        """Of the `outcomes`, those at a place and below it; none if a place around it has ended."""
        entry: _Entry | None = self._tree
        for part in place.text.split("."):
            entry = entry.below.get(part) if entry is not None else None
        return [] if entry is None else [self._counting[number] for number in sorted(entry.all_events())]

    def claimed_before(self, place: Place) -> list[StepEvent]:
        """The claims, and their results, at the places at which the agent worked that has begun anew at this
        one. Costs what all claims of the turn are."""
        found: list[StepEvent] = []
        for step, claims in self.claims.items():
            scopes = StepKey(step).place.scopes
            if any(at != place and at.first == place.first for at in scopes):
                found += claims
                found += [self.results[step]] if step in self.results else []
        return found

    def has_news(self, since: int, more: Sequence[AnyEvent]) -> bool:
        """Whether there is a decision after event ``since`` that its step has not acted on, neither here nor
        in the ``more`` events that are about to follow."""
        acting = {event.step for event in more if not isinstance(event, ApprovalResolved)}
        for number in reversed(self._decisions):
            decision = self.events[number]
            if decision.seq <= since:
                return False
            is_acted_on = decision.step in acting or self._acted.get(decision.step, -1) > number
            if number in self._counting and not is_acted_on:
                return True
        return False

    def unheard(self, since: int, more: Sequence[AnyEvent]) -> list[AgentTold]:
        """What people have told agents at work after event ``since`` that these have not read, neither here
        nor in the ``more`` events that are about to follow."""
        if not self._unheard:
            return []
        heard = {id for event in more if isinstance(event, LlmCall) for id in event.heard}
        told = [(id, self._counting.get(number)) for id, number in self._unheard.items()]
        return [e for id, e in told if isinstance(e, AgentTold) and e.seq > since and id not in heard]

    def call_of(self, outcome: ToolResult | ToolIntent) -> ToolCall | None:
        """The model's call that this claim or result belongs to, if a model asked for it."""
        return self._calls.get(outcome.step)

    def hides_arguments(self, outcome: ToolResult) -> bool:
        """Whether clients are not shown what the model said to this tool: see `concealed.hides_arguments`."""
        answers = self._answers.get(StepKey(outcome.step).asked_by.text, ())
        return any(hides_arguments(answer, outcome.tool) for answer in answers)

    def add(self, event: StepEvent) -> None:
        """Takes the next event."""
        number = len(self.events)
        self.events.append(event)
        counts = self._put(event, number)
        if not isinstance(event, ApprovalResolved):
            self._acted[event.step] = number
            self._unsettled.pop(event.step, None)
        match event:
            case LlmCall():
                self._answered(event)
            case ToolIntent():
                self.claims.setdefault(event.step, []).append(event)
                if event.session:
                    self._unsettled[event.step] = event
            case ToolResult():
                self.results[event.step] = event
                self.approvals.end_step(event.step)
                self._end_called(event.step)
            case Validation():
                self.validated.add(event.step)
                self._end_called(event.step)
            case ApprovalRequired():
                is_answered = event.uuid in self._decided or event.step in self.results
                self.approvals.ask(number, event, is_answered=is_answered, counts=counts)
            case ApprovalResolved():
                self.decisions.append(event)
                self._decisions.append(number)
                self.approvals.decide(event.uuid)
            case AgentStarted() if call := event.place.call:
                self._start_called(event.place, call.text)
            case AgentTold():
                self._told(event, number)
            case NodeCompleted():
                self._end(event.place)
            case _:
                pass

    def _told(self, event: AgentTold, number: int) -> None:
        if event.action == "pause":
            self.approvals.hold(event.place, event.time)
        elif event.action == "resume":
            self.approvals.let_go(event.place, event.time)
        elif event.from_person and event.is_read:
            self._unheard[event.id] = number

    def _put(self, event: StepEvent, number: int) -> bool:
        """Puts an event into the tree if it counts."""
        entry = self._tree
        for part in event.node.split("."):
            if entry.has_ended:
                return False
            entry = entry.below.get(part) or entry.below.setdefault(part, _Entry())
        if entry.has_ended and not _outlasts_its_place(event):
            return False
        entry.events.append(number)
        self._counting[number] = event
        return True

    def _answered(self, event: LlmCall) -> None:
        for id in event.heard:
            self._unheard.pop(id, None)
        self._answers.setdefault(event.step, []).append(event)
        for index, call in enumerate(event.tool_calls):
            self._calls[StepKey(event.step).tool_call(index).text] = call

    def _start_called(self, place: Place, call: str) -> None:
        if call in self.results or call in self.validated:
            self._end(place)
        else:
            self._called.setdefault(call, []).append(place)

    def _end_called(self, call: str) -> None:
        for place in self._called.pop(call, ()):
            self._end(place)

    def _end(self, place: Place) -> None:
        """A place has ended: what is inside of it does not count any more."""
        entry = self._tree
        for part in place.text.split("."):
            if entry.has_ended:
                return
            entry = entry.below.get(part) or entry.below.setdefault(part, _Entry())
        if entry.has_ended:
            return
        entry.has_ended = True
        lasting = [number for number in entry.events if _outlasts_its_place(self._counting[number])]
        for number in entry.all_events():
            if number not in lasting:
                del self._counting[number]
                self.approvals.drop(number)
        entry.events, entry.below = lasting, {}


def outcomes_of(events: Iterable[AnyEvent]) -> list[StepEvent]:
    """Of events of one turn, those that count as long as nothing else is known of it."""
    steps = OpenSteps()
    for event in events:
        if isinstance(event, STEP_EVENTS):
            steps.add(event)
    return steps.outcomes


def _outlasts_its_place(event: StepEvent) -> bool:
    """Whether an event at a place that has ended counts all the same: see the module."""
    return isinstance(event, NodeCompleted) or (isinstance(event, AgentStarted) and event.by != "")
