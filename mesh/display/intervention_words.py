"""What happens to an agent while it works, in words: it is told something, changed, paused, or deleted."""

from mesh.core.events import AgentTold
from mesh.display.text import one_line

_MOST = 200
_SHOWN = {
    "comment": "is told",
    "modify": "is changed",
    "pause": "is paused",
    "resume": "goes on",
    "spawn": "is given an agent",
}


def in_words(event: AgentTold, by: str) -> str:
    """What one is told, and ``by`` whom, as far as it is known; on one line."""
    what = "begins anew" if event.restarts else _SHOWN.get(event.action, "is stopped")
    if event.changes:
        what += f" ({', '.join(event.changes)})"
    text = event.text or str(event.changes.get("task", ""))
    return f"{what}{f' by {by}' if by else ''}{f': {one_line(text, _MOST)}' if text else ''}"
