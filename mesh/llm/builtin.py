"""The providers that come with the mesh. They are registered in ``pyproject.toml``, as those of any package.

    claude-…, anthropic:…             Anthropic   ANTHROPIC_API_KEY    ANTHROPIC_BASE_URL
    openai:…                          OpenAI      OPENAI_API_KEY       OPENAI_BASE_URL (then no key needed)
    openrouter:…                      OpenRouter  OPENROUTER_API_KEY   OPENROUTER_BASE_URL
    ollama:…                          Ollama      none                 OLLAMA_BASE_URL
    google:…, gemini:…, other names   Gemini      GEMINI_API_KEY       GOOGLE_GEMINI_BASE_URL
    offline                           no network, no key

An SDK is imported when its first provider is made, because each import takes about a second. What a single
model refuses of the parameters is answered by its provider, and is not known here: such a list would be out
of date with the next model.
"""

from collections.abc import Iterator

from mesh.config.model import ModelParameters, ModelPrice
from mesh.config.yaml_tree import Loc
from mesh.llm.models import OFFLINE_NAME
from mesh.llm.port import Llm
from mesh.llm.provider import ALL_PARAMETERS, ModelEndpoint, Provider, without_default


@without_default
def compatible(endpoint: ModelEndpoint) -> Llm:
    """Returns the provider for a server that speaks OpenAI's format."""
    from mesh.llm.openai import OpenAI

    if endpoint.base_url is None:  # the SDK would send another provider's key to OpenAI
        raise ValueError(f"no address: {endpoint.name} needs a base_url")
    return OpenAI(endpoint.api_key, endpoint.base_url, endpoint.name, compatible=True)


def _openai(endpoint: ModelEndpoint) -> Llm:
    from mesh.llm.openai import OpenAI

    is_elsewhere = endpoint.base_url is not None
    return OpenAI(endpoint.api_key, endpoint.base_url, endpoint.name, compatible=is_elsewhere)


def _anthropic(endpoint: ModelEndpoint) -> Llm:
    from mesh.llm.anthropic import Anthropic

    return Anthropic(endpoint.api_key, endpoint.base_url)


def _gemini(endpoint: ModelEndpoint) -> Llm:
    from mesh.llm.gemini import Gemini

    return Gemini(endpoint.api_key, endpoint.base_url)


def _offline(endpoint: ModelEndpoint) -> Llm:
    from mesh.llm.offline import Offline

    return Offline()


def _anthropic_bounds(parameters: ModelParameters) -> Iterator[tuple[Loc, str]]:
    if parameters.temperature is not None and parameters.temperature > 1:
        yield ("temperature",), "has none above 1; expected 1 or less"
    for index, text in enumerate(parameters.stop):
        if not text.strip():
            yield ("stop", index), "does not stop at white space alone; expected other characters too"


ANTHROPIC = Provider(
    make=_anthropic,
    parameters=("temperature", "top_p", "stop", "effort"),
    check_parameters=_anthropic_bounds,
    key="ANTHROPIC_API_KEY",
    base_url_variable="ANTHROPIC_BASE_URL",
    price_list="anthropic",
)
GEMINI = Provider(
    make=_gemini,
    parameters=ALL_PARAMETERS,
    key="GEMINI_API_KEY",
    base_url_variable="GOOGLE_GEMINI_BASE_URL",
    price_list="google",
    name="gemini",
)
OPENAI = Provider(
    make=_openai,
    parameters=ALL_PARAMETERS,
    key="OPENAI_API_KEY",
    base_url_variable="OPENAI_BASE_URL",
    needs_key_elsewhere=False,  # a compatible server that somebody runs in place of OpenAI's
    price_list="openai",
)
OPENROUTER = Provider(
    make=compatible,
    parameters=ALL_PARAMETERS,
    key="OPENROUTER_API_KEY",
    base_url="https://openrouter.ai/api/v1",
    base_url_variable="OPENROUTER_BASE_URL",
    price_list="openrouter",
)
OLLAMA = Provider(
    make=compatible,
    parameters=ALL_PARAMETERS,
    base_url="http://127.0.0.1:11434/v1",
    base_url_variable="OLLAMA_BASE_URL",
)
OFFLINE = Provider(
    make=_offline,
    # The offline model takes all of them, so that a config runs with it unchanged.
    parameters=ALL_PARAMETERS,
    prices={OFFLINE_NAME: ModelPrice(input=0, output=0)},
)
