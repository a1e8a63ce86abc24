"""Checks this machine before the mesh starts, without starting anything.

Each check yields problems that begin as those of a config do ("file:line: key: …"), so that `mesh up` can
report all of them at once.
"""

import errno
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from mesh.config.model import Config
from mesh.disk.data_folder import ForeignData, known_data_folders, make_data_folder
from mesh.store.chosen import obstacles_of
from mesh.tree.machine_needs import unmet_needs


def obstacles(agents: Sequence[Config], env: Mapping[str, str]) -> list[str]:
    """Returns everything that would keep a mesh of these agents from starting or answering here.

    The agents share one address, which is checked once. With ``RAY_ADDRESS`` the gateways listen on the
    machines of a cluster, and not on this one.
    """
    found = [] if env.get("RAY_ADDRESS") else [*_port_taken(agents[0])]
    for agent in agents:
        found += obstacles_here(agent, env)
    return found


def obstacles_here(agent: Config, env: Mapping[str, str]) -> list[str]:
    """Returns everything that would keep an agent from starting in this process."""
    library = _missing_exporter(agent)
    return [*_unusable_data(agent, env), *obstacles_of(agent), *library, *unmet_needs(agent, env)]


def _missing_exporter(config: Config) -> Iterator[str]:
    if config.otel is not None and find_spec("opentelemetry.exporter.otlp") is None:
        yield (
            f"{config.location('otel')}: traces need OpenTelemetry's exporter; install it with: "
            "pip install 'mesh[otel]'"
        )


def _port_taken(config: Config) -> Iterator[str]:
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        yield f"{config.location('host')}: {config.host} is not a name or address; choose another with --host"
        return
    errors = [_bind_error(family, address) for family, _, _, _, address in found]
    # A name may have an address of a family that this machine does not use: one that works is enough.
    if errno.EADDRINUSE in errors:
        yield _bind_problem(config, errno.EADDRINUSE)
    elif all(errors):
        yield _bind_problem(config, errors[0])


def _bind_error(family: int, address: tuple[Any, ...]) -> int:
    """Returns the error number of binding the address, or 0 if it works."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _bind_problem(config: Config, error: int) -> str:
    at = f"port {config.port} on {config.host}"
    if error == errno.EADDRINUSE:
        other = "stop the program that listens there, or choose another with --port"
        return f"{config.location('port')}: {at} is in use; {other}"
    if error == errno.EADDRNOTAVAIL:
        return (
            f"{config.location('host')}: {config.host} is no address of this machine; choose one with --host"
        )
    why = os.strerror(error)
    return f"{config.location('port')}: {at} cannot be opened ({why}); choose another with --port or --host"


def _unusable_data(config: Config, env: Mapping[str, str]) -> Iterator[str]:
    try:
        make_data_folder(config.data_dir, known_data_folders(env))
        with tempfile.TemporaryFile(dir=config.data_dir):
            pass
    except OSError as error:
        why = error.strerror or "not possible"
        other = "choose another with --data-dir"
        yield f"{config.location('data_dir')}: {config.data_dir} cannot be written ({why}); {other}"
    except ForeignData as problem:
        yield str(problem)
