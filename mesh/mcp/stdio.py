"""A server's subprocess as the pair of streams that the SDK's client takes.

Above: `mesh.mcp.link`, which hands this to the SDK. Below: `mesh.processes.guard` and the server. It takes
the place of the SDK's own stdio transport, whose reader is unbounded and quadratic in the size of a
message, and whose server outlives a killed parent. It frames lines and knows JSON-RPC only as far as
to tell a message from garbage.

Nothing here raises into the session: the read stream ends when the server does, and `trouble` says
why.
"""

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from types import TracebackType
from typing import TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from mesh.core.errors import ToolSessionError
from mesh.mcp.session_file import SessionFile
from mesh.mcp.stderr import StderrLog
from mesh.processes import guard
from mesh.processes.groups import signal_group

logger = logging.getLogger("mesh.mcp")

EXIT_GRACE_S = 2.0
TERM_GRACE_S = 1.0
REAP_S = 2.0
OUTBOX = 16
GARBAGE_A_TURN = 64

Inbox: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]
Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What a server inherits (the SDK's short safe list, PATH and HOME among it) plus its own."""
    return get_default_environment() | dict(env)


def find_binary(command: str, env: Mapping[str, str] | None = None) -> str | None:
    """The absolute path of ``command`` on the PATH a server gets, or beside this Python (where console
    scripts of the same virtual environment are), or None."""
    path = server_environment(env or {}).get("PATH")
    found = shutil.which(command, path=path) or shutil.which(command, path=str(Path(sys.executable).parent))
    return os.path.abspath(found) if found else None  # noqa: PTH100 - a symlink must stay one


def parse(line: bytes) -> SessionMessage | None:
    """A line of stdout as a message; None when it is none. Bad UTF-8 inside a message is replaced, and so is
    half of a surrogate pair."""
    for made in (bytes, _utf_8, _of_whole_characters):
        with suppress(ValueError, RecursionError):
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(made(line), by_name=False))
    return None


def _utf_8(line: bytes) -> bytes:
    return line.decode("utf-8", "replace").encode()


def _of_whole_characters(line: bytes) -> bytes:
    if b"\\u" not in line:
        raise ValueError("nothing is escaped")
    text = json.dumps(json.loads(_utf_8(line)), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


class StdioWire:
    """One run of a server, from `__aenter__` to `__aexit__`; used once.

    ``on_end`` is called when the server's output ends, before `__aexit__`. ``max_line`` (bytes) bounds
    a message: a longer one kills the server, for what follows it could not be told apart. The guard holds
    the lock of ``file`` as long as it lives.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        max_line: int,
        on_end: Callable[[], None],
        file: SessionFile | None = None,
    ) -> None:
        self.name = name
        self.trouble = ""
        self.reached = False
        self.forgotten = False
        self._command = command
        self._env = env
        self._max_line = max_line
        self._on_end = on_end
        self._file = file
        self._log = StderrLog(name, env.values())
        self._patient = True
        self._garbage = 0

    def mark(self) -> None:
        """From here on `reached` says whether anything was written to the server."""
        self.reached = False

    def doom(self, why: str) -> None:
        """The server is beyond hope: kill it now."""
        self.trouble = self.trouble or why
        self._patient = False
        self._signal(signal.SIGKILL)

    async def __aenter__(self) -> Streams:
        self._process, self._transport = await self._spawn()
        inbox, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, outbox = anyio.create_memory_object_stream[SessionMessage](OUTBOX)
        self._streams = (inbox, incoming, outgoing, outbox)
        self._tasks = [
            asyncio.create_task(self._read(inbox), name=f"mcp {self.name} stdout"),
            asyncio.create_task(self._write(outbox), name=f"mcp {self.name} stdin"),
            asyncio.create_task(self._pump(), name=f"mcp {self.name} stderr"),
        ]
        return incoming, outgoing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Shielded, as a cancelled owner must not leave a process behind; every wait inside is bounded.
        with anyio.CancelScope(shield=True):
            try:
                await self._stop()
            finally:
                self._signal(signal.SIGKILL)  # what the server left behind in its group
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                for stream in self._streams:
                    stream.close()
                self._transport.close()

    async def _spawn(self) -> tuple[Process, asyncio.SubprocessTransport]:
        binary = find_binary(self._command[0], self._env)
        if binary is None:
            raise ToolSessionError(
                f"MCP server {self.name}: command {self._command[0]!r} is not found; install it, or give "
                "its full path in the config",
                may_have_run=False,
            )
        guarded = [
            sys.executable,
            "-I",
            "-S",
            guard.__file__,
            str(os.getpid()),
            "--",
            binary,
            *self._command[1:],
        ]
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit=self._max_line, loop=loop),
            *guarded,
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
            except ToolSessionError:  # nobody after this session would find what it leaves
                signal_group(process.pid)
                await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=REAP_S)
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
        # The session has gone first: drain, so that a server that flushes can reach its end.
        while await self._process.stdout.read(1 << 16):
            pass

    async def _deliver(self, stdout: asyncio.StreamReader, inbox: Inbox) -> None:
        while True:
            try:
                line = await stdout.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                return self.doom(f"it sent a line over the bound of {self._max_line} bytes")
            except asyncio.IncompleteReadError:
                self.trouble = self.trouble or await self._epitaph()
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
            sample = self._log.hide(repr(line[:120]))
            logger.warning("[%s] stdout has something that is no MCP message, skipped: %s", self.name, sample)
        if self._garbage % GARBAGE_A_TURN == 0:
            await asyncio.sleep(0)  # lines already buffered are read without a pause: let others run

    async def _write(self, outbox: MemoryObjectReceiveStream[SessionMessage]) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            async for item in outbox:
                self.reached = True
                stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            self.doom(f"it does not read its input ({type(error).__name__})")

    async def _pump(self) -> None:
        assert self._process.stderr is not None
        await self._log.pump(self._process.stderr)

    async def _epitaph(self) -> str:
        """Why the output ended, as far as it can be known within a second."""
        if not await self._exited(1.0):
            return "it closed its output"
        await asyncio.wait(self._tasks[2:], timeout=0.5)
        code = self._process.returncode or 0
        signalled = -code if code < 0 else code - 128 if 128 < code < 160 else 0
        how = f"was killed by signal {signalled}" if signalled else f"exited with code {code}"
        words = self._log.last_words()
        return f"it {how}" + (f"; its last words: {words}" if words else "")

    async def _stop(self) -> None:
        """Closes stdin, then SIGTERM, then SIGKILL: the order of the specification, each step bounded."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._patient and await self._exited(EXIT_GRACE_S):
            return
        if self._patient:
            self._signal(signal.SIGTERM)
            if await self._exited(TERM_GRACE_S):
                return
        self._signal(signal.SIGKILL)
        if not await self._exited(REAP_S):
            logger.error("MCP server %s: process %d survives SIGKILL", self.name, self._process.pid)

    async def _exited(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        return self._process.returncode is not None

    def _signal(self, number: int) -> None:
        """To the whole group: guard, server and its children."""
        signal_group(self._process.pid, number)
