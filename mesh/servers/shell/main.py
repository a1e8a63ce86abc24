"""``mcp-shell``: the command line.

    mcp-shell DIR… [--sandbox auto] [--network none] [--read PATH] [--hide GLOB] [--freeze GLOB]
    mcp-shell --config FILE [--http [HOST:PORT]] [--port PORT]

It serves stdio, unless ``--http`` or ``--port`` is given.
"""

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import anyio

from mesh.sandbox.box import blanks_in
from mesh.sandbox.launching import Launcher
from mesh.sandbox.proofs import first_that_holds
from mesh.sandbox.sandbox import KINDS, Kind, Sandbox
from mesh.servers.config_file import Unusable
from mesh.servers.console_script import add_http, ending, listens_on, loading
from mesh.servers.filesystem.root import Root
from mesh.servers.shell.command_records import Records, default_folder
from mesh.servers.shell.run_command import Commands
from mesh.servers.shell.shell_program import shell
from mesh.servers.shell.shell_settings import ShellSettings, checked, loaded, opened, roots_of
from mesh.servers.shell.variables import passed_on


def main() -> None:
    """The console script."""
    options = _parser().parse_args()
    with Launcher() as launcher, tempfile.TemporaryDirectory(prefix="mcp-shell-") as scratch:
        try:
            settings = _settings(options)
            commands = _commands(settings, opened(settings), launcher, Path(scratch))
        except Unusable as error:
            sys.exit("\n".join(f"mcp-shell: {line}" for line in error.problems))
        _tell(commands.sandbox.kind)
        _serve(commands, listens_on(options, settings.host, settings.port))


def _tell(sandbox: Kind) -> None:
    """Says what confines commands, to whoever has started the server."""
    without = "WARNING: no sandbox: commands can do all that this user can"
    line = without if sandbox == "none" else f"sandbox: {sandbox}"
    print(f"mcp-shell: {line}", file=sys.stderr, flush=True)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcp-shell", description="An MCP server that runs commands in a sandbox."
    )
    parser.add_argument("folders", nargs="*", metavar="DIR", help="a root; it has the name of the folder")
    parser.add_argument("--config", type=Path, metavar="FILE", help="roots, and what commands may do there")
    parser.add_argument("--sandbox", choices=["auto", *KINDS, "none"], help="what confines commands")
    parser.add_argument("--network", choices=["none", "all"], help="the network of commands")
    for option, help_ in (
        ("read", "commands may read it"),
        ("hide", "no command reads or writes it"),
        ("freeze", "no command writes it"),
    ):
        metavar = "PATH" if option == "read" else "GLOB"
        parser.add_argument(f"--{option}", action="append", default=[], metavar=metavar, help=help_)
    parser.add_argument("--state", metavar="DIR", help="where it is recorded what came of commands")
    add_http(parser)
    return parser


def _settings(options: argparse.Namespace) -> ShellSettings:
    if (options.config is None) == (not options.folders):
        raise Unusable(["give folders, or --config FILE, and exactly one of them"])
    given = {
        name: getattr(options, name) for name in ("sandbox", "network", "state") if getattr(options, name)
    }
    if options.config is None:
        settings = ShellSettings(roots=roots_of(options.folders))
    else:
        settings = loaded(options.config)
    lists = {name: getattr(settings, name) + getattr(options, name) for name in ("read", "hide", "freeze")}
    return checked(settings.model_copy(update={**given, **lists}))


def _commands(settings: ShellSettings, roots: list[Root], launcher: Launcher, scratch: Path) -> Commands:
    return Commands(
        roots=roots,
        sandbox=_sandbox(settings, launcher),
        launcher=launcher,
        blanks=blanks_in(scratch),
        read=settings.readable,
        network=settings.network == "all",
        home=os.path.realpath(Path("~").expanduser()),
        shell=shell(),
        records=_records(settings),
    )


def _records(settings: ShellSettings) -> Records:
    """Raises `Unusable` if nothing can be recorded."""
    folder = Path(settings.state) if settings.state else default_folder(os.environ)
    records = Records(Path(os.path.realpath(folder)))
    try:
        records.prepare()
    except OSError as error:
        raise Unusable(
            [f"no records can be kept in {records.folder}: {error.strerror}; give --state"]
        ) from None
    return records


def _sandbox(settings: ShellSettings, launcher: Launcher) -> Sandbox:
    """The first sandbox that holds. Raises `Unusable` if none does."""

    def made(kind: Kind) -> Sandbox:
        return Sandbox(kind, settings.limits.limits, passed_on(dict(os.environ), settings.env))

    if settings.sandbox == "none":
        return made("none")
    kinds = KINDS if settings.sandbox == "auto" else (settings.sandbox,)
    network = settings.network == "all"
    holds, wrong = anyio.run(partial(first_that_holds, kinds, made, launcher, network=network))
    if holds is not None:
        return holds
    raise Unusable(
        [
            "no sandbox holds here, so no command is run",
            *wrong,
            "install what is missing, or say sandbox: none; then commands can do all that you can, and "
            "each of them has to be approved",
        ]
    )


def _serve(commands: Commands, place: tuple[str, int] | None) -> None:
    with loading():
        from mesh.servers.shell.server import serve_http, serve_stdio
    with ending("mcp-shell"):
        if place is None:
            anyio.run(serve_stdio, commands)
        else:
            anyio.run(serve_http, commands, *place)


if __name__ == "__main__":
    main()
