"""Serves an MCP server over HTTP, until it is told to end."""

import errno
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

_BACKLOG = 2_048
_REASONS = {
    errno.EADDRINUSE: "{} is in use by another program; choose another --port",
    errno.EADDRNOTAVAIL: "{} is no address of this machine; choose another --http HOST:PORT",
}


async def serve(app: "Starlette", name: str, host: str, port: int, goes_on_s: int | None = None) -> None:
    """Serves ``http://host:port/mcp``, and writes the address to stderr. Port 0 picks a free port. When it is
    told to end, calls may go on for ``goes_on_s`` seconds; None: as long as they take. Raises `OSError`."""
    import uvicorn  # what speaks stdio is spared it

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol given: otherwise asyncio leaves Nagle's algorithm on, and each answer waits 40 ms for
    # an ACK.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(sock, host, port)
        sock.listen(_BACKLOG)  # before it says so: who reads the line connects at once
        shown = f"[{host}]" if ":" in host else host
        line = f"{name} listens on http://{shown}:{sock.getsockname()[1]}/mcp"
        print(line, file=sys.stderr, flush=True)  # noqa: T201
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=goes_on_s)
        await uvicorn.Server(config).serve(sockets=[sock])


def _bind(sock: socket.socket, host: str, port: int) -> None:
    try:
        sock.bind((host, port))
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, "{} cannot be listened on: " + str(error.strerror or error))
        raise OSError(reason.format(f"{host}:{port}")) from error
