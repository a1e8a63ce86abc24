"""What the commands share: the config argument, errors as lines, exit codes."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from mesh.config.model import Config

DEFAULT_CONFIG = Path("config/agent.yaml")
FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The agent's file, in YAML or Python.", show_default=True)
]

ConfigsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="CONFIG",
        help=f"The agent's YAML file, or one file for each agent. By default {DEFAULT_CONFIG}.",
        show_default=False,
    ),
]
DataDirOption = Annotated[
    Path | None, typer.Option(help="The directory for conversations, instead of the config's.")
]


AgentUrlOption = Annotated[str, typer.Option(envvar="MESH_URL", help="The URL of the agent.")]
LOCAL_URL = "http://127.0.0.1:8080"

WorkspaceOption = Annotated[
    Path | None,
    typer.Option(
        envvar="MESH_WORKSPACE",
        metavar="DIR",
        help="The folder whose files the agent works with: ${MESH_WORKSPACE} in configs. By default the "
        "current one.",
        show_default=False,
    ),
]


def set_workspace(workspace: Path | None) -> Path:
    """Makes a folder the workspace of this process and of those that it starts, and returns its whole path.
    Exits if it is none."""
    folder = (workspace or Path.cwd()).absolute()
    if not folder.is_dir():
        exit_with([f"--workspace: {folder} is no folder"], WRONG_USE)
    os.environ["MESH_WORKSPACE"] = str(folder)
    return folder


def use_workspace(workspace: Path | None) -> None:
    """Makes a folder the workspace if one is given. Exits if it is none."""
    if workspace is not None:
        set_workspace(workspace)


def loaded(path: Path, *, runs: bool = True) -> "Config":
    """Returns the config in a file. Raises `ConfigError` with its problems, or with those of its models and,
    if the agent ``runs``, of its Python files, which are run to see what they have."""
    from mesh.config.agent_file import load
    from mesh.config.custom_policy import custom_problems
    from mesh.config.python_problems import python_problems
    from mesh.config.validating_agents import validating_problems
    from mesh.core.errors import ConfigError
    from mesh.llm.config_checks import model_problems
    from mesh.tree.budget_checks import budget_problems
    from mesh.tree.placeholder_checks import placeholder_problems

    config = load(path, os.environ)
    problems = [
        *model_problems(config),
        *validating_problems(config),
        *placeholder_problems(config),
        *budget_problems(config),
    ]
    if runs:
        problems += [*python_problems(config), *custom_problems(config)]
    if problems:
        raise ConfigError(problems)
    return config


def agents_of(paths: Sequence[Path] | None, **given: Any) -> "list[Config]":
    """Returns the configs as they run, by default that of `DEFAULT_CONFIG`. What is ``given`` and not None
    takes the place of what they have. Raises `ConfigError` with the problems of each file and of all of them
    together."""
    from mesh.config.several_agents import conflicts, shared_data_dirs, with_one_address
    from mesh.core.errors import ConfigError

    chosen = {key: value for key, value in given.items() if value is not None}
    problems: list[str] = []
    found: dict[Path, Config] = {}
    for path in paths or [DEFAULT_CONFIG]:
        if path.resolve() in found:
            problems.append(f"{path}:1: is given twice; each agent has a file of its own")
            continue
        try:
            found[path.resolve()] = loaded(path).model_copy(update=chosen)
        except ConfigError as error:
            problems += error.problems
    configs = [*found.values()]
    if problems := [*problems, *conflicts(configs)]:
        raise ConfigError(problems)
    agents = with_one_address(configs, os.environ)
    if problems := shared_data_dirs(agents):
        raise ConfigError(problems)
    return agents


def print_warnings(agents: "Sequence[Config]") -> None:
    """Says what is not safe about agents that can be started."""
    from mesh.access.exposure import warnings
    from mesh.store.chosen import store_warnings

    for warning in (each for agent in agents for each in (*warnings(agent), *store_warnings(agent))):
        typer.echo(f"mesh: warning: {warning}", err=True)


def runtime(name: str = "ray") -> "Callable[..., Any]":
    """Returns the function that runs agents. It takes a `Config`, a rich `Console`, the `Config` of each
    further agent, and ``options``, which are `RunOptions`; or another one of `deployments.deploying`. It is
    found by its entry point, because mesh/ must not import Ray."""
    from importlib.metadata import entry_points

    found = [*entry_points(group="mesh.runtime", name=name)]
    if not found:
        exit_with(["no runtime is installed; run make setup"], FAILED)
    start: Callable[..., Any] = found[0].load()
    return start


def command(name: str, module: str) -> str:
    """Returns how a console script of this Python is run from here: by its name if that is the one on PATH,
    or else by its path; as a module if there is no script."""
    script, on_path = Path(sys.executable).parent / name, which(name)
    if on_path and (not script.exists() or script.samefile(on_path)):
        return name
    if not script.exists():
        return f"{quote(sys.executable)} -m {module}"
    here = Path.cwd()
    is_below = here != Path(here.anchor) and script.is_relative_to(here)
    return quote(str(script.relative_to(here) if is_below else script))


@contextmanager
def errors_as_lines(report: Path | None = None) -> Iterator[None]:
    """Prints errors for people as lines and exits. Any other exception is a bug and keeps its traceback.
    ``report`` is a file for programs, as in `exit_with`."""
    from mesh.core.errors import ConfigError, MeshError

    try:
        yield
    except ConfigError as error:
        exit_with(error.problems, WRONG_USE, report)
    except MeshError as error:
        exit_with([str(error)], FAILED, report)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def exit_with(problems: Sequence[str], code: int, report: Path | None = None) -> NoReturn:
    """Prints a line for each problem and exits. The problems also go to the file ``report`` as a JSON list,
    for a program that started this one and should not parse what people read."""
    if report is not None:
        report.write_text(json.dumps(problems), encoding="utf-8")
    for problem in problems:
        typer.echo(f"mesh: {problem}", err=True)
    raise typer.Exit(code)
