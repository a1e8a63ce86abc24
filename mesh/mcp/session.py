"""A session with one MCP server that survives the server's crashes: the `ToolSession` over the SDK.

Above: an actor, or a toolbox in the same process. Below: `mesh.mcp.connection`.

    call() ──► queue (bounded) ──► owner task: one connection after another
                                     each: open it, list the tools, make the calls one by one
                                     between two: back off

- A caller waits in its own task, so that the deadline of its call holds whatever the owner is doing.
- Each connection has a task of its own: what the SDK cancels when a connection breaks ends with that.
- A call that certainly did not reach the server goes back to the head of the queue and waits for the next
  connection, until its deadline. A call that may have run ends with its connection, and says so.
- After a call that was abandoned, the server must answer a ping within 2 s, or it is killed. If it was a
  claimed call of a tool with a check, a server in a subprocess is killed in any case: a check that found no
  effect of a call which still runs would let it happen twice.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Any

import anyio

from mesh.core.errors import ToolSessionError, Unavailable
from mesh.core.execution import ExecutionContext
from mesh.mcp.call_records import ClaimedCalls, SessionCall
from mesh.mcp.catalogue import LatestCatalogue
from mesh.mcp.connection import McpConnection, McpConnectionLost, ServerSpec, open_connection
from mesh.mcp.port import Catalogue, Claim, ToolOutcome
from mesh.mcp.progress import OnProgress
from mesh.mcp.session_file import SessionFile
from mesh.net.backoff import Backoff

logger = logging.getLogger("mesh.mcp")

MAX_QUEUED = 1000
BACKOFF = Backoff(first_s=0.1, longest_s=10.0)
STABLE_AFTER_S = 10.0
"""After this time, or a call that was answered, the next failure of a connection counts as the first."""
CLOSE_TIMEOUT_S = 8.0
"""More than a transport needs to end a server that does not want to."""

__all__ = ["McpSession", "ServerSpec"]


class QueuedCall(SessionCall):
    """A call on its way. `connection` is the one it was handed to; `scope` ends it while it is in flight.
    `is_over` is set when the connection has turned to other calls, or has ended."""

    def __init__(
        self,
        name: str,
        arguments: dict[str, Any],
        claim: Claim | None,
        context: ExecutionContext | None,
    ) -> None:
        super().__init__(name, arguments, claim, context)
        self.scope = anyio.CancelScope()
        self.connection: McpConnection | None = None
        self.is_over = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        return self.connection is not None

    @property
    def may_have_run(self) -> bool:
        return self.connection is not None and self.connection.transport.reached_server


class McpSession:
    """See the module and `mesh.mcp.port.ToolSession`. Starts on first use, in the running loop. Of all
    sessions with one ``file``, one runs at a time. ``memory_bytes`` bounds the memory of a server in a
    subprocess, with its children; 0 for no bound."""

    def __init__(self, server: ServerSpec, file: SessionFile | None = None, memory_bytes: int = 0) -> None:
        self._server = server
        self._file = file
        self._memory_bytes = memory_bytes
        self._claimed: ClaimedCalls[QueuedCall] = ClaimedCalls()
        self._queue: deque[QueuedCall] = deque()
        self._current: QueuedCall | None = None
        self._wake = asyncio.Event()
        self._latest = LatestCatalogue(server.name)
        self._owner: asyncio.Task[None] | None = None
        self._closed = False
        self._is_up = False
        self._is_stable = False
        self._problem = ""

    async def catalogue(self) -> Catalogue:
        await self._start()
        return await self._latest.first(self._server.start_timeout_s)

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        await self._start()
        newest = await self._latest.newer(version, timeout_s)
        if newest is None:
            raise self._not_up()
        return newest

    async def identity(self) -> str:
        await self.catalogue()
        return self._claimed.session

    async def backlog(self) -> int:
        if not self._is_up:
            raise self._not_up()
        return len(self._queue) + (self._current is not None)

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolOutcome:
        await self._start()
        call = self._claimed.find(claim, name, arguments) if claim else None
        if call is None:
            if len(self._queue) >= MAX_QUEUED:
                # Revoked calls stay in the queue until their turn: they must not take the place of others.
                self._queue = deque(each for each in self._queue if not each.answer.done())
            if len(self._queue) >= MAX_QUEUED:
                raise ToolSessionError(self._message(f"{MAX_QUEUED} calls wait already"), may_have_run=False)
            call = QueuedCall(name, arguments, claim, context)
            if claim is not None:
                self._claimed.add(claim, call)
            self._enqueue(call, self._server.timeout_s if timeout_s is None else timeout_s)
        if on_progress is not None:
            call.progress.add(on_progress)
        try:
            return await asyncio.shield(call.answer)
        except asyncio.CancelledError:
            if claim is None:  # a claimed call goes on: its outcome will be asked for
                self._abandon(call, self._message(f"tool {name!r}: its caller went away"))
            raise

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        try:
            await self._start()
        except ToolSessionError as problem:  # an earlier session may still be running the call
            raise Unavailable(str(problem)) from None
        try:
            return await self._claimed.settle(claim)
        except ToolSessionError:
            if self._current is not None and self._current.claim == claim:
                await self._current.is_over.wait()
            raise

    async def stop(self, claim: Claim) -> None:
        if (call := self._claimed.running(claim)) is not None:
            self._abandon(call, self._message(f"tool {call.name!r} was stopped: nobody wants its result"))

    def _enqueue(self, call: QueuedCall, bound: float) -> None:
        """Adds a call to the queue. From here on its deadline holds, whether or not anybody waits for it."""
        deadline = asyncio.get_running_loop().call_later(
            bound, lambda: self._abandon(call, self._timeout_message(call, bound))
        )
        call.answer.add_done_callback(lambda _: deadline.cancel())
        self._queue.append(call)
        self._wake.set()

    def _abandon(self, call: QueuedCall, why: str) -> None:
        call.fail(ToolSessionError(why, call.may_have_run))
        call.scope.cancel()
        with suppress(ValueError):
            self._queue.remove(call)

    async def close(self) -> None:
        self._closed = True
        owner, self._owner = self._owner, None
        if owner is not None:
            await end_task(owner, self._server.name)
        self._fail_all(self._message("the session is closed"))
        if self._file is not None:
            self._file.release()

    async def _start(self) -> None:
        """Starts the owner task, once nothing of an earlier session's server runs."""
        if self._closed:
            raise ToolSessionError(self._message("the session is closed"), may_have_run=False)
        if self._file is not None and not self._claimed.is_open:
            await self._file.take()
            # Several callers may have waited for the file. One of them opens the calls: if each did, each
            # would begin a generation, and the first ones would be forgotten.
            if not self._claimed.is_open:
                self._claimed.open(self._file)
        if self._owner is None and not self._closed:
            self._owner = asyncio.create_task(self._run(), name=f"mcp {self._server.name}")

    async def _run(self) -> None:
        """Runs one connection after another, until cancelled."""
        failures = 1  # a server that never came up waits longer than one that ran
        while True:
            self._is_stable = False
            task = asyncio.create_task(self._run_connection(), name=f"mcp {self._server.name} connection")
            try:
                await asyncio.wait([task])
            finally:
                await end_task(task, self._server.name)
            self._clean_up(task)
            failures = 1 if self._is_stable else failures + 1
            await asyncio.sleep(BACKOFF.delay(failures))

    async def _run_connection(self) -> None:
        await self._keep_file()
        opened = asyncio.get_running_loop().time()
        async with open_connection(
            self._server, self._wake.set, self._file, self._memory_bytes
        ) as connection:
            await self._refresh(connection)
            logger.info("MCP server %s is up", self._server.name)
            self._is_up = True
            while True:
                await self._step(connection)
                self._is_stable = (
                    self._is_stable or asyncio.get_running_loop().time() - opened > STABLE_AFTER_S
                )

    async def _keep_file(self) -> None:
        """Takes the file again if it was removed. Raises `ToolSessionError` if another session has lived
        meanwhile: it may have said of a call in this queue that its outcome is unknown, so that the call must
        not run."""
        if self._file is None or not self._file.is_removed:
            return
        is_alone = await self._file.take_again()
        self._claimed.open(self._file)
        if not is_alone:
            why = "its file was removed, and another session has lived meanwhile"
            raise ToolSessionError(self._message(why), may_have_run=False)

    async def _step(self, connection: McpConnection) -> None:
        # Invariant: cleared before the conditions are read, so that a wake-up is never lost.
        self._wake.clear()
        if connection.has_ended:
            raise McpConnectionLost(connection.transport.problem or "the connection ended")
        if connection.is_stale:
            await self._refresh(connection)
        elif self._queue:
            await self._serve(connection, self._queue.popleft())
        else:
            await self._wake.wait()

    async def _refresh(self, connection: McpConnection) -> None:
        bound = self._server.start_timeout_s
        with anyio.move_on_after(bound) as timeout:
            self._latest.update(await connection.tools())
        if timeout.cancelled_caught:
            connection.transport.abort(f"it did not list its tools within {bound:g} s")
            raise McpConnectionLost(connection.transport.problem)

    async def _serve(self, connection: McpConnection, call: QueuedCall) -> None:
        if call.answer.done():
            return
        if call.claim is not None and self._file is not None and self._file.is_removed:
            self._queue.appendleft(call)
            raise McpConnectionLost(f"the file of its session was removed from {self._file.folder}")
        try:
            self._claimed.begin(call)
        except ToolSessionError as problem:
            call.fail(problem)
            return
        # Invariant: from here to the answer, whatever ends this connection finds the call in `_current`.
        self._current, call.connection = call, connection
        with call.scope:
            on_progress = call.progress.tell if call.progress.is_wanted else None
            outcome = await connection.call(call.name, call.arguments, call.context, on_progress)
            self._is_stable = True
            call.succeed(outcome)
        if call.scope.cancelled_caught and self._must_not_go_on(call):
            connection.transport.abort(f"tool {call.name!r} was given up, and must have ended for its check")
            raise McpConnectionLost(connection.transport.problem)
        self._leave()
        if call.scope.cancelled_caught:
            await connection.check()

    def _must_not_go_on(self, call: QueuedCall) -> bool:
        tool = self._latest.find(call.name)
        return call.claim is not None and not self._server.url and tool is not None and bool(tool.checked_by)

    def _leave(self) -> QueuedCall | None:
        """Returns the call in flight, which is none any more."""
        call, self._current = self._current, None
        if call is not None:
            call.is_over.set()
        return call

    def _clean_up(self, task: "asyncio.Task[None]") -> None:
        """Ends what a connection left behind: the call in flight, and the wait for a catalogue."""
        self._is_up = False
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._problem = str(error) if isinstance(error, ToolSessionError) else self._message(str(error))
        if isinstance(error, ToolSessionError | McpConnectionLost):
            logger.warning("%s", self._problem)
        else:
            logger.error("%s (a defect of the session)", self._problem, exc_info=error)
        if (call := self._leave()) is not None:
            self._requeue(call)
        if isinstance(error, ToolSessionError):  # the next connection would fail in the same way
            self._fail_all(self._problem)
        self._latest.fail(self._problem)

    def _requeue(self, call: QueuedCall) -> None:
        """Puts a call back at the head of the queue, unless it may have run."""
        if call.may_have_run:
            why = f"{self._problem}; it may have run tool {call.name!r}"
            call.fail(ToolSessionError(why, may_have_run=True))
        elif not call.answer.done():
            call.connection = None
            call.is_over.clear()
            self._queue.appendleft(call)

    def _fail_all(self, why: str) -> None:
        current = self._leave()
        for call in [current, *self._queue] if current else list(self._queue):
            call.fail(ToolSessionError(why, call.may_have_run))
        self._queue.clear()

    def _timeout_message(self, call: QueuedCall, bound: float) -> str:
        if call.connection is None:
            why = f"tool {call.name!r} was not started within {bound:g} s, and will not be"
            why += f" (last problem: {self._problem})" if self._problem else ""
        else:
            why = f"tool {call.name!r} gave no answer within {bound:g} s; it may have run"
        return self._message(why)

    def _not_up(self) -> ToolSessionError:
        why = self._problem or self._message("it has not started yet")
        return ToolSessionError(why, may_have_run=False)

    def _message(self, why: str) -> str:
        return f"MCP server {self._server.name}: {why}"


async def end_task(task: "asyncio.Task[None]", name: str) -> None:
    """Cancels a task and waits for its end, at most `CLOSE_TIMEOUT_S`. Cancels it twice, because the exit of
    a transport may itself be waiting for a dead peer."""
    for _ in range(2):
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=CLOSE_TIMEOUT_S / 2)
    if not task.done():
        logger.error("MCP server %s: %s does not end", name, task.get_name())
    elif not task.cancelled():
        task.exception()  # marks it as seen, or asyncio would complain
