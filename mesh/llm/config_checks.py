"""What a config asks of its models that their providers do not offer.

These checks are here and not in `mesh.config`, which knows no providers. `mesh.cli.shared.loaded` makes them
for every command that reads a config.
"""

from collections.abc import Callable, Iterator

from mesh.config.model import Config, ModelParameters
from mesh.config.read_model import Problem
from mesh.config.yaml_tree import Loc
from mesh.llm.models import Provider, provider_of
from mesh.llm.parameters import TAKEN_BY


def model_problems(config: Config) -> list[str]:
    """Returns the problems as `Config.parse` reports its own."""
    return config.told(
        problem
        for loc, node in config.nodes()
        for problem in _parameters((*loc, "parameters"), node.parameters, node.model or config.llm.model)
    )


def _parameters(loc: Loc, parameters: ModelParameters, model: str) -> Iterator[Problem]:
    provider = provider_of(model)
    who, taken = f"{provider}, which serves {model},", TAKEN_BY[provider]
    for key in parameters.model_fields_set:
        if key not in taken and getattr(parameters, key) is not None:
            yield (*loc, key), f"{who} has no {key}; expected one of: {', '.join(taken)}"
    for key_loc, problem in _BOUNDS.get(provider, _no_bounds)(parameters):
        yield (*loc, *key_loc), f"{who} {problem}"


def _no_bounds(parameters: ModelParameters) -> Iterator[Problem]:
    yield from ()


def _anthropic_bounds(parameters: ModelParameters) -> Iterator[Problem]:
    if parameters.temperature is not None and parameters.temperature > 1:
        yield ("temperature",), "has none above 1; expected 1 or less"
    for index, text in enumerate(parameters.stop):
        if not text.strip():
            yield ("stop", index), "does not stop at white space alone; expected other characters too"


_BOUNDS: dict[Provider, Callable[[ModelParameters], Iterator[Problem]]] = {"anthropic": _anthropic_bounds}
"""Where a provider's API allows less than the config."""
