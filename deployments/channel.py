"""The transport of calls between actors: a `Channel` at the caller, an `Endpoint` at the other actor.

Ray places an actor, names it and starts it again. A caller asks it once, through Ray, where its endpoint
listens; from then on calls go to it over one TCP connection, any number at the same time. A call through Ray
costs about 2 ms of CPU, caller and callee together, whatever it carries; on a channel a hundredth of that
(see docs/decisions/actor-calls.md).

    Channel ──[id, method, content]──►  Endpoint   one task per call
            ◄──[id, result, failure]──             in the order in which they are ready

Above: `deployments.rpc`, which gives calls their types. A channel knows bytes only.

A frame is its length (four bytes, big-endian) and a msgpack array. The first frame of a connection is the
endpoint's secret, which is known only to those who may call the actor; the endpoint answers with the number
of its protocol, which also says that the secret was right. No call is sent before that, so a connection that
was refused has run nothing. Then the caller says its number. While a cluster is upgraded, processes of two
releases call each other; one that is older than `OLDEST_PROTOCOL` is told so, and nothing it calls is run.

With TLS a connection counts as made after its handshake, which may take `GREET_WITHIN_S`: those in theirs are
bounded by that, and by the number of files that the process may open.

A connection that has not sent the secret is unauthenticated (`mesh.net.admission`). It may send
`MAX_GREETING` bytes within `GREET_WITHIN_S`, and an endpoint holds at most `MAX_UNAUTHENTICATED` of them:
above that, the oldest is closed.

Does not promise: an order among calls; a deadline; that a call which raised `ConnectionLost` has not run.
A caller that is cancelled leaves its call running, unless it asked for ``cancels``: then the call is
cancelled at the other end too, and the caller waits until it has ended there.
"""

import asyncio
import hmac
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Protocol, cast

import msgspec

from mesh.core.errors import MeshError, NotHeld, Unavailable
from mesh.net.admission import BACKLOG, PendingConnections
from mesh.net.backoff import jittered

PROTOCOL = 1
"""The number of how calls are written: the frames here, and what they carry (`deployments.services`). A
release that writes what the one before cannot read has the next number, and writes the older form to those
that are older. 0, which says nothing, is that of the first release of this transport."""
OLDEST_PROTOCOL = 0
"""The number of the release before."""
MAX_FRAME = 256 * 1024 * 1024
MAX_GREETING = 64
MAX_UNAUTHENTICATED = 256
GREET_WITHIN_S = 2.0
_CONNECT_WITHIN_S = 10.0
_CONNECT_TRIES = 5
_RETRY_S = 0.2
_SILENT_FOR_S = 9
"""How long a machine may not answer before its connections count as lost. A process that dies is noticed at
once, because its kernel closes the connection."""

_CANCEL = ""
"""The method of a frame that cancels the call with its id."""
_HELLO = "hello"
"""The method of the caller's first frame after the secret: the number of its protocol."""
_PING = "ping"
"""The method of a frame that asks whether the process at the other end runs. Its id is negative, and tells
how many bytes came before it."""
_PING_EVERY_S = 3.0
"""While calls wait: a process that is stopped, or whose event loop is blocked, keeps its connections."""
_MOST_UNANSWERED = 10
"""So many pings in a row may have no answer. They are counted, and not timed: a caller that was stopped
itself has not asked."""
_BYTES_BETWEEN_PINGS = 3_000_000
"""Where it takes longer to send so much, a long call delays the answers too much."""

_log = logging.getLogger("mesh.channel")

Answer = Callable[[bytes], Awaitable[bytes]]


class ConnectionLost(Unavailable):
    """The actor died, or the connection to it broke. The call may have run or not."""


class Moved(ConnectionLost):
    """The actor is there, and does not have any more what was called. The call may have run or not."""


class CallFailed(MeshError):
    """The other end raised an error that is not part of its contract, or the call does not fit into a frame:
    a defect, which is logged where it happened."""


class Address(msgspec.Struct, frozen=True):
    """Where an endpoint listens, and the secret that it asks for."""

    host: str
    port: int
    secret: bytes

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


class _Call(msgspec.Struct, frozen=True, array_like=True):
    id: int
    method: str
    content: bytes


