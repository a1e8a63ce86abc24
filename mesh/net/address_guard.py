"""A guard on where clients connect to if others choose the URL: public hosts, and those the config names.

The address is checked when the socket is created, and it is the very address that the socket then connects
to. Neither a name that resolves differently the second time (DNS rebinding), nor an address written as a
host name, nor a redirect gets past the check, and an address that cannot be checked is not connected to.

Proxies are not used, not even those of the environment: a proxy resolves names itself, so the check would
see only the proxy's address. Cookies are not kept: nothing is carried from one host's response to a request
to the next.
"""

import errno
import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

CONNECT_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 4096
KEEPALIVE_S = 2.0
"""Shorter than the keep-alive of servers (5 s is the shortest in common use): if the server closes a
connection at the moment a request is written to it, nobody can tell whether the request was received."""

_IPV6_PUBLIC = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
_NOT_PUBLIC = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments; `is_global` differs between versions of Python
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "168.63.129.16/32",  # the host of a virtual machine on Azure, although the address looks public
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2002::/16",  # 6to4, deprecated: an IPv4 address inside an IPv6 address
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
    )
)


class AddressRefused(OSError):
    """The address is neither public nor named by the config."""


def is_public(address: str) -> bool:
    """Returns whether a text is an IP address at which a public host can be."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner = _embedded(parsed)
    if inner is not None:
        return is_public(str(inner))
    if isinstance(parsed, IPv6Address) and parsed not in _IPV6_PUBLIC:
        return False
    if parsed.is_multicast or parsed.is_reserved or not parsed.is_global:
        return False
    return not any(parsed in network for network in _NOT_PUBLIC)


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Returns the IPv4 address that packets to an IPv6 address are delivered to, if there is one."""
    if isinstance(address, IPv4Address):
        return None
    return address.ipv4_mapped or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)


def host_and_port(url: str) -> str:
    """Returns ``host:port`` of a URL, a form that `guarded_session` takes."""
    parts = urlsplit(url)
    return _joined(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def _joined(host: str, port: int) -> str:
    host = host.rstrip(".").lower()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _AddressGuard(AbstractResolver):
    """Resolves names for a connector and creates its sockets.

    It wraps ``resolver`` (None: the system's) and remembers which addresses the named hosts resolved to, as
    the connector passes `create_socket` an address without the name that it belongs to. ``named`` holds
    hosts (for any port) and ``host:port``. A resolved address is remembered together with its port, so that
    naming one service of a machine does not permit connections to the others.
    """

    def __init__(self, named: Collection[str], resolver: AbstractResolver | None) -> None:
        self._named = frozenset(name.rstrip(".").lower() for name in named)
        self._resolver = resolver
        self._resolved: dict[str, frozenset[tuple[str, int]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        # Created here and not in __init__: aiohttp's resolver needs the running event loop.
        self._resolver = self._resolver or aiohttp.DefaultResolver()
        found = await self._resolver.resolve(host, port, family)
        if self._is_named(host, port):
            # The latest answer replaces earlier ones: an address that the host gave up is not permitted.
            self._resolved[_joined(host, port)] = frozenset((one["host"], port) for one in found)
        return found

    async def close(self) -> None:
        if self._resolver is not None:
            await self._resolver.close()

    def create_socket(self, info: Any) -> socket.socket:
        """Returns an unconnected socket for an address (a tuple of `socket.getaddrinfo`). Raises
        `AddressRefused`."""
        family, kind, protocol, _, (host, port, *_) = info
        if not (is_public(host) or self._is_named(host, port) or self._is_of_named_host(host, port)):
            message = f"{host} is not a public address, and the config does not name it"
            raise AddressRefused(errno.EACCES, message)
        return socket.socket(family, kind, protocol)

    def _is_named(self, host: str, port: int) -> bool:
        host = host.rstrip(".").lower()
        return host in self._named or _joined(host, port) in self._named

    def _is_of_named_host(self, address: str, port: int) -> bool:
        return any((address, port) in addresses for addresses in self._resolved.values())


def guarded_session(
    named: Collection[str] = (), resolver: AbstractResolver | None = None
) -> aiohttp.ClientSession:
    """Returns a session that connects to public addresses and to the hosts in ``named`` only.

    An element of ``named`` is ``host``, for all of its ports, or ``host:port`` (see `host_and_port`); the
    host is a name or an address. A refused connection is an `aiohttp.ClientConnectorError` whose ``os_error``
    is `AddressRefused`. The session must be created in a running event loop and closed by the caller, who
    also decides about redirects: pass ``allow_redirects=False``.
    """
    guard = _AddressGuard(named, resolver)
    connector = aiohttp.TCPConnector(
        resolver=guard,
        socket_factory=guard.create_socket,
        limit=MAX_CONNECTIONS,
        keepalive_timeout=KEEPALIVE_S,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        # No bound on the whole request: callers bound it together with what they do before and after.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=True,
        trust_env=False,
    )
