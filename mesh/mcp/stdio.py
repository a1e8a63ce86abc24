"""The transport to a server that runs as a subprocess: a pair of streams for the SDK's client.

Above: `mesh.mcp.connection`, which gives this to the SDK. Below: `mesh.processes.guard` and the server. It
takes the place of the SDK's own stdio transport, whose reader has no bound and takes quadratic time for a
long message, and whose server outlives a killed parent (`docs/decisions/mcp-transports.md`). It frames lines,
and knows JSON-RPC only as far as to tell a message from garbage.

Nothing here raises into the session: the read stream ends when the server does, and `problem` says why.
"""

import asyncio
import json
import logging
import signal
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from subprocess import PIPE
from types import TracebackType
from typing import Any, TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from mesh.core.errors import ToolSessionError
from mesh.mcp.programs import find_binary, server_environment
from mesh.mcp.session_file import SessionFile
from mesh.mcp.stderr import StderrLog
from mesh.processes import guard
from mesh.processes.groups import is_running, signal_group

logger = logging.getLogger("mesh.mcp")

EXIT_GRACE_S = 2.0
"""How long a server may take to exit after its stdin was closed."""
TERM_GRACE_S = 1.0
KILL_GRACE_S = 2.0
ENDS_WITHIN_S, STDERR_WITHIN_S = 1.0, 0.5
"""How long the end of a server is waited for whose output has ended, and then the rest of its stderr."""
OUTBOX = 16
"""Messages that may wait for a server that does not read its stdin."""
GARBAGE_BATCH = 64
_SAMPLED = 8192
"""Bytes of garbage that are redacted before they are cut to what is logged."""

Inbox: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]


def parse(line: bytes) -> SessionMessage | None:
    """Returns the message in a line of stdout, or None if there is none. Bad UTF-8 inside a message is
    replaced, and so is half of a surrogate pair."""
    # Most lines are valid as they are, so they are repaired only when they are not.
    for repaired in (bytes, _utf_8, _without_lone_surrogates):
        with suppress(ValueError, RecursionError):
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(repaired(line), by_name=False))
    return None


def _utf_8(line: bytes) -> bytes:
    return line.decode("utf-8", "replace").encode()


