"""What validators say is told in a line."""

import pytest

from mesh.core.events import Validation
from mesh.display.validations import in_spite_of, objection


@pytest.mark.parametrize(
    ("feedback", "line"),
    [
        ('It does not fit:\na is no text\n"b" is missing\n', 'It does not fit: a is no text; "b" is missing'),
        ("Mend this:\n- It is too long.\n- No price", "Mend this: - It is too long. - No price"),
        ("Too\nlong.", "Too long."),
        ("one line", "one line"),
        ("", ""),
    ],
)
def test_problems_below_a_heading_are_told_apart_in_one_line(feedback: str, line: str) -> None:
    event = Validation(name="schema", kind="schema", number=1, of=3, feedback=feedback)
    assert objection(event) == line
    assert in_spite_of(feedback).removeprefix("accepted in spite of an objection: ") == line
