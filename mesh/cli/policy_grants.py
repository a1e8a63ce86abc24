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
    from mesh.store.port import Store

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
        from mesh.store.chosen import obstacles_of, store_of

        use_workspace(workspace)
        agent = loaded(config, runs=False)
        if found := [*obstacles_of(agent)]:
            exit_with(found, FAILED)
        data_dir = data_dirs_of([agent], os.environ)[0]
        asyncio.run(_show_or_revoke(store_of(agent, data_dir), revoke))


async def _show_or_revoke(store: "Store", revoke: int | None) -> None:
    try:
        listed = await store.grants.listed()
        if revoke is None:
            for number, grant in listed.items():
                typer.echo(_line(number, grant))
            if not listed:
                typer.echo(f"nothing is remembered for good in {store.name}", err=True)
            return
        if revoke not in listed:
            known = ", ".join(map(str, listed)) or "none"
            exit_with([f"{store.name}: there is no grant {revoke}; there are: {known}"], FAILED)
        await store.grants.revoke(listed[revoke].id, _user())
    finally:
        await store.close()
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
