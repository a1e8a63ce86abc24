"""How far calls have come, and what came of them, in words."""

from mesh.core.events import Found, Outcome, ToolProgress, ToolResult
from mesh.display.text import one_line

_MAX_NAME = 60
_MAX_MESSAGE = 120
_MAX_WHY = 200
_STEPS = 4
_MAX_TOLD = 20
_OUTCOMES: dict[Outcome, str] = {
    "applied": "found that it had its effect",
    "not_applied": "found that it had no effect before",
    "unknown": "could not tell",
}


def found_by(found: Found | None) -> str:
    """Returns what a check found of a call: ``was_refunded found that it had its effect``. Empty: none was
    asked."""
    return f"{one_line(found.check, _MAX_NAME)} {_OUTCOMES[found.outcome]}" if found else ""


def stopped(result: ToolResult) -> str:
    """Returns why a call did not come to its end: ``it was cancelled``. Empty: it did, or nobody knows."""
    return one_line(result.found.stopped, _MAX_WHY) if result.found else ""


def denied(result: ToolResult) -> str:
    """Returns which rule denied a call, and why: ``by push: Nothing is pushed.`` Empty: none did."""
    if not result.denied:
        return ""
    why = one_line(result.content.replace(f" (rule {result.rule} of the policy)", ""), _MAX_WHY)
    return f"by {one_line(result.rule, _MAX_NAME)}: {why}"


class ProgressTold:
    """How far calls have come, as lines: at each quarter, and when a tool has another message. A line is not
    overwritten, so that no more than a few are told of each call."""

    def __init__(self) -> None:
        self._told: dict[str, list[tuple[int, str]]] = {}  # by the step of the call

    def tell(self, event: ToolProgress) -> str:
        """Returns a line: ``50 %, asked the bank``. Empty: this was told already."""
        part = min(1.0, max(0.0, event.progress))
        message = one_line(event.message, _MAX_MESSAGE)
        told = self._told.setdefault(event.step, [])
        now = (int(part * _STEPS), message)
        if now == (0, "") or len(told) >= _MAX_TOLD or (told and told[-1] == now):
            return ""
        told.append(now)
        return ", ".join(
            words for words in (f"{part:.0%}".replace("%", " %") if part else "", message) if words
        )
