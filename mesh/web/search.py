"""Finding conversations by words of their title, their id or their session.

The mesh lists and does not search, so its pages are looked through, newest first, up to a bound.
"""

from typing import Any

import msgspec

from mesh.web.agent import Agent, Answer

PAGES = 10
PER_PAGE = 500
MOST_FOUND = 100


async def found(agent: Agent, words: str, headers: dict[str, str]) -> Answer:
    """The conversations that have every word, in the form of a listing. ``searched_all`` says whether
    there was more than was looked through."""
    wanted = words.lower().split()
    hits: list[dict[str, Any]] = []
    cursor = ""
    for _ in range(PAGES):
        params = {"limit": str(PER_PAGE)} | ({"cursor": cursor} if cursor else {})
        answer = await agent.ask("GET", "/conversations", headers=headers, params=params)
        if answer.status != 200:
            return answer
        page = msgspec.json.decode(answer.body)
        hits += [entry for entry in page["conversations"] if _has(entry, wanted)]
        cursor = page.get("next_cursor", "")
        if not cursor or len(hits) >= MOST_FOUND:
            break
    listing = {"conversations": hits[:MOST_FOUND], "searched_all": not cursor and len(hits) <= MOST_FOUND}
    return Answer(200, msgspec.json.encode(listing), {})


def _has(entry: dict[str, Any], words: list[str]) -> bool:
    text = " ".join(str(entry.get(key, "")) for key in ("title", "id", "session_id", "status")).lower()
    return all(word in text for word in words)
