"""``mesh key``."""

from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import WRONG_USE, errors_as_lines, exit_with

File = Annotated[
    Path, typer.Option("--file", metavar="FILE", help="The auth.keys_file of the mesh.", show_default=True)
]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The holder of the key. The journal records this name.")
]
_FILE = Path("keys.yaml")

key = typer.Typer(no_args_is_help=True, help="Manage the API keys of a mesh with auth in its config.")


@key.command()
def new(name: Name, file: File = _FILE) -> None:
    """Create a key and print it once. The file keeps only its hash. A running mesh accepts it within seconds.

    Example: mesh key new ann
    """
    with errors_as_lines():
        from mesh.access.keys import add

        typer.echo(add(file, name))
        typer.echo(f"this is the only time that the key of {name} is shown; {file} has its hash", err=True)


@key.command("list")
def list_(file: File = _FILE) -> None:
    """List who has a key, and since when.

    Example: mesh key list
    """
    with errors_as_lines():
        from mesh.access.keys import load

        if not file.exists():
            exit_with(
                [f"{file}: there is no such file; mesh key new NAME makes it, --file names another"],
                WRONG_USE,
            )
        keys = load(file)
        width = max((len(each.name) for each in keys), default=0)
        for each in keys:
            typer.echo(f"{each.name:<{width}}  {each.created}")
        if not keys:
            typer.echo(f"nobody has a key in {file}; mesh key new NAME makes one", err=True)


@key.command()
def revoke(name: Name, file: File = _FILE) -> None:
    """Revoke a key. A running mesh refuses it within seconds.

    Example: mesh key revoke ann
    """
    with errors_as_lines():
        from mesh.access.keys import revoke

        revoke(file, name)
        typer.echo(f"{name} has no key any more in {file}", err=True)
