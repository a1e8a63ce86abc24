"""Bodies are read within bounds: their size, and the time between two chunks."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.net.bodies import BodyStalled, BodyTooLarge, at_most, never_idle, read_body

BODIES = st.lists(st.binary(max_size=8), max_size=8)


async def body(*chunks: bytes | float | Exception) -> AsyncIterator[bytes]:
    """Yields bytes, waits so many seconds, or raises."""
    for chunk in chunks:
        if isinstance(chunk, Exception):
            raise chunk
        if isinstance(chunk, bytes):
            yield chunk
        else:
            await asyncio.sleep(chunk)


@given(chunks=BODIES, limit=st.integers(0, 64))
def test_a_body_is_read_whole_or_refused(chunks: list[bytes], limit: int) -> None:
    whole = b"".join(chunks)
    if len(whole) <= limit:
        assert asyncio.run(read_body(body(*chunks), limit)) == whole
    else:
        with pytest.raises(BodyTooLarge):
            asyncio.run(read_body(body(*chunks), limit))


@given(chunks=BODIES, limit=st.integers(0, 64))
def test_what_is_yielded_before_the_refusal_is_within_the_limit(chunks: list[bytes], limit: int) -> None:
    async def seen() -> list[bytes]:
        found: list[bytes] = []
        try:
            async for chunk in at_most(limit, body(*chunks)):
                found.append(chunk)
        except BodyTooLarge as error:
            assert error.limit == limit
        return found

    found = asyncio.run(seen())
    assert sum(map(len, found)) <= limit
    assert found == chunks[: len(found)]


async def test_a_body_over_the_limit_is_not_read_to_its_end() -> None:
    with pytest.raises(BodyTooLarge, match="over 3 bytes"):
        await read_body(body(b"abc", b"d", AssertionError("read on")), 3)


async def test_an_error_of_the_body_is_passed_on() -> None:
    with pytest.raises(ConnectionResetError):
        await read_body(never_idle(5, body(b"a", ConnectionResetError())), 10)


async def test_a_body_that_stalls_is_refused() -> None:
    with pytest.raises(BodyStalled, match=r"did not come within 0\.02 s"):
        await read_body(never_idle(0.02, body(b"a", 30.0, b"b")), 10)


async def test_the_bound_is_between_two_chunks_and_not_on_the_whole() -> None:
    chunks = [b"a", 0.3] * 12
    async with asyncio.timeout(30):
        assert await read_body(never_idle(3, body(*chunks)), 12) == b"a" * 12


async def test_a_slow_consumer_is_no_stall() -> None:
    async for _ in never_idle(0.02, body(b"a", b"b")):
        await asyncio.sleep(0.05)


async def test_a_timeout_of_the_body_itself_is_not_taken_for_a_stall() -> None:
    with pytest.raises(TimeoutError, match="of the socket"):
        await read_body(never_idle(5, body(TimeoutError("of the socket"))), 10)


async def test_a_timeout_around_the_whole_read_is_not_taken_for_a_stall() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await read_body(never_idle(5, body(b"a", 30.0)), 10)
