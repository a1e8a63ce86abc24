"""Reading HTTP bodies within bounds, whichever library delivers them.

Every HTTP library that the mesh uses hands a body over as an asynchronous iterator of chunks, and none of
them bounds its size. The functions here wrap such an iterator. They know no library: callers translate
`BodyTooLarge` and `BodyStalled` into the errors of their own layer, and close the response themselves, since
the rest of a body that was refused must not be read by the next request on the same connection.

A bound on the whole time is the caller's ``asyncio.timeout``; only the time between two chunks, which a
caller cannot see, is bounded here.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator


class BodyTooLarge(Exception):
    """The body has more than ``limit`` bytes. The rest of it was not read."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is over {limit} bytes")
        self.limit = limit


class BodyStalled(Exception):
    """No chunk arrived for ``idle_s`` seconds."""

    def __init__(self, idle_s: float) -> None:
        super().__init__(f"the rest of the body did not come within {idle_s:g} s")
        self.idle_s = idle_s


async def read_body(chunks: AsyncIterable[bytes], limit: int) -> bytes:
    """Returns the whole body. Raises `BodyTooLarge`, and whatever ``chunks`` raises."""
    return b"".join([chunk async for chunk in at_most(limit, chunks)])


async def at_most(limit: int, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yields the chunks unchanged, up to ``limit`` bytes in all. Raises `BodyTooLarge` in place of the chunk
    that exceeds the limit."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        yield chunk


async def never_idle(idle_s: float, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yields the chunks unchanged. Raises `BodyStalled` if one of them takes longer than ``idle_s`` seconds.

    The time that the consumer spends between two chunks does not count.
    """
    iterator = aiter(chunks)
    while True:
        try:
            async with asyncio.timeout(idle_s) as waiting:
                chunk = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            # A TimeoutError of the iterator's own (a socket's, say) is not about our bound.
            if waiting.expired():
                raise BodyStalled(idle_s) from None
            raise
        yield chunk
