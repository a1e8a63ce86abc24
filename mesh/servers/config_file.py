"""The configuration of a server: a YAML file, every problem of which is told at its line, as those of an
agent's config are; or what the command line says in its place."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from mesh.config.read_model import Problem, read_model
from mesh.config.yaml_tree import Loc, read_text
from mesh.core.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
_EXAMPLE = "roots: [{name: work, path: ./work}]"


class Unusable(Exception):
    """The configuration has problems, which are listed."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def read_config(model: type[Model], file: Path, checks: Callable[[Any], Iterable[Problem]]) -> Model:
    """The settings in a file. ``checks`` finds what is wrong besides the form, which may be wrong as well.
    Raises `Unusable`."""
    try:
        text = read_text(file)
        return read_model(model, text, str(file), os.environ, example=_EXAMPLE, checks=checks)[0]
    except ConfigError as error:
        raise Unusable(error.problems) from None


def told_of_folders(problems: Iterable[Problem], data: Mapping[str, Any]) -> list[str]:
    """Problems as people read them who have written no file: roots have names there, and no lines."""
    return [f"{_place(loc, data)}: {message}{_how(loc)}" for loc, message in problems]


def _how(loc: Loc) -> str:
    return " in a file, with --config FILE" if loc[-1] == "name" else ""


def _place(loc: Loc, data: Mapping[str, Any]) -> str:
    key, *rest = loc
    return f"root {data['roots'][rest[0]]['name']!r}" if key == "roots" and rest else f"--{key}"


def listed(data: Any, key: str) -> list[Any]:
    """The list under a key; an empty one if there is none."""
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


def resolved(base: Path, path: str) -> Path:
    """A path of the configuration. A home that does not exist is left as it is written."""
    return base / os.path.expanduser(path)  # noqa: PTH111 - that of pathlib raises
