"""``mesh web``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import plain_words


def web(
    config: Annotated[
        Path, typer.Option(metavar="FILE", help="Where it listens, and for which mesh.")
    ] = Path("config/web.yaml"),
) -> None:
    """Serve the web chat for a running mesh, until Ctrl-C.

    Example: mesh web --config config/web.yaml
    """
    with plain_words():
        from mesh.web.config import load
        from mesh.web.server import serve

        serve(load(config, os.environ), typer.echo)
