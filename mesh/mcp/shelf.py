"""The newest catalogue of one session, and whoever waits for a newer one."""

import asyncio
from contextlib import suppress

from mesh.core.errors import ToolSessionError
from mesh.mcp.port import Catalogue, Tool


class Shelf:
    """Holds a catalogue. The version starts at 1 and grows by one when the tools are others."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._catalogue: Catalogue | None = None
        self._problem = ""
        self._news = asyncio.Event()

    def put(self, tools: tuple[Tool, ...]) -> None:
        """The tools as the server lists them now. Says nothing to anyone when they are what they were."""
        old = self._catalogue
        if old is None or old.tools != tools:
            self._catalogue = Catalogue(self._server, old.version + 1 if old else 1, tools)
            self._tell()

    def fail(self, problem: str) -> None:
        """There are no tools, for this reason. Does not take away a catalogue that is there."""
        self._problem = problem
        self._tell()

    async def first(self, timeout_s: float) -> Catalogue:
        """The catalogue, or the first problem that comes up while there is none.

        Raises `ToolSessionError`."""
        if self._catalogue is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        if self._catalogue is None:
            why = self._problem or f"MCP server {self._server}: no list of tools within {timeout_s:g} s"
            raise ToolSessionError(why, may_have_run=False)
        return self._catalogue

    async def newer(self, version: int, timeout_s: float) -> Catalogue | None:
        """The catalogue once it is newer than ``version``, or as it is after ``timeout_s`` seconds; None
        when there is none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._catalogue is None or self._catalogue.version <= version:
                    await self._news.wait()
        return self._catalogue

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
