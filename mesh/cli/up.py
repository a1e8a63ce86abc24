"""``mesh up``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import DEFAULT_CONFIG, MACHINE, ConfigFile, leave, plain_words, runnable, runtime


def up(
    config: ConfigFile = DEFAULT_CONFIG,
    host: Annotated[str | None, typer.Option(help="Listen here instead of the config's host.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Instead of the config's port.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Keep conversations here instead.")] = None,
) -> None:
    """Start the agent and serve it until Ctrl-C.

    Starts a local Ray, or joins the cluster that RAY_ADDRESS names.

    Example: mesh up config/agent.yaml --host 127.0.0.1 --port 9000
    """
    with plain_words():
        from rich.console import Console

        from mesh.preflight import obstacles

        chosen = {"host": host, "port": port, "data_dir": data_dir}
        loaded = runnable(config).model_copy(update={key: to for key, to in chosen.items() if to is not None})
        if found := obstacles(loaded, os.environ):
            leave(found, MACHINE)
        runtime()(loaded, Console())
