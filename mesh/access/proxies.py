"""Decides whether the ``X-Forwarded-…`` headers of a request are believed: those of a listed proxy are.
Pure."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any


def is_from_proxy(scope: Mapping[str, Any], proxies: Sequence[str]) -> bool:
    """Returns whether a request (an ASGI scope) comes from one of these addresses or networks."""
    client = scope.get("client")
    if client is None or not proxies:
        return False
    try:
        address = ip_address(client[0])
    except ValueError:
        return False
    return any(address in ip_network(proxy, strict=False) for proxy in proxies)
