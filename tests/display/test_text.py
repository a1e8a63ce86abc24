"""What is printed is safe and short, and JSON that is shown still means the same value."""

import json
from typing import Any
from unicodedata import category

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.display.text import as_json, call, clean, one_line

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters()), st.integers(0, 30))
def test_text_is_the_same_in_pieces_and_at_once_and_has_nothing_a_terminal_obeys(text: str, cut: int) -> None:
    assert clean(text[:cut]) + clean(text[cut:]) == clean(text)
    assert not [c for c in clean(text) if category(c) in ("Cc", "Cs") and c not in "\n\t"]


@settings(deadline=None, max_examples=50)
@given(VALUES, st.sampled_from([None, 2]))
def test_json_that_is_shown_is_safe_and_means_the_same(value: Any, indent: int | None) -> None:
    shown = as_json(value, indent)
    assert clean(shown) == shown
    assert json.loads(shown) == value


def test_letters_of_every_language_are_left_alone() -> None:
    text = "Grüße, 你好, שלום, 👩‍🚀 — a\tb\nc"
    assert clean(text) == text


@settings(deadline=None, max_examples=50)
@given(st.text(), st.dictionaries(st.text(), VALUES))
def test_a_call_is_one_short_line_whatever_the_model_made_of_it(name: str, arguments: dict[str, Any]) -> None:
    line = call(name, arguments)
    assert len(line) <= 100
    assert len(line.splitlines()) <= 1


def test_a_long_line_is_cut_with_a_sign_of_it() -> None:
    assert one_line("a" * 50, 10) == "aaaaaaaaa…"
