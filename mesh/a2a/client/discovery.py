"""Finds out where another agent is and what it speaks: from its card, or by trying where there is none.

A card is believed about versions, paths and extensions, but not about hosts. Many a card names an address
that only its author can reach, so the configured URL is tried first, in the dialect of the card. An interface
on a host that the config does not name is tried last, without the token, and only at a public address
(`mesh.net.address_guard`).
"""

import asyncio
import http
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from a2a.types.a2a_pb2 import AgentCard, AgentInterface
from google.protobuf.json_format import ParseDict, ParseError
from yarl import URL

from mesh.a2a.client.dialects import TOKEN_REQUIRED, AgentEndpoint, TokenRequired
from mesh.a2a.client.port import ForwardedHeaders, RemoteFailed, RemoteLost
from mesh.a2a.client.transport import A2aTransport, HttpRequest, Unreachable, printable_url
from mesh.a2a.extensions import BUDGET, MESH
from mesh.net.address_guard import host_and_port

CARD_TIMEOUT_S = 10.0
_CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_PREFERRED = ("1.0", "1.0 rest", "0.3")
_MAX_INTERFACES = 20
# Without 501: a server that supports no GET answers so, and it certainly has no card.
_UNAVAILABLE = (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.INTERNAL_SERVER_ERROR)


class CardUnavailable(Unreachable):
    """There may be a card, but the server cannot say so at the moment."""


class AgentProfile(msgspec.Struct, frozen=True):
    """What is known about an agent: its endpoints, best first, and the extensions that its card lists.
    ``is_sure`` is False if there may be a card that could not be fetched. ``is_priced``: the agent promises
    to say what its tasks cost."""

    endpoints: tuple[AgentEndpoint, ...]
    extensions: frozenset[str] = frozenset()
    is_sure: bool = True
    is_priced: bool = False

    @property
    def is_recoverable(self) -> bool:
        """Whether it makes sense to ask for a message that may be lost: the agent counts message ids, or may
        do so."""
        return MESH in self.extensions or not self.is_sure

    def preferring(self, endpoint: AgentEndpoint) -> "AgentProfile":
        """Returns the profile with the given endpoint first."""
        others = (one for one in self.endpoints if one != endpoint)
        return msgspec.structs.replace(self, endpoints=(endpoint, *others))


async def discover(
    transport: A2aTransport, url: str, card_url: str | None, forwarded: ForwardedHeaders
) -> AgentProfile:
    """Looks for the agent's card and returns what it offers, or guesses if there is none. Raises
    `RemoteFailed`, and `Unreachable` if the agent is down."""
    if card_url:
        return profile_of(transport, url, await _fetch_card(transport, card_url, forwarded))
    is_sure = True
    for base in card_bases(url):
        for path in _CARD_PATHS:
            try:
                card = await _fetch_card(transport, base + path, forwarded)
            except CardUnavailable:
                is_sure = False
                continue
            except Unreachable:
                raise
            except RemoteFailed:
                continue
            if base == url.rstrip("/") or _describes(card, url):
                return profile_of(transport, url, card)
    guesses = (AgentEndpoint(url, "1.0"), AgentEndpoint(url, "0.3"), AgentEndpoint(url, "plain"))
    return AgentProfile(guesses, is_sure=is_sure)


def card_bases(url: str) -> list[str]:
    """Returns where cards are looked for: below the URL, below its parent (if the URL is an endpoint), and at
    the root of its host."""
    parts = urlsplit(url)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return list(dict.fromkeys((root + path, root + path.rpartition("/")[0], root)))


def _describes(card: AgentCard, url: str) -> bool:
    """Returns whether a card that was found above a URL is the card of the agent there: a host may have many
    agents."""
    wanted = urlsplit(url).path.rstrip("/")
    paths = [urlsplit(one.url).path.rstrip("/") for _, one in _supported(card)]
    return any(path.endswith(wanted) or path.startswith(f"{wanted}/") for path in paths)


