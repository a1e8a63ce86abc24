"""The command line. Each command checks its options, prints a line for each problem, and calls what does the
work.

Exit codes: 0 success, 1 something failed or is missing on this machine, 2 the config or the command is wrong,
130 interrupted. Modules are imported where they are used, so that ``mesh --help`` answers at once.
"""

from typing import Annotated

import typer

from mesh.cli.agent_tree import tree
from mesh.cli.chat import chat
from mesh.cli.check import check
from mesh.cli.deploy import deploy, down, leave, promote, serve_config
from mesh.cli.export import export
from mesh.cli.import_ import import_
from mesh.cli.key import key
from mesh.cli.llm_stub import llm_stub
from mesh.cli.log import log
from mesh.cli.new import new
from mesh.cli.policy import policy
from mesh.cli.status import status
from mesh.cli.store import store
from mesh.cli.tools import tools
from mesh.cli.trust import trust
from mesh.cli.up import up
from mesh.cli.version_commands import versions
from mesh.cli.web import web

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # it would print local variables: secrets among them
    help="Durable agents on Ray that stop for a person before they act.\n\n"
    "Start with: mesh up config/agent.yaml",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mesh {version('mesh')}")
        raise typer.Exit


@app.callback()
def mesh(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """The options that precede every command."""


app.command()(up)
app.command()(deploy)
app.command()(promote)
app.command()(down)
app.command()(leave)
app.command("serve-config")(serve_config)
app.command()(chat)
app.command()(check)
app.command()(tools)
app.command()(web)
app.command("llm-stub")(llm_stub)
app.command()(tree)
app.command()(status)
app.command()(log)
app.command()(export)
app.command("import")(import_)
app.add_typer(key, name="key")
app.add_typer(policy, name="policy")
app.add_typer(store, name="store")
app.add_typer(versions, name="versions")
app.add_typer(new, name="new")
app.command()(trust)


def main() -> None:
    """The console script ``mesh``."""
    app()
