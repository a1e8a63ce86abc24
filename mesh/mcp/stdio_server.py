"""The server's end of stdio: the stdin and stdout of this process, as a pair of streams for the SDK's server.

In place of the SDK's own `stdio_server`, which has no bound on a line and passes each through a dozen calls
of a worker thread. Here the event loop reads and writes the pipes, which halves the CPU time of a call
(`docs/decisions/mcp-transports.md`).
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import mcp_types as types
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from mesh.processes.own_stdio import detach_stdio

MAX_LINE = 4 << 20
"""Bytes of one message. Arguments are far smaller; without a bound, one line could take all memory."""
_TWO_ERAS = (
    "this connection serves the handshake protocol era; requests carrying the 2026-07-28 envelope are not "
    "accepted on it"
)
Incoming: TypeAlias = SessionMessage | Exception


class LineTooLong(OSError):
    """A line is over the bound. It ends the connection: where the next line begins could not be told."""


class IncomingMessages(ObjectReceiveStream[Incoming]):
    """The messages of stdin, until its end; for a line that is not one, the error.

    It is read by whoever wants the next message: a task that passes each on would cost as much as to read it.
    """

    def __init__(self, stdin: asyncio.StreamReader) -> None:
        self._stdin = stdin
        self._opening: Incoming | None = None

    async def opening(self) -> Incoming | None:
        """The first message, which is received again; None if there is none."""
        with suppress(anyio.EndOfStream):
            self._opening = await self.receive()
        return self._opening

    async def receive(self) -> Incoming:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            return opening
        try:
            line = await self._stdin.readuntil(b"\n")
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
        except asyncio.IncompleteReadError:
            raise anyio.EndOfStream from None
        except asyncio.LimitOverrunError:
            raise LineTooLong(f"a message is over the bound of {MAX_LINE} bytes") from None
        except ValueError as error:
            return error

    async def aclose(self) -> None:
        """Nothing is read any more: the pipe stays open until this process ends."""


class OutgoingMessages(ObjectSendStream[SessionMessage]):
    """Writes messages to stdout, a line each."""

    def __init__(self, stdout: asyncio.StreamWriter) -> None:
        self._stdout = stdout
        self._closed = False

    async def send(self, item: SessionMessage) -> None:
        """Raises `anyio.BrokenResourceError` if nobody reads any more."""
        if self._closed:
            raise anyio.ClosedResourceError
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            self._stdout.write(text.encode() + b"\n")
            await self._stdout.drain()
        except ConnectionError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Nothing is written any more: the pipe stays open until this process ends."""
        self._closed = True


async def serve(server: Server[Any]) -> None:
    """Runs a server until stdin ends. Raises `OSError` as `stdio_streams`."""
    options = server.create_initialization_options()
    async with stdio_streams() as (incoming, outgoing):
        if not _is_handshake(await incoming.opening()):
            await server.run(incoming, outgoing, options)
            return
        # `Server.run` would do the same, through a task that passes each message on, after it has looked at
        # the first one. The task takes a seventh of the time of a call.
        server.middleware.append(_refuse_envelopes)
        async with server.lifespan(server) as state:
            await serve_loop(server, incoming, outgoing, lifespan_state=state, init_options=options)


def _is_handshake(opening: Incoming | None) -> bool:
    """Whether a client begins with the handshake that the protocol had until 2025."""
    message = opening.message if isinstance(opening, SessionMessage) else None
    return isinstance(message, types.JSONRPCRequest) and message.method == "initialize"


async def _refuse_envelopes(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Refuses, as `Server.run` does, a request in the form of 2026 from a client that began with a
    handshake."""
    meta = (ctx.params or {}).get("_meta")
    is_enveloped = isinstance(meta, dict) and types.PROTOCOL_VERSION_META_KEY in meta
    if is_enveloped and ctx.request_id is not None and ctx.method != "initialize":
        raise MCPError(types.INVALID_REQUEST, _TWO_ERAS)
    return await call_next(ctx)


@asynccontextmanager
async def stdio_streams() -> AsyncIterator[tuple[IncomingMessages, OutgoingMessages]]:
    """Yields the streams of messages from stdin and to stdout, which must be pipes, sockets or terminals. The
    first ends when stdin does. From then on, ``print`` writes to stderr, and ``input`` finds nothing."""
    _check_usable()
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader(limit=MAX_LINE)
    incoming_pipe, pipe = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a tool prints by mistake must not get between the messages, and what it reads must not be one.
    detach_stdio()
    os.register_at_fork(after_in_child=partial(_cut_off, incoming_pipe.fileno(), pipe.fileno()))
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), incoming_pipe)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    stdout = asyncio.StreamWriter(transport, protocol, None, loop)
    yield IncomingMessages(stdin), OutgoingMessages(stdout)


def _check_usable() -> None:
    """Raises `OSError` if this process was not started as a server is: with /dev/null, or files."""
    for descriptor in (0, 1):
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
            raise OSError("stdin and stdout are no pipes: this is a server, which an MCP client starts")


def _event_loops() -> list[int]:
    """The descriptors through which the event loops of this process wait, where the kernel tells (Linux)."""
    folder, found = Path("/proc/self/fd"), []
    for entry in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # that of the folder itself
            if str(entry.readlink()) == "anon_inode:[eventpoll]":
                found.append(int(entry.name))
    return found


def _cut_off(*pipes: int) -> None:
    """Takes the messages, and the event loop that waits for them, from a copy of this process. A tool that
    forks would otherwise answer twice, and the copy would read messages that are not its own."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (*pipes, *_event_loops()):
        os.dup2(null, fd, inheritable=False)
    os.close(null)
