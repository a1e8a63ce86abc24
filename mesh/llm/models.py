"""From the name of a model, as a config writes it, to the provider and the endpoint that serve it.

    claude-…, anthropic:…      Anthropic       ANTHROPIC_API_KEY    ANTHROPIC_BASE_URL
    openai:…                   OpenAI          OPENAI_API_KEY       OPENAI_BASE_URL (then no key needed)
    openrouter:…               OpenRouter      OPENROUTER_API_KEY   OPENROUTER_BASE_URL
    ollama:…                   Ollama          none                 OLLAMA_BASE_URL
    google:…, anything else    Gemini          GEMINI_API_KEY       GOOGLE_GEMINI_BASE_URL
    offline                    no network, no key

This module knows names only and imports no provider; `mesh.llm.routing` makes the providers.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from mesh.core.errors import ConfigError

Provider = Literal["gemini", "anthropic", "openai", "openrouter", "ollama", "offline"]

# Anthropic requires a limit in every request; this one is sent when the config gives none.
ANTHROPIC_MAX_TOKENS = 4096
OFFLINE_NAME = "offline"
API_KEY_VARIABLES: dict[Provider, str] = {
    "gemini": "GEMINI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}
_PREFIXES: dict[str, Provider] = {
    "google": "gemini",
    "anthropic": "anthropic",
    "openai": "openai",
    "openrouter": "openrouter",
    "ollama": "ollama",
}
# The variable that overrides a provider's base URL, and the default; None: the SDK's own default.
_BASE_URLS: dict[Provider, tuple[str, str | None]] = {
    "gemini": ("GOOGLE_GEMINI_BASE_URL", None),
    "anthropic": ("ANTHROPIC_BASE_URL", None),
    "openai": ("OPENAI_BASE_URL", None),
    "openrouter": ("OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
    "ollama": ("OLLAMA_BASE_URL", "http://127.0.0.1:11434/v1"),
}


class Route(msgspec.Struct, frozen=True):
    """Where a model is served.

    ``model`` is the name that the provider knows. ``base_url`` None: the SDK's default. ``key`` names the
    environment variable that must hold the API key; None: the endpoint needs no key.
    """

    provider: Provider
    model: str
    base_url: str | None = None
    key: str | None = None
    max_tokens: int | None = None


def bare_model(model: str) -> str:
    """The model's name without the provider's prefix.

    >>> bare_model("ollama:llama3:8b")
    'llama3:8b'
    """
    prefix, colon, rest = model.partition(":")
    return rest if colon and prefix in _PREFIXES else model


def provider_of(model: str) -> Provider:
    """The provider that serves a model."""
    if model == OFFLINE_NAME:
        return "offline"
    prefix, colon, _ = model.partition(":")
    if colon and prefix in _PREFIXES:
        return _PREFIXES[prefix]
    return "anthropic" if model.startswith("claude-") else "gemini"


def resolve(model: str, env: Mapping[str, str]) -> Route:
    """The route of a model. Raises `ConfigError` when nothing follows the prefix."""
    bare = bare_model(model)
    if not bare.strip():
        raise ConfigError([f"llm.model: {model!r} names no model; expected a name such as claude-sonnet-4-5"])
    provider = provider_of(model)
    if provider == "offline":
        return Route("offline", OFFLINE_NAME)
    variable, default = _BASE_URLS[provider]
    override = env.get(variable) or None
    # Ollama has no keys, and neither has a compatible server that somebody runs in place of OpenAI's.
    needs_key = not (provider == "ollama" or (provider == "openai" and override is not None))
    return Route(
        provider,
        bare,
        override or default,
        API_KEY_VARIABLES[provider] if needs_key else None,
        ANTHROPIC_MAX_TOKENS if provider == "anthropic" else None,
    )


def check_key(route: Route, env: Mapping[str, str]) -> None:
    """Raises `ConfigError`, naming the variable, when the route's API key is missing."""
    if route.key is not None and not env.get(route.key, "").strip():
        raise ConfigError(
            [f"{route.key} is not set: the model {route.model!r} ({route.provider}) needs an API key in it"]
        )
