"""Calls between two actors: a `Line` at the caller, a `Desk` at the other end, one connection between.

An actor is an address: Ray places it, names it and starts it again. Asked once, it says where it
listens; from then on calls go to it over one TCP connection, any number at the same time. A Ray actor
call costs about 2 ms of CPU, caller and callee together, whatever it carries; a call on a line a tenth.

    Line ──[id, method, content]──►  Desk   a task for each call
         ◄──[id, answer, failure]──         in the order in which they are ready

A frame is its length (four bytes) and a msgpack array. The first frame of a connection is the desk's
secret, which only those can know who may call the actor; the desk's first frame is empty and says that the
secret was right. No call is sent before that, so a connection that was refused has run nothing.

A connection without the secret is a stranger (`mesh.net.strangers`). It may send `MAX_GREETING` bytes within
`GREET_WITHIN_S`, and a desk holds at most `MAX_STRANGERS` of them: over that, the oldest is closed.

A call has no order among others, and no deadline of its own. When the other end is gone, every call
without an answer raises `Gone`: it may have run, or not. A caller that gives up leaves the call running,
unless it asked for `call_off`: then the call is cancelled there, and waited for, as long as what must not be
broken off there takes within its own bounds.
"""

import asyncio
import hmac
import logging
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from typing import cast

import msgspec

from mesh.core.errors import MeshError
from mesh.net.strangers import BACKLOG, Strangers

MAX_FRAME = 256 * 1024 * 1024
MAX_GREETING = 64
MAX_STRANGERS = 256
GREET_WITHIN_S = 2.0
_CONNECT_WITHIN_S = 10.0
_CONNECT_TRIES = 5
_RETRY_S = 0.2
_SILENT_FOR_S = 15
"""How long a machine that vanished is waited for; a process that dies is noticed at once."""

_log = logging.getLogger("mesh.line")

Answer = Callable[[bytes], Awaitable[bytes]]


class Gone(MeshError):
    """The actor died, or the way to it broke: the call may have run, or not."""


class Failed(MeshError):
    """The other end raised what it should have answered: a bug there, told here."""


class Address(msgspec.Struct, frozen=True):
    """Where a desk listens, and the secret that opens it."""

    host: str
    port: int
    secret: bytes

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


class _Call(msgspec.Struct, frozen=True, array_like=True):
    id: int
    method: str  # empty: cancels the call with this id
    content: bytes


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    id: int
    content: bytes
    failure: str = ""


_pack = msgspec.msgpack.Encoder().encode
_unpack_call = msgspec.msgpack.Decoder(_Call).decode
_unpack_answer = msgspec.msgpack.Decoder(_Answer).decode


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


class _Connection(asyncio.Protocol):
    """One connection as frames; what comes of a frame is its subclasses' business."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()

    def frame_received(self, frame: bytes) -> None:
        raise NotImplementedError

    @property
    def max_frame(self) -> int:
        """How many bytes the next frame may have."""
        return MAX_FRAME

    def frame_too_large(self, size: int) -> None:
        """Ends the connection: what follows cannot be told apart."""
        _log.error("event=frame_too_large bytes=%d", size)
        self.close()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, frame: bytes) -> None:
        """Raises `Gone`. Waits while the other end does not read."""
        while self.is_open and not self._writable.is_set():
            await self._writable.wait()
        if self._transport is None or not self.is_open:
            raise Gone("the connection is closed")
        self._transport.write(_framed(frame))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not say that it is one
        self._writable.set()
        _notice_silence(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4 and self.is_open:
            size = int.from_bytes(buffer[start : start + 4], "big")
            end = start + 4 + size
            if size > self.max_frame:
                self.frame_too_large(size)
                buffer.clear()
                return
            if len(buffer) < end:
                break
            self.frame_received(bytes(buffer[start + 4 : end]))
            start = end
        del buffer[:start]

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()


def _notice_silence(of: socket.socket) -> None:
    of.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_FOR_S // 3)
        of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_FOR_S // 3)
        of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
        of.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_FOR_S * 1000)


class _Calling(_Connection):
    """The caller's end of one connection, and the calls on it that wait."""

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self._secret = secret
        self._answered = asyncio.Event()
        self._is_known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(asyncio.Transport, transport).write(_framed(self._secret))

    async def is_welcome(self) -> bool:
        """Whether the desk took the secret; waits until it took it or closed the connection."""
        await self._answered.wait()
        return self._is_known

    def frame_received(self, frame: bytes) -> None:
        if not self._is_known:
            self._is_known = True
            self._answered.set()
            return
        answer = _unpack_answer(frame)
        waiting = self.waiting.get(answer.id)
        if waiting is None or waiting.done():
            return
        if answer.failure:
            waiting.set_exception(Failed(answer.failure))
        else:
            waiting.set_result(answer.content)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._answered.set()
        for waiting in self.waiting.values():
            if not waiting.done():
                waiting.set_exception(Gone("the process at the other end died"))


