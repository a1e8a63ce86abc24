"""What a call costs: the config's price, else the list price of that day, else none."""

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from genai_prices import Usage as Tokens
from genai_prices import calc_price
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given
from hypothesis import strategies as st

from mesh.config.model import ModelPrice
from mesh.core.events import LlmCall, Usage
from mesh.llm.prices import Prices, source

MILLION = 1_000_000
NOVEMBER = "2026-11-01T12:00:00.000Z"
PREFIXES = {"anthropic": "anthropic", "google": "google", "openai": "openai", "openrouter": "openrouter"}
LISTED = [
    (provider.id, PREFIXES[provider.id], model.id)
    for provider in get_snapshot().providers
    for model in provider.models
    if provider.id in PREFIXES and not model.id.startswith("ft:")  # which stand for no model of their own
]


def call(model: str, input: int = 0, output: int = 0, cached: int = 0, time: str = NOVEMBER) -> LlmCall:
    return LlmCall(model=model, usage=Usage(input, output, cached), time=time)


@pytest.mark.parametrize(
    ("model", "input", "output"),
    [  # USD per million tokens, as the providers' price pages said in November 2026
        ("claude-opus-5-5", 4, 20),
        ("claude-sonnet-4-5", 3, 15),
        ("claude-haiku-4-5", 1, 5),
        ("gemini-2.5-flash", 0.3, 2.5),
        ("gemini-2.5-pro", 1.25, 10),
        ("openai:gpt-5.4", 2.5, 15),
        ("openai:gpt-4o-mini", 0.15, 0.6),
        ("openrouter:anthropic/claude-sonnet-4.5", 3, 15),
    ],
)
def test_a_well_known_model_costs_its_list_price(model: str, input: float, output: float) -> None:
    assert Prices().cost(call(model, input=1000)) == Decimal(str(input)) / 1000
    assert Prices().cost(call(model, output=1000)) == Decimal(str(output)) / 1000


@pytest.mark.parametrize(
    ("dated", "model"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("anthropic:claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("openai:gpt-5.4-2026-03-05", "openai:gpt-5.4"),
        ("google:gemini-2.5-flash", "gemini-2.5-flash"),
    ],
)
def test_a_date_or_a_provider_in_the_name_changes_no_price(dated: str, model: str) -> None:
    cost = Prices().cost(call(dated, 1000, 1000))
    assert cost is not None
    assert cost == Prices().cost(call(model, 1000, 1000))


def test_tokens_from_the_cache_cost_less() -> None:
    assert Prices().cost(call("claude-sonnet-4-5", 1000, cached=1000)) == Decimal("0.0003")


def test_a_long_prompt_has_the_price_of_its_band() -> None:
    short, long = (Prices().cost(call("gemini-2.5-pro", tokens)) for tokens in (100_000, 300_000))
    assert (short, long) == (Decimal("0.125"), Decimal("0.75"))


def test_the_price_is_that_of_the_day_of_the_call() -> None:
    before, after = (
        Prices().cost(call("openai:o3", 1000, time=f"2025-06-{day}T12:00:00.000Z")) for day in ("09", "11")
    )
    assert (before, after) == (Decimal("0.01"), Decimal("0.002"))


def test_the_offline_model_costs_nothing() -> None:
    assert Prices().cost(call("offline", MILLION, MILLION)) == 0


@pytest.mark.parametrize(
    "model", ["scripted", "claude-opus-99", "ollama:llama3:8b", "openai:my-own", "openai:", ""]
)
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert Prices().cost(call(model, 1000, 1000)) is None


class TestOwnPrices:
    OWN = Prices(
        {"claude-opus-5-5": ModelPrice(input=1, output=2, cached=0.5), "house": ModelPrice(input=8, output=0)}
    )

    def test_they_win_over_the_list(self) -> None:
        assert self.OWN.cost(call("claude-opus-5-5", MILLION, MILLION)) == 3

    def test_a_name_stands_for_its_dated_and_prefixed_forms(self) -> None:
        assert self.OWN.cost(call("anthropic:claude-opus-5-5-20261001", MILLION)) == 1
        assert self.OWN.cost(call("ollama:house", MILLION)) == 8

    def test_cached_tokens_have_their_own_price_or_that_of_the_input(self) -> None:
        assert self.OWN.cost(call("claude-opus-5-5", MILLION, cached=MILLION)) == Decimal("0.5")
        assert self.OWN.cost(call("house", MILLION, cached=MILLION)) == 8

    def test_other_models_keep_theirs(self) -> None:
        assert self.OWN.cost(call("claude-sonnet-4-5", MILLION // 10)) == Decimal("0.3")


class TestRecordedCosts:
    def test_a_cost_is_counted_in_billionths_of_a_dollar_and_rounded_up(self) -> None:
        assert Prices().nusd(call("claude-sonnet-4-5", 1)) == 3_000
        assert Prices({"cheap": ModelPrice(input=0.0001, output=0)}).nusd(call("cheap", 1)) == 1
        assert Prices().nusd(call("offline", MILLION)) == 0
        assert Prices().nusd(call("scripted", 1)) is None

    def test_what_is_recorded_counts_whatever_the_prices_are_now(self) -> None:
        recorded = msgspec.structs.replace(call("claude-sonnet-4-5", 1000), cost_nusd=42)
        for prices in (Prices(), Prices({"claude-sonnet-4-5": ModelPrice(input=100, output=100)})):
            assert prices.nusd(recorded) == 42
            assert prices.cost(recorded) == Decimal("0.000000042")

    def test_a_model_that_costs_nothing_by_the_list_needs_no_list(self) -> None:
        code = "from mesh.llm.prices import Prices; Prices().prepare('offline'); import sys; "
        check = f"{code} assert not [name for name in sys.modules if name.startswith('genai_prices')]"
        subprocess.run([sys.executable, "-c", check], check=True)


tokens = st.integers(0, MILLION)


@given(st.sampled_from(LISTED), tokens, tokens, tokens)
def test_a_cost_is_what_the_library_of_the_lists_makes_of_it(
    listed: tuple[str, str, str], input: int, output: int, cached: int
) -> None:
    provider, prefix, model = listed
    cached = min(cached, input)
    usage = Tokens(input_tokens=input, output_tokens=output, cache_read_tokens=cached)
    moment = datetime(2026, 11, 1, 12, tzinfo=UTC)
    expected = calc_price(usage, model, provider_id=provider, genai_request_timestamp=moment)
    assert Prices().cost(call(f"{prefix}:{model}", input, output, cached)) == expected.total_price


numbers = st.integers(-(10**12), 10**12)


@given(
    st.sampled_from(["claude-opus-5-5", "house", "scripted", "offline"]), numbers, numbers, numbers, st.text()
)
def test_no_journal_makes_a_cost_negative_or_raises(
    model: str, input: int, output: int, cached: int, time: str
) -> None:
    cost = TestOwnPrices.OWN.cost(call(model, input, output, cached, time))
    assert cost is None or cost >= 0


def test_where_list_prices_come_from_is_said_with_its_version() -> None:
    assert source().startswith("list prices of genai-prices 0.")
