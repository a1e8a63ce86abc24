"""Where this agent is, as its clients see it: for links in what it shows."""

from ipaddress import ip_address, ip_network

from starlette.requests import Request

from mesh.config import Card

_ANYWHERE = ("0.0.0.0", "::", "[::]")


def public_url(request: Request, card: Card) -> str:
    """The agent's URL, without a slash at its end.

    What the config says; else what a proxy that the config names says it was asked for; else what this
    request asked for. Never an address that means every interface: nobody can connect to it.
    """
    if card.url:
        return card.url.rstrip("/")
    url = request.base_url
    if _is_from_proxy(request, card):
        headers = request.headers
        scheme, host = _first(headers, "x-forwarded-proto"), _first(headers, "x-forwarded-host")
        url = url.replace(scheme=scheme if scheme in ("http", "https") else url.scheme)
        url = url.replace(netloc=host or url.netloc)
        url = url.replace(path=_first(headers, "x-forwarded-prefix").rstrip("/") + url.path)
    if url.hostname in _ANYWHERE:
        url = url.replace(hostname="localhost")
    return str(url).rstrip("/")


def _is_from_proxy(request: Request, card: Card) -> bool:
    if request.client is None or not card.proxies:
        return False
    try:
        address = ip_address(request.client.host)
    except ValueError:
        return False
    return any(address in ip_network(proxy, strict=False) for proxy in card.proxies)


def _first(headers: object, name: str) -> str:
    return str(getattr(headers, "get")(name, "")).split(",")[0].strip()  # noqa: B009
