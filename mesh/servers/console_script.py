"""What the console scripts of the MCP servers have in common: where they serve, and how they end."""

import argparse
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CONFIGURED = ("", -1)


def address(value: str) -> tuple[str, int]:
    """The type of an argument HOST:PORT. Raises `ArgumentTypeError`."""
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{value!r} is not HOST:PORT, such as 127.0.0.1:8090")
    return host.strip("[]"), int(port)


def _port(value: str) -> int:
    return address(f"host:{value}")[1]


def add_http(parser: argparse.ArgumentParser) -> None:
    """Adds ``--http`` and ``--port``, for a server whose configuration has a host and a port, too."""
    parser.add_argument(
        "--http",
        type=address,
        nargs="?",
        const=_CONFIGURED,
        metavar="HOST:PORT",
        help="serve Streamable HTTP at /mcp instead of stdio; by default at the host and port of the config",
    )
    parser.add_argument("--port", type=_port, help="serve HTTP at this port")


def listens_on(options: argparse.Namespace, host: str, port: int) -> tuple[str, int] | None:
    """Where to serve HTTP, with the host and port of the configuration; None for stdio."""
    if options.http is None and options.port is None:
        return None
    if options.http not in (None, _CONFIGURED):
        host, port = options.http
    return host, port if options.port is None else options.port


@contextmanager
def loading() -> Iterator[None]:
    """Imports the SDK, and what the ``with`` statement imports. That creates a million objects that stay:
    collections meanwhile would take a fifth of the start-up time."""
    gc.disable()
    import mcp.server.lowlevel  # noqa: F401

    yield
    gc.freeze()
    gc.enable()


@contextmanager
def ending(name: str) -> Iterator[None]:
    """Around a server: exits with a line where the system refuses something, and with 130 after Ctrl-C."""
    try:
        yield
    except Exception as error:
        cause = first_of(error)
        if not isinstance(cause, OSError):
            raise
        sys.exit(f"{name}: {cause}")
    except KeyboardInterrupt:
        sys.exit(130)


def first_of(error: BaseException) -> BaseException:
    """The first error in a nested exception group of task groups."""
    return first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
