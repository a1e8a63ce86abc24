"""``mcp-filesystem``: the command line.

    mcp-filesystem DIR… [--hide GLOB] [--freeze GLOB]
    mcp-filesystem --config FILE [--http [HOST:PORT]] [--port PORT]

It serves stdio, unless ``--http`` or ``--port`` is given.
"""

import argparse
import resource
import sys
from pathlib import Path

from mesh.servers.config_file import Unusable
from mesh.servers.console_script import add_http, ending, listens_on, loading
from mesh.servers.filesystem import confinement, ripgrep
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.dispatch import Server
from mesh.servers.filesystem.root import Root
from mesh.servers.filesystem.settings import FilesystemSettings, checked, loaded, of_folders, opened
from mesh.servers.filesystem.staging import clean
from mesh.servers.server_version import VERSION  # noqa: F401 - while its file may still be read

_OPEN_FILES = 16_384
"""One descriptor for each level of a tree that is walked, and some for each call."""


def main() -> None:
    """The console script."""
    options = _parser().parse_args()
    try:
        settings = _settings(options)
        roots = _prepared(settings)
    except (Unusable, FileNotFoundError) as error:
        sys.exit("\n".join(f"mcp-filesystem: {line}" for line in str(error).splitlines()))
    _serve(Server(roots, settings.max_full_read_size), listens_on(options, settings.host, settings.port))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcp-filesystem", description="An MCP server for the files below some folders."
    )
    parser.add_argument("folders", nargs="*", metavar="DIR", help="a root; it has the name of the folder")
    parser.add_argument("--config", type=Path, metavar="FILE", help="roots, and what is allowed in them")
    parser.add_argument(
        "--hide", action="append", default=[], metavar="GLOB", help="no tool reads or writes it"
    )
    parser.add_argument("--freeze", action="append", default=[], metavar="GLOB", help="no tool writes it")
    add_http(parser)
    return parser


def _settings(options: argparse.Namespace) -> FilesystemSettings:
    if (options.config is None) == (not options.folders):
        raise Unusable(["give folders, or --config FILE, and exactly one of them"])
    if options.config is None:
        return of_folders(options.folders, options.hide, options.freeze)
    settings = loaded(options.config)
    more = {"hide": settings.hide + options.hide, "freeze": settings.freeze + options.freeze}
    return checked(settings.model_copy(update=more))


def _prepared(settings: FilesystemSettings) -> list[Root]:
    """Opens the roots, removes what crashes have left in them, and confines this process to them."""
    if sys.getfilesystemencoding() != "utf-8":
        raise Unusable(["names of files would be read as another encoding than UTF-8: set PYTHONUTF8=1"])
    _allow_open_files()
    program = ripgrep.program()
    roots = opened(settings)
    for root in roots:
        clean(root)
    # Once, before the thread in which this happens is the only one no more: modules are loaded in it.
    ripgrep.matching([], "x", roots[0].folder, TimeLimit(10))
    if confinement.is_available():
        confinement.confine_server([root.folder for root in roots], program)
    return roots


def _allow_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _serve(server: Server, place: tuple[str, int] | None) -> None:
    with loading():
        import anyio

        from mesh.servers.filesystem.server import serve_http, serve_stdio
    with ending("mcp-filesystem"):
        if place is None:
            # A seventh less CPU for a call than with the loop of asyncio.
            anyio.run(serve_stdio, server, backend_options={"use_uvloop": True})
        else:
            anyio.run(serve_http, server, *place)


if __name__ == "__main__":
    main()
