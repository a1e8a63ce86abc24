"""``mesh chat``."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.journal_source import ApiKeyOption, check_secrets
from mesh.cli.shared import (
    DEFAULT_CONFIG,
    FAILED,
    INTERRUPTED,
    WRONG_USE,
    WorkspaceOption,
    errors_as_lines,
    exit_with,
    loaded,
    set_workspace,
)

if TYPE_CHECKING:
    from mesh.local.one_process import LocalMesh


def chat(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="MESH_URL", help="The URL of a running mesh. Without it, the agent runs in this process."
        ),
    ] = None,
    config: Annotated[
        Path, typer.Option(metavar="CONFIG", help="The agent to run if there is no --url.")
    ] = DEFAULT_CONFIG,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run it on Ray, as mesh up does, instead of in this process.")
    ] = False,
    workspace: WorkspaceOption = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="ID|FILE", help="Continue a conversation, or import a session log and continue it."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve every tool call without asking.")] = False,
    token: Annotated[
        str, typer.Option(envvar="MESH_TOKEN", help="Sent as Authorization: Bearer.", show_default=False)
    ] = "",
    key: ApiKeyOption = "",
) -> None:
    """Talk to an agent, in a terminal or a pipe.

    In a pipe each line of stdin is a message, and the answers go to stdout.

    Exit codes: 0 answered, 1 failed or no mesh, 2 wrong use, 3 waiting for a person, 130 interrupted.

    Example: mesh chat --url http://localhost:8080
    """
    if url is not None and not url.startswith(("http://", "https://")):
        exit_with([f"--url: {url} is no URL; expected one such as http://localhost:8080"], WRONG_USE)
    check_secrets(token, key)
    folder = set_workspace(workspace)
    with errors_as_lines():
        from mesh.chat.child_mesh import ChildMeshFailed
        from mesh.chat.run import ChatOptions, run

        try:
            options = ChatOptions(
                url=url,
                config=config,
                resume=resume,
                yes=yes,
                token=token,
                key=key,
                ray=ray,
                workspace=folder,
            )
            status = run(options, partial(_own_mesh, config))
        except ChildMeshFailed as problem:
            exit_with(problem.problems, problem.status)
        except BrokenPipeError:
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  the interpreter flushes stdout when it exits
            status = INTERRUPTED
        raise typer.Exit(status)


def _own_mesh(path: Path, on_fenced: Callable[[], None]) -> "AbstractAsyncContextManager[LocalMesh]":
    """The agent of a config, in this process. Raises `MeshError`."""
    from mesh.cli.preflight import obstacles_here
    from mesh.config.several_agents import with_one_address
    from mesh.local.one_process import local_mesh
    from mesh.runtime.logs import set_up_file

    (config,) = with_one_address([loaded(path)], os.environ)
    if config.store is not None:
        # It would take the conversations away from the mesh that has them, on whichever machine that is.
        what = "a chat of its own would take the conversations from the mesh that serves them"
        exit_with([f"{config.location('store')}: {what}; start mesh up, and chat with --url"], FAILED)
    if found := obstacles_here(config, os.environ):
        exit_with(found, FAILED)
    set_up_file(config.data_dir / "chat.log")
    return local_mesh(config, "mesh chat", on_fenced)
