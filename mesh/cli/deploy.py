"""``mesh deploy``, ``promote``, ``down``, ``leave`` and ``serve-config``: agents that stay on a cluster."""

import os
import re
from typing import Annotated

import typer

from mesh.cli.shared import (
    FAILED,
    WRONG_USE,
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

_PATH = re.compile(r"/|(/[A-Za-z0-9._~-]+)+")


def deploy(
    configs: ConfigsArgument = None,
    path: Annotated[
        str, typer.Option(help="Where a single agent is served, such as /support; by default at /.")
    ] = "",
    data_dir: DataDirOption = None,
    workspace: WorkspaceOption = None,
    within: Annotated[
        float, typer.Option(min=1, help="How many seconds to wait until the deployment is in force.")
    ] = 300.0,
) -> None:
    """Deploy agents to a running Ray cluster, and return. Again, to change them.

    RAY_ADDRESS names the cluster. Several agents are each served below /name. What was deployed before goes
    on until all that the new version needs is ready; open turns end on the version that they began with.

    Example: RAY_ADDRESS=127.0.0.1:6379 mesh deploy config/agent.yaml
    """
    with errors_as_lines():
        if path and not _PATH.fullmatch(path):
            exit_with([f"--path {path}: a path is like /support or /teams/support"], WRONG_USE)
        set_workspace(workspace)
        from rich.console import Console

        from mesh.cli.preflight import obstacles_here

        agents = agents_of(configs, data_dir=data_dir)
        if path and len(agents) > 1:
            exit_with(["--path is for a single agent; several are each served below /name"], WRONG_USE)
        if found := [problem for agent in agents for problem in obstacles_here(agent, os.environ)]:
            exit_with(found, FAILED)
        print_warnings(agents)
        runtime("deploy")(agents[0], Console(), *agents[1:], path=path, within_s=within)


def promote(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="The names of the agents.")],
    within: Annotated[
        float, typer.Option(min=1, help="How many seconds to wait until the deployment is in force.")
    ] = 300.0,
) -> None:
    """Have deployments that stand by (promote: manual in the config) take the conversations over.

    Example: RAY_ADDRESS=127.0.0.1:6379 mesh promote support
    """
    with errors_as_lines():
        from rich.console import Console

        runtime("promote")(names, Console(), within_s=within)


def down(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="The names of the agents.")],
) -> None:
    """Take agents down that were deployed to a Ray cluster. Their conversations stay in their stores.

    Example: RAY_ADDRESS=127.0.0.1:6379 mesh down support
    """
    with errors_as_lines():
        from rich.console import Console

        runtime("down")(names, Console())


def leave(
    within: Annotated[
        float, typer.Option(min=1, help="How many seconds the keepers may take to give their shards away.")
    ] = 60.0,
) -> None:
    """Have the keepers on this machine give their conversations to others, before the machine goes.

    For a preStop command on Kubernetes, or before ray stop. RAY_ADDRESS names the cluster.

    Example: RAY_ADDRESS=auto mesh leave
    """
    with errors_as_lines():
        from rich.console import Console

        runtime("leave")(Console(), within_s=within)


def serve_config(
    configs: ConfigsArgument = None,
    host: Annotated[str, typer.Option(help="The address on which each machine listens.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of the HTTP edge.")] = 8000,
    mounted: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Where the agents' files are on the machines of the cluster, instead of their texts.",
        ),
    ] = "",
    data_dir: DataDirOption = None,
) -> None:
    """Print the config of Ray Serve for agents: for serve deploy, and for a RayService on Kubernetes.

    Example: mesh serve-config config/agent.yaml > serve.yaml && serve deploy serve.yaml
    """
    with errors_as_lines():
        agents = agents_of(configs, data_dir=data_dir)
        typer.echo(
            runtime("serve_config")(agents[0], *agents[1:], host=host, port=port, mounted=mounted), nl=False
        )
