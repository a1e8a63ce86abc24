"""Limits and what is spent of them, in words."""

from mesh.core.events import LimitReached, Spend
from mesh.display.text import duration, one_line

_NAMES = {
    "max_cost_usd": "cost",
    "max_total_tokens": "tokens",
    "max_llm_calls": "model calls",
    "max_time_s": "time",
    "max_agents": "started agents",
    "max_conversation_cost_usd": "cost of the conversation",
}
_THEN = {"answer": "one last answer", "stop": "it stops here", "fail": "it fails"}
_MAX_KEY = 40
CALL_LOST = "a model call was lost with the process that made it; the most that it can cost counts"


def limit_reached(event: LimitReached, whose: str) -> str:
    """Returns which limit is reached, and what follows."""
    return f"the limit of {_name(event.limit)} of {whose} is reached: {_THEN[event.then]}"


def spent(event: Spend) -> str:
    """Returns what is spent of each limit, and what of it may still change."""
    return " · ".join(_spent(event, key) for key in event.limits)


def _spent(event: Spend, key: str) -> str:
    kinds = (("unsettled", event.unsettled), ("reserved", event.reserved))
    more = [f"{_amount(key, amounts[key])} {kind}" for kind, amounts in kinds if amounts.get(key)]
    notes = f" ({', '.join(more)})" if more else ""
    return f"{_name(key)} {_amount(key, event.spent.get(key, 0))} of {_amount(key, event.limits[key])}{notes}"


def _name(key: str) -> str:
    return _NAMES.get(key) or one_line(key, _MAX_KEY)


def _amount(key: str, number: float) -> str:
    if key.endswith("_usd"):
        return f"${number:.4f}" if 0 < abs(number) < 0.1 else f"${number:.2f}"
    return duration(round(1000 * number)) if key.endswith("_s") else f"{number:,.10g}"