async def _fetch_card(transport: A2aTransport, url: str, forwarded: ForwardedHeaders) -> AgentCard:
    """Returns the card at a URL. Raises `Unreachable` if it cannot be known whether there is one."""
    try:
        async with asyncio.timeout(CARD_TIMEOUT_S):
            answer = await transport.exchange(HttpRequest("GET", url, "1.0"), forwarded)
    except TimeoutError:
        raise Unreachable(f"agent {transport.name}: no card within {CARD_TIMEOUT_S:g} s") from None
    except RemoteLost as error:
        # A GET of a card has no effect, so it can be repeated like a request that was never sent.
        raise Unreachable(str(error)) from None
    missing = f"agent {transport.name}: there is no agent card at {printable_url(url)}"
    if answer.status in TOKEN_REQUIRED:
        raise TokenRequired(f"{missing} without a token (HTTP {answer.status})")
    if answer.status in _UNAVAILABLE:
        raise CardUnavailable(
            f"agent {transport.name} at {printable_url(url)} cannot say what it is now (HTTP {answer.status})"
        )
    if answer.status != http.HTTPStatus.OK:
        raise RemoteFailed(f"{missing} (HTTP {answer.status})")
    try:
        return read_card(answer.json())
    except ValueError:
        raise RemoteFailed(f"{missing}: what is there cannot be read as one") from None


def read_card(card: Any) -> AgentCard:
    """Reads a card of 1.0 or 0.3, as far as it is used here: its interfaces and extensions. Raises
    `ValueError`.

    The SDK's `parse_agent_card` does the same for the whole card. It is not used because ``import
    a2a.client`` costs 0.16 to 0.25 s of CPU and 20 MB in every process that calls other agents
    (docs/decisions/a2a-client.md). A test checks that both read the same.
    """
    if not isinstance(card, dict):
        raise ValueError("an agent card is a JSON object")
    used = {
        "supportedInterfaces": card.get("supportedInterfaces", _interfaces_of_0_3(card)),
        "capabilities": card.get("capabilities", {}),
    }
    try:
        return ParseDict(used, AgentCard(), ignore_unknown_fields=True)
    except (ParseError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _interfaces_of_0_3(card: dict[str, Any]) -> list[dict[str, Any]]:
    if not card.get("url"):
        return []
    more = card.get("additionalInterfaces") or []
    if not isinstance(more, list) or not all(isinstance(one, dict) for one in more):
        raise ValueError("additionalInterfaces of an agent card are a list of objects")
    first = {"url": card["url"], "transport": card.get("preferredTransport", "JSONRPC")}
    version = card.get("protocolVersion", "0.3.0")
    return [
        {"url": one.get("url"), "protocolBinding": one.get("transport"), "protocolVersion": version}
        for one in (first, *more)
    ]


def profile_of(transport: A2aTransport, url: str, card: AgentCard) -> AgentProfile:
    """Returns what of a card can be used. Raises `RemoteFailed` if that is nothing."""
    supported = _supported(card)
    if not supported:
        offered = ", ".join(sorted({one.protocol_binding for one in card.supported_interfaces})) or "nothing"
        raise RemoteFailed(
            f"agent {transport.name}: its card offers {offered[:200]}; "
            "expected JSONRPC (1.0 or 0.3) or HTTP+JSON (1.0)"
        )
    trusted = [(dialect, one) for dialect, one in supported if transport.trusts(one.url)]
    endpoints = [_endpoint(one.url, dialect, one.tenant) for dialect, one in (trusted or supported)[:1]]
    if not trusted:
        endpoints.insert(0, _endpoint(url, supported[0][0], supported[0][1].tenant))
    extensions = frozenset(extension.uri for extension in card.capabilities.extensions)
    if BUDGET in extensions:
        endpoints = [msgspec.structs.replace(one, takes_budget=True) for one in endpoints]
    if MESH not in extensions:
        # An agent whose card says 0.3 may mean the plain form of it. An agent with our extension does not:
        # the extension promises something about message ids, and the plain form has none.
        endpoints += [
            msgspec.structs.replace(one, version="plain") for one in endpoints if one.version == "0.3"
        ]
    budgets = [extension for extension in card.capabilities.extensions if extension.uri == BUDGET]
    is_priced = any(dict(extension.params).get("priced") is True for extension in budgets)
    return AgentProfile(tuple(endpoints), extensions, is_priced=is_priced)


def _supported(card: AgentCard) -> Sequence[tuple[str, AgentInterface]]:
    """Returns the interfaces of a card that are supported here, each with its dialect, best first."""
    listed = [(_dialect(one), one) for one in card.supported_interfaces[:_MAX_INTERFACES]]
    return sorted(
        (pair for pair in listed if pair[0] in _PREFERRED), key=lambda pair: _PREFERRED.index(pair[0])
    )


def _dialect(interface: AgentInterface) -> str:
    try:
        url = URL(interface.url)
        host_and_port(interface.url)  # a port that is none raises here
    except ValueError:
        return ""
    if url.scheme not in ("http", "https") or not url.host:
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


def _endpoint(url: str, dialect: str, tenant: str) -> AgentEndpoint:
    return AgentEndpoint(url, "0.3" if dialect == "0.3" else "1.0", dialect == "1.0 rest", tenant)
