"""The URL of this agent as its clients see it, for links in its responses."""

from starlette.datastructures import Headers
from starlette.requests import Request

from mesh.access.proxies import is_from_proxy
from mesh.config.model import Card

_ANYWHERE = ("0.0.0.0", "::", "[::]")


def public_url(request: Request, card: Card) -> str:
    """The agent's URL, without a slash at its end.

    What the config says; else what a proxy that the config names says it was asked for; else what this
    request asked for. Never an address that means every interface, to which no client can connect.
    """
    if card.url:
        return card.url.rstrip("/")
    url = request.base_url
    if is_from_proxy(request.scope, card.proxies):
        headers = request.headers
        scheme, host = _first(headers, "x-forwarded-proto"), _first(headers, "x-forwarded-host")
        url = url.replace(scheme=scheme if scheme in ("http", "https") else url.scheme)
        url = url.replace(netloc=host or url.netloc)
        url = url.replace(path=_first(headers, "x-forwarded-prefix").rstrip("/") + url.path)
    if url.hostname in _ANYWHERE:
        url = url.replace(hostname="localhost")
    return str(url).rstrip("/")


def _first(headers: Headers, name: str) -> str:
    """The first value of a header that proxies may have appended to."""
    return headers.get(name, "").split(",")[0].strip()
