"""Journals of a running mesh, over its HTTP API."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from mesh.client.rest import Connected, Disconnected, MeshClient
from mesh.core.events import encode
from mesh.journal.portable import Reader
from mesh.log.journal_files import LogEntry, read


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
