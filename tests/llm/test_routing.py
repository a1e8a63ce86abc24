"""From a model's name to its provider, and how providers are shared."""

import asyncio
from typing import Any

import pytest

from mesh.core.errors import ConfigError
from mesh.core.messages import User
from mesh.llm import routing
from mesh.llm.models import Route, bare_model, check_variables, resolve
from mesh.llm.openai import OpenAI
from mesh.llm.parameters import Parameters
from mesh.llm.port import LlmRequest
from mesh.llm.routing import provider_for
from mesh.servers.llm_stub import LlmStub
from tests.worlds.providers import answer_of, env_for


@pytest.mark.parametrize(
    ("model", "route"),
    [
        ("claude-sonnet-4-5", Route("anthropic", "claude-sonnet-4-5", None, "ANTHROPIC_API_KEY")),
        ("anthropic:other", Route("anthropic", "other", None, "ANTHROPIC_API_KEY")),
        ("gemini-2.5-flash", Route("gemini", "gemini-2.5-flash", None, "GEMINI_API_KEY")),
        ("google:claude-like", Route("gemini", "claude-like", None, "GEMINI_API_KEY")),
        ("gemini:claude-like", Route("gemini", "claude-like", None, "GEMINI_API_KEY")),
        ("anything-else", Route("gemini", "anything-else", None, "GEMINI_API_KEY")),
        ("openai:gpt-5", Route("openai", "gpt-5", None, "OPENAI_API_KEY")),
        (
            "openrouter:a/b:free",
            Route("openrouter", "a/b:free", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ),
        ("ollama:llama3:8b", Route("ollama", "llama3:8b", "http://127.0.0.1:11434/v1", None)),
        ("offline", Route("offline", "offline")),
    ],
)
def test_a_name_leads_to_its_provider(model: str, route: Route) -> None:
    assert resolve(model, {}) == route


def test_base_urls_come_from_the_environment() -> None:
    assert resolve("claude-x", {"ANTHROPIC_BASE_URL": "http://a"}).base_url == "http://a"
    assert resolve("gemini-x", {"GOOGLE_GEMINI_BASE_URL": "http://g"}).base_url == "http://g"
    assert resolve("ollama:x", {"OLLAMA_BASE_URL": "http://o/v1"}).base_url == "http://o/v1"


def test_openai_with_a_base_url_needs_no_key() -> None:
    route = resolve("openai:local", {"OPENAI_BASE_URL": "http://localhost/v1"})
    assert (route.base_url, route.key) == ("http://localhost/v1", None)
    check_variables(route, {})


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("claude-x", "ANTHROPIC_API_KEY"),
        ("gemini-x", "GEMINI_API_KEY"),
        ("openai:x", "OPENAI_API_KEY"),
        ("openrouter:x", "OPENROUTER_API_KEY"),
    ],
)
def test_a_missing_key_is_named(model: str, variable: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable} is not set"):
        check_variables(resolve(model, {}), {variable: "  "})


@pytest.mark.parametrize("model", ["", "openai:", "google: "])
def test_a_name_without_a_model_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="names no model"):
        resolve(model, {})


def test_the_bare_name_is_its_own_bare_name() -> None:
    assert bare_model(bare_model("ollama:llama3:8b")) == "llama3:8b"


async def test_providers_of_one_endpoint_share_a_client_until_the_last_is_closed() -> None:
    async with LlmStub() as stub:
        env = env_for(stub.url)
        one, two = provider_for("openai:a", env), provider_for("openai:b", env)
        (shared,) = routing._shared[asyncio.get_running_loop()].values()
        await one.close()
        await one.close()
        request = LlmRequest(model="openai:b", system="", messages=(User("still here"),))
        assert (await answer_of(two, request)).text == "echo: still here"
        with pytest.raises(RuntimeError, match="closed"):
            one.stream(request)
        await two.close()
        three = provider_for("openai:a", env)
        assert shared not in routing._shared[asyncio.get_running_loop()].values()
        assert (await answer_of(three, request)).text == "echo: still here"
        await three.close()


async def test_a_compatible_endpoint_is_sent_the_bare_name_and_max_tokens() -> None:
    async with LlmStub() as stub:
        llm = provider_for("ollama:llama3:8b", {"OLLAMA_BASE_URL": f"{stub.url}/v1"})
        request = LlmRequest(model="ollama:llama3:8b", system="", messages=(User("hi"),), max_tokens=9)
        await answer_of(llm, request)
        await llm.close()
    assert stub.calls[0].json == {
        "model": "llama3:8b",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
    }


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        ("gemini-2.5-flash", {"thinkingBudget": 8192}),
        ("google:gemini-2.5-pro", {"thinkingBudget": 8192}),
        ("gemini-3-flash", {"thinkingLevel": "MEDIUM"}),
        ("gemini-flash-latest", {"thinkingLevel": "MEDIUM"}),
    ],
)
async def test_gemini_2_5_is_told_its_effort_in_tokens(model: str, sent: dict[str, Any]) -> None:
    async with LlmStub() as stub:
        llm = provider_for(model, env_for(stub.url))
        parameters = Parameters(effort="medium")
        said = (User("hi"),)
        await answer_of(llm, LlmRequest(model=model, system="", messages=said, parameters=parameters))
        await llm.close()
    assert stub.calls[0].json["generationConfig"] == {"thinkingConfig": sent}


async def test_openai_itself_is_told_the_limit_by_its_new_name() -> None:
    async with LlmStub() as stub:
        llm = OpenAI("key", f"{stub.url}/v1", compatible=False)
        parameters = Parameters(effort="high", stop=("x",))
        asked = LlmRequest(
            model="openai:o", system="", messages=(User("hi"),), max_tokens=9, parameters=parameters
        )
        await answer_of(llm, asked)
        await llm.close()
    sent = {key: stub.calls[0].json[key] for key in ("max_completion_tokens", "reasoning_effort", "stop")}
    assert sent == {"max_completion_tokens": 9, "reasoning_effort": "high", "stop": ["x"]}


async def test_anthropic_is_always_told_a_limit() -> None:
    async with LlmStub() as stub:
        llm = provider_for("claude-x", env_for(stub.url))
        await answer_of(llm, LlmRequest(model="claude-x", system="", messages=(User("hi"),)))
        await llm.close()
    assert stub.calls[0].json["max_tokens"] == 4096
