"""What a model call cost, in USD.

It is computed when the call is made and recorded with it, so that later prices change no sum.
A price in the config (``llm.prices``) comes first, then one that the provider declares. Otherwise it is the
provider's list price at the time of the call, from the tables that ``genai-prices`` ships (no network): they
know Claude, Gemini, GPT and the models of OpenRouter, with the higher prices that some have for long prompts.
The offline model costs nothing. Any other model has no price, since none is better than a guess.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from math import ceil
from typing import TYPE_CHECKING, Protocol

from mesh.core.errors import ConfigError
from mesh.core.events import LlmCall, Usage
from mesh.llm.models import bare_model, provider_of
from mesh.llm.provider import Provider

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, TieredPrices

_MILLION = Decimal(1_000_000)
_NUSD = Decimal(1_000_000_000)
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

    def prepare(self, model: str) -> None:
        """Looks a model up before its first call. The lists take 0.1 s to load, which no call should wait
        for; where none is needed, none is loaded."""
        self.cost(LlmCall(model=model))

    def nusd(self, call: LlmCall) -> int | None:
        """Returns the `cost` of a call as `LlmCall.cost_nusd` has it: in 10⁻⁹ USD, rounded up."""
        if call.cost_nusd is not None:
            return call.cost_nusd
        cost = self.cost(call)
        return None if cost is None else ceil(cost * _NUSD)

    def cost(self, call: LlmCall) -> Decimal | None:
        """Returns the cost of a call in USD, or None if the model has no known price. What was recorded with
        the call counts; the prices are for calls of older journals."""
        if call.cost_nusd is not None:
            return Decimal(call.cost_nusd) / _NUSD
        usage = _sane(call.usage)
        for prices in (self._own, _declared(call.model)):
            for name in _names(call.model):
                if name in prices:
                    return _at(prices[name], usage)
        return _listed(call.model, usage, call.time)


def source() -> str:
    """Returns where list prices come from, to be shown."""
    return f"list prices of genai-prices {version('genai-prices')}"


@lru_cache(maxsize=256)  # every model call asks for them
def _names(model: str) -> tuple[str, ...]:
    """Returns a model's name and the other names that a price may be listed under: without the provider,
    without the date.

    >>> _names("anthropic:claude-sonnet-4-5-20250929")[-1]
    'claude-sonnet-4-5'
    """
    names = [model, bare_model(model)]
    return tuple(dict.fromkeys([*names, *(_DATED.sub("", name) for name in names)]))


def _at(price: Price, usage: Usage) -> Decimal:
    cached = None if price.cached is None else Decimal(str(price.cached))
    return _per_token(Decimal(str(price.input)), Decimal(str(price.output)), cached, usage)


def _per_token(input: Decimal, output: Decimal, cached: Decimal | None, usage: Usage) -> Decimal:
    """Returns the cost at prices per million tokens. They are multiplied here: every model call waits for its
    cost, and `genai_prices.calc_price` takes ten times as long."""
    read = input if cached is None else cached
    cost = input * (usage.input - usage.cached) + read * usage.cached + output * usage.output
    return cost / _MILLION


def _listed(model: str, usage: Usage, time: str) -> Decimal | None:
    found = _in_lists(model)
    if found is None:
        return None
    price = found.get_prices(_moment(time))
    input, output = _rate(price.input_mtok, usage), _rate(price.output_mtok, usage)
    cached = _rate(price.cache_read_mtok, usage)
    return _per_token(input or Decimal(), output or Decimal(), cached, usage)


def _rate(price: "Decimal | TieredPrices | None", usage: Usage) -> Decimal | None:
    """Returns the price of a token; some prices depend on the length of the prompt."""
    if price is None or isinstance(price, Decimal):
        return price
    reached = [tier.price for tier in price.tiers if usage.input > tier.start]
    return reached[-1] if reached else price.base


def _declared(model: str) -> Mapping[str, Price]:
    """Returns the prices that the model's provider declares."""
    provider = _provider(model)
    return {} if provider is None else provider.prices


def _provider(model: str) -> Provider | None:
    try:
        return provider_of(model)
    except ConfigError:  # a journal may name a provider that is not installed here
        return None


@lru_cache(maxsize=256)
def _in_lists(model: str) -> "ModelInfo | None":
    """Returns what the list of the model's provider says about it."""
    provider = _provider(model)
    if provider is None or not provider.price_list:
        return None
    from genai_prices.data_snapshot import get_snapshot

    bare = bare_model(model)
    for name in dict.fromkeys((bare, _DATED.sub("", bare))):
        try:
            return get_snapshot().find_provider_model(name, None, provider.price_list, None)[1]
        except LookupError:
            continue
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
