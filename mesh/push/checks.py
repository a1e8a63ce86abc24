"""What a webhook may be. No name is resolved here: where one leads is found out when news go there."""

import re
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from mesh.core.errors import BadRequest
from mesh.net.addresses import host_and_port, is_public
from mesh.push.webhook import Webhook

MOST_URL = 2_048
_MOST = {"id": 128, "token": 4_096, "credentials": 8_192}
_SCHEME = re.compile(r"[A-Za-z0-9-]{1,64}")


def check(webhook: Webhook, named: Collection[str]) -> None:
    """Raises `BadRequest`, whose text repeats nothing of it but its host. ``named``: hosts, or ``host:port``,
    that may have private addresses."""
    for name, most in _MOST.items():
        value = getattr(webhook, name)
        if len(value) > most or not (value.isascii() and value.isprintable()):
            raise BadRequest(f"push notifications: {name} must be at most {most} printable ASCII characters")
    if not webhook.id:
        raise BadRequest("push notifications: id is empty")
    if webhook.scheme and not _SCHEME.fullmatch(webhook.scheme):
        raise BadRequest("push notifications: authentication.scheme must be a word, such as Bearer")
    _check_url(webhook.url, named)


def _check_url(url: str, named: Collection[str]) -> None:
    if len(url) > MOST_URL or not (url.isascii() and url.isprintable()) or " " in url:
        raise BadRequest(f"push notifications: url must be at most {MOST_URL} ASCII characters, no spaces")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise BadRequest("push notifications: url must begin with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise BadRequest("push notifications: url must hold no password; use authentication")
    host = (parts.hostname or "").rstrip(".")
    names = {name.rstrip(".").lower() for name in named}
    if _is_private(host) and not names & {host, host_and_port(url)}:
        raise BadRequest(
            f"push notifications: {host} is not a public address; if news may go there, "
            f"name it in card.push_hosts"
        )


def _is_private(host: str) -> bool:
    """What can be known without asking anybody."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return not is_public(host)
