"""A tool session in memory whose server dies."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from mesh.core.errors import ToolSessionError
from mesh.core.execution import ExecutionContext
from mesh.mcp.call_records import ClaimedCalls
from mesh.mcp.memory import MemorySession, ToolFunction
from mesh.mcp.port import Claim, Tool, ToolOutcome
from mesh.mcp.progress import OnProgress

Death = Literal["", "before", "after"]
"""Whether the server dies in a call, before the tool has run or after."""


class DyingSession(MemorySession):
    """A session whose server dies in its next claimed calls as ``deaths`` say, one call after the other."""

    def __init__(
        self, server_name: str, tools: Iterable[tuple[Tool, ToolFunction]], deaths: Sequence[Death] = ()
    ) -> None:
        super().__init__(server_name, tools)
        self._deaths = list(deaths)
        self._unknown: set[Claim] = set()

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolOutcome:
        death = self._deaths.pop(0) if claim is not None and self._deaths else ""
        if claim is None or not death:
            return await super().call(name, arguments, timeout_s, claim, context, on_progress)
        if death == "after":
            await super().call(name, arguments, timeout_s, claim, context, on_progress)
        self._unknown.add(claim)
        raise ToolSessionError("its server died", may_have_run=True)

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        if claim in self._unknown:
            raise ToolSessionError("its server died", may_have_run=True)
        return await super().settle(claim)

    def forget(self) -> None:
        """From now on it is as a session that has just started."""
        self._claimed = ClaimedCalls()
