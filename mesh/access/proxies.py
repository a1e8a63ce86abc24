"""Which proxies are believed when they say what they were asked for (``X-Forwarded-…``). Pure."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any


def is_from_proxy(scope: Mapping[str, Any], proxies: Sequence[str]) -> bool:
    """Whether a request, an ASGI scope, comes from one of these addresses and networks."""
    client = scope.get("client")
    if client is None or not proxies:
        return False
    try:
        address = ip_address(client[0])
    except ValueError:
        return False
    return any(address in ip_network(proxy, strict=False) for proxy in proxies)
