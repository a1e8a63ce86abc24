"""``mesh web``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import errors_as_lines


def web(
    config: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The config of the web chat: its address and its mesh."),
    ] = Path("config/web.yaml"),
) -> None:
    """Serve the web chat of a running mesh until Ctrl-C.

    Example: mesh web --config config/web.yaml
    """
    with errors_as_lines():
        from mesh.web.config import load
        from mesh.web.server import serve

        serve(load(config, os.environ), typer.echo)
