"""A session with one MCP server that outlives the server's crashes: the `ToolSession` over the SDK.

Above: an actor, or a toolbox in the same process. Below: `mesh.mcp.link`, one living connection.

    call() ──► waiting (bounded) ──► owner task: one life after another
                                       life: open a link, list the tools, serve the calls one by one
                                       between lives: back off, 0.1 s doubling to 10 s, with jitter

- A call waits in its own task, so that its deadline holds whatever state the owner is in.
- A life is a task of its own: what the SDK cancels when a connection breaks ends with it.
- A call that certainly never reached a server goes back to the head of the line and meets the next
  life, until its deadline; one that may have run ends with the life, and says so.
- After a call that was given up, the server must answer a ping within 2 s, or it is killed.
"""

import asyncio
import logging
import random
from collections import deque
from contextlib import suppress
from typing import Any

import anyio

from mesh.core.errors import ToolSessionError, Unavailable
from mesh.mcp.calls import Call, KnownCalls
from mesh.mcp.link import Link, LinkLost, ServerSpec, open_link
from mesh.mcp.port import Catalogue, Claim, ToolOutcome
from mesh.mcp.session_file import SessionFile
from mesh.mcp.shelf import Shelf

logger = logging.getLogger("mesh.mcp")

MAX_WAITING = 1000
BACKOFF_S = (0.1, 10.0)
SETTLED_S = 10.0
CLOSE_S = 8.0

__all__ = ["McpSession", "ServerSpec"]


class Request(Call):
    """A call on its way. `link`: the connection it was given to. `scope` ends it while in flight."""

    def __init__(self, name: str, arguments: dict[str, Any], claim: Claim | None) -> None:
        super().__init__(name, arguments, claim)
        self.scope = anyio.CancelScope()
        self.link: Link | None = None

    @property
    def has_begun(self) -> bool:
        return self.link is not None

    @property
    def may_have_run(self) -> bool:
        return self.link is not None and self.link.wire.reached


