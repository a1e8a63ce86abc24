"""The web chat as a process: listens, prints its address, and serves until it is stopped."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mesh.core.errors import MeshError
from mesh.net.admission import BACKLOG, PendingConnections
from mesh.net.origin import is_loopback
from mesh.web.app import app
from mesh.web.config import WebConfig

_CANCEL_WITHIN_S = 1
"""How long a shutdown waits for open event streams, which never end by themselves."""
MAX_PENDING = 256
_REQUEST_WITHIN_S = 10.0
_MAX_REQUESTS = 1000
"""Concurrent ones, besides the event streams. The next gets 503."""


def serve(config: WebConfig, say: Callable[[str], None]) -> None:
    """Serves the page until Ctrl-C. Raises `MeshError` when it cannot listen."""
    listening = _listen(config)
    say(f"web chat: {address(config, listening)}")
    say(f"   agent: {config.agent_shown}")
    if not is_loopback(config.host):
        say("   open to other machines, without a login: put something that has one before it")
    serve_on(listening, config)


def serve_on(listening: socket.socket, config: WebConfig) -> None:
    """Serves the page on a socket that listens already, until SIGINT or SIGTERM."""
    settings = uvicorn.Config(
        app(config),
        http=WebConnection,
        log_level="critical",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=config.max_streams + _MAX_REQUESTS + MAX_PENDING,
        timeout_graceful_shutdown=_CANCEL_WITHIN_S,
    )
    uvicorn.Server(settings).run(sockets=[listening])


class WebConnection(HttpToolsProtocol):
    """A connection of uvicorn that bounds how long and how many connections wait for a request.

    uvicorn keeps the connection of a client that sends nothing for ever, until no file descriptor is left.
    """

    pending = PendingConnections(MAX_PENDING, _REQUEST_WITHIN_S, logging.getLogger("mesh.web"))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.pending.add(self)

    def on_headers_complete(self) -> None:
        """The parser has seen all headers of a request."""
        self.pending.remove(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """A response was sent. The next request may have arrived already."""
        if not self.pipeline and not self.transport.is_closing():
            self.pending.add(self)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pending.remove(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """See `mesh.net.admission`."""
        self.transport.abort()


def address(config: WebConfig, listening: socket.socket) -> str:
    """The URL of the page."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{listening.getsockname()[1]}"


def _listen(config: WebConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        number = error.errno or 0  # negative where a name cannot be looked up: that has its own text
        why = os.strerror(number) if number > 0 else error.strerror or error
        raise MeshError(f"cannot listen on {config.host}:{config.port}: {why}; choose another") from None
