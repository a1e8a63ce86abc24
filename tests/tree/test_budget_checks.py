"""Budgets that cannot be held, or that let no model call be made, are problems of the config."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.config.model import parse
from mesh.core.budget import BudgetUse, CallRequest, Granted, admitted, least_bound, scope_of
from mesh.tree.budget_checks import budget_problems

PRICED = "llm: {model: offline, prices: {offline: {input: 1, output: 2}}}\n"
PROMPT = "p" * 1000


def problems(text: str) -> list[str]:
    return budget_problems(parse(text, "agent.yaml", {}))


def test_without_budgets_nothing_is_asked_of_the_models() -> None:
    assert problems("agent: {name: a, type: llm, model: 'ollama:x'}\nbudget: {max_llm_calls: 1}") == []


def test_a_money_limit_names_each_model_without_a_price_and_where_one_is_given() -> None:
    text = """\
llm: {model: "ollama:own"}
budget:
  max_cost_usd: 1
  max_conversation_cost_usd: 2
agent:
  name: all
  type: sequential
  agents:
    - {name: a, type: llm, model: "openai:none-such"}
    - {name: b, type: llm, model: "claude-sonnet-4-5"}
    - name: c
      type: llm
      agents: [search]
      budget: {max_cost_usd: 0.5}
agents:
  - {name: search, type: llm, model: "ollama:search", agents: [search]}
  - {name: unused, type: llm, model: "ollama:unused"}
  - name: alone
    type: llm
    model: offline
    budget: {max_cost_usd: 0.5}
"""
    needs = "needs to know what {} costs; expected a price of it in llm.prices"
    models = ("ollama:own", "ollama:search", "openai:none-such")
    assert problems(text) == [
        *(f"agent.yaml:3: budget.max_cost_usd: {needs.format(model)}" for model in models),
        *(f"agent.yaml:4: budget.max_conversation_cost_usd: {needs.format(model)}" for model in models),
        *(
            f"agent.yaml:14: agent.agents[2].budget.max_cost_usd: {needs.format(model)}"
            for model in models[:2]
        ),
    ]
    priced = "prices: {'ollama:own': {input: 1, output: 1}, search: {input: 1, output: 1}, "
    told = problems(
        text.replace('"ollama:own"}', f'"ollama:own", {priced} "none-such": {{input: 1, output: 1}}}}}}')
    )
    assert told == []


def test_the_model_of_an_agent_without_a_tree_counts_too() -> None:
    (problem,) = problems("llm: {model: 'ollama:x'}\nbudget: {max_cost_usd: 1}")
    assert problem.startswith("agent.yaml:2: budget.max_cost_usd: needs to know what ollama:x costs")


@pytest.mark.parametrize(
    ("kind", "below"), [("llm", ""), ("sequential", "agents: [{name: b, type: llm, prompt: $}]")]
)
def test_a_limit_that_no_call_of_its_model_fits_says_what_one_needs(kind: str, below: str) -> None:
    def text(limit: str) -> str:
        prompt = below.replace("$", PROMPT) if below else f"prompt: {PROMPT}"
        return f"{PRICED}agent:\n  name: a\n  type: {kind}\n  {prompt}\n  budget:\n    {limit}\n"

    for key, low in (("max_total_tokens", "700"), ("max_cost_usd", "0.000001")):
        (problem,) = problems(text(f"{key}: {low}"))
        assert problem.startswith(
            f"agent.yaml:7: agent.budget.{key}: no model call of {'b' if below else 'a'}"
        )
        enough = problem.rpartition("expected ")[2].removesuffix(" or more")
        assert problems(text(f"{key}: {enough}")) == []
        last = f"{int(enough) - 1}" if key == "max_total_tokens" else f"{float(enough) - 1e-9:.9f}"
        assert problems(text(f"{key}: {last}")) == [problem]


def test_the_budget_of_a_turn_has_to_fit_the_agents_that_may_be_called() -> None:
    text = f"""{PRICED}agents: [{{name: search, type: llm, prompt: {PROMPT}}}]
agent: {{name: a, type: llm, agents: [search]}}
budget: {{max_total_tokens: 500, max_conversation_cost_usd: 0.0001, max_cost_usd: 0.0011}}
"""
    tokens, usd = problems(text)
    assert tokens.startswith("agent.yaml:4: budget.max_conversation_cost_usd: no model call of search fits")
    assert usd.startswith(
        "agent.yaml:4: budget.max_total_tokens: no model call of search fits, which needs 7"
    )


def test_what_fills_a_placeholder_may_be_short() -> None:
    name = "{" + "n" * 900 + "}"
    agent = f"agent: {{name: a, type: llm, prompt: 'Hello {name}'}}\n"
    assert problems(f"{PRICED}{agent}budget: {{max_total_tokens: 400}}") == []


def test_a_model_whose_answers_are_bounded_needs_no_more_than_that() -> None:
    bounded = "agent: {name: a, type: llm, parameters: {max_tokens: 10}}\n"
    assert problems(f"{PRICED}{bounded}budget: {{max_total_tokens: 100}}") == []
    assert problems(f"{PRICED}budget: {{max_total_tokens: 100}}") != []


NUSD = st.integers(0, 10**12)


@given(
    size=st.integers(0, 10**6),
    most=st.integers(1, 5000),
    rates=st.tuples(NUSD, NUSD),
    off=st.integers(-2, 2),
    limit=st.sampled_from(["max_cost_usd", "max_total_tokens"]),
)
def test_what_a_call_needs_is_the_smallest_limit_that_admits_it(
    size: int, most: int, rates: tuple[int, int], off: int, limit: str
) -> None:
    request = CallRequest(
        step="0/llm/0",
        model="m",
        input_bytes=size,
        max_output=most,
        scopes=(),
        nusd_input=rates[0],
        nusd_output=rates[1],
        forced="max_llm_calls",  # a last answer may use all of a limit
    )
    least = least_bound(request)
    units = {"max_cost_usd": least.nusd, "max_total_tokens": least.tokens}[limit] + off
    scope = scope_of("0", {limit: units / 10**9 if limit == "max_cost_usd" else units})
    now = "2026-01-01T00:00:00.000Z"
    asked = msgspec.structs.replace(request, scopes=[scope])
    granted = isinstance(admitted(BudgetUse(), asked, 1, now), Granted)
    assert granted == (off >= 0)
