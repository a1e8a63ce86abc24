"""``mesh import``."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.shared import MACHINE, leave, plain_words
from mesh.cli.where import ApiKey, Faults, Token, client_of, shown

if TYPE_CHECKING:
    from mesh.core.events import AnyEvent

_DEFAULT_URL = "http://127.0.0.1:8080"


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What mesh export wrote; - is stdin.")],
    url: Annotated[
        str | None, typer.Option(help="The mesh that gets it. By default $MESH_URL.", show_default=False)
    ] = None,
    token: Token = "",
    key: ApiKey = "",
) -> None:
    """Give a conversation to a mesh that runs.

    That is the mesh of --url or MESH_URL, by default the one on port 8080 of this machine.
    Its id goes to stdout. What cannot be read is left out, with a warning.

    Example: mesh import talk.jsonl --url http://localhost:8080
    """
    with plain_words():
        import asyncio

        chosen = url or os.environ.get("MESH_URL") or _DEFAULT_URL
        events = _read(file)
        found = asyncio.run(_send(events, chosen, token, key))
        typer.echo(found)
        typer.echo(
            f"{len(events)} events; go on with: mesh chat --resume {found} --url {shown(chosen)}", err=True
        )


def _read(file: Path) -> "list[AnyEvent]":
    from mesh.journal.portable import Reader, bounded, renumbered
    from mesh.log.files import entries, read

    faults = Faults(str(file))
    reader = Reader(faults)
    found = read(reader, bounded(sys.stdin.buffer)) if str(file) == "-" else entries(file, reader)
    events = renumbered(entry.event for entry in found)
    faults.end()
    if not events:
        leave([f"{file}: there is no event in it that can be read"], MACHINE)
    return events


async def _send(events: "list[AnyEvent]", url: str, token: str, key: str) -> str:
    from mesh.core.events import encode

    async with client_of(url, token, key) as client:
        return await client.import_log(b"".join(encode(event) + b"\n" for event in events))
