"""The parameters of a model call. Each provider declares which of them it takes (`mesh.llm.provider`), and
writes them in its own wire format."""

from typing import Any, Literal

import msgspec

Effort = Literal["low", "medium", "high"]


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """What shapes an answer besides the limit of its length. None and ``()``: the provider's default."""

    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: Effort | None = None


def given(**fields: Any) -> dict[str, Any]:
    """Returns the fields that have a value: nothing else is sent, so that the provider's defaults hold."""
    return {name: value for name, value in fields.items() if value is not None and value != ()}
