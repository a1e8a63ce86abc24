"""What the providers of a config's models lack is a problem of the config, with its line."""

import pytest

from mesh.config.model import ModelParameters, parse
from mesh.llm.config_checks import model_problems
from mesh.llm.provider import ALL_PARAMETERS

ALL = "{temperature: 1, top_p: 0.5, max_tokens: 9, stop: [END], seed: 7, effort: low}"


def problems(text: str) -> list[str]:
    return model_problems(parse(text, "agent.yaml", {}))


def node(model: str, parameters: str) -> str:
    return f"agent:\n  name: a\n  type: llm\n  model: {model}\n  parameters: {parameters}"


@pytest.mark.parametrize("model", ["gemini-x", "google:x", "openai:x", "openrouter:x", "ollama:x", "offline"])
def test_every_parameter_goes_with_most_providers(model: str) -> None:
    assert problems(node(model, ALL)) == []


@pytest.mark.parametrize("model", ["claude-x", "anthropic:x"])
def test_a_parameter_that_a_provider_lacks_is_told_with_what_it_takes(model: str) -> None:
    assert problems(node(model, ALL)) == [
        f"agent.yaml:5: agent.parameters.seed: anthropic, which serves {model}, has no seed; "
        "expected one of: temperature, top_p, max_tokens, stop, effort"
    ]
    assert problems(node(model, "{seed: null}")) == []


def test_values_that_only_some_providers_take_are_told() -> None:
    assert problems(node("openai:x", '{temperature: 1.5, stop: ["\\n"]}')) == []
    assert problems(node("claude-x", '\n    temperature: 1.5\n    stop: [END, "\\n"]')) == [
        "agent.yaml:6: agent.parameters.temperature: anthropic, which serves claude-x, has none above 1; "
        "expected 1 or less",
        "agent.yaml:7: agent.parameters.stop[1]: anthropic, which serves claude-x, does not stop at white "
        "space alone; expected other characters too",
    ]


def test_every_node_is_checked_with_its_own_model_in_the_order_of_the_lines() -> None:
    text = """\
agents:
  - {name: called, type: llm, parameters: {seed: 1}}
agent:
  name: all
  type: sequential
  agents:
    - {name: own, type: llm, model: offline, parameters: {seed: 1}}
    - name: shared
      type: llm
      parameters: {seed: 1}
      agents:
        - {name: inner, type: llm, parameters: {seed: 1}}
llm: {model: claude-x}
"""
    found = [problem.partition(".parameters")[0] for problem in problems(text)]
    assert found == [
        "agent.yaml:2: agents[0]",
        "agent.yaml:10: agent.agents[1]",
        "agent.yaml:12: agent.agents[1].agents[0]",
    ]


def test_a_provider_can_take_all_parameters_that_a_config_has() -> None:
    assert {*ALL_PARAMETERS, "max_tokens"} == set(ModelParameters.model_fields)


def test_a_model_of_a_provider_that_is_not_installed_is_told_at_its_key() -> None:
    text = """\
agents:
  - {name: called, type: llm, model: "anthropc:x"}
agent: {name: main, type: llm, agents: [called]}
llm: {model: "acme:8b"}
"""
    assert problems(text) == [
        "agent.yaml:2: agents[0].model: no provider anthropc is installed; did you mean anthropic?",
        "agent.yaml:4: llm.model: no provider acme is installed; expected one of: anthropic, gemini, google, "
        "offline, ollama, openai, openrouter",
    ]


def test_a_prefix_without_a_model_is_told_at_its_key() -> None:
    assert problems(node("'openai:'", "{}")) == [
        "agent.yaml:4: agent.model: 'openai:' names no model; expected a name such as claude-sonnet-4-5"
    ]
