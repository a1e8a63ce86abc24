"""``mcp-filesystem``: the command line.

    mcp-filesystem DIR… [--hide GLOB] [--freeze GLOB]
    mcp-filesystem --config FILE [--http [HOST:PORT]] [--port PORT]

It serves stdio, unless ``--http`` or ``--port`` is given.
"""

import argparse
import gc
import resource
import sys
from pathlib import Path

from mesh.servers.filesystem import confinement, ripgrep
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.dispatch import Server
from mesh.servers.filesystem.root import Root
from mesh.servers.filesystem.settings import FilesystemSettings, Unusable, loaded, of_folders, opened
from mesh.servers.filesystem.staging import clean
from mesh.servers.resources import address, first_of

_OPEN_FILES = 16_384
"""One descriptor for each level of a tree that is walked, and some for each call."""
_CONFIGURED = ("", -1)


def main() -> None:
    """The console script."""
    options = _parser().parse_args()
    try:
        settings = _settings(options)
        roots = _prepared(settings)
    except (Unusable, FileNotFoundError) as error:
        sys.exit("\n".join(f"mcp-filesystem: {line}" for line in str(error).splitlines()))
    _serve(Server(roots, settings.max_full_read_size), _listens_on(options, settings))


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
    parser.add_argument(
        "--http",
        type=address,
        nargs="?",
        const=_CONFIGURED,
        metavar="HOST:PORT",
        help="serve Streamable HTTP at /mcp instead of stdio; by default at the host and port of the config",
    )
    parser.add_argument("--port", type=_port, help="serve HTTP at this port")
    return parser


def _port(value: str) -> int:
    return address(f"host:{value}")[1]


def _settings(options: argparse.Namespace) -> FilesystemSettings:
    if (options.config is None) == (not options.folders):
        raise Unusable(["give folders, or --config FILE, and exactly one of them"])
    if options.config is None:
        return of_folders(options.folders, options.hide, options.freeze)
    settings = loaded(options.config)
    more = {"hide": settings.hide + options.hide, "freeze": settings.freeze + options.freeze}
    return settings.model_copy(update=more)


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


def _listens_on(options: argparse.Namespace, settings: FilesystemSettings) -> tuple[str, int] | None:
    """Where to serve HTTP; None for stdio."""
    if options.http is None and options.port is None:
        return None
    host, port = options.http if options.http not in (None, _CONFIGURED) else (settings.host, settings.port)
    return host, port if options.port is None else options.port


def _serve(server: Server, place: tuple[str, int] | None) -> None:
    # Importing the SDK creates a million objects that stay: collections meanwhile take a fifth of the
    # start-up time.
    gc.disable()
    import anyio
    import mcp.server.lowlevel  # noqa: F401

    from mesh.servers.filesystem.server import serve_http, serve_stdio

    gc.freeze()
    gc.enable()
    try:
        if place is None:
            # A seventh less CPU for a call than with the loop of asyncio.
            anyio.run(serve_stdio, server, backend_options={"use_uvloop": True})
        else:
            anyio.run(serve_http, server, *place)
    except Exception as error:
        cause = first_of(error)
        if not isinstance(cause, OSError):
            raise
        sys.exit(f"mcp-filesystem: {cause}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
