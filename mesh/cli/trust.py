"""``mesh trust``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import WRONG_USE, errors_as_lines, exit_with


def trust(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The data folder of a workspace, such as project/.mesh.")
    ],
) -> None:
    """Use the conversations in a folder .mesh that another user or another machine has made.

    Their configs start programs when a conversation goes on, and what was decided there counts.

    Example: mesh trust ~/project/.mesh
    """
    with errors_as_lines():
        from mesh.disk.data_folder import OF_WORKSPACE, known_data_folders
        from mesh.disk.data_folder import trust as trusted

        if folder.absolute().name != OF_WORKSPACE or folder.is_symlink() or not folder.is_dir():
            exit_with([f"{folder} is no folder with the name {OF_WORKSPACE}"], WRONG_USE)
        trusted(folder.absolute(), known_data_folders(os.environ))
        typer.echo(f"{folder} is trusted")
