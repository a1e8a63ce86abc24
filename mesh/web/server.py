"""The web chat as a process: listens, says where, and serves until it is stopped."""

import os
import socket
from collections.abc import Callable

import uvicorn

from mesh.errors import MeshError
from mesh.web.app import app
from mesh.web.config import WebConfig, is_loopback

_GOODBYE_S = 1
"""How long open streams are waited for at the end: they would never end by themselves."""


def serve(config: WebConfig, say: Callable[[str], None]) -> None:
    """Serves the page until Ctrl-C. Raises `MeshError` when it cannot listen."""
    listening = _listen(config)
    say(f"web chat: {address(config, listening)}")
    say(f"   agent: {config.agent_shown}")
    if not is_loopback(config.host):
        say("   open to other machines, without a login: put something that has one before it")
    settings = uvicorn.Config(
        app(config),
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GOODBYE_S,
    )
    uvicorn.Server(settings).run(sockets=[listening])


def address(config: WebConfig, listening: socket.socket) -> str:
    """Where a browser finds the page."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{listening.getsockname()[1]}"


def _listen(config: WebConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        number = error.errno or 0  # looking up a name fails with numbers below 0, and says why itself
        why = os.strerror(number) if number > 0 else error.strerror or error
        raise MeshError(f"cannot listen on {config.host}:{config.port}: {why}; choose another") from None
