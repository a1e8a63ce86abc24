"""How many agents a turn starts, and whether more may start. Pure.

What counts is every agent that a model, a map node or code starts (`AgentStarted.by`), over the life of each
run around it: ended ones count, too. An agent that is called as a tool does not count.

Each run has one limit, ``max_agents``: that of its budget, if it has one. A turn without one has `OF_TURN`,
a started agent `OF_STARTED_AGENT`; any other run has no limit of its own.
"""

from collections.abc import Collection, Iterator, Sequence

from mesh.core.budget import Scope
from mesh.core.events import AgentStarted, AnyEvent, UserMessage
from mesh.core.places import ROOT, Place

OF_TURN = 64
"""How many agents a turn starts at most, unless its budget says otherwise."""
OF_STARTED_AGENT = 8
"""How many agents a started agent starts at most, with all below it, unless its budget says otherwise."""


class AgentsStarted:
    """The agents that were started in the newest turn, by the runs around them. Read it freely; change it
    only by `apply`, whose cost depends on the depth of a place alone."""

    def __init__(self) -> None:
        self._below: dict[str, int] = {}  # by place, which may be any around a started agent
        self._started: set[str] = set()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentsStarted) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __contains__(self, place: Place) -> bool:
        """Whether a started agent, or an item of a map, runs or has run at a place."""
        return place.first.text in self._started

    @property
    def places(self) -> Collection[str]:
        """The places below which agents were started."""
        return self._below.keys()

    def below(self, place: Place) -> int:
        """How many were started below a place, those that others below it started included."""
        return self._below.get(place.text, 0)

    def apply(self, event: AnyEvent) -> None:
        """Applies the next event of the journal."""
        if isinstance(event, UserMessage):
            self._below.clear()
            self._started.clear()
        elif is_start(event) and event.step not in self._started:
            self._started.add(event.step)
            for place in Place(event.step).enclosing:
                self._below[place.text] = self.below(place) + 1


def is_start(event: AnyEvent) -> bool:
    """Whether this is the start of an agent that counts. One that begins anew is counted already."""
    return isinstance(event, AgentStarted) and bool(event.by) and event.place.first == event.place


def refusal(started: AgentsStarted, new: Collection[Place], scopes: Sequence[Scope]) -> str:
    """Why these agents may not start, in words for the model that wants them to; empty if they may. All of
    them are to be started by the same run, and none of them is ``started``. ``scopes`` are the budgets of the
    runs around them."""
    if not new:
        return ""
    own = {scope.place: scope.max_agents for scope in scopes}
    for place, limit in _limits(next(iter(new)), own, started):
        before = started.below(place)
        if before + len(new) > limit:
            return _refused(len(new), before, limit, place, is_default=own.get(place.text) is None)
    return ""


def _limits(new: Place, own: dict[str, int | None], started: AgentsStarted) -> Iterator[tuple[Place, int]]:
    """The runs around a new agent that have a limit, and these limits, the nearest first."""
    for place in new.enclosing:
        limit = own.get(place.text)
        if limit is None and place == ROOT:
            limit = OF_TURN
        elif limit is None and place in started:
            limit = OF_STARTED_AGENT
        if limit is not None:
            yield place, limit


def _refused(asked: int, before: int, limit: int, place: Place, *, is_default: bool) -> str:
    what = f"None of these {asked} agents was started" if asked > 1 else "The agent was not started"
    who = "this turn" if place == ROOT else f"the run at {place.text}"
    key = "budget.max_agents"
    if is_default:
        raises = f"{key} at the top of the config" if place == ROOT else "max_agents in a budget of its own"
        key = f"the default; {raises} raises it"
    left = limit - before
    advice = f"Start {left} at most" if left > 0 else "Go on without more agents"
    return (
        f"{what}: {who} may start {limit} ({key}), with those that they start, and has started {before}. "
        f"{advice}."
    )
