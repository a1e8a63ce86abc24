"""Where HTTP that strangers steer may connect to: public addresses, and what the config names.

The check is made where the socket is made, on the very address that it then connects to. So neither a name
that means something else the second time (DNS rebinding), nor an address written as a host, nor a redirect
gets past it; and what cannot be checked does not connect.

There are no proxies, not even those of the environment: a proxy resolves names by itself, and nobody here
could see where it connects. No cookies either: nothing is carried from one agent's answer to the next.
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
MOST_CONNECTIONS = 4096
# Less than servers grant (5 s is the least common one): a request on a connection that the other closes at
# that moment may or may not have arrived, and nobody could tell.
KEEPALIVE_S = 2.0

_IPV6_PUBLIC = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
_REFUSED = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments; the standard library's answer differs by version
        "192.88.99.0/24",  # 6to4 relays, withdrawn
        "168.63.129.16/32",  # the host of a virtual machine on Azure, at an address that looks public
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2002::/16",  # 6to4: an IPv4 address in disguise, withdrawn
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
    )
)


class Refused(OSError):
    """The address is neither public nor named by the config."""


def is_public(address: str) -> bool:
    """Whether an IP address, as text, is a public host's. What is no address is not."""
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
    return not any(parsed in network for network in _REFUSED)


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to."""
    if isinstance(address, IPv4Address):
        return None
    return address.ipv4_mapped or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)


def host_and_port(url: str) -> str:
    """``host:port`` of a URL, to name it for `guarded_session`."""
    parts = urlsplit(url)
    return _joined(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def _joined(host: str, port: int) -> str:
    host = host.rstrip(".").lower()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Named(AbstractResolver):
    """The system's resolver, that keeps what the named hosts meant when they were last asked for.

    ``named``: hosts (any port) and ``host:port``. An address is kept with its port, so that naming one
    service of a machine names no other one.
    """

    def __init__(self, named: Collection[str], resolver: AbstractResolver | None) -> None:
        self._named = frozenset(name.rstrip(".").lower() for name in named)
        self._resolver = resolver
        self._meant: dict[str, frozenset[tuple[str, int]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self._resolver = self._resolver or aiohttp.DefaultResolver()  # not before: it wants the running loop
        found = await self._resolver.resolve(host, port, family)
        if self._names(host, port):
            self._meant[_joined(host, port)] = frozenset((one["host"], port) for one in found)
        return found

    async def close(self) -> None:
        if self._resolver is not None:
            await self._resolver.close()

    def open(self, info: Any) -> socket.socket:
        """The socket for an address (in `socket.getaddrinfo`'s form), not connected yet. Raises `Refused`."""
        family, kind, protocol, _, (host, port, *_) = info
        if not (is_public(host) or self._names(host, port) or self._was_meant(host, port)):
            why = f"{host} is not a public address, and the config does not name it"
            raise Refused(errno.EACCES, why)
        return socket.socket(family, kind, protocol)

    def _names(self, host: str, port: int) -> bool:
        host = host.rstrip(".").lower()
        return host in self._named or _joined(host, port) in self._named

    def _was_meant(self, host: str, port: int) -> bool:
        return any((host, port) in addresses for addresses in self._meant.values())


def guarded_session(
    named: Collection[str] = (), resolver: AbstractResolver | None = None
) -> aiohttp.ClientSession:
    """A session that connects to public addresses, and to what ``named`` has: ``host`` for all its ports, or
    ``host:port`` (see `host_and_port`), either a name or an address.

    A refusal is an `aiohttp.ClientConnectorError` whose text says why. Redirects are the caller's affair:
    pass ``allow_redirects=False``. Made in a running event loop, and closed by the caller.
    """
    guard = _Named(named, resolver)
    connector = aiohttp.TCPConnector(
        resolver=guard, socket_factory=guard.open, limit=MOST_CONNECTIONS, keepalive_timeout=KEEPALIVE_S
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=True,
        trust_env=False,
    )
