"""Journals of a running mesh, over its HTTP API."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from mesh.client.rest import Connected, Disconnected, MeshClient
from mesh.core.errors import NotFound
from mesh.core.events import encode
from mesh.core.ids import is_id
from mesh.journal.portable import Reader
from mesh.log.journal_files import LogEntry, match_id, read

_PAGE_SIZE, _MAX_PAGES = 500, 40


async def conversation_id(client: MeshClient, wanted: str, where: str) -> str:
    """Returns the id that equals ``wanted``, or the only one that begins with it. Raises `NotFound`."""
    if is_id(wanted):
        return wanted
    ids: list[str] = []
    cursor = ""
    for _ in range(_MAX_PAGES):
        page = await client.page(_PAGE_SIZE, cursor)
        ids += [entry.id for entry in page.conversations]
        cursor = page.next_cursor
        if not cursor:
            return match_id(wanted, ids, where)
    raise NotFound(f"{where} has more than {len(ids)} conversations: give the whole id")


async def entries(client: MeshClient, conversation: str, reader: Reader) -> list[LogEntry]:
    """Returns the present entries of a journal. Raises `ClientError`."""
    return [*read(reader, (await client.log(conversation)).split(b"\n"))]


async def followed(
    client: MeshClient, conversation: str, reader: Reader, warn: Callable[[str], object]
) -> AsyncIterator[list[LogEntry]]:
    """Yields the entries of a journal, and then the events as they happen, including live ones. ``warn`` is
    called when the connection breaks. Raises `ClientError` if it cannot be restored."""
    yield await entries(client, conversation, reader)
    async with aclosing(client.events(conversation, reader.last)) as events:
        async for item in events:
            if isinstance(item, Disconnected):
                warn(f"{item.why}; trying to go on where it was")
            elif not isinstance(item, Connected):
                yield [LogEntry(item, encode(item))]
