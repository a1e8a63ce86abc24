"""Which run is in force at each place, whatever restarts in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from mesh.core.places import ROOT, Place
from mesh.keeper.runs import GivenRun, Runs

PLACES = ["0", "0.1", "0.1.0", "0.1.0#2", "0.10", "0.2", "0.2.a@0-0", "0.2.a@0-0-1", "0.2.a@0-0-1.3"]
places = st.sampled_from(PLACES).map(Place)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Place, GivenRun]]:
    """Runs as they are given, one after the other. Those of the root are passes."""
    given_at = draw(st.lists(places, max_size=20))
    gaps = draw(st.lists(st.integers(1, 5), min_size=len(given_at) + 1, max_size=len(given_at) + 1))
    numbers = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    return [
        (place, GivenRun(number, number)) for place, number in zip([ROOT, *given_at], numbers, strict=True)
    ]


def after(history: list[tuple[Place, GivenRun]]) -> Runs:
    runs = Runs()
    for place, run in history:
        if place == ROOT:
            runs.begin_pass(run)
        else:
            runs.restart(place, run)
    return runs


@given(histories(), places)
def test_the_newest_run_given_for_a_place_or_one_around_it_is_in_force(
    history: list[tuple[Place, GivenRun]], place: Place
) -> None:
    *_, newest = (run for at, run in history if at.contains(place))
    runs = after(history)
    assert runs.at(place) == newest
    assert [n for _, run in history for n in [run.number] if runs.is_in_force(n, place)] == [newest.number]


@given(histories(), places, places)
def test_a_restart_ends_all_runs_there_and_below_and_no_other(
    history: list[tuple[Place, GivenRun]], place: Place, elsewhere: Place
) -> None:
    runs = after(history)
    before = runs.at(elsewhere)
    new = GivenRun(history[-1][1].number + 1)
    runs.restart(place, new)
    assert runs.at(elsewhere) == (new if place.contains(elsewhere) else before)


@given(histories(), places)
def test_a_new_pass_ends_all_runs(history: list[tuple[Place, GivenRun]], place: Place) -> None:
    runs = after(history)
    new = GivenRun(history[-1][1].number + 1, after=7)
    runs.begin_pass(new)
    assert runs.at(place) == runs.of_pass == new


@given(histories())
def test_the_run_of_the_pass_is_that_of_the_newest_one(history: list[tuple[Place, GivenRun]]) -> None:
    *_, newest = (run for at, run in history if at == ROOT)
    assert after(history).of_pass == newest


def test_before_the_first_pass_no_run_is_in_force() -> None:
    assert not Runs().is_in_force(1, Place("0.1"))
