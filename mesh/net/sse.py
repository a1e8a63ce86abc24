"""Server-sent events, as far as the model providers use them: the data of each event, no more.

Lines end at CR LF, LF or CR; an event ends at an empty line; several data lines join with a newline
(https://html.spec.whatwg.org/multipage/server-sent-events.html). The last event of a stream that
ends without an empty line is dropped, as the specification says: it may be cut.
"""

from collections.abc import AsyncIterable, AsyncIterator

MOST_EVENT_BYTES = 8 * 1024 * 1024


class SseError(Exception):
    """The stream is no stream of events: one of them is over the bound."""


async def payloads(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The data of each event. Raises `SseError`, and whatever ``chunks`` raises."""
    buffer = b""
    data: list[bytes] = []
    async for chunk in chunks:
        lines, buffer = _lines(buffer + chunk)
        if len(buffer) > MOST_EVENT_BYTES:
            raise SseError(f"one event is larger than {MOST_EVENT_BYTES} bytes")
        for line in lines:
            if not line:
                if data:
                    yield b"\n".join(data)
                    data = []
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))


def _lines(text: bytes) -> tuple[list[bytes], bytes]:
    """Whole lines, and the rest. A CR at the very end stays: its LF may still come."""
    keep = text.endswith(b"\r")
    lines = (text[:-1] if keep else text).splitlines(keepends=True)
    rest = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
    return [line.rstrip(b"\r\n") for line in lines], rest + (b"\r" if keep else b"")
