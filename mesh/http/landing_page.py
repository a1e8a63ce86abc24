"""``GET /``: which agent this is, what waits for a person, and links to everything else."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.config.model import Config
from mesh.core.errors import MeshError
from mesh.core.view import ConversationSummary
from mesh.http.backend import Backend
from mesh.http.html import HEADERS, Section, page, prefers_html
from mesh.http.public_url import public_url
from mesh.http.responses import json_response, route
from mesh.keeper.requests import Page

_MOST_WAITING = 20
_WITHIN_S = 2.0
"""How long the page waits for keepers. People open it to see what works, so it must not hang on what does
not."""
_PATHS = {
    "docs": ("/docs", "the API, to try out"),
    "card": ("/.well-known/agent-card.json", "what other agents see of it"),
    "tree": ("/tree", "its nodes"),
    "tools": ("/tools", "all that it may call"),
    "conversations": ("/conversations", "all of them, newest first"),
    "events": ("/events", "what happens, as it happens"),
    "metrics": ("/metrics", "what was measured, for Prometheus"),
    "status": ("/status", "what answers, what waits, and what is wrong"),
    "ready": ("/ready", "whether everything answers"),
}


class Links(msgspec.Struct, frozen=True):
    """Addresses of the web chat and the Ray dashboard; empty if there is none."""

    chat: str = ""
    dashboard: str = ""


class Waiting(msgspec.Struct, frozen=True):
    """Conversations that wait for a person: their number, and the newest. ``total`` is None when a keeper
    does not answer."""

    total: int | None = None
    newest: list[dict[str, Any]] = []


class LandingPage:
    """The route ``GET /``."""

    def __init__(self, backend: Backend, config: Config, links: Links) -> None:
        self._backend = backend
        self._config = config
        self._links = links

    def routes(self) -> list[Route]:
        """The route."""
        return [route("GET", "/", self._show)]

    async def _show(self, request: Request) -> Response:
        base = public_url(request, self._config.card)
        waiting = await _waiting(self._backend, base)
        if prefers_html(request.headers.get("accept", "")):
            return _page(self._config, base, self._links, waiting)
        return json_response(_json(self._config, base, self._links, waiting), headers=HEADERS)


async def _waiting(backend: Backend, base: str) -> Waiting:
    try:
        async with asyncio.timeout(_WITHIN_S):
            shards = await backend.ask_all(Page(_MOST_WAITING, "", "waiting_approval"))
    except (MeshError, TimeoutError):
        return Waiting()
    found = [summary for shard in shards for summary in shard.conversations]
    found.sort(key=lambda summary: summary.updated_at, reverse=True)
    total = sum(shard.counts.get("waiting_approval", 0) for shard in shards)
    return Waiting(total, [_shown(summary, base) for summary in found[:_MOST_WAITING]])


def _shown(entry: ConversationSummary, base: str) -> dict[str, Any]:
    asked = entry.pending_approval
    return {
        "conversation": f"{base}/conversations/{entry.id}",
        "title": entry.title,
        "since": asked.created_at if asked else entry.updated_at,
        "asks": asked.tool_name if asked else "",
        "kind": asked.kind if asked else "",
        "approval": f"{base}/approvals/{asked.uuid}" if asked else "",
    }


def _json(config: Config, base: str, links: Links, waiting: Waiting) -> dict[str, Any]:
    found = {name: f"{base}{path}" for name, (path, _) in _PATHS.items()}
    beside = {name: url for name, url in msgspec.structs.asdict(links).items() if url}
    return {
        "name": config.name,
        "description": config.description,
        "url": base,
        "waiting": waiting,
        "links": {**beside, **found},
    }


def _page(config: Config, base: str, links: Links, waiting: Waiting) -> Response:
    beside = [
        ("chat", links.chat, "talk to it"),
        *((name, f"{base}{path}", about) for name, (path, about) in _PATHS.items()),
        ("Ray dashboard", links.dashboard, "every actor of it; asks for Ray's token"),
    ]
    asked = tuple(
        (
            each["title"] or "(no title)",
            each["conversation"],
            f"{each['asks']}, since {_for_people(each['since'])}",
        )
        for each in waiting.newest
    )
    sections = [
        Section("Waits for a person", asked, _told(waiting)),
        Section("Links", tuple(link for link in beside if link[1])),
    ]
    return page(config.name, config.description or "An agent on a mesh.", sections)


def _for_people(time: str) -> str:
    """A time of the journal, to the minute."""
    return f"{time[:16].replace('T', ' ')} UTC"


def _told(waiting: Waiting) -> str:
    if waiting.total is None:
        return "It is not known just now: not every keeper answers. See ready."
    if waiting.total == 0:
        return "Nothing."
    more = waiting.total - len(waiting.newest)
    return f"And {more} more." if more else ""
