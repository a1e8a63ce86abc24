"""A client that costs little: the load must not be made of the thing that makes it.

One keep-alive connection, one request at a time; no library, because the usual ones need as much CPU
for a request as a whole turn may.
"""

import asyncio
import json
from typing import Any


class Connection:
    """Talks HTTP/1.1 to one host. Raises `OSError` or `EOFError` when the connection breaks."""

    def __init__(self, host: str, port: int, headers: str = "") -> None:
        """``headers``: more of them, each with its line's end."""
        self._address = (host, port)
        self._headers = headers
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Posts JSON; the status and the JSON that came back."""
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address, limit=1 << 22)
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{self._headers}Content-Length: {len(raw)}\r\n\r\n"
        self._writer.write(head.encode() + raw)
        header = await self._reader.readuntil(b"\r\n\r\n")
        lines = header.decode("latin-1").split("\r\n")
        length = next(int(line[15:]) for line in lines if line.lower().startswith("content-length:"))
        content = await self._reader.readexactly(length)
        return int(lines[0].split(" ")[1]), json.loads(content)

    def close(self) -> None:
        """Ends the connection."""
        if self._writer is not None:
            self._writer.close()
            self._reader = self._writer = None