class _Result(msgspec.Struct, frozen=True, array_like=True):
    id: int
    content: bytes
    failure: str = ""
    is_moved: bool = False


_pack = msgspec.msgpack.Encoder().encode
_unpack_call = msgspec.msgpack.Decoder(_Call).decode
_unpack_result = msgspec.msgpack.Decoder(_Result).decode


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def _as_frame(protocol: int) -> bytes:
    """The number of a protocol as it travels. The release before said nothing, which reads as 0."""
    return protocol.to_bytes(4, "big")


def _problem_of(who: str, protocol: int) -> str:
    """Why a process with this protocol is not talked to; empty if it is."""
    if protocol >= OLDEST_PROTOCOL:
        return ""
    return (
        f"the {who} has protocol {protocol}, and this process {OLDEST_PROTOCOL} to {PROTOCOL}: upgrade by "
        "one release at a time"
    )


class _Connection(asyncio.Protocol):
    """One connection as a sequence of frames. Subclasses say what a frame means."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()

    def frame_received(self, frame: bytes) -> None:
        raise NotImplementedError

    @property
    def max_frame(self) -> int:
        """The maximum size of the next frame in bytes."""
        return MAX_FRAME

    def frame_too_large(self, size: int) -> None:
        """Closes the connection, because nothing tells where the next frame would begin."""
        _log.error("event=frame_too_large bytes=%d", size)
        self.close()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, frame: bytes) -> None:
        """Raises `ConnectionLost`. Waits while the other end does not read."""
        # A loop, because another sender may have filled the buffer again before this one runs.
        while self.is_open and not self._writable.is_set():
            await self._writable.wait()
        if self._transport is None or not self.is_open:
            raise ConnectionLost("the connection is closed")
        self._transport.write(_framed(frame))

    def write(self, frame: bytes) -> None:
        """Sends a frame without waiting for the other end, unless the connection is closed."""
        if self._transport is not None and self.is_open:
            self._transport.write(_framed(frame))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once and discards what is buffered."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not derived from it
        self._writable.set()
        _detect_silence(transport.get_extra_info("socket"))

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
        self._writable.set()  # whoever waits in `send` finds the connection closed


def _detect_silence(connection: socket.socket) -> None:
    """Has the kernel close the connection when the other machine is silent for `_SILENT_FOR_S`."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the defaults of the system hold
        # Probes notice silence on an idle connection, the user timeout notices it while data is sent.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_FOR_S // 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_FOR_S // 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_FOR_S * 1000)


class _ToEndpoint(_Connection):
    """The caller's side of one connection, with the calls on it that have no result yet."""

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self.protocol = 0  # of the endpoint
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self._secret = secret
        self._pinging: asyncio.TimerHandle | None = None
        self._unanswered = 0
        self._sent = 0
        self._arrived = 0
        self._answered = asyncio.Event()
        self._is_accepted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(asyncio.Transport, transport).write(_framed(self._secret))

    async def is_accepted(self) -> bool:
        """Whether the endpoint accepted the secret; waits until it has accepted it or closed the
        connection."""
        await self._answered.wait()
        return self._is_accepted

    def data_received(self, data: bytes) -> None:
        self._unanswered = 0
        super().data_received(data)

    def frame_received(self, frame: bytes) -> None:
        if not self._is_accepted:
            self.protocol = int.from_bytes(frame, "big")
            if self.protocol:
                self.write(_pack(_Call(0, _HELLO, _as_frame(PROTOCOL))))
            self._is_accepted = True
            self._answered.set()
            return
        result = _unpack_result(frame)
        if result.id < 0:
            self._arrived = -result.id - 1
        waiting = self.waiting.get(result.id)
        if waiting is None or waiting.done():
            return  # its caller gave up
        if result.is_moved:
            waiting.set_exception(Moved(result.failure))
        elif result.failure:
            waiting.set_exception(CallFailed(result.failure))
        else:
            waiting.set_result(result.content)

    async def send(self, frame: bytes) -> None:
        await super().send(frame)
        self._sent += len(frame)

    def wait_for(self, number: int) -> asyncio.Future[bytes]:
        """The result of a call, to come."""
        loop = asyncio.get_running_loop()
        self.waiting[number] = result = loop.create_future()
        if self._pinging is None:
            self._unanswered = 0
            self._pinging = loop.call_later(_PING_EVERY_S, self._ping)
        return result

    def _ping(self) -> None:
        self._pinging = None
        self.write(_pack(_Call(-self._sent - 1, _PING, b"")))  # also to learn what has arrived
        if not self.waiting or self._transport is None:
            return
        if self._unanswered >= _MOST_UNANSWERED + (self._sent - self._arrived) // _BYTES_BETWEEN_PINGS:
            _log.warning("event=peer_stopped pings=%d calls=%d", self._unanswered, len(self.waiting))
            self.abort()
            return
        self._unanswered += 1
        self._pinging = asyncio.get_running_loop().call_later(_PING_EVERY_S, self._ping)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._answered.set()
        for waiting in self.waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost("the process at the other end died, or does not answer"))


