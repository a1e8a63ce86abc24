"""``mesh up``."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.shared import (
    DEFAULT_CONFIG,
    FAILED,
    WorkspaceOption,
    errors_as_lines,
    exit_with,
    loaded,
    runtime,
    set_workspace,
)
from mesh.runtime.options import LogFormat, LogLevel, RunOptions

if TYPE_CHECKING:
    from mesh.config.model import Config


def up(
    configs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CONFIG",
            help=f"The agent's YAML file, or one file for each agent. By default {DEFAULT_CONFIG}.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on, instead of the config's.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port to listen on, instead of the config's.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="The directory for conversations, instead of the config's.")
    ] = None,
    workspace: WorkspaceOption = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the web chat too, on 127.0.0.1:3000 or the next free port.")
    ] = False,
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard/--no-dashboard",
            envvar="MESH_DASHBOARD",
            help="Without Ray's dashboard a local Ray starts sooner, with ten processes less.",
        ),
    ] = True,
    log_format: Annotated[LogFormat, typer.Option(help="The format of the log on stderr.")] = "logfmt",
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            help="The lowest level that is logged: by default warning on a terminal, otherwise info."
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            envvar="MESH_MAX_RESTARTS",
            help="Give up if Ray dies more often than this within five minutes.",
        ),
    ] = 5,
    problems_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start an agent and serve it until Ctrl-C. Several agents are each served below /name.

    Starts a local Ray, or joins the cluster that RAY_ADDRESS names.

    Example: mesh up config/agent.yaml --host 127.0.0.1 --port 9000
    """
    with errors_as_lines(problems_file):
        set_workspace(workspace)
        from rich.console import Console

        from mesh.access.exposure import warnings
        from mesh.cli.preflight import obstacles
        from mesh.store.chosen import store_warnings

        given = {"host": host, "port": port, "data_dir": data_dir}
        agents = _agents(
            configs or [DEFAULT_CONFIG], {key: to for key, to in given.items() if to is not None}
        )
        if found := obstacles(agents, os.environ):
            exit_with(found, FAILED, problems_file)
        for warning in (each for agent in agents for each in (*warnings(agent), *store_warnings(agent))):
            typer.echo(f"mesh: warning: {warning}", err=True)
        level = log_level or ("warning" if sys.stderr.isatty() else "info")
        options = RunOptions(log_format, level, max_restarts, web, dashboard)
        runtime()(agents[0], Console(), *agents[1:], options=options)


def _agents(paths: Sequence[Path], chosen: dict[str, Any]) -> "list[Config]":
    """Returns the configs as they run. Raises `ConfigError` with the problems of each file and of all of them
    together."""
    from mesh.config.several_agents import conflicts, shared_data_dirs, with_one_address
    from mesh.core.errors import ConfigError

    problems: list[str] = []
    found: dict[Path, Config] = {}
    for path in paths:
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
