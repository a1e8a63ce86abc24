"""What came of calls, in words, where more is known of it than that they ran."""

from mesh.core.events import Found, Outcome
from mesh.display.text import one_line

_MAX_NAME = 60
_OUTCOMES: dict[Outcome, str] = {
    "applied": "found that it had its effect",
    "not_applied": "found that it had no effect before",
    "unknown": "could not tell",
}


def found_by(found: Found | None) -> str:
    """Returns what a check found of a call: ``was_refunded found that it had its effect``. Empty: none was
    asked."""
    return f"{one_line(found.check, _MAX_NAME)} {_OUTCOMES[found.outcome]}" if found else ""
