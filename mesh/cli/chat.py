"""``mesh chat``."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.journal_source import ApiKeyOption, check_secrets
from mesh.cli.shared import DEFAULT_CONFIG, INTERRUPTED, WRONG_USE, errors_as_lines, exit_with


def chat(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="MESH_URL", help="The URL of a running mesh. Without it, a mesh is started for this chat."
        ),
    ] = None,
    config: Annotated[
        Path, typer.Option(metavar="CONFIG", help="The agent to start if there is no --url.")
    ] = DEFAULT_CONFIG,
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
    with errors_as_lines():
        from mesh.chat.embedded import EmbeddedMeshFailed
        from mesh.chat.run import ChatOptions, run

        try:
            status = run(ChatOptions(url=url, config=config, resume=resume, yes=yes, token=token, key=key))
        except EmbeddedMeshFailed as problem:
            exit_with(problem.problems, problem.status)
        except BrokenPipeError:
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  the interpreter flushes stdout when it exits
            status = INTERRUPTED
        raise typer.Exit(status)