class Line:
    """The caller's end. ``locate`` asks Ray where the actor listens now; raises `Gone` while it is
    nowhere. Used by one event loop."""

    def __init__(self, locate: Callable[[], Awaitable[Address]]) -> None:
        self._locate = locate
        self._ids = count()
        self._connection: _Calling | None = None
        self._connecting = asyncio.Lock()

    async def call(self, method: str, content: bytes = b"", *, call_off: bool = False) -> bytes:
        """The answer to one call. Raises `Gone` or `Failed`."""
        frame = _pack(_Call(number := next(self._ids), method, content))
        if len(frame) > MAX_FRAME:
            raise Failed(f"{method}: {len(content)} bytes are more than a call can carry ({MAX_FRAME})")
        connection = await self._connected()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        connection.waiting[number] = answer
        try:
            await connection.send(frame)
            return await (asyncio.shield(answer) if call_off else answer)
        except asyncio.CancelledError:
            if call_off and not answer.done():
                await connection.send(_pack(_Call(number, "", b"")))
                await asyncio.wait({answer})
            raise
        finally:
            del connection.waiting[number]
            answer.cancel()

    async def insist(self, method: str, content: bytes = b"") -> bytes:
        """`call`, again for as long as the other end is gone: for calls that may be repeated. Bounded by
        whoever calls."""
        while True:
            try:
                return await self.call(method, content)
            except Gone:
                await asyncio.sleep(_RETRY_S)

    def close(self) -> None:
        """Ends the connection; the next call makes another."""
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> _Calling:
        """The open connection, or a new one. Raises `Gone`."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        async with self._connecting:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            try:
                async with asyncio.timeout(_CONNECT_WITHIN_S):
                    self._connection = await self._welcomed()
            except (OSError, TimeoutError) as problem:
                raise Gone(f"the actor cannot be reached: {problem or 'timed out'}") from None
            return self._connection

    async def _welcomed(self) -> _Calling:
        """A connection whose secret the desk took. Tried again when it is refused: the actor may have been
        replaced meanwhile, or its desk may be full of strangers."""
        loop = asyncio.get_running_loop()
        for _ in range(_CONNECT_TRIES):
            address = await self._locate()
            calling = partial(_Calling, address.secret)
            _, connection = await loop.create_connection(calling, address.host, address.port)
            try:
                if await connection.is_welcome():
                    return connection
            except asyncio.CancelledError:
                connection.close()
                raise
            await asyncio.sleep(_RETRY_S * random.uniform(0.5, 1))
        raise Gone("the actor closes every connection before it takes a call")


class _Called(_Connection):
    """The desk's end of one connection. Takes no call before it saw the secret."""

    def __init__(self, desk: "Desk") -> None:
        super().__init__()
        self._desk = desk
        self._is_known = False
        self.calls: dict[int, asyncio.Task[None]] = {}

    @property
    def max_frame(self) -> int:
        return MAX_FRAME if self._is_known else MAX_GREETING

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._desk.strangers.add(self)

    def frame_too_large(self, size: int) -> None:
        if self._is_known:
            super().frame_too_large(size)
        else:
            self._desk.strangers.refuse(self, "greeting_too_large")

    def frame_received(self, frame: bytes) -> None:
        if self._is_known:
            self._desk.take(self, _unpack_call(frame))
        elif self._desk.opens(frame):
            self._is_known = True
            self._desk.strangers.remove(self)
            assert self._transport is not None
            self._transport.write(_framed(b""))
        else:
            self._desk.strangers.refuse(self, "wrong_secret")

    def abort(self) -> None:
        """Ends the connection at once: nothing that is on its way matters."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._desk.strangers.remove(self)


class Desk:
    """The callee's end: answers each call by the function for its method, in a task of its own."""

    def __init__(self, methods: Mapping[str, Answer]) -> None:
        self._methods = methods
        self._secret = secrets.token_bytes(16)
        self.strangers = Strangers(MAX_STRANGERS, GREET_WITHIN_S, _log)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str) -> Address:
        """Starts to listen, on a port that the system gives; where that is."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: _Called(self), host, 0, backlog=BACKLOG)
        return Address(host, self._server.sockets[0].getsockname()[1], self._secret)

    def opens(self, secret: bytes) -> bool:
        """Whether it is this desk's secret."""
        return hmac.compare_digest(secret, self._secret)

    def take(self, caller: "_Called", call: _Call) -> None:
        """Starts to answer a call, or cancels one."""
        if call.method:
            task = caller.calls[call.id] = asyncio.create_task(self._run(caller, call))
            self._tasks.add(task)  # a connection may go before the calls that came on it
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: caller.calls.pop(call.id))
        elif call.id in caller.calls:
            caller.calls[call.id].cancel()

    def close(self) -> None:
        """Takes no more connections."""
        if self._server is not None:
            self._server.close()

    async def _run(self, caller: _Connection, call: _Call) -> None:
        packed = _pack(await self._answered(call))
        if len(packed) > MAX_FRAME:
            packed = _pack(_Answer(call.id, b"", f"{call.method}: the answer has {len(packed)} bytes"))
        try:
            await caller.send(packed)
        except Gone:
            _log.info("event=caller_gone method=%s", call.method)

    async def _answered(self, call: _Call) -> _Answer:
        try:
            return _Answer(call.id, await self._methods[call.method](call.content))
        except asyncio.CancelledError:
            return _Answer(call.id, b"", "called off")
        except Exception as problem:  # noqa: BLE001 - answered, and logged here
            _log.exception("event=call_failed method=%s", call.method)
            return _Answer(call.id, b"", f"{type(problem).__name__}: {problem}")
