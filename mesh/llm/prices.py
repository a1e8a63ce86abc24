"""What a model call cost, in USD.

A price in the config (``llm.prices``) comes first. Otherwise it is the provider's list price at the time of
the call, from the tables that ``genai-prices`` ships (no network): they know Claude, Gemini, GPT and the
models of OpenRouter, with the higher prices that some have for long prompts. The offline model costs nothing.
Any other model has no price, since none is better than a guess.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from typing import Protocol

from mesh.core.errors import ConfigError
from mesh.core.events import LlmCall, Usage
from mesh.llm.models import OFFLINE_NAME, Provider, bare_model, resolve

_MILLION = Decimal(1_000_000)
_LISTS: dict[Provider, str] = {
    "anthropic": "anthropic",
    "gemini": "google",
    "openai": "openai",
    "openrouter": "openrouter",
}
"""The list of each provider that has one. What Ollama serves has no price."""
_DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


class Price(Protocol):
    """USD per million tokens; ``cached`` None: as ``input``."""

    @property
    def input(self) -> float: ...
    @property
    def output(self) -> float: ...
    @property
    def cached(self) -> float | None: ...


class Prices:
    """The prices in force: ``own`` are those of the config, by the names that it uses, and come first."""

    def __init__(self, own: Mapping[str, Price] | None = None) -> None:
        self._own = own or {}

    def cost(self, call: LlmCall) -> Decimal | None:
        """Returns the cost of a call in USD, or None if the model has no known price."""
        usage = _sane(call.usage)
        for name in _names(call.model):
            if name in self._own:
                return _at(self._own[name], usage)
        return _listed(call.model, usage, call.time)


def source() -> str:
    """Returns where list prices come from, to be shown."""
    return f"list prices of genai-prices {version('genai-prices')}"


def _names(model: str) -> list[str]:
    """Returns a model's name and the other names that a price may be listed under: without the provider,
    without the date.

    >>> _names("anthropic:claude-sonnet-4-5-20250929")[-1]
    'claude-sonnet-4-5'
    """
    names = [model, bare_model(model)]
    return list(dict.fromkeys([*names, *(_DATED.sub("", name) for name in names)]))


def _at(price: Price, usage: Usage) -> Decimal:
    cached = price.input if price.cached is None else price.cached
    fresh = usage.input - usage.cached
    parts = ((price.input, fresh), (cached, usage.cached), (price.output, usage.output))
    return sum((Decimal(str(usd)) * tokens for usd, tokens in parts), Decimal()) / _MILLION


@lru_cache(maxsize=1024)  # a price takes half a millisecond, and is asked for a call's line and for the sum
def _listed(model: str, usage: Usage, time: str) -> Decimal | None:
    if model == OFFLINE_NAME:
        return Decimal()
    try:
        provider = _LISTS.get(resolve(model, {}).provider)
    except ConfigError:  # a journal may name what no config may
        return None
    if provider is None:
        return None
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    tokens = Tokens(input_tokens=usage.input, output_tokens=usage.output, cache_read_tokens=usage.cached)
    bare = bare_model(model)
    for name in dict.fromkeys((bare, _DATED.sub("", bare))):
        try:
            found = calc_price(tokens, name, provider_id=provider, genai_request_timestamp=_moment(time))
        except LookupError:
            continue
        return Decimal(found.total_price)
    return None


def _moment(time: str) -> datetime:
    """Returns the time of a call; the current time if it cannot be read."""
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return datetime.now(UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _sane(usage: Usage) -> Usage:
    """Returns the usage with impossible numbers corrected: an imported journal may hold anything."""
    most = max(usage.input, 0)
    return Usage(most, max(usage.output, 0), min(max(usage.cached, 0), most))
