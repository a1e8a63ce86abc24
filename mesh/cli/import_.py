"""``mesh import``."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.journal_source import ApiKeyOption, FaultWarnings, TokenOption, client_of, without_secrets
from mesh.cli.shared import FAILED, errors_as_lines, exit_with

if TYPE_CHECKING:
    from mesh.core.events import AnyEvent

_DEFAULT_URL = "http://127.0.0.1:8080"


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A journal that mesh export wrote; - reads stdin.")
    ],
    url: Annotated[
        str | None, typer.Option(help="The URL of the mesh. By default $MESH_URL.", show_default=False)
    ] = None,
    token: TokenOption = "",
    key: ApiKeyOption = "",
) -> None:
    """Import a conversation into a running mesh.

    The mesh is that of --url or MESH_URL, by default the one on port 8080 of this machine. The id of the
    conversation goes to stdout. Events that cannot be read are left out, with a warning.

    Example: mesh import talk.jsonl --url http://localhost:8080
    """
    with errors_as_lines():
        import asyncio

        chosen = url or os.environ.get("MESH_URL") or _DEFAULT_URL
        events = _read(file)
        found = asyncio.run(_send(events, chosen, token, key))
        typer.echo(found)
        command = f"mesh chat --resume {found} --url {without_secrets(chosen)}"
        typer.echo(f"{len(events)} events; go on with: {command}", err=True)


def _read(file: Path) -> "list[AnyEvent]":
    from mesh.journal.portable import Reader, bounded, renumbered
    from mesh.log.journal_files import entries, read

    faults = FaultWarnings(str(file))
    reader = Reader(faults)
    found = read(reader, bounded(sys.stdin.buffer)) if str(file) == "-" else entries(file, reader)
    events = renumbered(entry.event for entry in found)
    faults.end()
    if not events:
        exit_with([f"{file}: there is no event in it that can be read"], FAILED)
    return events


async def _send(events: "list[AnyEvent]", url: str, token: str, key: str) -> str:
    from mesh.core.events import encode

    async with client_of(url, token, key) as client:
        return await client.import_log(b"".join(encode(event) + b"\n" for event in events))
