"""Where the web chat listens when nobody said where. Imports no server: who only listens needs none."""

import errno
import socket

from mesh.core.errors import MeshError

_PORTS_TRIED = 100


def listen_nearby(port: int) -> socket.socket:
    """Listens on this machine only, on the port or the next that is free. Raises `MeshError`."""
    for each in range(port, port + _PORTS_TRIED):
        try:
            return socket.create_server(("127.0.0.1", each))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise MeshError(f"cannot listen on 127.0.0.1:{each}: {error.strerror}") from None
    raise MeshError(f"all ports of 127.0.0.1 from {port} to {port + _PORTS_TRIED - 1} are in use")
