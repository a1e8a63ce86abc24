"""The data of the budget extension (`mesh.a2a.extensions.BUDGET`): written and read here, and nowhere else.
Pure.

What comes from outside is bounded. A caller can only tighten what its task may use, so its data needs no
trust; the names in ``agent_path`` are for people to read, and nothing is decided by them.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mesh.a2a.numbers import whole
from mesh.core.budget import NUSD, LimitName
from mesh.core.events import SpentElsewhere

MOST_AGENTS = 100
"""How many names a path may have, and how many agents may call each other, whatever anybody's config says."""
_MOST = 10**12
_MOST_USD = 1_000_000
_UNKNOWN = "unknown"

_Name = Annotated[str, Meta(max_length=256)]
_Amount = Annotated[int, Meta(ge=0, le=_MOST)]


class _Left(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    max_cost_usd: Annotated[float, Meta(ge=0, le=_MOST_USD)] | None = None
    max_total_tokens: _Amount | None = None
    max_llm_calls: _Amount | None = None
    max_time_s: Annotated[float, Meta(ge=0, le=_MOST)] | None = None


class _Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    depth: Annotated[int, Meta(ge=1, le=MOST_AGENTS)]
    agent_path: Annotated[tuple[_Name, ...], Meta(max_length=MOST_AGENTS)] = ()
    left: _Left = _Left()


class CallerContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a message comes from: how many agents call each other down to its sender, their names, and what
    is left of the sender's budgets, by key."""

    depth: int
    agent_path: tuple[str, ...] = ()
    left: Mapping[LimitName, float] = {}

    @property
    def data(self) -> dict[str, Any]:
        """It, as the extension has it."""
        return {
            "depth": self.depth,
            "agent_path": list(self.agent_path[-MOST_AGENTS:]),
            **({"left": dict(self.left)} if self.left else {}),
        }


def caller_context(data: Any) -> CallerContext:
    """The context in the data of a message. Raises `ValueError`, which says what is wrong with it."""
    asked = msgspec.convert(whole(data), _Asked)
    return CallerContext(asked.depth, asked.agent_path, msgspec.to_builtins(asked.left))


def spent_data(spent: SpentElsewhere) -> dict[str, Any]:
    """What a task has spent, as the extension has it."""
    cost = _UNKNOWN if spent.cost_nusd is None else spent.cost_nusd / NUSD
    return {"spent": {"cost_usd": cost, "tokens": spent.tokens, "llm_calls": spent.llm_calls}}


def spent_in(data: Any) -> SpentElsewhere:
    """What an agent says that it has spent; unknown where it does not say, or says what cannot be."""
    said = data.get("spent") if isinstance(data, dict) else None
    if not isinstance(said, dict):
        return SpentElsewhere()
    cost = said.get("cost_usd")
    is_known = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost <= _MOST_USD
    return SpentElsewhere(
        round(cost * NUSD) if is_known else None,  # type: ignore[operator]
        _count(said.get("tokens")),
        _count(said.get("llm_calls")),
    )


def _count(value: Any) -> int:
    number = whole(value)
    is_count = isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _MOST
    return number if is_count else 0
