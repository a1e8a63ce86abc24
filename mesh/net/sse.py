"""Server-sent events: one place where they are read, and one where they are written.

Reading is httpx2's `EventSource`, which is incremental and bounds the size of one event; see
``docs/decisions/server-sent-events.md`` for what was compared. Writing is `encode`.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from collections.abc import AsyncIterator

import httpx2

MOST_EVENT_BYTES = 8 * 1024 * 1024
HEARTBEAT = b": heartbeat\n\n"
"""A comment: it keeps a connection open and means nothing."""


async def data_of_events(response: httpx2.Response, limit: int = MOST_EVENT_BYTES) -> AsyncIterator[str]:
    """Yields the data of each event of a response that was opened as a stream.

    An event without data (a new ``retry`` or ``id`` alone) is passed over, and so is the last one if the
    stream ends within it, since it may be incomplete. Raises `httpx2.SSEError` for an event of more than
    ``limit`` bytes and for a response that is no event stream, and whatever else reading it raises.
    """
    async for event in events_of(response, limit):
        yield event.data


async def events_of(
    response: httpx2.Response, limit: int = MOST_EVENT_BYTES
) -> AsyncIterator[httpx2.ServerSentEvent]:
    """As `data_of_events`, with the names of the events."""
    async for event in httpx2.EventSource(response, max_event_size=limit):
        if event.data:
            yield event


def encode(data: bytes = b"", *, event: str = "", id: str = "", retry_ms: int | None = None) -> bytes:
    """One event. Fields that are empty are left out.

    Raises `ValueError` if ``event`` or ``id`` has a line break: what follows it would be another field.

    >>> encode(b"{}", event="completed", id="7")
    b'event: completed\\nid: 7\\ndata: {}\\n\\n'
    """
    head = f"event: {event}\n" if event else ""
    if id:
        head += f"id: {id}\n"
    if "\r" in head or head.count("\n") > (event != "") + (id != ""):
        raise ValueError("a field of a server-sent event cannot hold a line break")
    if retry_ms is not None:
        head += f"retry: {retry_ms}\n"
    return b"%bdata: %b\n\n" % (head.encode(), _continued(data)) if data else head.encode() + b"\n"


def _continued(data: bytes) -> bytes:
    """The data with each further line in a field of its own."""
    # JSON, which most data is, has no line break outside of an escape.
    if b"\n" not in data and b"\r" not in data:
        return data
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
