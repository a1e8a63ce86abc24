"""The execution context that calls carry."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core import execution
from mesh.core.execution import step_id, trace_id_of, valid_traceparent

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-1-2-01",
        "Bearer secret",
        GIVEN.upper(),
        f"{GIVEN}\n",
        f"{GIVEN}-Bearer",
        GIVEN.replace("00-", "ff-", 1),
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
    ],
)
def test_a_header_that_is_no_trace_context_is_not_passed_on(header: str) -> None:
    assert valid_traceparent(header) == ""
    assert trace_id_of(header, "c", 1) == trace_id_of("", "c", 1)


@given(st.text(max_size=80), st.uuids(), st.integers(1, 9))
def test_a_trace_id_has_32_hex_digits_whatever_the_header_says(header: str, id: object, turn: int) -> None:
    trace_id = trace_id_of(header, str(id), turn)
    assert len(trace_id) == 32 and set(trace_id) <= set("0123456789abcdef")


def test_turns_without_a_trace_context_have_trace_ids_of_their_own() -> None:
    assert len({trace_id_of("", c, turn) for c in "ab" for turn in (1, 2)}) == 4
    assert trace_id_of("", "a", 1) == trace_id_of("", "a", 1)


def test_the_id_of_a_step_differs_between_conversations_turns_nonces_and_steps() -> None:
    turns = [(turn, nonce) for turn in (1, 2) for nonce in ("", "f00d", "beef")]
    ids = {step_id(c, *turn, step) for c in "ab" for turn in turns for step in ("0/tool/0.0", "0")}
    assert len(ids) == 2 * len(turns) * 2


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(execution).failed == 0
