"""The parameters of a model call, and which of them each provider takes.

This module imports no provider, because `mesh check` reads it. Each provider writes the parameters in its own
wire format.
"""

from typing import Any, Literal

import msgspec

from mesh.llm.models import Provider

Effort = Literal["low", "medium", "high"]


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """What shapes an answer besides the limit of its length. None and ``()``: the provider's default."""

    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: Effort | None = None


_WITHOUT_SEED = ("temperature", "top_p", "max_tokens", "stop", "effort")
_ALL = (*_WITHOUT_SEED, "seed")

TAKEN_BY: dict[Provider, tuple[str, ...]] = {
    "anthropic": _WITHOUT_SEED,
    "gemini": _ALL,
    "openai": _ALL,
    "openrouter": _ALL,
    "ollama": _ALL,
    # The offline model takes all of them, so that a config runs with it unchanged.
    "offline": _ALL,
}
"""The keys of ``parameters`` that each provider's API has. What a single model of it refuses is answered by
the provider itself, and is not known here: such a list would be out of date with the next model."""


def given(**fields: Any) -> dict[str, Any]:
    """Returns the fields that have a value: nothing else is sent, so that the provider's defaults hold."""
    return {name: value for name, value in fields.items() if value is not None and value != ()}
