"""What a config asks of its models that their providers do not offer, or that no answer can be checked by.

These checks are here and not in `mesh.config`, which knows no providers. `mesh.cli.shared.loaded` makes them
for every command that reads a config.
"""

from collections.abc import Iterator
from typing import Any

from mesh.config.json_lines import where_in
from mesh.config.model import Config, ModelParameters
from mesh.config.problem_texts import spelled
from mesh.config.read_model import Problem
from mesh.config.yaml_tree import Loc
from mesh.core.errors import ConfigError
from mesh.llm.answer_check import schema_problems
from mesh.llm.models import provider_of, resolve


def model_problems(config: Config) -> list[str]:
    """Returns the problems as `Config.parse` reports its own."""
    return config.told([*_unusable_models(config), *_refused_parameters(config), *_unusable_schemas(config)])


def _unusable_schemas(config: Config) -> Iterator[Problem]:
    for loc, node in config.nodes():
        schemas: dict[Loc, dict[str, Any] | None] = {("output_schema",): node.output_schema}
        if node.exit_when is not None:
            schemas["exit_when", "schema"] = node.exit_when.accepted
        for key, schema in schemas.items():
            if schema is not None:
                yield from _schema(config, (*loc, *key), schema)


def _schema(config: Config, loc: Loc, schema: dict[str, Any]) -> Iterator[Problem]:
    """A schema of a file is told at its line there, and where the config names the file."""
    file = config.files.get(spelled(loc))
    for at, problem in schema_problems(schema):
        if file is None:
            yield (*loc, *at), problem
        else:
            yield loc, f"{where_in(file, at)}: {problem}"


def _unusable_models(config: Config) -> Iterator[Problem]:
    for loc, model in config.models():
        try:
            resolve(model, {})
        except ConfigError as error:
            yield from ((loc, problem) for problem in error.problems)


def _refused_parameters(config: Config) -> Iterator[Problem]:
    for loc, node in config.nodes():
        if node.parameters.model_fields_set:
            yield from _parameters((*loc, "parameters"), node.parameters, node.model or config.llm.model)


def _parameters(loc: Loc, parameters: ModelParameters, model: str) -> Iterator[Problem]:
    try:
        provider = provider_of(model)
    except ConfigError:  # which `_unusable_models` reports
        return
    who, taken = f"{provider.name}, which serves {model},", provider.taken
    for key in parameters.model_fields_set:
        if key not in taken and getattr(parameters, key) is not None:
            yield (*loc, key), f"{who} has no {key}; expected one of: {', '.join(taken)}"
    for key_loc, problem in provider.check_parameters(parameters):
        yield (*loc, *key_loc), f"{who} {problem}"
