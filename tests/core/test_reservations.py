"""What model calls hold: kept up to date with each event, it is what a look at all of them finds."""

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mesh.core.amounts import NOTHING, Amount
from mesh.core.budget import BudgetUse
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    LlmCall,
    LlmLost,
    LlmReserved,
    LlmSettled,
    NodeCompleted,
    Paused,
    ToolResult,
    Usage,
    UserMessage,
    Validation,
)
from mesh.core.places import Place
from mesh.core.reservations import bound_of
from tests.worlds.long import as_often_as

PLACES = ["0", "0.1", "0.1#2", "0.1.search@0-0", "0.1.search@0-0.2", "0.1.critic@v0-0", "0.1.self@0-1-0"]
AT = st.sampled_from(PLACES)
LLM_STEPS = st.builds("{}/llm/{}".format, AT, st.integers(0, 1))
CALLS = st.sampled_from(["0.1/tool/0.0", "0.1/validation/0.0", "0/tool/0.0"])
ATTEMPTS = st.integers(0, 2)
RUNS = st.integers(1, 3)
UUIDS = st.sampled_from(["u1", "u2"])

EVENTS: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(
        LlmReserved,
        step=LLM_STEPS,
        run=RUNS,
        tokens=st.integers(1, 9),
        max_output=st.just(1),
        nusd=st.integers(0, 9),
        attempt=ATTEMPTS,
        warned=st.lists(st.tuples(AT, st.just("max_llm_calls")), max_size=1).map(tuple),
    ),
    st.builds(
        LlmCall,
        step=LLM_STEPS,
        model=st.just("m"),
        attempt=ATTEMPTS,
        usage=st.builds(Usage, st.integers(0, 9), st.integers(0, 9)),
        cost_nusd=st.integers(0, 9),
    ),
    st.builds(LlmSettled, step=LLM_STEPS, attempt=ATTEMPTS),
    st.builds(LlmLost, step=LLM_STEPS, attempt=ATTEMPTS),
    st.builds(NodeCompleted, step=AT, name=st.just("n")),
    st.builds(ToolResult, step=CALLS, call_id=st.just("c"), tool=st.just("t"), content=st.just("")),
    st.builds(
        Validation,
        step=CALLS,
        name=st.just("v"),
        kind=st.just("agent"),
        valid=st.just(True),
        number=st.just(1),
    ),
    st.builds(
        ApprovalRequired,
        step=st.builds("{}/limit/max_llm_calls".format, AT),
        uuid=UUIDS,
        call_id=st.just(""),
        tool_name=st.just("budget"),
        tool_args=st.sampled_from([{"max_llm_calls": 4}, {"max_cost_usd": 1.0, "max_llm_calls": 1}]),
        description=st.just(""),
        kind=st.just("limit"),
    ),
    st.builds(ApprovalResolved, uuid=UUIDS, choice=st.sampled_from(["approve", "reject"])),
    st.builds(Paused, run=RUNS),
    st.sampled_from([Completed(response="done"), UserMessage(text="more")]),
)


@st.composite
def journals(draw: st.DrawFn) -> list[AnyEvent]:
    events = [UserMessage(text="go"), *draw(st.lists(EVENTS, max_size=30))]
    # A second later each, so that a time is never before the one of the event before it.
    return [replace(e, seq=n, time=f"2026-01-01T00:00:{n:02}.000Z") for n, e in enumerate(events, 1)]


class Simple:
    """The open reservations, and who makes them, by definition: it looks at all of them."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], LlmReserved] = {}
        self.newest: dict[str, int] = {}
        self.given_up: set[tuple[str, int]] = set()

    def apply(self, event: AnyEvent) -> None:
        match event:
            case LlmReserved():
                self.given_up.discard((event.step, event.attempt))
                self.open[event.step, event.attempt] = event
                self.newest[event.step] = event.attempt
            case LlmCall() | LlmSettled():
                self.open.pop((event.step, event.attempt), None)
                self.given_up.discard((event.step, event.attempt))
            case LlmLost() if (event.step, event.attempt) in self.open:
                self.given_up.add((event.step, event.attempt))
            case NodeCompleted() | ToolResult() | Validation():
                self.given_up |= {key for key, each in self.open.items() if belongs(each, event.step)}
            case Completed() | UserMessage():
                self.open, self.newest, self.given_up = {}, {}, set()
            case _:
                pass

    def is_live(self, reserved: LlmReserved, run: int) -> bool:
        key = (reserved.step, reserved.attempt)
        return reserved.run >= run and self.newest[key[0]] == key[1] and key not in self.given_up

    def lost(self, place: str, run: int) -> Amount:
        at = [each for each in self.open.values() if Place(place) in each.place.scopes]
        return sum((bound_of(each) for each in at if not self.is_live(each, run)), start=NOTHING)

    def live(self, place: str, run: int) -> list[LlmReserved]:
        at = [each for each in self.open.values() if Place(place) in each.place.scopes]
        return [each for each in at if self.is_live(each, run)]


def belongs(reserved: LlmReserved, ended: str) -> bool:
    places = reserved.place.scopes
    return any(place.text == ended or (place.call and place.call.text == ended) for place in places)


@settings(max_examples=as_often_as(200), deadline=None)
@given(journals())
def test_what_is_held_and_what_of_it_is_lost_is_what_a_look_at_all_calls_finds(
    events: list[AnyEvent],
) -> None:
    use, simple = BudgetUse(), Simple()
    for event in events:
        use.apply(event)
        simple.apply(event)
        for place in PLACES:
            for run in (1, 2, 3):
                if use.turn_open:
                    assert use.unsettled(place, run) == simple.lost(place, run)
                found = sorted(use.in_flight(Place(place), run), key=repr)
                assert found == sorted(simple.live(place, run), key=repr)


def told(use: BudgetUse) -> list[object]:
    """All that is asked of it when a call is to be admitted."""
    later, runs = "2026-01-01T00:01:00.000Z", (1, 2, 3)
    return [
        [(use.use(place), use.time_s(place, later)) for place in PLACES],
        [use.is_asked(place, limit) for place in PLACES for limit in ("max_llm_calls", "max_cost_usd")],
        [(use.unsettled(place, n), len(use.in_flight(Place(place), n))) for place in PLACES for n in runs],
        [use.was_warned(place, "max_llm_calls", f"{at}/llm/0") for place in PLACES for at in PLACES],
    ]


@settings(max_examples=as_often_as(200), deadline=None)
@given(journals(), st.integers(0, 30))
def test_what_would_be_spent_after_some_events_is_what_is_spent_after_them(
    events: list[AnyEvent], cut: int
) -> None:
    use = BudgetUse()
    for event in events[:cut]:
        use.apply(event)
    before = deepcopy(use)
    after = use.after(events[cut:])
    for event in events[cut:]:
        use.apply(event)
    assert told(after) == told(use)
    assert dict(after.raised) == dict(use.raised) and set(after.refused) == set(use.refused)
    assert after.conversation == use.conversation and after.turn_open == use.turn_open

    unchanged = deepcopy(before)
    before.after(events[cut:])
    assert before == unchanged
