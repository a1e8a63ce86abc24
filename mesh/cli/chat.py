"""``mesh chat``."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import DEFAULT_CONFIG, INTERRUPTED, WRONG, leave, plain_words
from mesh.cli.where import ApiKey, check_secrets


def chat(
    url: Annotated[
        str | None, typer.Option(envvar="MESH_URL", help="Talk to the mesh there; without it, start one.")
    ] = None,
    config: Annotated[
        Path, typer.Option(metavar="CONFIG", help="The agent to start, without --url.")
    ] = DEFAULT_CONFIG,
    resume: Annotated[
        str | None, typer.Option(metavar="ID|FILE", help="Go on with a conversation, or with a session log.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve every tool call without asking.")] = False,
    token: Annotated[
        str, typer.Option(envvar="MESH_TOKEN", help="Sent as Authorization: Bearer.", show_default=False)
    ] = "",
    key: ApiKey = "",
) -> None:
    """Talk to an agent, in a terminal or a pipe.

    In a pipe each line is a message, and the answers go to stdout.

    Exit codes: 0 answered, 1 failed or no mesh, 2 wrong use, 3 waits for a person, 130 interrupted.

    Example: mesh chat --url http://localhost:8080
    """
    if url is not None and not url.startswith(("http://", "https://")):
        leave([f"--url: {url} is no URL; expected one such as http://localhost:8080"], WRONG)
    check_secrets(token, key)
    with plain_words():
        from mesh.chat.embedded import EmbeddedMeshFailed
        from mesh.chat.session import ChatOptions, run

        try:
            status = run(ChatOptions(url=url, config=config, resume=resume, yes=yes, token=token, key=key))
        except EmbeddedMeshFailed as problem:
            leave(problem.problems, problem.status)
        except BrokenPipeError:
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  the interpreter flushes it as it leaves
            status = INTERRUPTED
        raise typer.Exit(status)
