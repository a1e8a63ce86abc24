"""The rules for requests that a config sets: host names, origins of pages, trusted proxies. The gateway
checks them in front of every route."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mesh.config.model import Config
from mesh.net.origin import (
    hostname,
    is_address,
    is_cross_site,
    is_name,
    origin_of,
)

_MAX_QUOTED = 100


@dataclass(frozen=True)
class Rules:
    """``names`` are the host names of the mesh; every IP address is allowed besides. ``origins`` are those of
    other sites' pages that may use it, ``own_origins`` those of its own pages as browsers see them.
    ``proxies`` are addresses and networks whose X-Forwarded-Host is believed."""

    names: frozenset[str] = frozenset({"localhost"})
    origins: frozenset[str] = frozenset()
    own_origins: frozenset[str] = frozenset()
    proxies: tuple[str, ...] = ()

    def problem_with_host(self, host: str) -> str:
        """Returns what is wrong with the Host of a request, for a person, or an empty text.

        A request without a Host is allowed: every browser sends one, and the check is there for browsers.
        """
        name = hostname(host)
        if not host or name in self.names or is_address(name):
            return ""
        such_as = f", as in allowed_hosts: [{name}]" if is_name(name) else ""
        return (
            f"this mesh does not go by the name {host[:_MAX_QUOTED]!r}; if it should, put the name into "
            f"allowed_hosts in its config{such_as}"
        )

    def allows_page(self, headers: Mapping[str, str], host: str) -> bool:
        """Returns whether a request may come from where it does: a program, a page of the mesh, or a page of
        a listed origin."""
        origin = headers.get("origin")
        if origin in self.origins or not is_cross_site(headers, host):
            return True
        # Behind a proxy that changes Host, the origin of the mesh's own page differs from the Host.
        return origin in self.own_origins and headers.get("sec-fetch-site", "same-origin") == "same-origin"


def rules_of(configs: Sequence[Config]) -> Rules:
    """Returns the rules for agents that are served together: any of their names, but only the origins that
    all of them list."""
    listed = [frozenset(config.cors.origins) for config in configs]
    return Rules(
        names=frozenset(name for config in configs for name in _names(config)),
        origins=frozenset.intersection(*listed),
        own_origins=frozenset(origin_of(config.card.url) for config in configs if config.card.url),
        proxies=tuple(proxy for config in configs for proxy in config.card.proxies),
    )


def _names(config: Config) -> Iterator[str]:
    yield from ("localhost", config.host.lower(), *config.allowed_hosts)
    if config.card.url:
        yield hostname(origin_of(config.card.url).partition("://")[2])
