"""From the name of a model, as a config writes it, to the provider and the endpoint that serve it.

``NAME:MODEL`` is a model of the provider that is installed under this name; see `mesh.llm.provider`. A name
without a prefix is one of Claude (``claude-…``), ``offline``, or else one of Gemini.

This module makes no provider; `mesh.llm.routing` does.
"""

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from mesh.core.errors import ConfigError
from mesh.llm.installed import installed, names
from mesh.llm.provider import Provider

OFFLINE_NAME = "offline"


class Route(msgspec.Struct, frozen=True):
    """Where a model is served.

    ``provider`` and ``model`` are the provider's name, and the name that it knows the model by. ``base_url``
    None: the SDK's default. ``key`` names the environment variable that must hold the API key; None: the
    endpoint needs no key. ``address`` names the one that must hold the base URL, if it is not known without.
    """

    provider: str
    model: str
    base_url: str | None = None
    key: str | None = None
    address: str | None = None


@lru_cache(maxsize=256)  # every model call asks for it
def bare_model(model: str) -> str:
    """The model's name without the provider's prefix.

    >>> bare_model("ollama:llama3:8b")
    'llama3:8b'
    """
    prefix, colon, rest = model.partition(":")
    return rest if colon and prefix in names() else model


def provider_of(model: str) -> Provider:
    """The provider that serves a model. Raises `ConfigError` if it is not installed or cannot be used."""
    prefix, colon, _ = model.partition(":")
    if colon:
        return installed(prefix)
    if model == OFFLINE_NAME:
        return installed("offline")
    return installed("anthropic" if model.startswith("claude-") else "gemini")


def resolve(model: str, env: Mapping[str, str]) -> Route:
    """The route of a model. Raises `ConfigError` like `provider_of`, and when nothing follows the prefix."""
    provider = provider_of(model)
    bare = bare_model(model)
    if not bare.strip():
        raise ConfigError([f"{model!r} names no model; expected a name such as claude-sonnet-4-5"])
    override = env.get(provider.base_url_variable, "").strip() or None
    needs_key = provider.key and (override is None or provider.needs_key_elsewhere)
    return Route(
        provider.name,
        bare,
        override or provider.base_url,
        provider.key if needs_key else None,
        provider.base_url_variable if provider.needs_address else None,
    )


def check_variables(route: Route, env: Mapping[str, str]) -> None:
    """Raises `ConfigError`, naming the variable, when the route's API key or address is missing."""
    who, missing = f"{route.model!r} ({route.provider})", []
    if _is_missing(route.address, env):
        missing.append(f"{route.address} is not set: the model {who} needs the base URL of its API in it")
    if _is_missing(route.key, env):
        missing.append(f"{route.key} is not set: the model {who} needs an API key in it")
    if missing:
        raise ConfigError(missing)


def _is_missing(variable: str | None, env: Mapping[str, str]) -> bool:
    return variable is not None and not env.get(variable, "").strip()
