"""Which name a request asked for, and what its browser says about the page that sent it. Pure.

Host                       the name. An address cannot be rebound, so every address is fine; a page whose
                           name was made to mean this machine (DNS rebinding) still sends its own name
Origin, Sec-Fetch-Site     the page. Browsers set them and no page can change them. A program sends
                           neither, and is no browser
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s*\\]+")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def hostname(host: str) -> str:
    """The name in a Host header, without its port, in small letters; empty when there is none to be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Whether a host is an IP address."""
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether a host names this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_name(text: str) -> bool:
    """Whether a text is a host name in small letters, without scheme, port or path."""
    return len(text) <= 253 and _NAME.fullmatch(text) is not None


def is_from_elsewhere(headers: Mapping[str, str], host: str) -> bool:
    """Whether a browser says that the request is another site's. ``headers`` have names in small letters;
    ``host`` is what the request asked for, as in its Host header."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    if (origin := headers.get("origin")) is None:
        return False
    place = origin.lower().partition("://")[2]  # of "null" there is none
    return not place or place != host.lower()


def as_origin(text: str) -> str:
    """An origin as browsers write it: in small letters, without the usual port of its scheme; empty if the
    text is none (``null`` and ``*`` are none)."""
    origin = text.strip().lower().rstrip("/")
    if not _ORIGIN.fullmatch(origin):
        return ""
    return origin.removesuffix(_DEFAULT_PORTS.get(origin.partition("://")[0], "\0"))


def origin_of(url: str) -> str:
    """The origin of a URL; empty if it has none."""
    parts = urlsplit(url)
    return as_origin(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
