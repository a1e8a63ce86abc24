"""The environment variables that Ray Serve reads when it is imported: which HTTP edge, which transport.

On a Ray of our own the edge is HAProxy, on the host that the config names; its other ports, and what is
behind it, listen on 127.0.0.1 (`deployments.haproxy`). On a cluster that is joined, the environment of its
nodes decides.
"""

import os
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from deployments import haproxy

_PORTS_TRIED = 100
_BEFORE_SERVE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
_READABLE = "mesh.http.utf8:for_serve"
ALL_INTERFACES = ("0.0.0.0", "::")


def is_open(host: str) -> bool:
    """Whether a host stands for every interface."""
    return host in ALL_INTERFACES


def url_of(host: str, port: int) -> str:
    """Where a mesh that listens on a host is reached from its machine."""
    reached = "127.0.0.1" if is_open(host) else host
    return f"http://{f'[{reached}]' if ':' in reached else reached}:{port}"


def prepare(env: MutableMapping[str, str], scratch: Path) -> None:
    """Sets the variables that are not set: what the person who starts the mesh has set wins.

    ``scratch`` is a folder of this mesh alone. Two meshes on a machine must not share HAProxy's files, nor
    the ports behind its edge; these are the usual ones unless they are taken.
    """
    defaults = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        _BEFORE_SERVE: _READABLE,
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_MAXCONN": str(haproxy.most_connections()),
        # How long a client may send or read nothing while HAProxy waits for it; usually an hour.
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",
        # Serve replaces an edge that failed three checks: at the default of 10 s, half a minute without HTTP.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        # An edge that is not ready in time is replaced too: on a loaded machine none would ever come up.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(_free_port(8500)),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(_free_port(8404)),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(_free_port(9101)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(scratch / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(scratch / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(scratch / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(scratch),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(scratch / "server-state"),
        # By default Ray gives its workers niceness 15, as for batch work; ours answer people.
        "RAY_worker_niceness": "0",
        # The HTTP servers would trust X-Forwarded-* from anybody on this machine, and so from the edge.
        "FORWARDED_ALLOW_IPS": "",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    for name, value in defaults.items():
        env.setdefault(name, value)


def prepare_alone(env: MutableMapping[str, str], host: str, scratch: Path) -> None:
    """Sets what keeps a Ray of our own to this machine, except for HTTP, which is served on ``host``.

    The first variable, which is named after the systems where it is the default, makes 127.0.0.1 the address
    of the node. All that Ray opens is bound to that address: nobody can join, and nobody needs to.
    """
    env.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if has_haproxy(env):
        program = haproxy.program()
        launcher = haproxy.launcher(scratch, program or "haproxy", host)
        if program and os.access(launcher, os.X_OK):
            env[haproxy.BINARY] = str(launcher)
            return
        # There is no HAProxy, or nothing in the temporary folder may be executed. Serve's own proxy is
        # slower.
        env.update({"RAY_SERVE_ENABLE_HA_PROXY": "0", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"})
    if env.get(_BEFORE_SERVE) == _READABLE:
        env[_BEFORE_SERVE] = f"{_READABLE}_alone"


def has_haproxy(env: Mapping[str, str]) -> bool:
    """Whether Serve starts HAProxy, after `prepare`."""
    return env["RAY_SERVE_ENABLE_HA_PROXY"] == "1"


def prepare_to_join(env: MutableMapping[str, str], home: Path) -> None:
    """Sets what a process needs to join a running cluster.

    ``ray start`` demands a token as soon as it finds one, but joining does not send it by itself. A cluster
    that demands none accepts one.
    """
    has_token = any(name in env for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if has_token or (home / ".ray" / "auth_token").exists():
        env.setdefault("RAY_AUTH_MODE", "token")


def _free_port(usual: int) -> int:
    """Returns the usual port, or the next one that is free. Not an ephemeral one: the system could give that
    to an outgoing connection before HAProxy starts."""
    for port in range(usual, usual + _PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return usual