def _without_lone_surrogates(line: bytes) -> bytes:
    if b"\\u" not in line:
        raise ValueError("nothing is escaped")
    text = json.dumps(json.loads(_utf_8(line)), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


class StdioTransport:
    """One run of a server, from `__aenter__` to `__aexit__`; used once. See
    `mesh.mcp.connection.McpTransport`.

    ``on_end`` is called when the server's output ends, before `__aexit__`. ``max_line`` bounds a message, in
    bytes: a longer one kills the server, because where the next one begins could not be told. The guard holds
    the lock of ``file`` as long as it lives. ``memory_bytes`` bounds the memory of the server and its
    children; 0 for no bound.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        max_line: int,
        on_end: Callable[[], None],
        file: SessionFile | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self.name = name
        self.problem = ""
        self.reached_server = False
        self.session_expired = False
        self._command = command
        self._env = env
        self._max_line = max_line
        self._on_end = on_end
        self._file = file
        self._memory_bytes = memory_bytes
        self._stderr = StderrLog(name, env.values())
        self._is_aborted = False
        self._garbage = 0

    def begin_call(self) -> None:
        self.reached_server = False

    def abort(self, reason: str) -> None:
        self.problem = self.problem or reason
        self._is_aborted = True
        self._kill()

    def is_from_server(self, error: types.ErrorData) -> bool:
        # The SDK makes up an error only when the read stream ended, and that is seen by `on_end`.
        return True

    async def __aenter__(self) -> tuple[Any, Any]:
        self._process, self._pipes = await self._spawn()
        inbox, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, outbox = anyio.create_memory_object_stream[SessionMessage](OUTBOX)
        self._streams = (inbox, incoming, outgoing, outbox)
        assert self._process.stderr is not None
        self._tasks = [
            asyncio.create_task(self._read(inbox), name=f"mcp {self.name} stdout"),
            asyncio.create_task(self._write(outbox), name=f"mcp {self.name} stdin"),
            asyncio.create_task(self._stderr.pump(self._process.stderr), name=f"mcp {self.name} stderr"),
        ]
        return incoming, outgoing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Shielded, because a cancelled owner must not leave a process behind. Every wait inside is bounded.
        with anyio.CancelScope(shield=True):
            try:
                await self._stop()
            finally:
                self._signal(signal.SIGKILL)  # for what the server left behind in its group
                await self._group_ended()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                for stream in self._streams:
                    stream.close()
                self._pipes.close()

    async def _spawn(self) -> tuple[Process, asyncio.SubprocessTransport]:
        binary = find_binary(self._command[0], self._env)
        if binary is None:
            raise ToolSessionError(
                f"MCP server {self.name}: command {self._command[0]!r} is not found; install it, or give "
                "its full path in the config",
                may_have_run=False,
            )
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit=self._max_line, loop=loop),
            *guard.guarded([binary, *self._command[1:]], self._memory_bytes),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=server_environment(self._env),
            start_new_session=True,
            pass_fds=self._file.fds if self._file else (),
        )
        process = Process(transport, protocol, loop)
        if self._file is not None:
            try:
                self._file.record_group(process.pid)
            except ToolSessionError:  # the next session would not find what this one leaves behind
                signal_group(process.pid)
                await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=KILL_GRACE_S)
                transport.close()
                raise
        return process, transport

    async def _read(self, inbox: Inbox) -> None:
        assert self._process.stdout is not None
        try:
            with inbox, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._deliver(self._process.stdout, inbox)
        finally:
            self._on_end()
        # The session closed its stream first. Drain the pipe, so that a server that flushes its output can
        # exit.
        while await self._process.stdout.read(1 << 16):
            pass

    async def _deliver(self, stdout: asyncio.StreamReader, inbox: Inbox) -> None:
        while True:
            try:
                line = await stdout.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                return self.abort(f"it sent a line over the bound of {self._max_line} bytes")
            except asyncio.IncompleteReadError:
                self.problem = self.problem or await self._exit_message()
                return None
            message = parse(line)
            if message is None:
                await self._skip(line)
            else:
                self._garbage = 0
                await inbox.send(message)

    async def _skip(self, line: bytes) -> None:
        self._garbage += 1
        if self._garbage == 1:
            sample = self._stderr.redact(repr(line[:_SAMPLED]))[:120]
            logger.warning("[%s] stdout has something that is no MCP message, skipped: %s", self.name, sample)
        if self._garbage % GARBAGE_BATCH == 0:
            await asyncio.sleep(0)  # lines that are buffered are read without a pause: let other tasks run

    async def _write(self, outbox: MemoryObjectReceiveStream[SessionMessage]) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            async for item in outbox:
                self.reached_server = True  # before the write: what a failed write delivered is unknown
                stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            self.abort(f"it does not read its input ({type(error).__name__})")

    async def _exit_message(self) -> str:
        """Returns why the output ended, as far as that is known within a second."""
        if not await self._exited(ENDS_WITHIN_S):
            return "it closed its output"
        await asyncio.wait(self._tasks[2:], timeout=STDERR_WITHIN_S)  # the end of stderr says best why
        code = self._process.returncode or 0
        signalled = -code if code < 0 else code - 128 if 128 < code < 160 else 0
        how = f"was killed by signal {signalled}" if signalled else f"exited with code {code}"
        last = self._stderr.last_lines()
        return f"it {how}" + (f"; its last words: {last}" if last else "")

    async def _stop(self) -> None:
        """Closes stdin, then SIGTERM, then SIGKILL: the order of the specification, each step bounded."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not self._is_aborted and await self._exited(EXIT_GRACE_S):
            return
        if not self._is_aborted:
            self._signal(signal.SIGTERM)
            if await self._exited(TERM_GRACE_S):
                return
        self._kill()
        if await self._exited(TERM_GRACE_S):
            return
        self._signal(signal.SIGKILL)
        if not await self._exited(KILL_GRACE_S):
            logger.error("MCP server %s: process %d survives SIGKILL", self.name, self._process.pid)

    async def _group_ended(self) -> None:
        """Waits for the end of what was killed: it ends a moment after the signal, and what it does until
        then must be seen by whoever finds out what came of a call."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_GRACE_S):
                while await asyncio.to_thread(is_running, self._process.pid):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
                return
        logger.error("MCP server %s: processes of its group survive SIGKILL", self.name)

    async def _exited(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        return self._process.returncode is not None

    def _kill(self) -> None:
        """Has the guard kill all below it, because it also knows what left the group. A guard that does not,
        because it was stopped or killed, is left to `_stop`, which kills the group."""
        with suppress(ProcessLookupError):
            self._process.send_signal(guard.KILL_NOW)

    def _signal(self, number: int) -> None:
        """Sends a signal to the whole group: guard, server and its children."""
        signal_group(self._process.pid, number)
