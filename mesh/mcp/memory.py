"""A tool session without a server: plain functions as tools. For tests, and for tools of our own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from mesh.errors import ToolSessionError
from mesh.mcp.port import Catalogue, Tool, ToolOutcome
from mesh.mcp.shelf import Shelf

logger = logging.getLogger("mesh.mcp")

ToolFunction = Callable[[dict[str, Any]], Awaitable[ToolOutcome | str]]


class MemorySession:
    """See `mesh.mcp.port.ToolSession`. A function that raises gives an error outcome with its message."""

    def __init__(
        self, server_name: str, tools: Iterable[tuple[Tool, ToolFunction]], timeout_s: float = 60.0
    ) -> None:
        self._name = server_name
        self._timeout_s = timeout_s
        self._shelf = Shelf(server_name)
        self._turn = asyncio.Lock()  # first come, first served
        self._closed = False
        self.offer(tools)

    def offer(self, tools: Iterable[tuple[Tool, ToolFunction]]) -> None:
        """From now on these are the tools; who waits in `changed` learns of it."""
        pairs = list(tools)
        self._functions = {tool.name: function for tool, function in pairs}
        self._shelf.put(tuple(tool for tool, _ in pairs))

    async def catalogue(self) -> Catalogue:
        self._must_be_open()
        return await self._shelf.first(self._timeout_s)

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        self._must_be_open()
        await self._shelf.newer(version, timeout_s)
        return await self._shelf.first(timeout_s)

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float | None = None) -> ToolOutcome:
        self._must_be_open()
        bound = self._timeout_s if timeout_s is None else timeout_s
        started = False
        try:
            async with asyncio.timeout(bound), self._turn:
                self._must_be_open()
                started = True
                return await self._run(name, arguments)
        except TimeoutError:
            why = f"server {self._name}: tool {name!r} gave no answer within {bound:g} s"
            raise ToolSessionError(why, may_have_run=started) from None

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
