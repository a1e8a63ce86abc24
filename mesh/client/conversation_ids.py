"""Which conversation is meant by the beginning of its id."""

from collections.abc import Sequence

from mesh.client.rest import MeshClient
from mesh.core.errors import NotFound, Unavailable
from mesh.core.ids import is_id
from mesh.display.text import one_line

_PAGE_SIZE, _MAX_PAGES = 500, 40
_MAX_LISTED = 10


async def conversation_id(client: MeshClient, wanted: str, where: str) -> str:
    """Returns the id that equals ``wanted``, or the only one that begins with it. Raises `NotFound`."""
    if is_id(wanted):
        return wanted
    ids: list[str] = []
    cursor = ""
    for _ in range(_MAX_PAGES):
        page = await client.page(_PAGE_SIZE, cursor)
        if page.incomplete:  # one that is missing may begin with the same
            raise Unavailable(f"a keeper of {where} is away: give the whole id, or try again")
        ids += [entry.id for entry in page.conversations]
        cursor = page.next_cursor
        if not cursor:
            return match_id(wanted, ids, where)
    raise NotFound(f"{where} has more than {len(ids)} conversations: give the whole id")


def match_id(wanted: str, ids: Sequence[str], where: str) -> str:
    """Returns the id that equals ``wanted``, or the only one that begins with it. Raises `NotFound`, which
    lists the ids that match."""
    found = [wanted] if wanted in ids else sorted(known for known in ids if known.startswith(wanted))
    if len(found) == 1:
        return found[0]
    asked = one_line(wanted, 80)
    if not found:
        others = f"{len(ids)} {'other is' if len(ids) == 1 else 'others are'} there"
        raise NotFound(f"there is no conversation {asked} in {where} ({others})")
    more = f"\n  … and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    listed = "".join(f"\n  {known}" for known in found[:_MAX_LISTED])
    raise NotFound(f"{len(found)} conversations in {where} begin with {asked}; which one?{listed}{more}")
