"""Places in the tree and keys of steps: written and parsed."""

import doctest

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core import places
from mesh.core.places import ROOT, Place

STEPS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4)


def reached(steps: list[tuple[int, int]]) -> Place:
    place = ROOT
    for index, iteration in steps:
        place = place.child(index, iteration)
    return place


@settings(deadline=None)
@given(STEPS)
def test_the_path_of_a_place_is_the_place_without_its_iterations(steps: list[tuple[int, int]]) -> None:
    assert reached(steps).path == ".".join(["0", *(str(index) for index, _ in steps)])


@settings(deadline=None)
@given(STEPS)
def test_a_place_tells_the_indices_and_the_iterations_on_the_way_to_it(steps: list[tuple[int, int]]) -> None:
    assert reached(steps).indices == [index for index, _ in steps]
    assert reached(steps).iterations == [str(iteration) for _, iteration in steps if iteration]


@settings(deadline=None)
@given(STEPS, STEPS)
def test_different_ways_down_the_tree_are_different_places(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    assert (reached(one) == reached(other)) == (one == other)


@settings(deadline=None)
@given(STEPS, STEPS)
def test_below_a_place_is_what_a_way_through_it_reaches(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    assert reached(other).contains(reached(one)) == (one[: len(other)] == other)


@settings(deadline=None)
@given(STEPS)
def test_the_nodes_around_a_place_are_those_on_the_way_to_it(steps: list[tuple[int, int]]) -> None:
    on_the_way = [reached(steps[:count]) for count in range(len(steps))]
    assert list(reached(steps).enclosing) == on_the_way[::-1]


@settings(deadline=None)
@given(STEPS, st.integers(0, 99), st.integers(0, 99))
def test_a_step_key_tells_the_place_of_its_node(
    steps: list[tuple[int, int]], number: int, index: int
) -> None:
    place = reached(steps)
    model_call = place.model_call(number)
    assert model_call.text == f"{place.text}/llm/{number}"
    assert model_call.tool_call(index).text == f"{place.text}/tool/{number}.{index}"
    assert {
        key.place for key in (place.step, model_call, model_call.tool_call(index), place.agent_call())
    } == {place}


@settings(deadline=None)
@given(STEPS, st.integers(0, 99), st.integers(0, 99))
def test_an_agent_that_validates_has_a_place_that_tells_which_answer_it_is_about(
    steps: list[tuple[int, int]], number: int, index: int
) -> None:
    answer = reached(steps).model_call(number)
    validation, tool_call = answer.validation(index), answer.tool_call(index)
    assert (validation.place, validation.validated) == (reached(steps), answer)
    assert tool_call.validated is None
    assert (tool_call.asked_by, answer.number) == (answer, number)
    place = validation.called_agent("critic")
    assert (place.call, place.path, place.called_agents) == (validation, "critic", ["critic"])
    assert place != tool_call.called_agent("critic")
    assert place.agent == place.child(1).child(0, 2).agent
    assert place.in_tree == reached(steps)


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(places).failed == 0
