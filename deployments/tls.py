"""TLS between actors, with the certificates that Ray's own connections use.

Ray encrypts what it sends when the environment of each machine has ``RAY_USE_TLS=1``, with the paths
``RAY_TLS_SERVER_CERT``, ``RAY_TLS_SERVER_KEY`` and ``RAY_TLS_CA_CERT``. Calls between actors go past Ray
(`deployments.channel`), so they do the same: both ends show a certificate of that authority. It may name any
host, as machines of a cluster get their addresses late; the secret of an endpoint says which actor it is.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

_CERT, _KEY, _AUTHORITY = "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"


@dataclass(frozen=True)
class Tls:
    """What the two ends of a connection need."""

    client: ssl.SSLContext
    server: ssl.SSLContext


def is_on(env: Mapping[str, str]) -> bool:
    """Whether Ray encrypts what it sends."""
    return env.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def client_tls() -> ssl.SSLContext | None:
    """What a caller of this process needs; None without `is_on`. Raises `OSError` for files that are no
    certificates or are not there; Ray has read them before."""
    found = _of_this_process()
    return found.client if found else None


def server_tls() -> ssl.SSLContext | None:
    """As `client_tls`, for whoever is called."""
    found = _of_this_process()
    return found.server if found else None


@cache
def _of_this_process() -> Tls | None:
    return tls_of(os.environ) if is_on(os.environ) else None


def tls_of(env: Mapping[str, str]) -> Tls:
    """That of an environment which has it on. Raises as `client_tls`."""
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=env[_AUTHORITY])
    client.check_hostname = False
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=env[_AUTHORITY])
    for context in (client, server):
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(env[_CERT], env[_KEY])
    return Tls(client, server)
