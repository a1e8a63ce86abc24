"""Reads the host that a request asks for, and what a browser says about the page that sent it. Pure.

Host                       the host. A page whose own name was made to resolve to this machine (DNS rebinding)
                           still sends that name. An IP address cannot be rebound
Origin, Sec-Fetch-Site     the page. Browsers set these headers and no page can change them. A request without
                           them was not sent by a page
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s*\\]+")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def hostname(host: str) -> str:
    """Returns the name in a Host header in lower case and without the port, or an empty text if there is
    none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Returns whether a host is an IP address."""
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Returns whether a host can only be this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_name(text: str) -> bool:
    """Returns whether a text is a host name in lower case, without scheme, port or path."""
    return len(text) <= 253 and _NAME.fullmatch(text) is not None


def is_cross_site(headers: Mapping[str, str], host: str) -> bool:
    """Returns whether a browser says that the page of another site sent the request. ``headers`` have
    lower-case names; ``host`` is the value of the Host header."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    if (origin := headers.get("origin")) is None:
        return False
    # The origin "null" (of a sandboxed frame, for instance) has no host and is another site.
    origin_host = origin.lower().partition("://")[2]
    return not origin_host or origin_host != host.lower()


def as_origin(text: str) -> str:
    """Returns an origin as browsers write it, in lower case and without the default port of its scheme, or an
    empty text if it is not one (``null`` and ``*`` are not)."""
    origin = text.strip().lower().rstrip("/")
    if not _ORIGIN.fullmatch(origin):
        return ""
    return origin.removesuffix(_DEFAULT_PORTS.get(origin.partition("://")[0], "\0"))


def origin_of(url: str) -> str:
    """Returns the origin of a URL, or an empty text if it has none."""
    parts = urlsplit(url)
    return as_origin(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
