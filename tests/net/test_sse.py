"""Server-sent events arrive whole however the bytes are cut."""

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.net import sse
from mesh.net.sse import SseError, payloads


async def chunked(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def read(*chunks: bytes) -> list[bytes]:
    return [data async for data in payloads(chunked(list(chunks)))]


LINES = st.lists(st.text().filter(lambda text: not set(text) & {"\n", "\r"}), min_size=1, max_size=3)


@given(events=st.lists(LINES, max_size=5), newline=st.sampled_from(["\n", "\r\n", "\r"]), data=st.data())
async def test_the_same_events_come_however_the_bytes_are_cut(
    events: list[list[str]], newline: str, data: st.DataObject
) -> None:
    text = "".join("".join(f"data: {line}{newline}" for line in lines) + newline for lines in events).encode()
    # A CR at the very end may be half a CR LF, so that the stream says more after it.
    text += b": end"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    bounds = [0, *cuts, len(text)]
    chunks = [text[start:end] for start, end in pairwise(bounds)]
    assert await read(*chunks) == ["\n".join(lines).encode() for lines in events]


async def test_comments_names_and_ids_are_skipped() -> None:
    assert await read(b": hi\nevent: x\nid: 3\ndata:a\n\n\n\nevent: ping\n\ndata: b\n\n") == [b"a", b"b"]


async def test_an_event_that_was_cut_off_is_dropped() -> None:
    assert await read(b"data: a\n\ndata: {half") == [b"a"]
    assert await read(b"data: a\n\ndata: whole line\n") == [b"a"]


async def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MOST_EVENT_BYTES", 100)
    with pytest.raises(SseError, match="larger than 100 bytes"):
        await read(b"data: " + b"x" * 200)
