"""What a config says about who may ask: names, origins of pages, proxies. Read by what stands in front of the
routes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mesh.config.model import Config
from mesh.net.origin import (
    hostname,
    is_address,
    is_from_elsewhere,
    is_name,
    origin_of,
)

_MOST_SAID = 100


@dataclass(frozen=True)
class Rules:
    """``names``: what the mesh is reached by, besides addresses. ``origins``: those of other pages that may
    use it. ``own_origins``: where its own pages are, as the world sees them. ``proxies``: addresses and
    networks whose X-Forwarded-Host counts."""

    names: frozenset[str] = frozenset({"localhost"})
    origins: frozenset[str] = frozenset()
    own_origins: frozenset[str] = frozenset()
    proxies: tuple[str, ...] = ()

    def problem_with_host(self, host: str) -> str:
        """What is wrong with the host that was asked for, for a person; empty: nothing. A request without any
        host is no browser's, and is let in."""
        name = hostname(host)
        if not host or name in self.names or is_address(name):
            return ""
        such_as = f", as in allowed_hosts: [{name}]" if is_name(name) else ""
        return (
            f"this mesh does not go by the name {host[:_MOST_SAID]!r}; if it should, put the name into "
            f"allowed_hosts in its config{such_as}"
        )

    def lets_in(self, headers: Mapping[str, str], host: str) -> bool:
        """Whether a request is a program's, of our own pages, or of an origin that is listed."""
        origin = headers.get("origin")
        if origin in self.origins or not is_from_elsewhere(headers, host):
            return True
        # Behind a proxy that changes Host our own page has an origin that is not what was asked for.
        return origin in self.own_origins and headers.get("sec-fetch-site", "same-origin") == "same-origin"


def rules_of(configs: Sequence[Config]) -> Rules:
    """The rules for what these agents serve together: reached by any of their names, used by pages that all
    of them list."""
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
