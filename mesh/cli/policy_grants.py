"""``mesh policy grants``."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.shared import (
    FAILED,
    ConfigArgument,
    WorkspaceOption,
    errors_as_lines,
    exit_with,
    loaded,
    use_workspace,
)

if TYPE_CHECKING:
    from mesh.policy.grants import Grant

_LONGEST = 20_000


def grants(
    config: ConfigArgument,
    revoke: Annotated[
        int | None,
        typer.Option(metavar="N", help="Revoke the grant with this number, for every process at once."),
    ] = None,
    workspace: WorkspaceOption = None,
) -> None:
    """List what people have let the agents of a config do always, or revoke it.

    Each grant has a number, which never changes, its agent, and the rule that it adds.

    Example: mesh policy grants config/agent.yaml --revoke 3
    """
    with errors_as_lines():
        import asyncio

        from mesh.config.data_dirs import data_dirs_of
        from mesh.policy.book_file import FileGrantBook

        use_workspace(workspace)
        agent = loaded(config, runs=False)
        book = FileGrantBook(data_dirs_of([agent], os.environ)[0])
        listed = asyncio.run(book.listed())
        if revoke is None:
            for number, grant in listed.items():
                typer.echo(_line(number, grant))
            if not listed:
                typer.echo(f"nothing is remembered for good in {book.path}", err=True)
            return
        if revoke not in listed:
            known = ", ".join(map(str, listed)) or "none"
            exit_with([f"{book.path}: there is no grant {revoke}; there are: {known}"], FAILED)
        asyncio.run(book.revoke(listed[revoke].id, _user()))
        typer.echo(_line(revoke, listed[revoke]))
        typer.echo("revoked: from the next call on, it asks again", err=True)


def _line(number: int, grant: "Grant") -> str:
    from mesh.display.text import one_line
    from mesh.policy.rules import spelled_rule

    until = f"until {grant.until}" if grant.until else "for good"
    told = f"by {grant.by or 'somebody'} at {grant.at} {until}, approval {grant.approval or grant.id}"
    return one_line(f"{number} {grant.agent} {spelled_rule(grant.rule)} {told}", _LONGEST)


def _user() -> str:
    """Who revokes, for the record: the user of the system."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return f"uid {os.getuid()}"
