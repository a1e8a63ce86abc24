"""What a check of an outcome returns, where one word is not enough."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Found:
    """What came of a call: ``applied``, ``not_applied``, or ``unknown`` if the check cannot tell. ``text`` is
    for people, and of a call that was applied, it is the result that the model reads. ``stopped`` says why
    such a call did not come to its end: ``it was cancelled``."""

    outcome: Literal["applied", "not_applied", "unknown"]
    text: str = ""
    stopped: str = ""
