"""``mesh store``."""

import typer

from mesh.cli.shared import FAILED, ConfigArgument, errors_as_lines, exit_with, loaded

store = typer.Typer(no_args_is_help=True, help="Look after the database that keeps the conversations.")


@store.callback()
def _several() -> None:
    """Commands about stores."""


@store.command()
def migrate(config: ConfigArgument) -> None:
    """Prepare the database of a config for this release: create its tables, or bring them up to date.

    Several may do so at once, while a mesh of this release or of the one before runs.

    Example: mesh store migrate config/agent.yaml
    """
    with errors_as_lines():
        import asyncio

        from mesh.store.chosen import missing_library

        options = (agent := loaded(config, runs=False)).store
        if options is None:
            exit_with([f"{agent.location('store')}: is not there; files need no preparation"], FAILED)
        if problem := missing_library():
            exit_with([f"{agent.location('store')}: {problem}"], FAILED)
        from mesh.store.postgres.database import shown
        from mesh.store.postgres.migrate import migrate as migrated

        numbers = asyncio.run(migrated(options.url, options.namespace))
        for number in numbers:
            typer.echo(f"applied migration {number}")
        typer.echo(f"{shown(options.url)} is ready for this release")