class Calls(Protocol):
    """What carries calls: a `Channel`, or what finds one for each call."""

    async def call(
        self, method: str, content: bytes = b"", *, cancels: bool = False, end_within_s: float | None = None
    ) -> bytes:
        """The result of one call. Raises `ConnectionLost` or `CallFailed`."""
        ...


class Channel:
    """The caller's side. ``locate`` asks Ray where the actor listens now; it raises `ConnectionLost` while
    the actor is nowhere. ``tls``: what encrypts the connection (`deployments.tls`). Used by one event
    loop."""

    def __init__(self, locate: Callable[[], Awaitable[Address]], tls: ssl.SSLContext | None = None) -> None:
        self._locate = locate
        self._tls = tls
        self._ids = count()
        self._connection: _ToEndpoint | None = None
        self._connecting: asyncio.Task[_ToEndpoint] | None = None

    async def call(
        self, method: str, content: bytes = b"", *, cancels: bool = False, end_within_s: float | None = None
    ) -> bytes:
        """The result of one call. Raises `ConnectionLost` or `CallFailed`."""
        frame = _pack(_Call(number := next(self._ids), method, content))
        if len(frame) > MAX_FRAME:
            raise CallFailed(f"{method}: {len(content)} bytes are more than a call can carry ({MAX_FRAME})")
        connection = await self._connected()
        result, is_sent = connection.wait_for(number), False
        try:
            await connection.send(frame)
            is_sent = True
            return await (asyncio.shield(result) if cancels else result)
        except asyncio.CancelledError:
            if cancels and is_sent and not result.done():
                with suppress(ConnectionLost):
                    await connection.send(_pack(_Call(number, _CANCEL, b"")))
                # Without a bound here, as long as what must not be broken off there takes, which has its own.
                await asyncio.wait({result}, timeout=end_within_s)
            raise
        finally:
            del connection.waiting[number]
            result.cancel()

    def close(self) -> None:
        """Closes the connection; the next call opens another."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort()

    async def _connected(self) -> _ToEndpoint:
        """The open connection, or a new one. Raises `ConnectionLost`."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        # Calls that come at the same time share one connection, or its failure. None of them is cancelled
        # with another one.
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect_in_time())
            # All who wait may have given up by then.
            self._connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
        connecting = self._connecting
        await asyncio.wait({connecting})
        try:
            return connecting.result()
        except asyncio.CancelledError:
            raise ConnectionLost("the channel was closed while it connected") from None

    async def _connect_in_time(self) -> _ToEndpoint:
        try:
            async with asyncio.timeout(_CONNECT_WITHIN_S):
                self._connection = await self._connect()
        except (OSError, TimeoutError) as problem:
            raise ConnectionLost(f"the actor cannot be reached: {problem or 'timed out'}") from None
        return self._connection

    async def _connect(self) -> _ToEndpoint:
        """A connection that the endpoint accepted. Tried again when it is refused: the actor may have been
        replaced since it was located, or its endpoint may be full of unauthenticated connections."""
        loop = asyncio.get_running_loop()
        for _ in range(_CONNECT_TRIES):
            address = await self._locate()
            protocol = partial(_ToEndpoint, address.secret)
            _, connection = await loop.create_connection(protocol, address.host, address.port, ssl=self._tls)
            try:
                if await connection.is_accepted():
                    if problem := _problem_of("other end", connection.protocol):
                        connection.close()
                        raise CallFailed(problem)
                    return connection
            except asyncio.CancelledError:
                connection.close()
                raise
            await asyncio.sleep(jittered(_RETRY_S))
        raise ConnectionLost("the actor closes every connection before it takes a call")


