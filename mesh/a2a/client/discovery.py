"""Where another agent is and what it speaks, from its card, or by trying where there is none.

A card is believed about versions, paths and extensions, not about hosts: an interface elsewhere than the
config says is tried last, without the token, and only at a public address (`mesh.net.addresses`). Many a card
names an address that only its author can reach; so the configured URL is tried first, in the card's dialect.
"""

import asyncio
import http
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from a2a.client.card_resolver import parse_agent_card
from a2a.types.a2a_pb2 import AgentCard, AgentInterface
from google.protobuf.json_format import ParseError
from yarl import URL

from mesh.a2a.client.dialects import WANTS_TOKEN, Endpoint, NeedsToken
from mesh.a2a.client.port import ForwardedHeaders, RemoteFailed, RemoteLost
from mesh.a2a.client.wire import Request, Unreachable, Wire, shown
from mesh.a2a.extensions import MESH
from mesh.net.addresses import host_and_port

CARD_TIMEOUT_S = 10.0
_PLACES = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_PREFERRED = ("1.0", "1.0 rest", "0.3")
_MOST_INTERFACES = 20
# Not 501: so a server that knows no GET says that there is nothing.
_UNWELL = (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.INTERNAL_SERVER_ERROR)


class Unclear(Unreachable):
    """There may be a card, and whoever is in front of it is not well."""


class Peer(msgspec.Struct, frozen=True):
    """What is known of an agent: the ways to speak to it, best first, and the extensions its card lists.
    ``is_sure`` False: there may be a card that could not be had just now."""

    endpoints: tuple[Endpoint, ...]
    extensions: frozenset[str] = frozenset()
    is_sure: bool = True

    @property
    def may_repeat(self) -> bool:
        """Whether a message that got lost may be looked into: it counts message ids, or may well."""
        return MESH in self.extensions or not self.is_sure

    def preferring(self, endpoint: Endpoint) -> "Peer":
        """The same, with the way that worked first."""
        others = (one for one in self.endpoints if one != endpoint)
        return msgspec.structs.replace(self, endpoints=(endpoint, *others))


async def find(wire: Wire, url: str, card_url: str | None, hop: ForwardedHeaders) -> Peer:
    """Looks for the card, and takes from it what can be used. Raises `RemoteFailed`, of which `Unreachable`
    when the agent is down."""
    if card_url:
        return peer_of(wire, url, await _card(wire, card_url, hop))
    is_sure = True
    for base in card_bases(url):
        for place in _PLACES:
            try:
                card = await _card(wire, base + place, hop)
            except Unclear:
                is_sure = False
                continue
            except Unreachable:
                raise
            except RemoteFailed:
                continue
            if base == url.rstrip("/") or _is_of(card, url):
                return peer_of(wire, url, card)
    guesses = (Endpoint(url, "1.0"), Endpoint(url, "0.3"), Endpoint(url, "plain"))
    return Peer(guesses, is_sure=is_sure)


def card_bases(url: str) -> list[str]:
    """Below what a card may be: the URL, what is above it (when it is an endpoint), the root of its host."""
    parts = urlsplit(url)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return list(dict.fromkeys((root + path, root + path.rpartition("/")[0], root)))


def _is_of(card: AgentCard, url: str) -> bool:
    """Whether a card that was found above a URL is of the agent there: a host may have many."""
    wanted = urlsplit(url).path.rstrip("/")
    paths = [urlsplit(one.url).path.rstrip("/") for _, one in _spoken(card)]
    return any(path.endswith(wanted) or path.startswith(f"{wanted}/") for path in paths)


async def _card(wire: Wire, place: str, hop: ForwardedHeaders) -> AgentCard:
    """The card at a URL. Raises `Unreachable` when nobody can say if there is one."""
    try:
        async with asyncio.timeout(CARD_TIMEOUT_S):
            answer = await wire.exchange(Request("GET", place, "1.0"), hop)
    except TimeoutError:
        raise Unreachable(f"agent {wire.name}: no card within {CARD_TIMEOUT_S:g} s") from None
    except RemoteLost as error:  # asking for a card does nothing: it may be asked for again
        raise Unreachable(str(error)) from None
    missing = f"agent {wire.name}: there is no agent card at {shown(place)}"
    if answer.status in WANTS_TOKEN:
        raise NeedsToken(f"{missing} without a token (HTTP {answer.status})")
    if answer.status in _UNWELL:
        raise Unclear(f"agent {wire.name} at {shown(place)} cannot say what it is now (HTTP {answer.status})")
    if answer.status != http.HTTPStatus.OK:
        raise RemoteFailed(f"{missing} (HTTP {answer.status})")
    try:
        return read_card(answer.json())
    except ValueError:
        raise RemoteFailed(f"{missing}: what is there cannot be read as one") from None


def read_card(card: Any) -> AgentCard:
    """A card of 1.0 or 0.3 from its JSON. Raises `ValueError`."""
    try:
        return parse_agent_card(card)
    except (ParseError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from None


def peer_of(wire: Wire, url: str, card: AgentCard) -> Peer:
    """What a card offers that can be used. Raises `RemoteFailed` when that is nothing."""
    spoken = _spoken(card)
    if not spoken:
        offered = ", ".join(sorted({one.protocol_binding for one in card.supported_interfaces})) or "nothing"
        raise RemoteFailed(
            f"agent {wire.name}: its card offers {offered[:200]}; "
            "expected JSONRPC (1.0 or 0.3) or HTTP+JSON (1.0)"
        )
    near = [(dialect, one) for dialect, one in spoken if wire.trusts(one.url)]
    endpoints = [_endpoint(one.url, dialect, one.tenant) for dialect, one in (near or spoken)[:1]]
    if not near:
        endpoints.insert(0, _endpoint(url, spoken[0][0], spoken[0][1].tenant))
    extensions = frozenset(extension.uri for extension in card.capabilities.extensions)
    if MESH not in extensions:  # whose promise is about message ids: the plain form has none
        # Who says 0.3 may mean the plain form of it.
        endpoints += [
            msgspec.structs.replace(one, version="plain") for one in endpoints if one.version == "0.3"
        ]
    return Peer(tuple(endpoints), extensions)


def _spoken(card: AgentCard) -> Sequence[tuple[str, AgentInterface]]:
    """The interfaces that we speak, best first."""
    listed = [(_dialect(one), one) for one in card.supported_interfaces[:_MOST_INTERFACES]]
    return sorted(
        (pair for pair in listed if pair[0] in _PREFERRED), key=lambda pair: _PREFERRED.index(pair[0])
    )


def _dialect(interface: AgentInterface) -> str:
    try:
        is_http = URL(interface.url).scheme in ("http", "https") and host_and_port(interface.url)
    except ValueError:
        return ""
    if not is_http:
        return ""
    version = interface.protocol_version or "1.0"
    match version.partition(".")[0], interface.protocol_binding.upper():
        case "1", "JSONRPC":
            return "1.0"
        case "1", "HTTP+JSON":
            return "1.0 rest"
        case "0", "JSONRPC":
            return "0.3"
    return ""


def _endpoint(url: str, dialect: str, tenant: str) -> Endpoint:
    return Endpoint(url, "0.3" if dialect == "0.3" else "1.0", dialect == "1.0 rest", tenant)
