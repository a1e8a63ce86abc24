"""Checks of a webhook that a client wants to set.

Names are not resolved here: a name may resolve differently later, so its address is checked when a
notification is sent.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from mesh.core.errors import BadRequest
from mesh.net.address_guard import host_and_port, is_public
from mesh.push.webhook import Webhook

MAX_URL = 2_048
_SCHEME = re.compile(r"[A-Za-z0-9-]{1,64}")


def check(webhook: Webhook, named: Collection[str]) -> None:
    """Raises `BadRequest` if the webhook cannot be used. Of the webhook, only the host is in the message: the
    rest may be a secret. ``named`` are hosts, or ``host:port``, that may have private addresses."""
    for name, value, limit in (
        ("id", webhook.id, 128),
        ("token", webhook.token, 4_096),
        ("credentials", webhook.credentials, 8_192),
    ):
        if len(value) > limit or not (value.isascii() and value.isprintable()):
            raise BadRequest(f"push notifications: {name} must be at most {limit} printable ASCII characters")
    if not webhook.id:
        raise BadRequest("push notifications: id is empty")
    if webhook.scheme and not _SCHEME.fullmatch(webhook.scheme):
        raise BadRequest("push notifications: authentication.scheme must be a word, such as Bearer")
    _check_url(webhook.url, named)


def _check_url(url: str, named: Collection[str]) -> None:
    if len(url) > MAX_URL or not (url.isascii() and url.isprintable()) or " " in url:
        raise BadRequest(f"push notifications: url must be at most {MAX_URL} ASCII characters, no spaces")
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
    """Returns whether a host is known to be private without resolving it."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return not is_public(host)
