"""Placeholders: replaced once, whatever the values hold; what has no value stays as it is."""

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from mesh.core.messages import Assistant, User
from mesh.tree.template import BUILT_IN, fill, placeholders, render
from mesh.tree.turn import PassInput

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
PIECES = st.sampled_from(["{", "}", "{a}", "{b}", "{{a}}", "{a b}", "{1}", "{}", "a", "b", "\\1", "\n", "é"])
TEXT = st.lists(PIECES | st.text(max_size=5), max_size=10).map("".join)
VALUES = st.dictionaries(st.sampled_from(["a", "b"]) | NAMES, TEXT, max_size=4)


@given(TEXT, VALUES)
def test_what_is_around_the_placeholders_stays_and_each_is_its_value_or_itself(
    template: str, values: dict[str, str]
) -> None:
    parts = re.split(r"(\{[A-Za-z_][A-Za-z0-9_]*\})", template)
    expected = [values.get(part[1:-1], part) if i % 2 else part for i, part in enumerate(parts)]
    assert fill(template, values) == "".join(expected)


@given(NAMES, TEXT, TEXT, TEXT)
def test_a_value_with_braces_is_put_in_as_it_is(name: str, before: str, after: str, value: str) -> None:
    assume(not placeholders(before) and not placeholders(after) and not placeholders(f"{before}x{after}"))
    assert fill(f"{before}{{{name}}}{after}", {name: value, "a": "wrong", "b": "wrong"} | {name: value}) == (
        f"{before}{value}{after}"
    )


@given(TEXT)
def test_placeholders_without_a_value_stay(template: str) -> None:
    assert fill(template, {}) == template


@given(TEXT, VALUES)
def test_a_text_without_placeholders_of_these_names_is_left_alone(
    template: str, values: dict[str, str]
) -> None:
    known = {name: value for name, value in values.items() if name not in placeholders(template)}
    assert fill(template, known) == template


@given(TEXT, st.dictionaries(NAMES, st.text(alphabet="xyz \n", max_size=4)))
def test_filling_twice_is_filling_once_when_the_values_hold_no_braces(
    template: str, values: dict[str, str]
) -> None:
    # "{{a}}" with a="b" gives "{b}": the braces around a value can make a name of it.
    assume("{{" not in template)
    once = fill(template, values)
    assert fill(once, values) == once


@given(TEXT)
def test_the_placeholders_are_the_names_that_filling_asks_for(template: str) -> None:
    class Asked(dict[str, str]):
        def get(self, key: str, default: str = "") -> str:  # type: ignore[override]
            asked.add(key)
            return ""

    asked: set[str] = set()
    fill(template, Asked())
    assert asked == placeholders(template)


# -- the values of a turn


def turn(**more: object) -> PassInput:
    values = {"conversation_id": "c1", "session_id": "s1", "digest": "d", "turn": 3, "run": 1}
    said = {"user_message": "do it", "message_id": "m1", "iteration": 2}
    return PassInput(**{**said, **values, **more})  # type: ignore[arg-type]


def test_the_built_in_placeholders_are_always_there() -> None:
    history = [User("hi"), Assistant("hello"), Assistant("", ())]
    asked = "|".join(f"{{{name}}}" for name in BUILT_IN)
    assert render(asked, turn(history=history)) == "do it|user: hi\n\nassistant: hello|m1|c1|s1|3|2"


@given(VALUES)
def test_a_key_of_the_state_with_the_name_of_a_built_in_one_is_not_seen(state: dict[str, str]) -> None:
    shadowing = state | dict.fromkeys(BUILT_IN, "shadow")
    assert "shadow" not in render("".join(f"{{{name}}}" for name in BUILT_IN), turn(state=shadowing))


@given(TEXT, VALUES)
def test_a_prompt_is_filled_from_the_session_state(template: str, state: dict[str, str]) -> None:
    assume(not set(BUILT_IN) & ({*state} | placeholders(template)))
    assert render(template, turn(state=state)) == fill(template, state)


@given(TEXT)
def test_a_users_message_is_never_a_template(message: str) -> None:
    said = render("<{user_message}>", turn(user_message=message, state={"a": "leak", "b": "leak"}))
    assert said == f"<{message}>"
