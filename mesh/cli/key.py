"""``mesh key``."""

from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import WRONG, leave, plain_words

File = Annotated[
    Path, typer.Option("--file", metavar="FILE", help="The auth.keys_file of the mesh.", show_default=True)
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; the journal records it.")]
_FILE = Path("keys.yaml")

key = typer.Typer(no_args_is_help=True, help="API keys: who may use a mesh that has auth in its config.")


@key.command()
def new(name: Name, file: File = _FILE) -> None:
    """Make a key and print it, once. The file keeps its hash; a mesh that runs takes it within seconds.

    Example: mesh key new ann
    """
    with plain_words():
        from mesh.access.keys import add

        typer.echo(add(file, name))
        typer.echo(f"this is the only time that the key of {name} is shown; {file} has its hash", err=True)


@key.command("list")
def list_(file: File = _FILE) -> None:
    """Show who has a key, and since when.

    Example: mesh key list
    """
    with plain_words():
        from mesh.access.keys import load

        if not file.exists():
            leave([f"{file}: there is no such file; mesh key new NAME makes it, --file names another"], WRONG)
        keys = load(file)
        width = max((len(each.name) for each in keys), default=0)
        for each in keys:
            typer.echo(f"{each.name:<{width}}  {each.created}")
        if not keys:
            typer.echo(f"nobody has a key in {file}; mesh key new NAME makes one", err=True)


@key.command()
def revoke(name: Name, file: File = _FILE) -> None:
    """Make a key invalid, for a mesh that runs within seconds.

    Example: mesh key revoke ann
    """
    with plain_words():
        from mesh.access.keys import revoke

        revoke(file, name)
        typer.echo(f"{name} has no key any more in {file}", err=True)
