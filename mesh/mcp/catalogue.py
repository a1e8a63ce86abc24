"""The newest catalogue of one session, and the callers that wait for a newer one."""

import asyncio
from contextlib import suppress

from mesh.core.errors import ToolSessionError
from mesh.mcp.port import Catalogue, Tool


class LatestCatalogue:
    """Holds a catalogue. Its version starts at 1 and grows by one whenever the tools change."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._catalogue: Catalogue | None = None
        self._problem = ""
        self._changed = asyncio.Event()

    def update(self, tools: tuple[Tool, ...]) -> None:
        """Takes the tools as the server lists them now. Wakes nobody if they are what they were."""
        old = self._catalogue
        if old is None or old.tools != tools:
            self._catalogue = Catalogue(self._server, old.version + 1 if old else 1, tools)
            self._notify()

    def find(self, name: str) -> Tool | None:
        """Returns the tool of this name, if there is a catalogue that has one."""
        listed = self._catalogue.tools if self._catalogue is not None else ()
        return next((tool for tool in listed if tool.name == name), None)

    def fail(self, problem: str) -> None:
        """Records why there are no tools. Keeps a catalogue that is there already."""
        self._problem = problem
        self._notify()

    async def first(self, timeout_s: float) -> Catalogue:
        """Returns the catalogue, as soon as there is one.

        Raises `ToolSessionError` with the first problem that is recorded while there is none.
        """
        if self._catalogue is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
        if self._catalogue is None:
            why = self._problem or f"MCP server {self._server}: no list of tools within {timeout_s:g} s"
            raise ToolSessionError(why, may_have_run=False)
        return self._catalogue

    async def newer(self, version: int, timeout_s: float) -> Catalogue | None:
        """Returns the catalogue as soon as it is newer than ``version``, or as it is after ``timeout_s``
        seconds; None if there is none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._catalogue is None or self._catalogue.version <= version:
                    await self._changed.wait()
        return self._catalogue

    def _notify(self) -> None:
        # A new event each time: one that stays set would not make the next caller wait.
        self._changed.set()
        self._changed = asyncio.Event()
