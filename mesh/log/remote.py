"""Journals of a mesh somewhere, over its HTTP API: which conversation an id means, its log, how it grows."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from mesh.client.rest import Connected, Disconnected, MeshClient
from mesh.core.errors import NotFound
from mesh.core.events import encode
from mesh.core.ids import is_id
from mesh.journal.portable import Reader
from mesh.log.files import Entry, read, the_one

_PAGE, _MOST_PAGES = 500, 40


async def conversation_id(client: MeshClient, wanted: str, where: str) -> str:
    """The id that is ``wanted``, or alone begins with it. Raises `NotFound`."""
    if is_id(wanted):
        return wanted
    ids: list[str] = []
    cursor = ""
    for _ in range(_MOST_PAGES):
        page = await client.page(_PAGE, cursor)
        ids += [entry.id for entry in page.conversations]
        cursor = page.next_cursor
        if not cursor:
            return the_one(wanted, ids, where)
    raise NotFound(f"{where} has more than {len(ids)} conversations: give the whole id")


async def entries(client: MeshClient, conversation: str, reader: Reader) -> list[Entry]:
    """The journal as it is now. Raises `ClientError`."""
    return [*read(reader, (await client.log(conversation)).split(b"\n"))]


async def followed(
    client: MeshClient, conversation: str, reader: Reader, say: Callable[[str], object]
) -> AsyncIterator[list[Entry]]:
    """The journal, and then what happens, as it happens, with what only watchers get. ``say`` is told when
    the connection broke. Raises `ClientError` when it does not come back."""
    yield await entries(client, conversation, reader)
    async with aclosing(client.events(conversation, reader.last)) as events:
        async for item in events:
            if isinstance(item, Disconnected):
                say(f"{item.why}; trying to go on where it was")
            elif not isinstance(item, Connected):
                yield [Entry(item, encode(item))]
