"""``mesh up``."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import (
    FAILED,
    ConfigsArgument,
    DataDirOption,
    WorkspaceOption,
    agents_of,
    errors_as_lines,
    exit_with,
    print_warnings,
    runtime,
    set_workspace,
)
from mesh.runtime.options import LogFormat, LogLevel, RunOptions


def up(
    configs: ConfigsArgument = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on, instead of the config's.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port to listen on, instead of the config's.")
    ] = None,
    data_dir: DataDirOption = None,
    workspace: WorkspaceOption = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the web chat too, on 127.0.0.1:3000 or the next free port.")
    ] = False,
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard/--no-dashboard",
            envvar="MESH_DASHBOARD",
            help="Without Ray's dashboard a local Ray starts sooner, with a dozen processes less.",
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

        from mesh.cli.preflight import obstacles

        agents = agents_of(configs, host=host, port=port, data_dir=data_dir)
        if found := obstacles(agents, os.environ):
            exit_with(found, FAILED, problems_file)
        print_warnings(agents)
        level = log_level or ("warning" if sys.stderr.isatty() else "info")
        options = RunOptions(log_format, level, max_restarts, web, dashboard)
        runtime()(agents[0], Console(), *agents[1:], options=options)
