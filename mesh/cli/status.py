"""``mesh status``."""

from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.journal_source import ApiKeyOption, TokenOption, client_of
from mesh.cli.shared import FAILED, LOCAL_URL, AgentUrlOption, errors_as_lines

if TYPE_CHECKING:
    from mesh.core.mesh_state import MeshState


def status(
    url: AgentUrlOption = LOCAL_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print what GET /status answers.")] = False,
    token: TokenOption = "",
    key: ApiKeyOption = "",
) -> None:
    """Show on one screen what answers, what waits for people, and what is wrong.

    Exits with 1 if something is wrong.

    Example: mesh status --url http://127.0.0.1:8080
    """
    with errors_as_lines():
        import asyncio

        import msgspec

        from mesh.display.status_screen import lines_of

        state = asyncio.run(_asked(url, token, key))
        if as_json:
            typer.echo(msgspec.json.encode(state).decode())
        else:
            for line in lines_of(state):
                typer.echo(line)
        if state.problems:
            raise typer.Exit(FAILED)


async def _asked(url: str, token: str, key: str) -> "MeshState":
    async with client_of(url, token, key) as client:
        return await client.status()
