"""Server-sent events arrive whole however the bytes are cut, and what is written is read as it was.

The decoder is httpx2's: these tests hold it to what the mesh relies on, so that an upgrade that breaks one of
these properties is noticed here.
"""

from collections.abc import AsyncIterator
from itertools import pairwise

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.net.sse import HEARTBEAT, data_of_events, encode


class Chunks(httpx2.AsyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


def response(chunks: list[bytes]) -> httpx2.Response:
    headers = {"content-type": "text/event-stream"}
    return httpx2.Response(
        200, headers=headers, stream=Chunks(chunks), request=httpx2.Request("GET", "http://x")
    )


async def read(*chunks: bytes, limit: int = 1000) -> list[str]:
    return [data async for data in data_of_events(response(list(chunks)), limit)]


def cut(text: bytes, data: st.DataObject) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


TEXTS = st.text().filter(lambda text: not set(text) & {"\n", "\r"})
LINES = st.lists(TEXTS, min_size=1, max_size=3).filter(lambda lines: lines != [""])


@given(events=st.lists(LINES, max_size=5), newline=st.sampled_from(["\n", "\r\n", "\r"]), data=st.data())
async def test_the_same_events_come_however_the_bytes_are_cut(
    events: list[list[str]], newline: str, data: st.DataObject
) -> None:
    text = "".join("".join(f"data: {line}{newline}" for line in lines) + newline for lines in events).encode()
    # A CR at the very end may be half a CR LF, so that the stream says more after it.
    text += b": end"
    assert await read(*cut(text, data), limit=10**6) == ["\n".join(lines) for lines in events]


@given(sent=st.lists(LINES, max_size=5), data=st.data())
async def test_what_is_encoded_is_decoded_as_it_was(sent: list[list[str]], data: st.DataObject) -> None:
    text = HEARTBEAT + b"".join(encode("\n".join(lines).encode(), event="x", id="7") for lines in sent)
    assert await read(*cut(text, data), limit=10**6) == ["\n".join(lines) for lines in sent]


async def test_comments_names_and_ids_are_skipped() -> None:
    assert await read(b": hi\nevent: x\nid: 3\ndata:a\n\n\n\nevent: ping\n\ndata: b\n\n") == ["a", "b"]


async def test_an_event_that_was_cut_off_is_dropped() -> None:
    assert await read(b"data: a\n\ndata: {half") == ["a"]
    assert await read(b"data: a\n\ndata: whole line\n") == ["a"]


@pytest.mark.parametrize("chunk", [b"data: " + b"x" * 200, b"data: x\n" * 30, b"x" * 200])
async def test_an_event_without_end_is_refused(chunk: bytes) -> None:
    with pytest.raises(httpx2.SSEError, match="100 byte"):
        await read(chunk, limit=100)


async def test_many_events_may_be_larger_than_one() -> None:
    assert len(await read(b"data: 12345\n\n" * 50, limit=100)) == 50


async def test_what_is_no_event_stream_is_refused() -> None:
    html = httpx2.Response(
        200, headers={"content-type": "text/html"}, text="hi", request=httpx2.Request("GET", "http://x")
    )
    with pytest.raises(httpx2.SSEError, match="text/html"):
        assert [data async for data in data_of_events(html)]


def test_fields_are_written_in_one_order_and_empty_ones_not_at_all() -> None:
    assert encode(b"{}", event="completed", id="7") == b"event: completed\nid: 7\ndata: {}\n\n"
    assert encode(id="1.2") == b"id: 1.2\n\n"
    assert encode(retry_ms=1000) == b"retry: 1000\n\n"


@pytest.mark.parametrize("value", ["a\ndata: forged", "a\rb", "a\r\nb"])
def test_a_field_cannot_make_another_event(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode(b"{}", event=value)
    with pytest.raises(ValueError, match="line break"):
        encode(b"{}", id=value)
