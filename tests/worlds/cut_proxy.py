"""A proxy in front of a PostgreSQL server that fails as networks do.

It runs in a thread of its own, so that tests with and without an event loop can use it; its methods return
when what they say is so.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from tests.worlds.ports import free_port

WITHIN_S = 120.0
_CHUNK = 65_536
_READY = b"Z\x00\x00\x00\x05"
"""How the last message of an answer begins (ReadyForQuery); one byte follows."""
_TERMINATE = b"X\x00\x00\x00\x04"
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class CutProxy:
    """Forwards connections to ``port`` of ``at`` on to a server."""

    def __init__(self, port: int, host: str = "127.0.0.1", at: str = "127.0.0.1") -> None:
        self.port = free_port()
        self.at = at
        self.dropped = 0
        """How many answers were dropped."""
        self._server = (host, port)
        self._connections: set[_Connection] = set()
        self._until_drop = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def cut(self) -> None:
        """Closes all present connections with a reset, on both sides."""
        self._do(self._cut)

    def refuse(self) -> None:
        """New connections are refused, until `accept`. Those that are open stay so."""
        self._do(self._refuse)

    def accept(self) -> None:
        """New connections are accepted."""
        self._do(self._accept)

    def hold(self) -> None:
        """Nothing is forwarded until `release`; connections stay open, and new ones are accepted."""
        self._do(self._passing.clear)

    def release(self) -> None:
        """What was held back is forwarded, and what follows."""
        self._do(self._passing.set)

    def drop_answers(self, n: int = 1) -> None:
        """Cuts the connection of the ``n``-th request from now when the server has answered it, and does not
        pass on the answer. A request is all that a client sends before it waits for an answer. What belongs
        to the start and the end of a connection is none. 0 takes it back."""
        self._do(lambda: setattr(self, "_until_drop", n))

    def url_of(self, database_url: str) -> str:
        """The URL by which a database of the server is reached through it."""
        host, port = self._server
        assert f"@{host}:{port}/" in database_url, f"not a database of {host}:{port}"
        return database_url.replace(f"@{host}:{port}/", f"@{self.at}:{self.port}/")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(WITHIN_S), "the proxy does not start"
        self.accept()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._do(self._ended.set)
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "the proxy does not end"

    def _do(self, what: Callable[[], Any]) -> None:
        async def done() -> None:
            found = what()
            if asyncio.iscoroutine(found):
                await found

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(WITHIN_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._passing, self._ended = asyncio.Event(), asyncio.Event()
        self._passing.set()
        self._accepting: asyncio.Task[None] | None = None
        self._started.set()
        await self._ended.wait()
        await self._refuse()
        await self._cut()

    async def _accept(self) -> None:
        if self._accepting is None:
            listener = socket.create_server((self.at, self.port), backlog=128)
            listener.setblocking(False)
            self._accepting = asyncio.create_task(self._listen(listener))

    async def _listen(self, listener: socket.socket) -> None:
        with listener:
            while True:
                client, _ = await self._loop.sock_accept(listener)
                connection = _Connection(client, self)
                self._connections.add(connection)
                connection.task.add_done_callback(partial(self._forget, connection))

    def _forget(self, connection: "_Connection", _: asyncio.Task[None]) -> None:
        self._connections.discard(connection)
        connection.close()  # also if its task was cancelled before it began

    async def _refuse(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._accepting = None

    async def _cut(self) -> None:
        tasks = [connection.task for connection in self._connections]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _is_to_be_dropped(self) -> bool:
        """Whether the answer of the request that begins now is the one to be dropped."""
        if self._until_drop:
            self._until_drop -= 1
            return self._until_drop == 0
        return False


class _Connection:
    """A client and its connection to the server."""

    def __init__(self, client: socket.socket, proxy: CutProxy) -> None:
        self._proxy = proxy
        self._client = client
        self._server = socket.socket()
        self._begun = self._waits = self._drops = False
        self._last = b""
        self.task = asyncio.create_task(self._relay())

    async def _relay(self) -> None:
        """Forwards both directions until one ends. A cancelled one is reset."""
        ways: list[asyncio.Task[None]] = []
        for side in (self._client, self._server):
            side.setblocking(False)
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # As the database has it, which would notice a client that is cut off.
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 2)):
            self._client.setsockopt(socket.IPPROTO_TCP, option, value)
        try:
            await self._proxy._loop.sock_connect(self._server, self._proxy._server)
            ways = [asyncio.create_task(self._ask()), asyncio.create_task(self._answer())]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if any(way.done() and way.exception() for way in ways):
                self._reset()
        except (OSError, asyncio.CancelledError):
            self._reset()
        finally:
            for way in ways:
                way.cancel()
            if ways:
                await asyncio.gather(*ways, return_exceptions=True)
            self.close()

    def close(self) -> None:
        """Closes both sides."""
        self._client.close()
        self._server.close()

    def _reset(self) -> None:
        for side in (self._client, self._server):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)

    async def _ask(self) -> None:
        loop = self._proxy._loop
        while data := await loop.sock_recv(self._client, _CHUNK):
            await self._proxy._passing.wait()
            if self._begun and not self._waits and data != _TERMINATE:
                self._waits = True
                self._drops = self._proxy._is_to_be_dropped()
            await loop.sock_sendall(self._server, data)

    async def _answer(self) -> None:
        loop = self._proxy._loop
        while data := await loop.sock_recv(self._server, _CHUNK):
            await self._proxy._passing.wait()
            self._last = (self._last + data)[-len(_READY) - 1 :]
            if complete := self._last.startswith(_READY):
                self._begun, self._waits = True, False
            if not self._drops:
                await loop.sock_sendall(self._client, data)
            elif complete:  # and so the server has done what was asked
                self._proxy.dropped += 1
                raise ConnectionResetError("the answer is dropped")
