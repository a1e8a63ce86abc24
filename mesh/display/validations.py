"""What validators say about answers, in words."""

import re

from mesh.core.events import Validation
from mesh.core.places import Place
from mesh.display.text import one_line

_MAX_NAME = 60
_MAX_FEEDBACK = 300
_MAX_NUMBER = 10**6
_UNENDED = re.compile(r"(?<=[^\s.:;,!?])\n\s*")
"""The end of a line that no punctuation ends."""


class Validations:
    """Tells validations of answers from those of rounds: a loop has no model of its own."""

    def __init__(self) -> None:
        self._answered: set[Place] = set()

    def answered(self, place: Place) -> None:
        """Notes that the node at a place has a model."""
        self._answered.add(place)

    def verdict(self, event: Validation) -> str:
        """Returns who says what: ``critic objects``."""
        is_answer = event.place in self._answered
        if event.valid:
            words = "accepts" if is_answer else "ends the loop"
        else:
            words = "objects" if is_answer else "goes on"
        return f"{one_line(event.name, _MAX_NAME)} {words}"

    def run(self, event: Validation) -> str:
        """Returns which answer or round it is about: ``run 1 of 3``."""
        what = "run" if event.place in self._answered else "round"
        return f"{what} {min(event.number, _MAX_NUMBER)} of {min(event.of, _MAX_NUMBER)}"


def in_spite_of(objection: str) -> str:
    """Returns that an answer was accepted in spite of an objection."""
    return f"accepted in spite of an objection: {_feedback(objection)}"


def objection(event: Validation) -> str:
    """Returns what a validator objects to, in a line."""
    return "" if event.valid else _feedback(event.feedback)


def _feedback(text: str) -> str:
    """In a line, in which the lines below a heading are told apart."""
    heading, colon, lines = text.strip()[: 4 * _MAX_FEEDBACK].partition(":\n")
    return one_line(heading + colon + _UNENDED.sub("; ", lines), _MAX_FEEDBACK)
