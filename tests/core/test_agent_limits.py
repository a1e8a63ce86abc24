"""How many agents may start, by themselves: whatever is started in whichever order, no limit is exceeded, and
nothing is refused that would have fitted."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core.agent_limits import OF_STARTED_AGENT, OF_TURN, AgentsStarted, refusal
from mesh.core.budget import Scope, scope_of
from mesh.core.events import AgentStarted, NodeCompleted, StartedBy, UserMessage
from mesh.core.places import ROOT, Place


def started(place: Place, by: StartedBy = "spawn") -> AgentStarted:
    return AgentStarted(turn=1, step=place.text, name="x", kind="llm", by=by)


def fold(*places: Place) -> AgentsStarted:
    agents = AgentsStarted()
    for place in places:
        agents.apply(started(place))
    return agents


def agents_of(place: Place, number: int, count: int) -> list[Place]:
    """The agents that a run starts in one call."""
    call = place.model_call(number).tool_call(0)
    return [call.started_agent("x", index) for index in range(count)]


limits = st.one_of(st.none(), st.integers(1, 12))
calls = st.lists(
    st.tuples(st.integers(0, 1_000), st.integers(1, 9), limits),  # who starts, how many, its own limit
    max_size=25,
)


@given(calls, limits, st.integers(1, 30))
def test_no_run_ever_starts_more_than_its_limit_and_whoever_is_refused_would_have_exceeded_one(
    calls: list[tuple[int, int, int | None]], of_root: int | None, of_turn: int
) -> None:
    budgets: dict[str, Scope] = {"0": scope_of("0", {"max_agents": of_root} if of_root else {})}
    agents, runs = AgentsStarted(), [ROOT, Place("0.1"), Place("0.1#2.3")]

    def allowed(place: Place) -> int | None:
        own = budgets.get(place.text)
        if own and own.max_agents:
            return own.max_agents
        return OF_TURN if place == ROOT else OF_STARTED_AGENT if place.is_started else None

    for number, (who, count, own) in enumerate(calls):
        place = runs[who % len(runs)]
        new = agents_of(place, number, count)
        around = [budgets[each.text] for each in place.scopes if each.text in budgets]
        exceeds = [
            each
            for each in place.scopes
            if (limit := allowed(each)) is not None and agents.below(each) + count > limit
        ]
        said = refusal(agents, new, around)
        assert bool(said) == bool(exceeds)
        if said:
            continue
        for each in new:
            agents.apply(started(each))
            runs.append(each)
            if own is not None:
                budgets[each.text] = scope_of(each.text, {"max_agents": own})
    for place in runs:
        limit = allowed(place)
        assert limit is None or agents.below(place) <= limit
        assert agents.below(place) == sum(place.contains(other) and place != other for other in runs[3:])


@pytest.mark.parametrize("by", ["spawn", "fork", "map", "python", "tool"])
def test_whoever_starts_an_agent_it_counts(by: StartedBy) -> None:
    agents = AgentsStarted()
    agents.apply(started(Place("0.2.0#7"), by))
    assert agents.below(Place("0.2")) == agents.below(ROOT) == 1 and Place("0.2.0#7") in agents


def test_an_agent_that_is_called_as_a_tool_does_not_count() -> None:
    agents = AgentsStarted()
    agents.apply(started(Place("0.search@0-0"), ""))
    assert agents.below(ROOT) == 0


def test_a_start_that_is_told_twice_counts_once_and_one_that_has_ended_still_counts() -> None:
    place = Place("0.x@0-0-0")
    agents = fold(place, place)
    agents.apply(NodeCompleted(turn=1, step=place.text, name="x"))
    assert agents.below(ROOT) == 1


def test_each_turn_begins_to_count_anew() -> None:
    agents = fold(*agents_of(ROOT, 0, 5))
    agents.apply(UserMessage(turn=2, text="more"))
    assert agents.below(ROOT) == 0 and Place("0.x@0-0-0") not in agents


@pytest.mark.parametrize("count, is_refused", [(OF_TURN, False), (OF_TURN + 1, True)])
def test_a_turn_without_a_budget_has_a_limit_all_the_same(count: int, is_refused: bool) -> None:
    assert bool(refusal(AgentsStarted(), agents_of(ROOT, 0, count), ())) == is_refused


@pytest.mark.parametrize("lead", [Place("0.x@0-0-0"), Place("0.self@0-0-0"), Place("0.2.0#7")])
def test_a_started_agent_without_a_budget_has_a_smaller_one(lead: Place) -> None:
    agents = fold(lead)
    assert refusal(agents, agents_of(lead, 0, OF_STARTED_AGENT), ()) == ""
    assert refusal(agents, agents_of(lead, 0, OF_STARTED_AGENT + 1), ())


def test_an_iteration_of_a_loop_is_no_started_agent() -> None:
    assert refusal(AgentsStarted(), agents_of(Place("0.2.0#7"), 0, OF_STARTED_AGENT + 1), ()) == ""


@pytest.mark.parametrize(
    "scopes, start, said",
    [
        (
            [Scope("0", max_agents=5)],
            agents_of(ROOT, 1, 3),
            "None of these 3 agents was started: this turn may start 5 (budget.max_agents), with those "
            "that they start, and has started 3. Start 2 at most.",
        ),
        (
            [Scope("0", max_agents=3)],
            agents_of(ROOT, 1, 1),
            "The agent was not started: this turn may start 3 (budget.max_agents), with those that "
            "they start, and has started 3. Go on without more agents.",
        ),
        (
            [Scope("0"), Scope("0.x@0-0-1", max_agents=1)],
            agents_of(Place("0.x@0-0-1"), 0, 2),
            "None of these 2 agents was started: the run at 0.x@0-0-1 may start 1 (budget.max_agents), "
            "with those that they start, and has started 0. Start 1 at most.",
        ),
        (
            [],
            agents_of(ROOT, 1, 62),
            "None of these 62 agents was started: this turn may start 64 (the default; budget.max_agents at "
            "the top of the config raises it), with those that they start, and has started 3. "
            "Start 61 at most.",
        ),
        (
            [Scope("0", max_agents=99)],
            agents_of(Place("0.x@0-0-1"), 0, 9),
            "None of these 9 agents was started: the run at 0.x@0-0-1 may start 8 (the default; max_agents "
            "in a budget of its own raises it), with those that they start, and has started 0. "
            "Start 8 at most.",
        ),
    ],
)
def test_a_refusal_says_which_limit_it_is_and_what_is_left(
    scopes: Sequence[Scope], start: list[Place], said: str
) -> None:
    assert refusal(fold(*agents_of(ROOT, 0, 3)), start, scopes) == said


def test_limits_may_be_over_a_thousand() -> None:
    scopes = [scope_of("0", {"max_agents": 5_000})]
    assert refusal(AgentsStarted(), agents_of(ROOT, 0, 5_000), scopes) == ""
    assert refusal(AgentsStarted(), agents_of(ROOT, 0, 5_001), scopes)
