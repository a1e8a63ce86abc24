"""Finds conversations by words of their title, their id or their session.

The mesh lists conversations and does not search them, so its pages are read, newest first, up to a bound.
"""

from typing import Any

import msgspec

from mesh.web.upstream import Upstream, UpstreamResponse

MAX_PAGES = 10
PER_PAGE = 500
MAX_FOUND = 100


async def search(upstream: Upstream, words: str, headers: dict[str, str]) -> UpstreamResponse:
    """The conversations that have every word, as a listing. ``searched_all`` says whether every conversation
    was looked at, and ``incomplete`` whether those of a keeper that is away are missing."""
    wanted = words.lower().split()
    hits: list[dict[str, Any]] = []
    cursor, incomplete = "", False
    for _ in range(MAX_PAGES):
        params = {"limit": str(PER_PAGE)} | ({"cursor": cursor} if cursor else {})
        response = await upstream.request("GET", "/conversations", headers=headers, params=params)
        if response.status != 200:
            return response
        page = msgspec.json.decode(response.body)
        hits += [entry for entry in page["conversations"] if _has(entry, wanted)]
        cursor = page.get("next_cursor", "")
        incomplete = page.get("incomplete", False)
        # A keeper that is away is waited for in each page.
        if not cursor or len(hits) >= MAX_FOUND or incomplete:
            break
    searched_all = not cursor and len(hits) <= MAX_FOUND
    listing = {"conversations": hits[:MAX_FOUND], "searched_all": searched_all, "incomplete": incomplete}
    return UpstreamResponse(200, msgspec.json.encode(listing), {})


def _has(entry: dict[str, Any], words: list[str]) -> bool:
    text = " ".join(str(entry.get(key, "")) for key in ("title", "id", "session_id", "status")).lower()
    return all(word in text for word in words)
