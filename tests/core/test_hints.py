"""The hint rules of the design: which tools a person must approve, and which may be run twice."""

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.hints import Hints, hints_of

ASK, OPEN, READS = Hints(True, False), Hints(False, False), Hints(False, True, True)
NAMES = ("readOnlyHint", "destructiveHint", "idempotentHint")
hints = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([True, False, None, "true", 1]))
unannotated = st.sampled_from(["ask", "allow"])


@pytest.mark.parametrize(
    ("tool", "asking", "allowing"),
    [
        ({}, ASK, OPEN),
        ({"annotations": None}, ASK, OPEN),
        ({"annotations": {}}, ASK, OPEN),
        ({"annotations": {"title": "x"}}, ASK, OPEN),
        ({"annotations": {"readOnlyHint": True}}, READS, READS),
        ({"readOnlyHint": True}, READS, READS),
        ({"annotations": {"readOnlyHint": False}}, ASK, ASK),
        ({"annotations": {"destructiveHint": True}}, ASK, ASK),
        ({"destructiveHint": True}, ASK, ASK),
        ({"annotations": {"destructiveHint": False}}, OPEN, OPEN),
        ({"destructiveHint": False}, OPEN, OPEN),
        ({"annotations": {"readOnlyHint": True, "destructiveHint": True}}, ASK, ASK),
        ({"annotations": {"destructiveHint": False}, "destructiveHint": True}, ASK, ASK),
        ({"annotations": {"readOnlyHint": True}, "readOnlyHint": False}, ASK, ASK),
        ({"annotations": {"idempotentHint": True}}, Hints(True, True), Hints(False, True)),
        ({"annotations": {"idempotentHint": True}, "idempotentHint": False}, ASK, OPEN),
        ({"annotations": {"destructiveHint": "false"}}, ASK, OPEN),
    ],
)
def test_each_combination_of_hints_means_one_thing(
    tool: dict[str, Any], asking: Hints, allowing: Hints
) -> None:
    assert hints_of(tool) == asking
    assert hints_of(tool, unannotated="allow") == allowing


@given(hints, hints, unannotated)
@settings(deadline=None)
def test_the_two_places_count_alike(one: Any, other: Any, policy: Literal["ask", "allow"]) -> None:
    assert hints_of({"annotations": one, **other}, policy) == hints_of({"annotations": other, **one}, policy)


@given(hints, hints, unannotated)
@settings(deadline=None)
def test_whoever_says_destructive_is_asked_about(
    one: Any, other: Any, policy: Literal["ask", "allow"]
) -> None:
    assert hints_of({"annotations": {**one, "destructiveHint": True}, **other}, policy).destructive


@given(hints, hints)
@settings(deadline=None)
def test_allowing_the_unannotated_never_asks_more(one: Any, other: Any) -> None:
    tool = {"annotations": one, **other}
    assert hints_of(tool, "allow").destructive <= hints_of(tool, "ask").destructive
    assert hints_of(tool, "allow").repeatable == hints_of(tool, "ask").repeatable


@given(hints, unannotated)
@settings(deadline=None)
def test_what_is_no_boolean_says_nothing(one: Any, policy: Literal["ask", "allow"]) -> None:
    said = {name: value for name, value in one.items() if isinstance(value, bool)}
    assert hints_of({"annotations": one}, policy) == hints_of({"annotations": said}, policy)
