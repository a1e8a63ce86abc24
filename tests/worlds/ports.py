"""Ports for servers under test."""

import random
import socket


def free_port() -> int:
    """A port that nobody listens on now, below those that the system gives to outgoing connections: one of
    those could be taken between this look and the use."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
