"""``mesh store``."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

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


_WHERE = "A folder, as data_dir is one, or the URL of a database: postgres://…"


@store.command()
def copy(
    config: ConfigArgument,
    source: Annotated[str, typer.Option("--from", metavar="STORE", help=_WHERE, show_default=False)],
    target: Annotated[str, typer.Option("--to", metavar="STORE", help="As --from.", show_default=False)],
    namespace: Annotated[
        str, typer.Option(metavar="SCHEMA", help="The schema of the tables in a database.")
    ] = "mesh",
) -> None:
    """Copy the conversations of an agent, and all that belongs to them, from one store to another.

    Stop the mesh first. What was copied before is not copied again, so that a copy which was broken off goes
    on when it is begun again. In the end all conversations are compared.

    Example: mesh store copy config/agent.yaml --from data --to postgres://user:password@host/name
    """
    with errors_as_lines(), ExitStack() as stack:
        import asyncio

        from mesh.store.chosen import is_database, missing_library
        from mesh.store.store_copy import CopyEnd, CopyReport, copy_store

        agent = loaded(config, runs=False)
        for option, where in (("--from", source), ("--to", target)):
            if "://" in where and not is_database(where):  # not told as a folder: it may have a password
                exit_with([f"{option}: the URL of a database begins with postgres://"], FAILED)
            if is_database(where) and (problem := missing_library()):
                exit_with([problem], FAILED)
        if not is_database(source) and not Path(source, "configs").is_dir():
            exit_with([f"--from: no mesh has kept conversations in {source}"], FAILED)
        for where in (source, target):
            stack.enter_context(_held(where))

        async def copied() -> CopyReport:
            from mesh.store.chosen import store_at
            from mesh.store.postgres.migrate import migrate as migrated

            if is_database(target):
                await migrated(target, namespace)
            one, other = (CopyEnd(*store_at(where, namespace, agent)) for where in (source, target))
            try:
                return await copy_store(one, other, typer.echo)
            finally:
                await one.store.close()
                await other.store.close()

        report = asyncio.run(copied())
        typer.echo(
            f"{report.conversations} conversations are in both stores, {report.added} of them are new there; "
            f"webhooks of {report.webhooks}, and {report.grants} remembered decisions"
        )
        if report.problems:
            exit_with(list(report.problems), FAILED)


@contextmanager
def _held(where: str) -> Iterator[None]:
    """Holds a folder, so that no mesh uses it meanwhile. The keepers of a database tell that they are there
    by their leases."""
    from mesh.disk.holder import Holder, held
    from mesh.store.chosen import is_database

    if is_database(where):
        yield
    else:
        with held(Path(where), Holder("mesh store copy")):
            yield
