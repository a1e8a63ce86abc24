"""What every command shares: the config it is given, plain words for what is wrong, exit codes."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from mesh.config.model import Config

DEFAULT_CONFIG = Path("config/agent.yaml")
MACHINE, WRONG, INTERRUPTED = 1, 2, 130

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The agent's YAML file.", show_default=True)
]


def loaded(path: Path) -> "Config":
    from mesh.config.model import load

    return load(path, os.environ)


def runtime() -> "Callable[..., None]":
    """What runs an agent: called with a `Config`, a rich `Console`, the `Config` of each further agent, and
    ``options``, its `RunOptions`. It is found by its entry point: nothing here imports it by name."""
    from importlib.metadata import entry_points

    found = [*entry_points(group="mesh.runtime", name="ray")]
    if not found:
        leave(["no runtime is installed; run make setup"], MACHINE)
    start: Callable[..., None] = found[0].load()
    return start


@contextmanager
def plain_words() -> Iterator[None]:
    """Errors for people become lines and an exit code; anything else is a bug and keeps its traceback."""
    from mesh.core.errors import ConfigError, MeshError

    try:
        yield
    except ConfigError as error:
        leave(error.problems, WRONG)
    except MeshError as error:
        leave([str(error)], MACHINE)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def leave(problems: Sequence[str], code: int) -> NoReturn:
    for problem in problems:
        typer.echo(f"mesh: {problem}", err=True)
    raise typer.Exit(code)
