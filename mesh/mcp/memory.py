"""A tool session without a server: plain functions as tools. For tests, and for tools of our own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

from mesh.core.errors import ToolSessionError
from mesh.core.execution import ExecutionContext
from mesh.mcp.call_records import ClaimedCalls, SessionCall
from mesh.mcp.catalogue import LatestCatalogue
from mesh.mcp.port import Catalogue, Claim, Tool, ToolOutcome
from mesh.mcp.progress import OnProgress

logger = logging.getLogger("mesh.mcp")

ToolFunction = Callable[[dict[str, Any]], Awaitable[ToolOutcome | str]]

execution: ContextVar[ExecutionContext | None] = ContextVar("execution", default=None)
"""The context of the call that a function serves; None if its caller gave none."""
progress: ContextVar[OnProgress] = ContextVar("progress")
"""What a function tells how far it has come."""


class _MemoryCall(SessionCall):
    """A call of a function; ``task`` runs it."""

    is_running = False
    task: "asyncio.Task[None] | None" = None

    @property
    def has_begun(self) -> bool:
        return self.is_running


class MemorySession:
    """See `mesh.mcp.port.ToolSession`. A function that raises gives an error outcome with its message."""

    def __init__(
        self, server_name: str, tools: Iterable[tuple[Tool, ToolFunction]], timeout_s: float = 60.0
    ) -> None:
        self._name = server_name
        self._timeout_s = timeout_s
        self._latest = LatestCatalogue(server_name)
        self._turn = asyncio.Lock()  # fair: calls run in the order in which they came
        self._closed = False
        self._claimed: ClaimedCalls[_MemoryCall] = ClaimedCalls()
        self._backlog = 0
        self.offer(tools)

    def offer(self, tools: Iterable[tuple[Tool, ToolFunction]]) -> None:
        """Replaces the tools, and wakes those who wait in `changed`."""
        pairs = list(tools)
        self._functions = {tool.name: function for tool, function in pairs}
        self._latest.update(tuple(tool for tool, _ in pairs))

    async def catalogue(self) -> Catalogue:
        self._must_be_open()
        return await self._latest.first(self._timeout_s)

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        self._must_be_open()
        await self._latest.newer(version, timeout_s)
        return await self._latest.first(timeout_s)

    async def identity(self) -> str:
        self._must_be_open()
        return self._claimed.session

    async def backlog(self) -> int:
        self._must_be_open()
        return self._backlog

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolOutcome:
        self._must_be_open()
        call = self._claimed.find(claim, name, arguments) if claim else None
        if call is None:
            call = _MemoryCall(name, arguments, context=context)
            self._backlog += 1
            call.answer.add_done_callback(self._forget)
            call.task = asyncio.create_task(
                self._serve(call, self._timeout_s if timeout_s is None else timeout_s)
            )
            if claim is not None:
                self._claimed.add(claim, call)
        if on_progress is not None:
            call.progress.add(on_progress)
        try:
            return await asyncio.shield(call.answer)
        except asyncio.CancelledError:
            if claim is None and call.task is not None:
                call.task.cancel()
            raise

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        return await self._claimed.settle(claim)

    async def stop(self, claim: Claim) -> None:
        call = self._claimed.running(claim)
        if call is not None and call.task is not None:
            call.task.cancel()

    def _forget(self, _: "asyncio.Future[ToolOutcome]") -> None:
        self._backlog -= 1

    async def _serve(self, call: "_MemoryCall", bound: float) -> None:
        try:
            async with asyncio.timeout(bound), self._turn:
                if call.answer.done():
                    return  # revoked while it waited
                self._must_be_open()
                call.is_running = True
                execution.set(call.context)  # a call has a task of its own
                progress.set(call.progress.tell)
                call.succeed(await self._run(call.name, call.arguments))
        except TimeoutError:
            why = f"server {self._name}: tool {call.name!r} gave no answer within {bound:g} s"
            call.fail(ToolSessionError(why, may_have_run=call.is_running))
        except ToolSessionError as problem:
            call.fail(problem)
        finally:  # also if it was cancelled: a caller of `settle` may be waiting
            why = f"server {self._name}: tool {call.name!r} was broken off"
            call.fail(ToolSessionError(why, may_have_run=call.is_running))

    async def close(self) -> None:
        self._closed = True

    async def _run(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        function = self._functions.get(name)
        if function is None:
            return ToolOutcome(content=f"server {self._name} has no tool {name!r}", is_error=True)
        try:
            outcome = await function(arguments)
        except Exception as error:  # noqa: BLE001 - a tool's failure is an outcome, as on a real server
            logger.info("[%s] tool %s failed: %s", self._name, name, error)
            return ToolOutcome(content=str(error) or type(error).__name__, is_error=True)
        return ToolOutcome(content=outcome) if isinstance(outcome, str) else outcome

    def _must_be_open(self) -> None:
        if self._closed:
            raise ToolSessionError(f"server {self._name}: the session is closed", may_have_run=False)
