"""How many processes there are to be: soon more, much later fewer, and never beyond the bounds."""

from hypothesis import given
from hypothesis import strategies as st

from deployments.scaler import FEWER_AFTER_S, MORE_AFTER_S, Scaler
from mesh.config.model import Scale

SCALE = Scale(min=1, max=8, target=10)
EVERY_S = 2.0


def noted(scaler: Scaler, load: float, seconds: float, begun: float = 0.0) -> float:
    """The time after so many seconds of this load."""
    now = begun
    while now <= begun + seconds:
        scaler.note(load, now)
        now += EVERY_S
    return now


def test_more_work_that_lasts_gets_more_processes() -> None:
    scaler = Scaler(SCALE)
    assert scaler.number == 1
    noted(scaler, 35, MORE_AFTER_S + EVERY_S)
    assert scaler.number == 4


def test_a_moment_of_more_work_changes_nothing() -> None:
    scaler = Scaler(SCALE)
    now = noted(scaler, 5, 60)
    now = noted(scaler, 80, MORE_AFTER_S / 2, now)
    noted(scaler, 5, 60, now)
    assert scaler.number == 1


def test_one_look_after_a_long_time_without_any_changes_nothing() -> None:
    scaler = Scaler(SCALE)
    scaler.note(0, 0)
    scaler.note(80, 4 * MORE_AFTER_S)
    assert scaler.number == 1
    scaler.note(80, 5 * MORE_AFTER_S)
    assert scaler.number == 8


def test_fewer_are_there_only_after_a_long_time_of_less_work() -> None:
    scaler = Scaler(SCALE)
    now = noted(scaler, 80, 20)
    now = noted(scaler, 5, FEWER_AFTER_S - 10, now)
    assert scaler.number == 8
    now = noted(scaler, 15, 30, now)
    assert scaler.number == 2
    noted(scaler, 0, 2 * FEWER_AFTER_S, now)
    assert scaler.number == 1


def test_those_that_are_there_already_are_not_ended_at_once() -> None:
    scaler = Scaler(SCALE)
    scaler.found(5)
    now = noted(scaler, 0, FEWER_AFTER_S - 10)
    assert scaler.number == 5
    noted(scaler, 0, 20, now)
    assert scaler.number == 1


@given(
    st.lists(st.tuples(st.floats(0, 60), st.floats(0, 1e6)), max_size=60),
    st.integers(1, 5),
    st.integers(0, 5),
    st.floats(0.5, 1000),
)
def test_it_is_always_within_the_bounds_and_changes_only_towards_what_is_needed(
    steps: list[tuple[float, float]], least: int, more: int, target: float
) -> None:
    scale = Scale(min=least, max=least + more, target=target)
    scaler, now = Scaler(scale), 0.0
    for passed, load in steps:
        now += passed
        before = scaler.number
        scaler.note(load, now)
        assert scale.min <= scaler.number <= scale.max
        needed = load / target
        if scaler.number > before:
            assert needed > before or scaler.number == scale.min
        if scaler.number < before:
            assert needed <= scaler.number or scaler.number == scale.max


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_load_that_stays_ends_in_as_many_as_it_needs(first: float, then: float) -> None:
    scaler = Scaler(SCALE)
    now = noted(scaler, first, 2 * FEWER_AFTER_S)
    noted(scaler, then, 2 * FEWER_AFTER_S, now)
    fresh = Scaler(SCALE)
    noted(fresh, then, 2 * FEWER_AFTER_S)
    assert scaler.number == fresh.number
    assert scaler.number * SCALE.target >= min(then, SCALE.max * SCALE.target)