class _FromCaller(_Connection):
    """The endpoint's side of one connection. Takes no call before it has received the secret."""

    def __init__(self, endpoint: "Endpoint") -> None:
        super().__init__()
        self._endpoint = endpoint
        self._is_authenticated = False
        self.protocol = 0  # of the caller
        self.calls: dict[int, asyncio.Task[None]] = {}

    @property
    def max_frame(self) -> int:
        return MAX_FRAME if self._is_authenticated else MAX_GREETING

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._endpoint.unauthenticated.add(self)

    def frame_too_large(self, size: int) -> None:
        if self._is_authenticated:
            super().frame_too_large(size)
        else:
            self._endpoint.unauthenticated.refuse(self, "greeting_too_large")

    def frame_received(self, frame: bytes) -> None:
        if self._is_authenticated:
            call = _unpack_call(frame)
            if call.method == _HELLO:
                self.protocol = int.from_bytes(call.content, "big")
            else:
                self._endpoint.take(self, call)
        elif self._endpoint.accepts(frame):
            self._is_authenticated = True
            self._endpoint.unauthenticated.remove(self)
            assert self._transport is not None
            self._transport.write(_framed(_as_frame(PROTOCOL)))
        else:
            self._endpoint.unauthenticated.refuse(self, "wrong_secret")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._endpoint.unauthenticated.remove(self)


class Endpoint:
    """The called actor's side: answers each call by the function of its method, in a task of its own. ``tls``
    as in `Channel`."""

    def __init__(self, methods: Mapping[str, Answer], tls: ssl.SSLContext | None = None) -> None:
        self._methods = methods
        self._tls = tls
        self._secret = secrets.token_bytes(16)
        self.unauthenticated = PendingConnections(MAX_UNAUTHENTICATED, GREET_WITHIN_S, _log)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str) -> Address:
        """Starts to listen on a port that the system chooses, and returns the address."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: _FromCaller(self),
                host,
                0,
                backlog=BACKLOG,
                ssl=self._tls,
                ssl_handshake_timeout=GREET_WITHIN_S if self._tls else None,
            )
        return Address(host, self._server.sockets[0].getsockname()[1], self._secret)

    def accepts(self, secret: bytes) -> bool:
        """Whether this is the endpoint's secret."""
        return hmac.compare_digest(secret, self._secret)

    def take(self, caller: "_FromCaller", call: _Call) -> None:
        """Starts to answer a call, or cancels one."""
        if problem := _problem_of("caller", caller.protocol):
            caller.write(_pack(_Result(call.id, b"", problem)))
        elif call.method == _PING:
            caller.write(_pack(_Result(call.id, b"")))
        elif call.method != _CANCEL:
            task = caller.calls[call.id] = asyncio.create_task(self._run(caller, call))
            self._tasks.add(task)  # a connection may be gone before the calls that came on it have ended
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: caller.calls.pop(call.id))
        elif call.id in caller.calls:
            caller.calls[call.id].cancel()

    def close(self) -> None:
        """Accepts no more connections."""
        if self._server is not None:
            self._server.close()

    async def _run(self, caller: _Connection, call: _Call) -> None:
        packed = _pack(await self._result(call))
        if len(packed) > MAX_FRAME:
            packed = _pack(_Result(call.id, b"", f"{call.method}: the answer has {len(packed)} bytes"))
        try:
            await caller.send(packed)
        except ConnectionLost:
            _log.info("event=caller_gone method=%s", call.method)

    async def _result(self, call: _Call) -> _Result:
        try:
            return _Result(call.id, await self._methods[call.method](call.content))
        except asyncio.CancelledError:
            return _Result(call.id, b"", "cancelled")  # its caller waits until it has ended
        except NotHeld as problem:
            return _Result(call.id, b"", str(problem), is_moved=True)
        except Exception as problem:  # noqa: BLE001 - the caller is told, and the log has the traceback
            _log.exception("event=call_failed method=%s", call.method)
            return _Result(call.id, b"", f"{type(problem).__name__}: {problem}")
