"""The socket of a web chat whose port nobody chose. Apart from the server, which takes long to import."""

import errno
import socket

from mesh.core.errors import MeshError

_PORTS_TRIED = 100


def listen_nearby(port: int) -> socket.socket:
    """Listens on the loopback address, on ``port`` or the next one that is free. Raises `MeshError`."""
    for each in range(port, port + _PORTS_TRIED):
        try:
            return socket.create_server(("127.0.0.1", each))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise MeshError(f"cannot listen on 127.0.0.1:{each}: {error.strerror}") from None
    raise MeshError(f"all ports of 127.0.0.1 from {port} to {port + _PORTS_TRIED - 1} are in use")
