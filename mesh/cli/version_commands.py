"""``mesh versions``."""

from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.journal_source import ApiKeyOption, TokenOption, client_of
from mesh.cli.shared import FAILED, LOCAL_URL, AgentUrlOption, errors_as_lines

if TYPE_CHECKING:
    from mesh.client.rest import MeshClient
    from mesh.core.agent_versions import AgentVersions

_PAGE = 200
_WAITING, _CONFLICT, _NOT_FOUND = "waiting_approval", 409, 404

versions = typer.Typer(
    invoke_without_command=True,
    help="Show the versions of the agent that conversations are on, or move them.",
)


@versions.callback()
def shown(
    context: typer.Context,
    url: AgentUrlOption = LOCAL_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print what GET /versions answers.")] = False,
    token: TokenOption = "",
    key: ApiKeyOption = "",
) -> None:
    """Show the versions of the agent that conversations are on: how many each has, and whether it can run
    where the mesh is.

    Example: mesh versions --url http://127.0.0.1:8080
    """
    if context.invoked_subcommand is not None:
        return
    with errors_as_lines():
        import asyncio

        import msgspec

        from mesh.display.versions_screen import lines_of

        found = asyncio.run(_asked(url, token, key))
        if as_json:
            typer.echo(msgspec.json.encode(found).decode())
        else:
            for line in lines_of(found):
                typer.echo(line)


@versions.command()
def move(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The version that conversations are on.")],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="The version to move them to; by default the newest.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; say what could be moved.")
    ] = False,
    url: AgentUrlOption = LOCAL_URL,
    token: TokenOption = "",
    key: ApiKeyOption = "",
) -> None:
    """Have conversations that wait for approvals go on with the newest version of the agent.

    A conversation is moved if what is open in it is there as it was: nodes by path, name and type, whom they
    call, the tools and servers that they use. What cannot be moved is listed with the reason, and stays on
    its version. It may be run again. NEW may also be the version on which a conversation was created.

    Exits with 1 if a conversation was not moved.

    Example: mesh versions move 0f5c2a4be8d1 --dry-run
    """
    with errors_as_lines():
        import asyncio

        moved, refused = asyncio.run(_move_all(url, token, key, old, new, is_trial=dry_run))
        for id, why in refused.items():
            typer.echo(f"{id} stays: {why}")
        what = "could be moved" if dry_run else "moved"
        typer.echo(f"{moved} {what}, {len(refused)} not, from version {old} to {new or 'the newest'}")
        if refused:
            raise typer.Exit(FAILED)


async def _asked(url: str, token: str, key: str) -> "AgentVersions":
    async with client_of(url, token, key) as client:
        return await client.versions()


async def _move_all(
    url: str, token: str, key: str, old: str, new: str, *, is_trial: bool
) -> tuple[int, dict[str, str]]:
    """How many conversations were moved, and why others were not."""
    refused: dict[str, str] = {}
    async with client_of(url, token, key) as client:
        moved = 0
        cursor = None
        while cursor != "":
            # By creation, which a move does not change: a conversation is seen once.
            page = await client.page(_PAGE, cursor or "", _WAITING, old)
            for each in page.conversations:
                if problem := await _problem_of_move(client, each.id, new, is_trial=is_trial):
                    refused[each.id] = problem
                else:
                    moved += 1
            cursor = page.next_cursor
            typer.echo(f"{moved + len(refused)} looked at …", err=True)
    return moved, refused


async def _problem_of_move(client: "MeshClient", id: str, new: str, *, is_trial: bool) -> str:
    """Moves a conversation, or says why it cannot be moved."""
    from mesh.client.rest import RequestRefused

    try:
        await client.move(id, new, is_trial=is_trial)
    except RequestRefused as problem:
        if problem.status not in (_CONFLICT, _NOT_FOUND):  # by now it is deleted, or was decided
            raise
        return str(problem)
    return ""
