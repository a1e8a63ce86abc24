"""Reads a YAML text into a model of pydantic, with every problem at its line.

It serves `agent.yaml` and `web.yaml` alike.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mesh.config.environment import Substitution
from mesh.config.problem_texts import problems_of, spelled
from mesh.config.yaml_tree import Loc, YamlNode, compose
from mesh.core.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
Problem = tuple[Loc, str]


def no_checks(data: Any) -> Iterable[Problem]:
    """A model whose keys are independent of each other."""
    return ()


def read_model(
    model: type[Model],
    text: str,
    origin: str,
    env: Mapping[str, str],
    *,
    example: str,
    resolve: Callable[[Any], Iterable[Problem]] = no_checks,
    checks: Callable[[Any], Iterable[Problem]] = no_checks,
    lines: Mapping[Loc, int] | None = None,
) -> tuple[Model, YamlNode]:
    """Returns the model in ``text`` and the root of its YAML tree.

    ``resolve`` puts what they stand for in place of references in the plain data. ``checks`` finds problems
    between keys there. ``example`` is a line that such a file may have. ``lines`` are those of keys in
    another file, from which the text was made.
    Raises `ConfigError` with every problem as ``origin:line: key: …``, in the order of the lines.
    """
    root = compose(text, origin)
    if lines is not None:
        root = root.with_lines(lines)
    if not isinstance(root.value, dict):
        raise ConfigError([f"{origin}:{root.line}: expected keys at the top level, such as {example}"])
    substitution = Substitution(env)
    data = substitution.data(root)
    unresolved = [each for each in resolve(data) if each[0] not in substitution.failed]
    found, errors = _validated(model, data)
    if _put_texts(data, substitution, errors):
        found, errors = _validated(model, data)
    problems = [*problems_of(errors, model, data), *checks(data)]
    # A variable or a reference without a value is reported once, and not again by the key that lacks it.
    failed = substitution.failed | {loc for loc, _ in unresolved}
    reported = [*substitution.problems, *unresolved]
    problems = [*reported, *(each for each in problems if not failed.intersection(_prefixes(each[0])))]
    if found is None or problems:
        raise ConfigError(told(problems, origin, root))
    return found, root


def told(problems: Iterable[Problem], origin: str, root: YamlNode) -> list[str]:
    """Returns the problems as people read them, ``origin:line: key: …``, in the order of the lines."""
    lines = sorted({(root.nearest(loc).line, spelled(loc), message) for loc, message in problems})
    return [f"{origin}:{line}: {key}: {message}" for line, key, message in lines]


def _prefixes(loc: Loc) -> Iterator[Loc]:
    return (loc[:length] for length in range(1, len(loc) + 1))


def _validated(model: type[Model], data: Any) -> tuple[Model | None, list[Any]]:
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        # Without the inputs, which may be secrets.
        return None, error.errors(include_url=False, include_input=False)


def _put_texts(data: Any, substitution: Substitution, errors: list[Any]) -> bool:
    """Puts text where a number from the environment was refused: with N=7, ``name: ${N}`` is the text "7".
    Returns whether there was such a value."""
    locs = [error["loc"] for error in errors if error["type"] == "string_type"]
    locs = [loc for loc in locs if loc in substitution.texts]
    for loc in locs:
        parent = data
        for key in loc[:-1]:
            parent = parent[key]
        parent[loc[-1]] = substitution.texts[loc]
    return bool(locs)