class McpSession:
    """See the module and `mesh.mcp.port.ToolSession`. Starts on first use, in the running loop. Of all
    sessions with one ``file`` one lives at a time."""

    def __init__(self, server: ServerSpec, file: SessionFile | None = None) -> None:
        self._server = server
        self._file = file
        self._known: KnownCalls[Request] = KnownCalls()
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None
        self._wake = asyncio.Event()
        self._shelf = Shelf(server.name)
        self._owner: asyncio.Task[None] | None = None
        self._closed = False
        self._settled = False
        self._problem = ""

    async def catalogue(self) -> Catalogue:
        await self._start()
        return await self._shelf.first(self._server.start_timeout_s)

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        await self._start()
        newest = await self._shelf.newer(version, timeout_s)
        if newest is None:
            raise ToolSessionError(self._problem or self._say("it has not started yet"), may_have_run=False)
        return newest

    async def identity(self) -> str:
        await self.catalogue()
        return self._known.session

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
    ) -> ToolOutcome:
        await self._start()
        request = self._known.find(claim) if claim else None
        if request is None:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting = deque(each for each in self._waiting if not each.answer.done())
            if len(self._waiting) >= MAX_WAITING:
                raise ToolSessionError(self._say(f"{MAX_WAITING} calls wait already"), may_have_run=False)
            request = Request(name, arguments, claim)
            if claim is not None:
                self._known.add(claim, request)
            self._queue(request, self._server.timeout_s if timeout_s is None else timeout_s)
        try:
            return await asyncio.shield(request.answer)
        except asyncio.CancelledError:
            if claim is None:
                self._give_up(request, self._say(f"tool {name!r}: its caller went away"))
            raise

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        try:
            await self._start()
        except ToolSessionError as problem:  # an earlier session may still run it, and may tell later
            raise Unavailable(str(problem)) from None
        return await self._known.settle(claim)

    def _queue(self, request: Request, bound: float) -> None:
        """From here on the deadline of the call holds, whoever waits for it."""
        deadline = asyncio.get_running_loop().call_later(
            bound, lambda: self._give_up(request, self._too_late(request, bound))
        )
        request.answer.add_done_callback(lambda _: deadline.cancel())
        self._waiting.append(request)
        self._wake.set()

    def _give_up(self, request: Request, why: str) -> None:
        request.fail(ToolSessionError(why, request.may_have_run))
        request.scope.cancel()
        with suppress(ValueError):
            self._waiting.remove(request)

    async def close(self) -> None:
        self._closed = True
        owner, self._owner = self._owner, None
        if owner is not None:
            await finish(owner, self._server.name)
        self._fail_all(self._say("the session is closed"))
        if self._file is not None:
            self._file.release()

    async def _start(self) -> None:
        """Starts the owner, once nothing of an earlier session's server runs."""
        if self._closed:
            raise ToolSessionError(self._say("the session is closed"), may_have_run=False)
        if self._file is not None and not self._known.is_open:
            await self._file.take()
            # Several callers may have waited for the file: one of them opens the calls, or each would begin
            # a generation of its own, and the first ones would be forgotten.
            if not self._known.is_open:
                self._known.open(self._file)
        if self._owner is None and not self._closed:
            self._owner = asyncio.create_task(self._live_on(), name=f"mcp {self._server.name}")

    async def _live_on(self) -> None:
        """One life after another, until closed."""
        delay, longest = BACKOFF_S
        while True:
            self._settled = False
            life = asyncio.create_task(self._live(), name=f"mcp {self._server.name} life")
            try:
                await asyncio.wait([life])
            finally:
                await finish(life, self._server.name)
            self._bury(life)
            delay = BACKOFF_S[0] if self._settled else min(delay * 2, longest)
            await asyncio.sleep(delay * random.uniform(0.5, 1))

    async def _live(self) -> None:
        await self._hold_file()
        born = asyncio.get_running_loop().time()
        async with open_link(self._server, self._wake.set, self._file) as link:
            await self._refresh(link)
            logger.info("MCP server %s is up", self._server.name)
            while True:
                await self._step(link)
                self._settled = self._settled or asyncio.get_running_loop().time() - born > SETTLED_S

    async def _hold_file(self) -> None:
        """Takes the file again if it was removed. What waits must not run when somebody else may have been
        told meanwhile that nobody knows what came of it."""
        if self._file is None or not self._file.is_removed:
            return
        is_alone = await self._file.take_again()
        self._known.open(self._file)
        if not is_alone:
            why = "its file was removed, and another session has lived meanwhile"
            raise ToolSessionError(self._say(why), may_have_run=False)

    async def _step(self, link: Link) -> None:
        # Invariant: cleared before the conditions are read, so that a wake-up is never lost.
        self._wake.clear()
        if link.lost:
            raise LinkLost(link.wire.trouble or "the connection ended")
        if link.stale:
            await self._refresh(link)
        elif self._waiting:
            await self._serve(link, self._waiting.popleft())
        else:
            await self._wake.wait()

    async def _refresh(self, link: Link) -> None:
        bound = self._server.start_timeout_s
        with anyio.move_on_after(bound) as patience:
            self._shelf.put(await link.tools())
        if patience.cancelled_caught:
            link.wire.doom(f"it did not list its tools within {bound:g} s")
            raise LinkLost(link.wire.trouble)

    async def _serve(self, link: Link, request: Request) -> None:
        if request.answer.done():
            return
        if request.claim is not None and self._file is not None and self._file.is_removed:
            self._waiting.appendleft(request)
            raise LinkLost(f"the file of its session was removed from {self._file.folder}")
        try:
            self._known.begin(request)
        except ToolSessionError as problem:
            request.fail(problem)
            return
        # Invariant: from here to the answer, whatever ends this life finds the call in `_current`.
        self._current, request.link = request, link
        with request.scope:
            outcome = await link.call(request.name, request.arguments)
            self._settled = True
            request.succeed(outcome)
        self._current = None
        if request.scope.cancelled_caught:
            await link.check()

    def _bury(self, life: "asyncio.Task[None]") -> None:
        """Settles what a life left behind: the call in flight, those who wait for a catalogue."""
        error = asyncio.CancelledError() if life.cancelled() else life.exception()
        self._problem = str(error) if isinstance(error, ToolSessionError) else self._say(str(error))
        if isinstance(error, ToolSessionError | LinkLost):
            logger.warning("%s", self._problem)
        else:
            logger.error("%s (a defect of the session)", self._problem, exc_info=error)
        request, self._current = self._current, None
        if request is not None:
            self._give_back(request)
        if isinstance(error, ToolSessionError):  # trying again does not help: nobody should wait for it
            self._fail_all(self._problem)
        self._shelf.fail(self._problem)

    def _give_back(self, request: Request) -> None:
        if request.may_have_run:
            why = f"{self._problem}; it may have run tool {request.name!r}"
            request.fail(ToolSessionError(why, may_have_run=True))
        elif not request.answer.done():
            request.link = None
            self._waiting.appendleft(request)

    def _fail_all(self, why: str) -> None:
        current, self._current = self._current, None
        for request in [current, *self._waiting] if current else list(self._waiting):
            request.fail(ToolSessionError(why, request.may_have_run))
        self._waiting.clear()

    def _too_late(self, request: Request, bound: float) -> str:
        if request.link is None:
            why = f"tool {request.name!r} was not started within {bound:g} s, and will not be"
            why += f" (last problem: {self._problem})" if self._problem else ""
        else:
            why = f"tool {request.name!r} gave no answer within {bound:g} s; it may have run"
        return self._say(why)

    def _say(self, why: str) -> str:
        return f"MCP server {self._server.name}: {why}"


async def finish(task: "asyncio.Task[None]", name: str) -> None:
    """Cancels ``task`` and waits for its end, at most `CLOSE_S` seconds: a second cancel frees an exit
    that waits for a dead peer."""
    for _ in range(2):
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=CLOSE_S / 2)
    if not task.done():
        logger.error("MCP server %s: %s does not end", name, task.get_name())
    elif not task.cancelled():
        task.exception()  # looked at, so that asyncio does not report it: close() has nobody to tell
